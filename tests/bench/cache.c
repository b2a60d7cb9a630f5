/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the registration cache costs, as a benchmark:
 *
 *	pier-cache-perf DEVICE hit REGIONS HITS [watched]   prints seconds of one hit
 *	pier-cache-perf DEVICE instructions REGIONS HITS    for callgrind, see below
 *	pier-cache-perf DEVICE register COUNT               prints two times in seconds
 *
 * hit makes a cache of so many regions of 64 bytes and then gets and puts them in
 * a random order, the same in every run. Pages are not watched, as if the caller
 * invalidated by hand, unless that is asked for; one hit of a watched cache has a
 * system call.
 *
 * instructions does the same and prints how many hits it made; they are the only
 * ones below measure_hits(), where callgrind is told to count:
 *
 *	valgrind --tool=callgrind --toggle-collect=measure_hits ...
 *
 * register compares, on one device, registering and deregistering 1 MiB of host
 * memory with a hit of the same: first the one, then the other.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <pier/pier.h>

#define PROGRAM "pier-cache-perf"
#include "bench.h"

enum {
	LENGTH = 64, /* of a region */
	MIB = 1 << 20,
};

struct bench {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr_cache *cache;
	char *memory;
	size_t regions;
};

/* The name is also an argument of callgrind. */
void measure_hits(const struct bench *bench, const uint32_t *order, uint64_t hits);

static void open_bench(struct bench *bench, const char *device, size_t regions,
		       size_t length, uint32_t flags)
{
	struct pier_mr_cache_attr attr;

	pier_mr_cache_attr_init(&attr);
	attr.max_count = regions;
	attr.flags = flags;
	bench->regions = regions;
	bench->memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (bench->memory == MAP_FAILED)
		die("mmap");
	if (pier_device_open(device, &bench->device) ||
	    pier_pd_alloc(bench->device, &bench->pd) ||
	    pier_mr_cache_create(bench->pd, &attr, &bench->cache))
		die("opening");
}

static void close_bench(struct bench *bench)
{
	if (pier_mr_cache_destroy(bench->cache) || pier_pd_dealloc(bench->pd) ||
	    pier_device_close(bench->device))
		die("closing");
}

static void get_and_put(const struct bench *bench, size_t region)
{
	struct pier_mr_range range = pier_mr_range_pointer(
		bench->memory + region * LENGTH, LENGTH);
	struct pier_mr *mr;

	if (pier_mr_cache_get(bench->cache, &range, PIER_ACCESS_SHARED, &mr) ||
	    pier_mr_cache_put(bench->cache, mr))
		die("a region of the cache");
}

__attribute__((noinline)) void measure_hits(const struct bench *bench,
					    const uint32_t *order, uint64_t hits)
{
	for (uint64_t i = 0; i < hits; i++)
		get_and_put(bench, order[i]);
}

/* A random order of regions, beginning with one pass over all of them. */
static uint32_t *make_order(size_t regions, uint64_t hits)
{
	uint32_t *order = malloc(hits * sizeof(*order));
	uint64_t state = 88172645463325252u;

	if (!order)
		die("malloc");
	for (uint64_t i = 0; i < hits; i++) {
		state ^= state << 13; /* xorshift64 (Marsaglia) */
		state ^= state >> 7;
		state ^= state << 17;
		order[i] = (uint32_t)(state % regions);
	}
	return order;
}

static void check_hits(const struct bench *bench, uint64_t hits)
{
	struct pier_mr_cache_stats stats;

	pier_mr_cache_query_stats(bench->cache, &stats, sizeof(stats));
	if (stats.hits == hits && stats.count == bench->regions)
		return;
	fprintf(stderr, "pier-cache-perf: %llu hits of %llu, %u regions of %zu\n",
		(unsigned long long)stats.hits, (unsigned long long)hits, stats.count,
		bench->regions);
	exit(1);
}

/* Returns the seconds of one hit. */
static double run_hits(const char *device, size_t regions, uint64_t hits, uint32_t flags)
{
	struct bench bench;
	uint32_t *order = make_order(regions, hits);
	double start, seconds;

	open_bench(&bench, device, regions, regions * LENGTH, flags);
	for (size_t i = 0; i < regions; i++)
		get_and_put(&bench, i);
	start = now();
	measure_hits(&bench, order, hits);
	seconds = (now() - start) / (double)hits;
	check_hits(&bench, hits);
	close_bench(&bench);
	munmap(bench.memory, regions * LENGTH);
	free(order);
	return seconds;
}

static double register_once(const struct bench *bench, uint64_t count)
{
	double start = now();
	struct pier_mr *mr;

	for (uint64_t i = 0; i < count; i++)
		if (pier_mr_reg(bench->pd, bench->memory, MIB, PIER_ACCESS_SHARED, &mr) ||
		    pier_mr_dereg(mr))
			die("registering");
	return (now() - start) / (double)count;
}

static double hit_once(const struct bench *bench, uint64_t count)
{
	struct pier_mr_range range = pier_mr_range_pointer(bench->memory, MIB);
	struct pier_mr *mr;
	double start = 0;

	/* The first get is no hit. */
	for (uint64_t i = 0; i <= count; i++) {
		if (i == 1)
			start = now();
		if (pier_mr_cache_get(bench->cache, &range, PIER_ACCESS_SHARED, &mr) ||
		    pier_mr_cache_put(bench->cache, mr))
			die("a region of the cache");
	}
	return (now() - start) / (double)count;
}

static void run_register(const char *device, uint64_t count)
{
	struct bench bench;
	double registering;

	open_bench(&bench, device, 1, MIB, 0);
	registering = register_once(&bench, count);
	printf("%.9g %.9g\n", registering, hit_once(&bench, 100 * count));
	check_hits(&bench, 100 * count);
	close_bench(&bench);
	munmap(bench.memory, MIB);
}

int main(int argc, char **argv)
{
	uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
	uint64_t hits = argc > 4 ? strtoull(argv[4], NULL, 0) : 0;
	bool watched = argc > 5 && strcmp(argv[5], "watched") == 0;

	if (argc > 2 && first > 0 && strcmp(argv[2], "register") == 0) {
		run_register(argv[1], first);
	} else if (first > 0 && hits > 0 && strcmp(argv[2], "hit") == 0) {
		printf("%.9g\n", run_hits(argv[1], first, hits,
					  watched ? 0 : PIER_MR_CACHE_UNWATCHED));
	} else if (first > 0 && hits > 0 && strcmp(argv[2], "instructions") == 0) {
		run_hits(argv[1], first, hits, PIER_MR_CACHE_UNWATCHED);
		printf("%llu\n", (unsigned long long)hits);
	} else {
		fprintf(stderr,
			"usage: %s DEVICE hit|instructions REGIONS HITS [watched]\n"
			"       %s DEVICE register COUNT\n",
			argv[0], argv[0]);
		return 2;
	}
	return 0;
}
