/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Counts the instructions that registering and deregistering memory of a GPU takes:
 *
 *	valgrind --tool=callgrind --toggle-collect=measure pier-preload-WAY COUNT
 *
 * on libpier-verbs and the fake CUDA driver. The difference of two counts leaves out the
 * first use. WAY is "plain", a program that knows ibv_reg_mr() alone and is linked with
 * libpier-dmabuf, or "pier", which calls pier itself (PIER defined).
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <infiniband/verbs.h>

#ifdef PIER
#include <pier/pier.h>
#include <pier/verbs.h>
#endif

#include "backends/cuda/api.h"

enum {
	LENGTH = 4 * 65536,
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
};

static void must(int failed, const char *step)
{
	if (!failed)
		return;
	fprintf(stderr, "pier-preload: %s failed\n", step);
	exit(1);
}

static void *function(void *driver, const char *name)
{
	void *found = dlsym(driver, name);

	must(!found, name);
	return found;
}

static void *allocate(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CUresult (*init)(unsigned int flags);
	CUresult (*retain)(CUcontext * ret_context, CUdevice device);
	CUresult (*set_current)(CUcontext context);
	CUresult (*alloc)(CUdeviceptr * ret_pointer, size_t size);
	CUcontext context = NULL;
	CUdeviceptr memory = 0;

	must(!driver, "dlopen");
	*(void **)&init = function(driver, "cuInit");
	*(void **)&retain = function(driver, "cuDevicePrimaryCtxRetain");
	*(void **)&set_current = function(driver, "cuCtxSetCurrent");
	*(void **)&alloc = function(driver, "cuMemAlloc_v2");
	must(init(0) || retain(&context, 0) || set_current(context) ||
		     alloc(&memory, LENGTH),
	     "an allocation");
	return (void *)(uintptr_t)memory;
}

#ifdef PIER
static struct pier_pd *import(struct ibv_pd *pd)
{
	struct pier_pd *imported;

	must(pier_pd_import(pd, &imported), "pier_pd_import");
	return imported;
}

static __attribute__((noinline)) void measure(struct pier_pd *pd, void *memory, int count)
{
	struct pier_buffer *buffer;
	struct pier_mr *mr;

	while (count--) {
		must(pier_buffer_wrap(memory, LENGTH, &buffer), "pier_buffer_wrap");
		must(pier_mr_reg_buffer(pd, buffer, 0, LENGTH, ACCESS, PIER_POLICY_DIRECT,
					&mr),
		     "pier_mr_reg_buffer");
		must(pier_mr_dereg(mr), "pier_mr_dereg");
		must(pier_buffer_free(buffer), "pier_buffer_free");
	}
}
#else
static struct ibv_pd *import(struct ibv_pd *pd)
{
	return pd;
}

static __attribute__((noinline)) void measure(struct ibv_pd *pd, void *memory, int count)
{
	struct ibv_mr *mr;

	while (count--) {
		mr = ibv_reg_mr(pd, memory, LENGTH, ACCESS);
		must(!mr, "ibv_reg_mr");
		must(ibv_dereg_mr(mr), "ibv_dereg_mr");
	}
}
#endif

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;

	must(argc != 2, "usage: pier-preload-WAY COUNT:");
	must(!list || !list[0], "ibv_get_device_list");
	context = ibv_open_device(list[0]);
	must(!context, "ibv_open_device");
	pd = ibv_alloc_pd(context);
	must(!pd, "ibv_alloc_pd");
	measure(import(pd), allocate(), atoi(argv[1]));
	return 0;
}
