/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

enum {
	BLOCKS = 64,
	THREADS = 256,
};

/*
 * Each thread handles every n-th byte. The code is for sm_50 and PTX 6.0, which every
 * driver since CUDA 9 compiles for its device.
 */
#define PARAMETERS                            \
	"	ld.param.u64 %d1, [address];\n"     \
	"	ld.param.u64 %d2, [length];\n"      \
	"	ld.param.u64 %d3, [seed];\n"        \
	"	ld.param.u64 %d4, [first];\n"       \
	"	mov.u32 %r1, %ctaid.x;\n"           \
	"	mov.u32 %r2, %ntid.x;\n"            \
	"	mov.u32 %r3, %tid.x;\n"             \
	"	mov.u32 %r4, %nctaid.x;\n"          \
	"	cvt.u64.u32 %d5, %r3;\n"            \
	"	mad.wide.u32 %d5, %r1, %r2, %d5;\n" \
	"	mul.wide.u32 %d6, %r4, %r2;\n"
/* For byte %d5: the pattern's value in %d7, its address in %d9. */
#define PATTERN                                       \
	"	setp.ge.u64 %p1, %d5, %d2;\n"               \
	"	@%p1 bra done;\n"                           \
	"	add.u64 %d7, %d4, %d5;\n"                   \
	"	add.u64 %d7, %d7, %d3;\n"                   \
	"	mul.lo.u64 %d7, %d7, 0x9E3779B97F4A7C15;\n" \
	"	shr.u64 %d8, %d7, 29;\n"                    \
	"	xor.b64 %d7, %d7, %d8;\n"                   \
	"	mul.lo.u64 %d7, %d7, 0xBF58476D1CE4E5B9;\n" \
	"	shr.u64 %d7, %d7, 56;\n"                    \
	"	add.u64 %d9, %d1, %d5;\n"
#define REGISTERS              \
	"	.reg .pred %p<3>;\n" \
	"	.reg .b32 %r<5>;\n"  \
	"	.reg .b64 %d<13>;\n"

