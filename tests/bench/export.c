/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What pier adds to an export by the CUDA driver. With the fake driver in
 * LD_LIBRARY_PATH:
 *
 *	pier-export WAY COUNT
 *
 * exports 1 MiB of device memory COUNT times and closes each, and prints the seconds that
 * one took; below measure() callgrind counts instructions. WAY is one of
 *
 *	bare     cuMemGetHandleForAddressRange() and close(2), with the context current
 *	calls    what every export takes: also the context pushed and popped, and
 *	         close-on-exec
 *	pier     pier_dmabuf_export() and pier_dmabuf_close()
 *	wrapped  the same of memory that the application allocated
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <pier/pier.h>

#include "backends/cuda/api.h"

#define PROGRAM "pier-export"
#include "bench.h"

enum {
	LENGTH = 1 << 20,
	ALLOCATION = 2 << 20,
};

static struct pier_cu_calls driver;

struct bench {
	struct pier_buffer *buffer;
	CUdeviceptr address;
	CUcontext context;
	uint64_t count;
};

static int ask(const struct bench *bench)
{
	int fd = -1;

	if (driver.cuMemGetHandleForAddressRange(&fd, bench->address, LENGTH,
						 CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0))
		die("cuMemGetHandleForAddressRange");
	return fd;
}

static void run_bare(const struct bench *bench)
{
	for (uint64_t i = 0; i < bench->count; i++) {
		if (close(ask(bench)))
			die("close");
	}
}

static void run_calls(const struct bench *bench)
{
	CUcontext popped;
	int fd;

	for (uint64_t i = 0; i < bench->count; i++) {
		if (driver.cuCtxPushCurrent(bench->context))
			die("push");
		fd = ask(bench);
		if (fcntl(fd, F_SETFD, FD_CLOEXEC) || driver.cuCtxPopCurrent(&popped) ||
		    close(fd))
			die("pop");
	}
}

static void run_pier(const struct bench *bench)
{
	struct pier_dmabuf dmabuf;

	for (uint64_t i = 0; i < bench->count; i++) {
		if (pier_dmabuf_export(bench->buffer, 0, LENGTH, PIER_MAPPING_AUTO,
				       &dmabuf))
			die("export");
		pier_dmabuf_close(&dmabuf);
	}
}

static const struct way {
	const char *name;
	void (*run)(const struct bench *bench);
	bool current; /* the context is */
	bool wrapped;
} ways[] = {
	{ "bare", run_bare, true, false },
	{ "calls", run_calls, false, false },
	{ "pier", run_pier, false, false },
	{ "wrapped", run_pier, false, true },
};

void measure(const struct way *way, const struct bench *bench);

__attribute__((noinline)) void measure(const struct way *way, const struct bench *bench)
{
	way->run(bench);
}

static void open_driver(struct bench *bench)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CUcontext popped;

	if (!library)
		die("no libcuda.so.1: put the folder of the fake into LD_LIBRARY_PATH");
#define FIND(name, since, symbol, parameters) \
	*(void **)&driver.name = dlsym(library, symbol);
	PIER_CU_CALLS(FIND)
#undef FIND
	if (driver.cuInit(0) || driver.cuDevicePrimaryCtxRetain(&bench->context, 0) ||
	    driver.cuCtxPushCurrent(bench->context) ||
	    driver.cuMemAlloc(&bench->address, ALLOCATION) ||
	    driver.cuCtxPopCurrent(&popped))
		die("the driver");
}

static void make_buffer(const struct way *way, struct bench *bench)
{
	int error;

	if (way->wrapped)
		error = pier_buffer_wrap((void *)(uintptr_t)bench->address, ALLOCATION,
					 &bench->buffer);
	else
		error = pier_buffer_alloc("cuda:0", ALLOCATION, &bench->buffer);
	if (error)
		die("the buffer");
}

/* One run before, so that one-time costs are not measured. */
static double run_timed(const struct way *way, struct bench *bench)
{
	uint64_t count = bench->count;
	double start;

	if (way->current)
		driver.cuCtxPushCurrent(bench->context);
	bench->count = 1;
	way->run(bench);
	bench->count = count;
	start = now();
	measure(way, bench);
	return (now() - start) / (double)count;
}

int main(int argc, char **argv)
{
	struct bench bench = { 0 };

	if (argc != 3)
		die("usage: pier-export WAY COUNT");
	bench.count = strtoull(argv[2], NULL, 10);
	open_driver(&bench);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		if (strcmp(ways[i].name, argv[1]) != 0)
			continue;
		make_buffer(&ways[i], &bench);
		printf("%.9f\n", run_timed(&ways[i], &bench));
		return 0;
	}
	die("no such way");
}
