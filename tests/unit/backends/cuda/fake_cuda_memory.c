/* SPDX-License-Identifier: BSD-3-Clause */

/* The fake CUDA driver: its memory, pointers and exports, and its refusals. */

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_cuda_fixture.h"

#include <errno.h>

static uint64_t page_size;

static CUdeviceptr page_of(CUdeviceptr address)
{
	return address & ~(CUdeviceptr)(page_size - 1);
}

static CUresult export_range(CUdeviceptr address, uint64_t size, unsigned long long flags,
			     int *ret_fd)
{
	return driver.cuMemGetHandleForAddressRange(
		ret_fd, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags);
}

/* Expect this refusal, and no fd. */
static void expect_export(CUdeviceptr address, uint64_t size, CUresult expected)
{
	int fd = -1;

	assert_int_equal(export_range(address, size, 0, &fd), expected);
	if (expected == CUDA_SUCCESS)
		assert_int_equal(close(fd), 0);
	else
		assert_int_equal(fd, -1);
}

static void small_allocations_share_pages(void **state)
{
	CUdeviceptr first = allocate(100), second = allocate(600), base;
	size_t size;

	(void)state;
	assert_int_equal(page_of(first), page_of(second));
	assert_int_not_equal(first, page_of(first));
	assert_int_equal(second - first, 512);
	assert_int_equal(driver.cuMemGetAddressRange_v2(&base, &size, second + 599),
			 CUDA_SUCCESS);
	assert_int_equal(base, second);
	assert_int_equal(size, 600);
	assert_int_equal(driver.cuMemGetAddressRange_v2(&base, &size, second + 600),
			 CUDA_ERROR_NOT_FOUND);
	assert_int_equal(driver.cuMemFree_v2(second + 1), CUDA_ERROR_INVALID_VALUE);
	release(second);
	assert_int_equal(driver.cuMemFree_v2(second), CUDA_ERROR_INVALID_VALUE);
	release(first);
}

