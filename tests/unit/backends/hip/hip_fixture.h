/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef UNIT_HIP_FIXTURE_H
#define UNIT_HIP_FIXTURE_H

#include "tests/fakes/hip/control.h"
#include "tests/support/expect.h"
#include "tests/support/census.h"
#include "tests/support/backend.h"

#include "backends/backend.h"

struct ihipStream_t;

/*
 * The HIP backend on the fake runtimes, which LD_LIBRARY_PATH finds. A test makes the HIP
 * calls of an application through `hip`.
 */
#define FIXTURE_FUNCTIONS(X)                                                             \
	X(hipMalloc, (void **pointer, size_t size))                                      \
	X(hipExtMallocWithFlags, (void **pointer, size_t size, unsigned int flags))      \
	X(hipHostMalloc, (void **pointer, size_t size, unsigned int flags))              \
	X(hipMallocManaged, (void **pointer, size_t size, unsigned int flags))           \
	X(hipMallocAsync, (void **pointer, size_t size, void *stream))                   \
	X(hipFree, (void *pointer))                                                      \
	X(hipHostFree, (void *pointer))                                                  \
	X(hipHostRegister, (void *pointer, size_t size, unsigned int flags))             \
	X(hipHostUnregister, (void *pointer))                                            \
	X(hipGetDevice, (int *device))                                                   \
	X(hipSetDevice, (int device))                                                    \
	X(hipStreamCreateWithFlags, (struct ihipStream_t * *stream, unsigned int flags)) \
	X(hipStreamDestroy, (struct ihipStream_t * stream))                              \
	X(hipThreadExchangeStreamCaptureMode, (unsigned int *mode))                      \
	X(hipPeekAtLastError, (void))                                                    \
	X(hipGetLastError, (void))

#define FIXTURE_MEMBER(name, parameters) unsigned int(*name) parameters;

struct hip_fixture {
	FIXTURE_FUNCTIONS(FIXTURE_MEMBER)
	void (*set_type)(void *pointer, unsigned int type);
	void *(*reach)(void *pointer, size_t length);
	int (*attach)(int fd);
	const void *(*launch)(void *pointer);
	void (*reset)(int device);
	void (*catch_up)(void);
	bool (*map)(int device, void *space, size_t size);
	void (*unmap)(void *space);
	struct fake_hip *fake;
	struct fake_hip settings; /* as they were before */
	struct test_census census;
};

extern struct hip_fixture fixture;

/* Setup and teardown of a group and of each test: nothing may be left behind. */
int fixture_open(void **state);
int fixture_before(void **state);
int fixture_after(void **state);

/*
 * Adjacent segments of hipMemMap(): the first `count` of `reserved`, whose address is
 * returned. The segments are on one device.
 */
char *fixture_map(int device, size_t segment, size_t count, size_t reserved);
void fixture_unmap(char *address, size_t segment, size_t count, size_t reserved);

/* Make the next call of a function fail. */
void fixture_fail(const char *function, unsigned int error);

/* Expect these bytes at an offset of an export's fd. */
void fixture_expect_bytes(int fd, uint64_t offset, const void *expected, size_t length);

#define fixture_test(function) \
	cmocka_unit_test_setup_teardown(function, fixture_before, fixture_after)

#endif
