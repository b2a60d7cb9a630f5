/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What registering untouched host memory takes:
 *
 *	pier-populate DEVICE LENGTH THREADS ROUNDS
 *
 * Each round registers LENGTH new bytes three times: alone, and after
 * pier_memory_populate() with one thread and with THREADS. Prints the medians in seconds,
 * and the last one divided by the first and by the second. soft0 allocates missing pages
 * itself when it registers, in one thread, and walks over those that are there.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <pier/pier.h>

#define PROGRAM "pier-populate"
#include "bench.h"

enum {
	WAYS = 3,
	ROUNDS_MAX = 1000,
};

static double register_once(struct pier_pd *pd, size_t length, uint32_t threads)
{
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pier_mr *mr;
	double start, end;

	if (memory == MAP_FAILED)
		die("mmap");
	start = now();
	if (threads && pier_memory_populate(memory, length, PIER_ACCESS_SHARED, threads))
		die("populate");
	if (pier_mr_reg(pd, memory, length, PIER_ACCESS_SHARED, &mr))
		die("register");
	end = now();
	if (pier_mr_dereg(mr))
		die("deregister");
	munmap(memory, length);
	return end - start;
}

static void run_rounds(struct pier_pd *pd, size_t length, uint32_t threads, size_t rounds)
{
	static double samples[WAYS][ROUNDS_MAX];
	const uint32_t used[WAYS] = { 0, 1, threads };

	for (size_t round = 0; round < rounds; round++) {
		for (size_t i = 0; i < WAYS; i++) {
			size_t way = (round + i) % WAYS;

			samples[way][round] = register_once(pd, length, used[way]);
		}
	}
	for (size_t way = 0; way < WAYS; way++) {
		qsort(samples[way], rounds, sizeof(samples[way][0]), compare_times);
		printf("%.6f ", samples[way][rounds / 2]);
	}
	printf("%.3f %.3f\n", samples[2][rounds / 2] / samples[0][rounds / 2],
	       samples[2][rounds / 2] / samples[1][rounds / 2]);
}

int main(int argc, char **argv)
{
	struct pier_device *device = NULL;
	struct pier_pd *pd = NULL;
	size_t rounds = argc == 5 ? strtoull(argv[4], NULL, 0) : 0;

	if (rounds < 1 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: " PROGRAM " DEVICE LENGTH THREADS ROUNDS\n");
		return 2;
	}
	if (pier_device_open(argv[1], &device) || pier_pd_alloc(device, &pd))
		die("device");
	run_rounds(pd, strtoull(argv[2], NULL, 0), (uint32_t)strtoul(argv[3], NULL, 0),
		   rounds);
	pier_pd_dealloc(pd);
	pier_device_close(device);
	return 0;
}