static void reused_addresses_get_a_new_id(void **state)
{
	static const size_t sizes[] = { 100, 10000, 3 * MIB };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		uint64_t id, other;
		CUdeviceptr address = allocate(sizes[i]);

		assert_int_equal(driver.cuPointerGetAttribute(
					 &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
				 CUDA_SUCCESS);
		release(address);
		assert_int_equal(driver.cuPointerGetAttribute(
					 &other, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
				 CUDA_ERROR_INVALID_VALUE);
		assert_int_equal(allocate(sizes[i]), address);
		assert_int_equal(driver.cuPointerGetAttribute(
					 &other, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
				 CUDA_SUCCESS);
		assert_int_not_equal(id, other);
		release(address);
	}
}

static void memory_is_limited(void **state)
{
	CUdeviceptr address, other;

	(void)state;
	fake->device[0].memory = 8 * MIB;
	assert_int_equal(driver.cuMemAlloc_v2(&address, 9 * MIB),
			 CUDA_ERROR_OUT_OF_MEMORY);
	address = allocate(7 * MIB);
	assert_int_equal(fake->device[0].memory_used, 8 * MIB);
	assert_int_equal(driver.cuMemAlloc_v2(&other, 1), CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(driver.cuMemAlloc_v2(&other, 0), CUDA_ERROR_INVALID_VALUE);
	release(address);
}

static void copies_stay_inside(void **state)
{
	char bytes[1000], back[1000];
	CUdeviceptr address = allocate(1000), other = allocate(1000);

	(void)state;
	memset(back, 0, sizeof(back));
	assert_int_equal(driver.cuMemcpyDtoH_v2(back, address, 1000), CUDA_SUCCESS);
	/* New memory is not zeroed. */
	assert_int_equal((unsigned char)back[999], 0xa5);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (char)i;
	assert_int_equal(driver.cuMemcpyHtoD_v2(address, bytes, 1000), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemcpyDtoD_v2(other, address, 1000), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemcpyDtoH_v2(back, other, 1000), CUDA_SUCCESS);
	assert_memory_equal(bytes, back, 1000);
	assert_int_equal(fake->read(address, back, 1000), 0);
	assert_memory_equal(bytes, back, 1000);
	assert_int_equal(driver.cuMemcpyHtoD_v2(address, bytes, 1001),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemcpyDtoH_v2(back, address + 1, 1000),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemcpyDtoH_v2((void *)(uintptr_t)other, address, 1),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemcpyHtoD_v2((uintptr_t)bytes, bytes, 1),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemsetD8_v2(address + 1, 7, 998), CUDA_SUCCESS);
	assert_int_equal(fake->read(address, back, 1000), 0);
	assert_int_equal(back[0], 0);
	assert_int_equal(back[1], 7);
	assert_int_equal(back[998], 7);
	assert_int_equal(back[999], (char)999);
	assert_int_equal(driver.cuMemsetD8_v2(address, 7, 1001),
			 CUDA_ERROR_INVALID_VALUE);
	release(other);
	assert_int_equal(driver.cuMemcpyDtoH_v2(back, other, 1),
			 CUDA_ERROR_INVALID_VALUE);
	release(address);
}

/* An event stands behind the copies that were in its stream when it was recorded. */
static void stalled_copies_wait_to_be_waited_for(void **state)
{
	CUdeviceptr address = allocate(1000);
	CUstream stream, other;
	CUevent event;
	char byte = 'a', back = 0;

	(void)state;
	assert_int_equal(driver.cuStreamCreate(&stream, 0), CUDA_SUCCESS);
	assert_int_equal(driver.cuStreamCreate(&other, 0), CUDA_SUCCESS);
	assert_int_equal(driver.cuEventCreate(&event, 2), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemsetD8_v2(address, 0, 1000), CUDA_SUCCESS);
	fake->stalled = true;
	/* Never recorded. */
	assert_int_equal(driver.cuEventQuery(event), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemcpyHtoDAsync_v2(address, &byte, 1, stream),
			 CUDA_SUCCESS);
	assert_int_equal(driver.cuEventRecord(event, stream), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemcpyHtoDAsync_v2(address + 1, &byte, 1, stream),
			 CUDA_SUCCESS);
	assert_int_equal(driver.cuEventQuery(event), CUDA_ERROR_NOT_READY);
	assert_int_equal(driver.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	assert_int_equal(driver.cuStreamSynchronize(other), CUDA_SUCCESS);
	assert_int_equal(driver.cuEventQuery(event), CUDA_ERROR_NOT_READY);
	assert_int_equal(driver.cuEventSynchronize(event), CUDA_SUCCESS);
	assert_int_equal(fake->read(address, &back, 1), 0);
	assert_int_equal(back, 'a');
	assert_int_equal(fake->read(address + 1, &back, 1), 0);
	assert_int_equal(back, 0);
	/* The stream's work outlives it. */
	assert_int_equal(driver.cuEventRecord(event, stream), CUDA_SUCCESS);
	assert_int_equal(driver.cuStreamDestroy_v2(stream), CUDA_SUCCESS);
	assert_int_equal(driver.cuEventQuery(event), CUDA_ERROR_NOT_READY);
	fake->stalled = false;
	assert_int_equal(driver.cuEventQuery(event), CUDA_SUCCESS);
	assert_int_equal(fake->read(address + 1, &back, 1), 0);
	assert_int_equal(back, 'a');
	assert_int_equal(driver.cuEventDestroy_v2(event), CUDA_SUCCESS);
	assert_int_equal(driver.cuStreamDestroy_v2(other), CUDA_SUCCESS);
	release(address);
}

/* The device sees bytes written through an export, as by a NIC, and vice versa. */
static void exports_share_the_memory(void **state)
{
	CUdeviceptr address = allocate(5000);
	uint64_t size = page_of(address + 5000 + page_size - 1) - page_of(address);
	char *window, byte = 0;
	int fd;

	(void)state;
	assert_int_equal(export_range(page_of(address), size, 0, &fd), CUDA_SUCCESS);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(lseek(fd, 0, SEEK_END), size);
	window = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(window, MAP_FAILED);
	assert_int_equal(close(fd), 0);
	window[address - page_of(address) + 4999] = 'x';
	assert_int_equal(driver.cuMemcpyDtoH_v2(&byte, address + 4999, 1), CUDA_SUCCESS);
	assert_int_equal(byte, 'x');
	byte = 'y';
	assert_int_equal(driver.cuMemcpyHtoD_v2(address, &byte, 1), CUDA_SUCCESS);
	assert_int_equal(window[address - page_of(address)], 'y');
	assert_int_equal(fake->exports, 1 + fake->pcie_exports);
	munmap(window, size);
	release(address);
}

static void refuses_invalid_exports(void **state)
{
	CUdeviceptr small = allocate(100), big = allocate(3 * MIB),
		    next = allocate(2 * MIB);
	int fd;

	(void)state;
	expect_export(small, page_size, CUDA_ERROR_INVALID_VALUE);
	expect_export(page_of(small), 100, CUDA_ERROR_INVALID_VALUE);
	expect_export(page_of(small), 2 * page_size, CUDA_ERROR_INVALID_VALUE);
	expect_export(big, 0, CUDA_ERROR_INVALID_VALUE);
	expect_export(big, 3 * MIB + page_size, CUDA_ERROR_INVALID_VALUE);
	expect_export(big, 6 * MIB, CUDA_ERROR_INVALID_VALUE);
	expect_export(big, 3 * MIB, CUDA_SUCCESS);
	expect_export(big, MIB, CUDA_SUCCESS);
	expect_export(UINT64_MAX & ~(page_size - 1), page_size, CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemGetHandleForAddressRange(&fd, big, MIB, 2, 0),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(export_range(big, MIB, 2, &fd), CUDA_ERROR_INVALID_VALUE);
	/* No memfd begins in the middle of an allocation. */
	expect_export(big + MIB, MIB, CUDA_ERROR_INVALID_VALUE);
	fake->device[0].dmabuf = false;
	expect_export(big, MIB, CUDA_ERROR_NOT_SUPPORTED);
	release(next);
	release(big);
	fake->device[0].dmabuf = true;
	expect_export(big, MIB, CUDA_ERROR_INVALID_VALUE);
	release(small);
}

static void can_refuse_parts(void **state)
{
	CUdeviceptr big = allocate(3 * MIB);
	char byte;
	int fd;

	(void)state;
	fake->windows = FAKE_CUDA_WINDOWS_COPIED;
	assert_int_equal(fake->write(big + MIB, "z", 1), 0);
	assert_int_equal(export_range(big + MIB, page_size, 0, &fd), CUDA_SUCCESS);
	assert_int_equal(pread(fd, &byte, 1, 0), 1);
	assert_int_equal(byte, 'z');
	assert_int_equal(lseek(fd, 0, SEEK_END), page_size);
	assert_int_equal(close(fd), 0);
	expect_export(big + 512, page_size, CUDA_ERROR_INVALID_VALUE);
	fake->device[0].ranges = FAKE_CUDA_RANGES_BASE;
	expect_export(big + MIB, page_size, CUDA_ERROR_INVALID_VALUE);
	expect_export(big, page_size, CUDA_SUCCESS);
	fake->device[0].ranges = FAKE_CUDA_RANGES_WHOLE;
	expect_export(big, page_size, CUDA_ERROR_INVALID_VALUE);
	expect_export(big, 3 * MIB, CUDA_SUCCESS);
	release(big);
}

/* Every export can be registered; that of the wrong mapping has other pages. */
static bool suits(CUdeviceptr address, unsigned long long flags)
{
	char byte = 0, *window;
	int fd;

	assert_int_equal(export_range(address, 2 * MIB, flags, &fd), CUDA_SUCCESS);
	assert_true(fcntl(fd, F_GET_SEALS) >= 0);
	window = mmap(NULL, 2 * MIB, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(window, MAP_FAILED);
	assert_int_equal(close(fd), 0);
	assert_int_equal(fake->write(address, "m", 1), 0);
	byte = window[0];
	munmap(window, 2 * MIB);
	return byte == 'm';
}

static void the_wrong_mapping_has_other_pages(void **state)
{
	CUdeviceptr address = allocate(2 * MIB);
	int fd;

	(void)state;
	assert_true(suits(address, 0) && suits(address, 1));
	fake->device[0].pcie = FAKE_CUDA_PCIE_REQUIRED;
	assert_true(!suits(address, 0) && suits(address, 1));
	fake->device[0].pcie = FAKE_CUDA_PCIE_WRONG;
	assert_true(suits(address, 0) && !suits(address, 1));
	fake->device[0].pcie = FAKE_CUDA_PCIE_REFUSED;
	assert_true(suits(address, 0));
	assert_int_equal(export_range(address, 2 * MIB, 1, &fd),
			 CUDA_ERROR_NOT_SUPPORTED);
	fake->version = 12070;
	fake->device[0].pcie = FAKE_CUDA_PCIE_EITHER;
	assert_int_equal(export_range(address, 2 * MIB, 1, &fd),
			 CUDA_ERROR_INVALID_VALUE);
	release(address);
}

static void the_bar_is_limited(void **state)
{
	CUdeviceptr first = allocate(4 * MIB), second = allocate(4 * MIB);

	(void)state;
	fake->device[0].static_bar = true;
	fake->device[0].bar = 5 * MIB;
	expect_export(first, 4 * MIB, CUDA_SUCCESS);
	expect_export(first, MIB, CUDA_SUCCESS);
	assert_int_equal(fake->device[0].bar_used, 4 * MIB);
	expect_export(second, 2 * MIB, CUDA_ERROR_OUT_OF_MEMORY);
	expect_export(second, MIB, CUDA_SUCCESS);
	release(first);
	expect_export(second, 4 * MIB, CUDA_SUCCESS);
	release(second);
}

/* What a NIC's driver is told, of an export that succeeded. */
static int attach(CUdeviceptr address, uint64_t size, unsigned long long flags)
{
	int fd, result;

	assert_int_equal(export_range(address, size, flags, &fd), CUDA_SUCCESS);
	result = fake->attach(fd);
	assert_int_equal(close(fd), 0);
	return result;
}

static void refuses_to_attach_what_does_not_suit(void **state)
{
	CUdeviceptr first = allocate(4 * MIB), second = allocate(4 * MIB);

	(void)state;
	assert_int_equal(attach(first, 4 * MIB, 0), 0);
	assert_int_equal(attach(first, 4 * MIB, 1), 524);
	fake->device[0].bar = 5 * MIB;
	assert_int_equal(attach(second, 4 * MIB, 0), ENOMEM);
	fake->device[0].coherent = true;
	/* Over C2C it needs no BAR. */
	assert_int_equal(attach(second, 4 * MIB, 0), 0);
	assert_int_equal(attach(second, 4 * MIB, 1), ENOMEM);
	release(first);
	assert_int_equal(attach(second, 4 * MIB, 1), 0);
	fake->device[0].attach_error = 524;
	assert_int_equal(attach(second, 4 * MIB, 0), 524);
	release(second);
	assert_int_equal(fake->attach(-1), EINVAL);
}

static void other_kinds_are_not_exported(void **state)
{
	CUdeviceptr managed, pool;
	void *host, *own = NULL;

	(void)state;
	assert_int_equal(driver.cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL),
			 CUDA_SUCCESS);
	assert_int_equal(driver.cuMemAllocAsync(&pool, 4096, NULL), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemHostAlloc(&host, page_size, 0), CUDA_SUCCESS);
	assert_int_equal(posix_memalign(&own, page_size, page_size), 0);
	assert_int_equal(driver.cuMemHostRegister_v2(own, page_size, 0), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemHostRegister_v2(own, 1, 0),
			 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	expect_export(managed, page_size, CUDA_ERROR_INVALID_VALUE);
	expect_export(page_of(pool), page_size, CUDA_ERROR_INVALID_VALUE);
	expect_export((uintptr_t)own, page_size, CUDA_ERROR_INVALID_VALUE);
	expect_export((uintptr_t)host, page_size, CUDA_SUCCESS);
	fake->device[0].host_dmabuf = false;
	expect_export((uintptr_t)host, page_size, CUDA_ERROR_NOT_SUPPORTED);
	assert_int_equal(driver.cuMemHostUnregister(own), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemHostUnregister(own),
			 CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	free(own);
	assert_int_equal(driver.cuMemFreeHost(host), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemFreeAsync(pool, NULL), CUDA_SUCCESS);
	release(managed);
}

static void devices_have_their_own_memory(void **state)
{
	CUdeviceptr address = allocate(2 * MIB), base;
	unsigned int one = 1;
	CUcontext other;

	(void)state;
	assert_int_equal(driver.cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
	assert_int_equal(driver.cuCtxSetCurrent(other), CUDA_SUCCESS);
	expect_export(address, 2 * MIB, CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemGetAddressRange_v2(&base, NULL, address),
			 CUDA_ERROR_NOT_FOUND);
	assert_int_equal(driver.cuMemsetD8_v2(address, 0, 1), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuPointerSetAttribute(
				 &one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
	assert_int_equal(driver.cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
	release(address);
}

/* A few allocations at a time, with bytes of their own, each exported. */
static void *allocate_and_copy(void *number)
{
	char byte = (char)(uintptr_t)number, back;
	uintptr_t failures = 0;

	failures += driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS;
	for (int i = 0; i < 200; i++) {
		CUdeviceptr address[2] = { 0 };
		int fd = -1;

		for (int j = 0; j < 2; j++)
			failures += driver.cuMemAlloc_v2(&address[j], 700) !=
					    CUDA_SUCCESS ||
				    driver.cuMemsetD8_v2(address[j], (unsigned char)byte,
							 700) != CUDA_SUCCESS;
		failures += export_range(page_of(address[0]), page_size, 0, &fd) !=
			    CUDA_SUCCESS;
		close(fd);
		for (int j = 0; j < 2; j++) {
			failures += driver.cuMemcpyDtoH_v2(&back, address[j] + 699, 1) !=
					    CUDA_SUCCESS ||
				    back != byte;
			failures += driver.cuMemFree_v2(address[j]) != CUDA_SUCCESS;
		}
	}
	failures += driver.cuCtxPopCurrent_v2(NULL) != CUDA_SUCCESS;
	return (void *)failures;
}

static void threads_can_use_it_at_once(void **state)
{
	pthread_t threads[4];

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, allocate_and_copy, (void *)i),
			0);
	for (int i = 0; i < 4; i++) {
		void *failures;

		assert_int_equal(pthread_join(threads[i], &failures), 0);
		assert_null(failures);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(small_allocations_share_pages),
		fixture_test(reused_addresses_get_a_new_id),
		fixture_test(memory_is_limited),
		fixture_test(copies_stay_inside),
		fixture_test(stalled_copies_wait_to_be_waited_for),
		fixture_test(exports_share_the_memory),
		fixture_test(refuses_invalid_exports),
		fixture_test(can_refuse_parts),
		fixture_test(the_wrong_mapping_has_other_pages),
		fixture_test(the_bar_is_limited),
		fixture_test(refuses_to_attach_what_does_not_suit),
		fixture_test(other_kinds_are_not_exported),
		fixture_test(devices_have_their_own_memory),
		fixture_test(threads_can_use_it_at_once),
	};

	page_size = (uint64_t)sysconf(_SC_PAGESIZE);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
