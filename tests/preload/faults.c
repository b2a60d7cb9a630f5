/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program of verbs with memory of a GPU, linked with libpier-dmabuf, whose driver and
 * whose libibverbs refuse calls. Each refusal must reach it as errno, and leave nothing.
 */
#include "tests/support/cmocka.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "tests/fakes/cuda/abi.h"
#include "tests/fakes/cuda/control.h"
#include "tests/preload/refuse.h"

enum {
	LENGTH = 3 * 65536,
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	MOST_CALLS = 200,
};

static const int errors[] = {
	EPERM, EIO,    EAGAIN, ENOMEM, EACCES,	   EFAULT,
	EBUSY, ENODEV, EINVAL, ENOSPC, EOPNOTSUPP, EPROTONOSUPPORT
};

static struct fake_cuda *fake;
static struct ibv_context *context;
static struct ibv_pd *pd;
static void *memory;

static void *look_up(const char *name)
{
	static void *driver;
	void *symbol;

	if (!driver)
		driver = dlopen("libcuda.so.1", RTLD_NOW);
	symbol = dlsym(driver, name);
	assert_non_null(symbol);
	return symbol;
}

static int open_all(void **state)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CUresult (*init)(unsigned int);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*set_current)(CUcontext);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	struct fake_cuda *(*find)(void);
	CUdeviceptr address;
	CUcontext primary;

	(void)state;
	assert_true(list && list[0]);
	context = ibv_open_device(list[0]);
	assert_non_null(context);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	assert_non_null(pd);
	*(void **)&find = look_up("fake_cuda_control");
	*(void **)&init = look_up("cuInit");
	*(void **)&retain = look_up("cuDevicePrimaryCtxRetain");
	*(void **)&set_current = look_up("cuCtxSetCurrent");
	*(void **)&alloc = look_up("cuMemAlloc_v2");
	fake = find();
	assert_int_equal(init(0), CUDA_SUCCESS);
	assert_int_equal(retain(&primary, 0), CUDA_SUCCESS);
	assert_int_equal(set_current(primary), CUDA_SUCCESS);
	assert_int_equal(alloc(&address, LENGTH), CUDA_SUCCESS);
	memory = (void *)(uintptr_t)address;
	return 0;
}

static int close_all(void **state)
{
	const char *report = getenv("PIER_DMABUF_REPORT");

	(void)state;

	assert_int_equal(ibv_dealloc_pd(pd), 0);
	assert_int_equal(ibv_close_device(context), 0);
	if (report)
		unlink(report);
	return 0;
}

static size_t count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	size_t count = 0;

	assert_non_null(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static struct ibv_mr *reg(void)
{
	errno = 0;
	return ibv_reg_mr(pd, memory, LENGTH, ACCESS);
}

/* After a refusal nothing is left over, and the same registration works. */
static void assert_all_is_well(size_t fds)
{
	struct ibv_mr *mr;

	*refusals() = (struct refusals){ 0 };
	mr = reg();
	if (!mr)
		fail_msg("afterwards: %s", strerror(errno));
	assert_ptr_equal(mr->addr, memory);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(count_fds(), fds);
}

/* Nothing is counted before pier has its objects of this device and this GPU. */
static size_t first_registration(void)
{
	struct ibv_mr *mr = reg();

	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	return count_fds();
}

/* libibverbs refuses the dma-buf, and the program's own call, whose errno counts. */
static void the_nics_refusal_is_the_programs_errno(void **state)
{
	size_t fds = first_registration();

	(void)state;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		for (size_t j = 0; j < sizeof(errors) / sizeof(errors[0]); j++) {
			*refusals() = (struct refusals){
				.reg_dmabuf_mr = errors[i],
				.reg_mr = errors[j],
			};
			assert_null(reg());
			assert_int_equal(errno, errors[j]);
			assert_true(refusals()->calls >= 2);
		}
		assert_all_is_well(fds);
	}
}

/* Without peer memory, the program's own call finds no pages. */
static void a_refused_dmabuf_alone_is_an_address_without_pages(void **state)
{
	size_t fds = first_registration();

	(void)state;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		*refusals() = (struct refusals){ .reg_dmabuf_mr = errors[i] };
		assert_null(reg());
		assert_int_equal(errno, EFAULT);
		assert_all_is_well(fds);
	}
}

static void a_region_that_is_not_deregistered_stays(void **state)
{
	size_t fds = first_registration();

	(void)state;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		struct ibv_mr *mr = reg();

		assert_non_null(mr);
		refusals()->dereg_mr = errors[i];
		assert_int_equal(ibv_dereg_mr(mr), errors[i]);
		refusals()->dereg_mr = 0;
		assert_int_equal(ibv_dereg_mr(mr), 0);
		assert_all_is_well(fds);
	}
}

/*
 * Each call that pier makes fails once: it does without, or the program gets the errno
 * of its own call. Returns whether the call was made.
 */
static bool fail_driver(struct fake_cuda_call *call, unsigned int n, int result)
{
	struct ibv_mr *mr;
	bool struck;

	call->fail_in = n;
	call->fail_result = result;
	mr = reg();
	if (!mr && errno != EFAULT)
		fail_msg("%s %u: errno %d", call->name, n, errno);
	struck = call->fail_in == 0;
	call->fail_in = 0;
	if (mr)
		assert_int_equal(ibv_dereg_mr(mr), 0);
	return struck;
}

static void each_call_of_the_driver_may_fail(void **state)
{
	static const int results[] = { CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
				       CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN };
	size_t fds = first_registration();
	unsigned int struck = 0;

	(void)state;
	for (int i = 0; i < FAKE_CUDA_MAX_CALLS && fake->call[i].name[0]; i++) {
		for (size_t j = 0; j < sizeof(results) / sizeof(results[0]); j++) {
			unsigned int n = 1;

			while (n < MOST_CALLS &&
			       fail_driver(&fake->call[i], n, results[j])) {
				assert_all_is_well(fds);
				n++;
			}
			assert_true(n < MOST_CALLS);
			struck += n - 1;
		}
	}
	/* The owner's query and the export, at least. */
	assert_true(struck >= 2 * sizeof(results) / sizeof(results[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_nics_refusal_is_the_programs_errno),
		cmocka_unit_test(a_refused_dmabuf_alone_is_an_address_without_pages),
		cmocka_unit_test(a_region_that_is_not_deregistered_stays),
		cmocka_unit_test(each_call_of_the_driver_may_fail),
	};

	return cmocka_run_group_tests(tests, open_all, close_all);
}
