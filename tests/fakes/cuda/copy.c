/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "fake.h"

/* True if all of the range is the driver's memory. */
static bool is_memory(uint64_t address, uint64_t size)
{
	uint64_t run;

	while (size > 0) {
		if (!fake_at(address, size, &run))
			return false;
		address += run;
		size -= run;
	}
	return true;
}

static bool is_on(uint64_t address, int device)
{
	const struct fake_piece *piece = fake_find(address);

	return piece && piece->device == device;
}

/* Memory of another process is mapped for the device that opened it. */
static bool is_mapped_for(uint64_t address, int device)
{
	const struct fake_piece *piece = fake_find(address);

	return !piece || piece->kind != FAKE_CUDA_OPENED ||
	       piece->context->device == device;
}

/* True for plain host memory, and for the driver's memory that the CPU can access. */
static bool is_for_cpu(const void *memory)
{
	const struct fake_piece *piece = fake_find((uint64_t)(uintptr_t)memory);

	if (!fake_in_arena((uint64_t)(uintptr_t)memory))
		return memory != NULL;
	return piece &&
	       (piece->kind == FAKE_CUDA_HOST || piece->kind == FAKE_CUDA_MANAGED);
}

static void count_copy(uint64_t size)
{
	fake_driver.control.copies++;
	fake_driver.control.copied_bytes += size;
}

static void write_memory(uint64_t to, const char *from, uint64_t size)
{
	uint64_t run;

	for (; size > 0; to += run, from += run, size -= run) {
		void *at = fake_at(to, size, &run);

		memcpy(at, from, run);
	}
}

static void read_memory(char *to, uint64_t from, uint64_t size)
{
	uint64_t run;

	for (; size > 0; to += run, from += run, size -= run) {
		const void *at = fake_at(from, size, &run);

		memcpy(to, at, run);
	}
}

static CUresult copy_in(uint64_t to, const void *from, uint64_t size)
{
	if (size == 0)
		return CUDA_SUCCESS;
	if (!is_memory(to, size) || !is_for_cpu(from))
		return CUDA_ERROR_INVALID_VALUE;
	write_memory(to, from, size);
	count_copy(size);
	return CUDA_SUCCESS;
}

static CUresult copy_out(void *to, uint64_t from, uint64_t size)
{
	if (size == 0)
		return CUDA_SUCCESS;
	if (!is_memory(from, size) || !is_for_cpu(to))
		return CUDA_ERROR_INVALID_VALUE;
	read_memory(to, from, size);
	count_copy(size);
	return CUDA_SUCCESS;
}

static CUresult copy_between(uint64_t to, uint64_t from, uint64_t size)
{
	uint64_t whole = size, in, out;

	if (!is_memory(to, size) || !is_memory(from, size))
		return CUDA_ERROR_INVALID_VALUE;
	for (; size > 0; to += in, from += in, size -= in) {
		void *at = fake_at(to, size, &in);
		const void *source = fake_at(from, in, &out);

		in = out;
		memmove(at, source, in);
	}
	count_copy(whole);
	return CUDA_SUCCESS;
}

CUresult fake_make_copy(const struct fake_copy *copy)
{
	if (copy->source)
		return copy_between(copy->address, copy->source, copy->size);
	return copy->to_host ? copy_out(copy->host, copy->address, copy->size)
			     : copy_in(copy->address, copy->host, copy->size);
}

static CUresult queue_copy(CUstream stream, const struct fake_copy *copy)
{
	if (copy->size > 0 &&
	    (!is_memory(copy->address, copy->size) || !is_for_cpu(copy->host)))
		return CUDA_ERROR_INVALID_VALUE;
	return fake_queue_copy(stream, copy);
}

#define FAKE_USE_STREAM(stream)                          \
	do {                                             \
		CUresult used = fake_use_stream(stream); \
                                                         \
		if (used != CUDA_SUCCESS)                \
			return used;                     \
	} while (0)