const char *const gpu_ptx =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry fill(.param .u64 address, .param .u64 length,\n"
	"		     .param .u64 seed, .param .u64 first)\n"
	"{\n" REGISTERS PARAMETERS "next:\n" PATTERN "	st.u8 [%d9], %d7;\n"
	"	add.u64 %d5, %d5, %d6;\n"
	"	bra next;\n"
	"done:\n"
	"	ret;\n"
	"}\n"
	/* found: the number of different bytes, and the lowest index. */
	".visible .entry count_wrong(.param .u64 address, .param .u64 length,\n"
	"			    .param .u64 seed, .param .u64 first,\n"
	"			    .param .u64 found)\n"
	"{\n" REGISTERS PARAMETERS "	ld.param.u64 %d10, [found];\n"
	"next:\n" PATTERN "	ld.u8 %d11, [%d9];\n"
	"	setp.eq.u64 %p2, %d7, %d11;\n"
	"	@%p2 bra same;\n"
	"	atom.add.u64 %d12, [%d10], 1;\n"
	"	atom.min.u64 %d12, [%d10+8], %d5;\n"
	"same:\n"
	"	add.u64 %d5, %d5, %d6;\n"
	"	bra next;\n"
	"done:\n"
	"	ret;\n"
	"}\n";

static struct {
	CUfunction fill;
	CUfunction count_wrong;
	CUdeviceptr found; /* two numbers, for count_wrong */
} kernels;

uint8_t gpu_pattern(uint64_t seed, uint64_t i)
{
	uint64_t x = (seed + i) * UINT64_C(0x9E3779B97F4A7C15);

	x = (x ^ x >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
	return (uint8_t)(x >> 56);
}

static CUresult load(void)
{
	CUmodule module;
	CUresult error = gpu.more.cuModuleLoadData(&module, gpu_ptx);

	if (error == CUDA_SUCCESS)
		error = gpu.more.cuModuleGetFunction(&kernels.fill, module, "fill");
	if (error == CUDA_SUCCESS)
		error = gpu.more.cuModuleGetFunction(&kernels.count_wrong, module,
						     "count_wrong");
	if (error == CUDA_SUCCESS)
		error = gpu.call.cuMemAlloc(&kernels.found, 2 * sizeof(uint64_t));
	return error;
}

bool gpu_load_kernels(char *ret_why, size_t size)
{
	CUresult error;

	if (!gpu.more.cuModuleLoadData || !gpu.more.cuModuleGetFunction ||
	    !gpu.more.cuLaunchKernel) {
		snprintf(ret_why, size, "this driver loads no modules");
		return false;
	}
	gpu_push();
	error = load();
	gpu_pop();
	if (error == CUDA_SUCCESS)
		return true;
	kernels.found = 0;
	snprintf(ret_why, size, "the driver does not load PTX: %s", gpu_error(error));
	return false;
}

static int complain(const char *step, const char *cause)
{
	fprintf(stderr, "%s: %s\n", step, cause);
	return -1;
}

/* Launches a kernel and waits for its end. */
static CUresult launch(CUfunction function, void **parameters)
{
	CUresult error = gpu.more.cuLaunchKernel(function, BLOCKS, 1, 1, THREADS, 1, 1, 0,
						 NULL, parameters, NULL);

	return error == CUDA_SUCCESS ? gpu.call.cuStreamSynchronize(NULL) : error;
}

static int fill_by_copy(struct pier_buffer *buffer, size_t offset, size_t length,
			uint64_t seed, uint64_t first)
{
	uint8_t *bytes = malloc(length ? length : 1);
	int error;

	if (!bytes)
		return complain("fill", "no memory");
	for (size_t i = 0; i < length; i++)
		bytes[i] = gpu_pattern(seed, first + i);
	error = pier_buffer_copy_to(buffer, offset, bytes, length);
	free(bytes);
	return error ? complain("fill", pier_error_message()) : 0;
}

int gpu_fill(struct pier_buffer *buffer, size_t offset, size_t length, uint64_t seed,
	     uint64_t first)
{
	uint64_t address = pier_buffer_address(buffer) + offset, bytes = length;
	void *parameters[] = { &address, &bytes, &seed, &first };
	CUresult error;

	if (!kernels.found)
		return fill_by_copy(buffer, offset, length, seed, first);
	gpu_push();
	error = launch(kernels.fill, parameters);
	gpu_pop();
	return error == CUDA_SUCCESS ? 0 : complain("fill", gpu_error(error));
}

static int64_t count_by_copy(struct pier_buffer *buffer, size_t offset, size_t length,
			     uint64_t seed, uint64_t first, uint64_t *ret_first_wrong)
{
	uint8_t *bytes = malloc(length ? length : 1);
	int64_t wrong = 0;

	if (!bytes)
		return complain("count", "no memory");
	if (pier_buffer_copy_from(buffer, offset, bytes, length)) {
		free(bytes);
		return complain("count", pier_error_message());
	}
	for (size_t i = 0; i < length; i++) {
		if (bytes[i] == gpu_pattern(seed, first + i))
			continue;
		if (wrong++ == 0)
			*ret_first_wrong = i;
	}
	free(bytes);
	return wrong;
}

static CUresult count(uint64_t address, uint64_t length, uint64_t seed, uint64_t first,
		      uint64_t found[2])
{
	void *parameters[] = { &address, &length, &seed, &first, &kernels.found };
	CUresult error = gpu.more.cuMemcpyHtoD(kernels.found, found, 2 * sizeof(*found));

	if (error == CUDA_SUCCESS)
		error = launch(kernels.count_wrong, parameters);
	if (error == CUDA_SUCCESS)
		error = gpu.more.cuMemcpyDtoH(found, kernels.found, 2 * sizeof(*found));
	return error;
}

int64_t gpu_count_wrong(struct pier_buffer *buffer, size_t offset, size_t length,
			uint64_t seed, uint64_t first, uint64_t *ret_first_wrong)
{
	uint64_t found[2] = { 0, UINT64_MAX };
	CUresult error;

	if (!kernels.found)
		return count_by_copy(buffer, offset, length, seed, first,
				     ret_first_wrong);
	gpu_push();
	error = count(pier_buffer_address(buffer) + offset, length, seed, first, found);
	gpu_pop();
	if (error != CUDA_SUCCESS)
		return complain("count", gpu_error(error));
	if (found[0])
		*ret_first_wrong = found[1];
	return (int64_t)found[0];
}
