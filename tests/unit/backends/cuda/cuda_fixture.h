/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_CUDA_FIXTURE_H
#define TESTS_UNIT_CUDA_FIXTURE_H

/* The backend on the fake driver, with an application beside it. */

#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <pier/pier.h>

#include "backends/backend.h"
#include "cuda/calls.h"
#include "core/page.h"

enum {
	FIXTURE_MIB = 1 << 20,
	FIXTURE_BLOCK = 2 << 20, /* the driver's granularity */
};

/* Driver calls that the application makes itself. */
extern struct fake_cuda_calls app;

/* cmocka's setup and teardown: find the driver, record its state, and compare. */
int fixture_begin(void **state);
int fixture_setup(void **state);
int fixture_teardown(void **state);

/* Give the application a context of its own, current in this thread. */
CUcontext fixture_context(int device);
void fixture_destroy(CUcontext context);
/* The context that is current in this thread, or NULL. */
CUcontext fixture_current(void);

/* A range of cuMemCreate() memory in segments, like PyTorch's expandable segments. */
struct fixture_vmm {
	uint64_t address;
	uint64_t length;
	uint64_t segment;
};
struct fixture_vmm fixture_map(int device, uint64_t segment, uint32_t count, bool rdma);
/*
 * The same for memory on the host, which the first device can reach and the CPU cannot
 * yet.
 */
struct fixture_vmm fixture_map_on(unsigned int location, uint64_t segment,
				  uint32_t count);
void fixture_map_one(uint64_t address, uint64_t length, int device, bool rdma);
void fixture_unmap(const struct fixture_vmm *range);

/* cuMemAlloc() by the application, with that context current during the call. */
uint64_t fixture_alloc(CUcontext context, uint64_t length);
void fixture_free(CUcontext context, uint64_t address);

/* Make the next call of that name fail. */
void fixture_fail(const char *name, int result);

static const struct pier_backend *const cuda = &pier_cuda_backend;

#endif