/* Because of unified addressing, both may be host memory. */
CUresult fake_cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	FAKE_ENTER("cuMemcpy", FAKE_NEEDS_DEVICE);
	FAKE_USE_STREAM(NULL);
	if (!fake_find(to))
		return copy_out((void *)(uintptr_t)to, from, size);
	if (!fake_find(from))
		return copy_in(to, (void *)(uintptr_t)from, size);
	return copy_between(to, from, size);
}

CUresult fake_cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	FAKE_ENTER("cuMemcpyHtoD", FAKE_NEEDS_DEVICE);
	FAKE_USE_STREAM(NULL);
	return copy_in(to, from, size);
}

CUresult fake_cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
	FAKE_ENTER("cuMemcpyDtoH", FAKE_NEEDS_DEVICE);
	FAKE_USE_STREAM(NULL);
	return copy_out(to, from, size);
}

CUresult fake_cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	FAKE_ENTER("cuMemcpyDtoD", FAKE_NEEDS_DEVICE);
	FAKE_USE_STREAM(NULL);
	return copy_between(to, from, size);
}

CUresult fake_cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size,
				   CUstream stream)
{
	FAKE_ENTER("cuMemcpyHtoDAsync", FAKE_NEEDS_DEVICE);
	FAKE_USE_STREAM(stream);
	return queue_copy(stream, &(struct fake_copy){ .address = to,
						       .host = (void *)(uintptr_t)from,
						       .size = size,
						       .device = scope.device });
}

CUresult fake_cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size,
				   CUstream stream)
{
	FAKE_ENTER("cuMemcpyDtoHAsync", FAKE_NEEDS_DEVICE);
	FAKE_USE_STREAM(stream);
	return queue_copy(stream, &(struct fake_copy){ .address = from,
						       .host = to,
						       .size = size,
						       .to_host = true,
						       .device = scope.device });
}

CUresult fake_cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size,
				   CUstream stream)
{
	FAKE_ENTER("cuMemcpyDtoDAsync", FAKE_NEEDS_DEVICE);
	FAKE_USE_STREAM(stream);
	if (!is_memory(to, size) || !is_memory(from, size) ||
	    !is_mapped_for(to, scope.device) || !is_mapped_for(from, scope.device))
		return CUDA_ERROR_INVALID_VALUE;
	return fake_queue_copy(stream, &(struct fake_copy){ .address = to,
							    .source = from,
							    .size = size,
							    .device = scope.device });
}

/* Only a kernel with peer access could write another device's memory. */
static CUresult set_bytes(const struct fake_scope *scope, uint64_t to, int byte,
			  uint64_t size)
{
	uint64_t run;

	if (size == 0)
		return CUDA_SUCCESS;
	if (!is_memory(to, size) || !is_on(to, scope->device))
		return CUDA_ERROR_INVALID_VALUE;
	for (; size > 0; to += run, size -= run) {
		void *at = fake_at(to, size, &run);

		memset(at, byte, run);
	}
	return CUDA_SUCCESS;
}

CUresult fake_cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, size_t size)
{
	FAKE_ENTER("cuMemsetD8", FAKE_NEEDS_DEVICE);
	FAKE_USE_STREAM(NULL);
	return set_bytes(&scope, to, byte, size);
}

CUresult fake_cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t size,
			      CUstream stream)
{
	FAKE_ENTER("cuMemsetD8Async", FAKE_NEEDS_DEVICE);
	FAKE_USE_STREAM(stream);
	return set_bytes(&scope, to, byte, size);
}

int fake_read(uint64_t address, void *ret_bytes, size_t length)
{
	struct fake_scope scope
		__attribute__((cleanup(fake_leave), unused)) = fake_enter_unseen();

	if (!is_memory(address, length))
		return -1;
	read_memory(ret_bytes, address, length);
	return 0;
}

int fake_write(uint64_t address, const void *bytes, size_t length)
{
	struct fake_scope scope
		__attribute__((cleanup(fake_leave), unused)) = fake_enter_unseen();

	if (!is_memory(address, length))
		return -1;
	write_memory(address, bytes, length);
	return 0;
}
