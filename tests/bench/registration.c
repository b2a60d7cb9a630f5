/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What registering and deregistering takes, beside the bare system calls:
 *
 *	pier-registration DEVICE LENGTH ROUNDS
 *
 * prints a line for each pair of contestants, with tabs: the names, and the medians of
 * the rounds in seconds. A round has both once, the one or the other first. DEVICE is one
 * of the rxe driver that takes dma-bufs, as tests/vm/guest has it.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <pier/pier.h>
#include <pier/verbs.h>

#include "../vm/uverbs.h"

struct bench {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_dmabuf dmabuf;
	void *memory;
	size_t length;
};

static void die(const char *step, const char *cause)
{
	fprintf(stderr, "pier-registration: %s: %s\n", step, cause);
	exit(1);
}

static void must(int error, const char *step)
{
	if (error)
		die(step, pier_error_message());
}

static void bare_dmabuf(const struct bench *bench)
{
	struct ibv_pd *pd = pier_pd_verbs(bench->pd);
	struct uverbs_mr mr;
	int error = uverbs_reg_dmabuf_mr(pd, bench->dmabuf.offset, bench->length,
					 bench->dmabuf.iova, bench->dmabuf.fd,
					 PIER_ACCESS_SHARED, &mr);

	if (!error)
		error = uverbs_dereg_mr(pd->context, &mr);
	if (error)
		die("the system call", strerror(-error));
}

static void verbs_dmabuf(const struct bench *bench)
{
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(
		pier_pd_verbs(bench->pd), bench->dmabuf.offset, bench->length,
		bench->dmabuf.iova, bench->dmabuf.fd, PIER_ACCESS_SHARED);

	if (!mr || ibv_dereg_mr(mr))
		die("ibv_reg_dmabuf_mr", strerror(errno));
}

static void pier_dmabuf(const struct bench *bench)
{
	struct pier_mr *mr = NULL;

	must(pier_mr_reg_dmabuf(bench->pd, bench->dmabuf.offset, bench->length,
				bench->dmabuf.iova, bench->dmabuf.fd, PIER_ACCESS_SHARED,
				&mr),
	     "pier_mr_reg_dmabuf");
	must(pier_mr_dereg(mr), "pier_mr_dereg");
}

static void pier_buffer(const struct bench *bench)
{
	struct pier_mr *mr = NULL;

	must(pier_mr_reg_buffer(bench->pd, bench->buffer, 0, bench->length,
				PIER_ACCESS_SHARED, PIER_POLICY_DIRECT, &mr),
	     "pier_mr_reg_buffer");
	must(pier_mr_dereg(mr), "pier_mr_dereg");
}

static void verbs_host(const struct bench *bench)
{
	struct ibv_mr *mr = ibv_reg_mr(pier_pd_verbs(bench->pd), bench->memory,
				       bench->length, PIER_ACCESS_SHARED);

	if (!mr || ibv_dereg_mr(mr))
		die("ibv_reg_mr", strerror(errno));
}

static void pier_host(const struct bench *bench)
{
	struct pier_mr *mr = NULL;

	must(pier_mr_reg(bench->pd, bench->memory, bench->length, PIER_ACCESS_SHARED,
			 &mr),
	     "pier_mr_reg");
	must(pier_mr_dereg(mr), "pier_mr_dereg");
}

struct contestant {
	const char *name;
	void (*run)(const struct bench *bench);
};

/* Each contestant with the least that it could cost. */
static const struct {
	struct contestant bare, beside;
} pairs[] = {
	{ { "bare ioctl, dma-buf", bare_dmabuf }, { "ibv_reg_dmabuf_mr", verbs_dmabuf } },
	{ { "bare ioctl, dma-buf", bare_dmabuf }, { "pier_mr_reg_dmabuf", pier_dmabuf } },
	{ { "bare ioctl, dma-buf", bare_dmabuf },
	  { "pier_mr_reg_buffer, udmabuf", pier_buffer } },
	{ { "ibv_reg_mr, host memory", verbs_host },
	  { "pier_mr_reg, host memory", pier_host } },
};

enum {
	PAIRS = sizeof(pairs) / sizeof(pairs[0]),
};

static double seconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

static struct bench open_bench(const char *device, size_t length)
{
	struct bench bench = { .length = length };

	must(pier_device_open(device, &bench.device), "pier_device_open");
	must(pier_pd_alloc(bench.device, &bench.pd), "pier_pd_alloc");
	must(pier_buffer_alloc("udmabuf", length, &bench.buffer), "pier_buffer_alloc");
	must(pier_dmabuf_export(bench.buffer, 0, length, PIER_MAPPING_AUTO,
				&bench.dmabuf),
	     "export");
	bench.memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (bench.memory == MAP_FAILED)
		die("mmap", strerror(errno));
	return bench;
}

static void close_bench(struct bench *bench)
{
	munmap(bench->memory, bench->length);
	pier_dmabuf_close(&bench->dmabuf);
	must(pier_buffer_free(bench->buffer), "pier_buffer_free");
	must(pier_pd_dealloc(bench->pd), "pier_pd_dealloc");
	must(pier_device_close(bench->device), "pier_device_close");
}

static double time_one(const struct bench *bench, const struct contestant *contestant)
{
	double start = seconds();

	contestant->run(bench);
	return seconds() - start;
}

static double median(double *samples, size_t count)
{
	qsort(samples, count, sizeof(*samples), by_size);
	return samples[count / 2];
}

/* The contestants alternate in running first, so that caches favour neither. */
static void run_pair(const struct bench *bench, size_t pair, size_t rounds,
		     double *samples)
{
	const struct contestant *bare = &pairs[pair].bare;
	const struct contestant *beside = &pairs[pair].beside;

	for (size_t i = 0; i < rounds; i++) {
		if (i % 2)
			samples[rounds + i] = time_one(bench, beside);
		samples[i] = time_one(bench, bare);
		if (i % 2 == 0)
			samples[rounds + i] = time_one(bench, beside);
	}
	printf("%s\t%s\t%.9f\t%.9f\n", bare->name, beside->name, median(samples, rounds),
	       median(samples + rounds, rounds));
}

int main(int argc, char **argv)
{
	size_t length = argc == 4 ? strtoull(argv[2], NULL, 0) : 0;
	size_t rounds = argc == 4 ? strtoull(argv[3], NULL, 0) : 0;
	double *samples = calloc(2 * rounds + 1, sizeof(*samples));
	struct bench bench;

	if (length == 0 || rounds == 0 || !samples) {
		fprintf(stderr, "usage: pier-registration DEVICE LENGTH ROUNDS\n");
		return 2;
	}
	bench = open_bench(argv[1], length);
	for (size_t i = 0; i < PAIRS; i++)
		run_pair(&bench, i, rounds, samples);
	close_bench(&bench);
	free(samples);
	return 0;
}
