/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The backend's own declarations of the driver API, checked against NVIDIA's header if
 * present.
 */
#include "tests/support/cmocka.h"

#ifdef HAVE_CUDA_H

#include <assert.h>
#include <cuda.h>

#include "backends/cuda/api.h"

#define SAME_VALUE(name, value) static_assert((long)(name) == (value), #name);
PIER_CU_VALUES(SAME_VALUE)

#define SAME_SIZE(ours, type)                                               \
	static_assert(sizeof(ours) == sizeof(type), #type " has its size"); \
	static_assert(_Alignof(ours) == _Alignof(type), #type " is aligned alike")
SAME_SIZE(unsigned int, CUresult);
SAME_SIZE(unsigned int, CUdevice_attribute);
SAME_SIZE(unsigned int, CUpointer_attribute);
SAME_SIZE(unsigned int, CUmemRangeHandleType);
SAME_SIZE(unsigned int, CUmemAllocationGranularity_flags);
SAME_SIZE(unsigned int, CUflushGPUDirectRDMAWritesTarget);
SAME_SIZE(unsigned int, CUflushGPUDirectRDMAWritesScope);
SAME_SIZE(unsigned int, CUdriverProcAddressQueryResult);
SAME_SIZE(unsigned int, CUstreamCaptureMode);
SAME_SIZE(int, CUdevice);
SAME_SIZE(unsigned long long, CUdeviceptr);
SAME_SIZE(unsigned long long, CUmemGenericAllocationHandle);
SAME_SIZE(uint64_t, cuuint64_t);
SAME_SIZE(struct pier_cu_location, CUmemLocation);
SAME_SIZE(struct pier_cu_allocation_prop, CUmemAllocationProp);
SAME_SIZE(struct pier_cu_access_desc, CUmemAccessDesc);
SAME_SIZE(struct pier_cu_ipc_handle, CUipcMemHandle);

#define SAME_PLACE(ours, type, member) \
	static_assert(offsetof(ours, member) == offsetof(type, member), #member)
SAME_PLACE(struct pier_cu_allocation_prop, CUmemAllocationProp, type);
SAME_PLACE(struct pier_cu_allocation_prop, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(struct pier_cu_allocation_prop, CUmemAllocationProp, location.id);
SAME_PLACE(struct pier_cu_allocation_prop, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(struct pier_cu_allocation_prop, CUmemAllocationProp,
	   allocFlags.gpuDirectRDMACapable);
SAME_PLACE(struct pier_cu_allocation_prop, CUmemAllocationProp, allocFlags.usage);
SAME_PLACE(struct pier_cu_access_desc, CUmemAccessDesc, location.id);
SAME_PLACE(struct pier_cu_access_desc, CUmemAccessDesc, flags);

/* Some toolkits are older than the flag. */
#if CUDA_VERSION >= 12080
static_assert((int)CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE == PIER_CU_PCIE_FLAG,
	      "the flag of PCIe");
#endif

/* cuda.h defines many names as macros for the symbol with its suffix. */
#define SAME_CALL(name, since, symbol, parameters)                           \
	static_assert(__builtin_types_compatible_p(                          \
			      __typeof__(((struct pier_cu_calls *)0)->name), \
			      __typeof__(&(name))),                          \
		      symbol " has its prototype");
PIER_CU_CALLS(SAME_CALL)

static_assert(__builtin_types_compatible_p(pier_cu_get_proc_address,
					   __typeof__(&cuGetProcAddress_v2)),
	      "cuGetProcAddress_v2");

/*
 * The symbol that cuda.h maps a name to. cuDevicePrimaryCtxRelease() has a new one with
 * the same prototype since CUDA 11; pier uses the one that older drivers have as well.
 */
static void matches_the_symbols_of_cuda_h(void **state)
{
	static const char older[] = "cuDevicePrimaryCtxRelease";

	(void)state;
#define TEXT(name) #name
#define SAME_SYMBOL(name, since, symbol, unused) \
	if (strcmp(symbol, older) != 0)          \
		assert_string_equal(TEXT(name), symbol);
	PIER_CU_CALLS(SAME_SYMBOL)
}

#else

static void matches_the_symbols_of_cuda_h(void **state)
{
	(void)state;
	print_message("skipped: this machine has no cuda.h\n");
	skip();
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(matches_the_symbols_of_cuda_h),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
