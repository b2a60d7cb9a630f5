/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_HIP_CONTROL_H
#define TESTS_FAKES_HIP_CONTROL_H

/*
 * Settings of the fake HIP and HSA runtimes, and their counters.
 *
 *	void *runtime = dlopen("libamdhip64.so.6", RTLD_NOW);
 *	struct fake_hip *(*find)(void) = dlsym(runtime, "fake_hip_control");
 *	struct fake_hip *fake = find();
 *
 * Neither this nor calls of the functions below initialise HIP; every other function of
 * HIP does, as in the real one.
 *
 * Settings may be changed while no other thread is in the runtimes. Their initial values
 * come from the environment, for whole programs (an invalid value aborts):
 *
 *	FAKE_HIP_DEVICES	number of devices; default 2
 *	FAKE_HIP_VERSION	of hipRuntimeGetVersion(); default 60241133
 *	FAKE_HIP_MEMORY		bytes of each device; default 1 GiB
 *	FAKE_HIP_EXPORTS	exports that can be open at once; default 1000
 *	FAKE_HIP_PCIE		either, refused, required, wrong
 *	FAKE_HIP_DMABUF		0: the kernel's driver has none; default 1
 *	FAKE_HIP_POOLS		1: pools are pieces of mapped memory; default 0
 *	FAKE_HIP_MANAGED	1: managed memory is exported; default 0
 *	FAKE_HIP_HDP		0: the devices have no flush register; default 1
 *	FAKE_HIP_RESERVED	0: HSA knows memory of hipMemMap(); default 1
 *	FAKE_HIP_GTT		1: exports have other pages than the device; default 0
 *	FAKE_HIP_PARTITIONS	1: the devices are partitions of one; default 0
 *	FAKE_HIP_WIDE		1: HIP_POINTER_ATTRIBUTE_BUFFER_ID has 8 bytes; default 0
 *	FAKE_HIP_FAIL		"hipMalloc:3:2": its third call from now fails with 2
 *	FAKE_HIP_LOST		"5:719": of HIP's calls the fifth and all later ones
 *				fail with 719
 */

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#define FAKE_HIP_MAX_DEVICES 8

/*
 * HSA_AMD_DMABUF_MAPPING_TYPE_PCIE. An export with an unsuitable mapping succeeds, but
 * its registration fails: its fd is an eventfd, which is neither a dma-buf nor a memfd.
 */
enum fake_hip_pcie {
	FAKE_HIP_PCIE_EITHER,	/* both mappings are suitable */
	FAKE_HIP_PCIE_REFUSED,	/* the BAR is small, which only the flag checks */
	FAKE_HIP_PCIE_REQUIRED, /* exports without the flag are unsuitable */
	FAKE_HIP_PCIE_WRONG	/* exports with the flag are unsuitable */
};

struct fake_hip {
	/* Settings. */
	int devices;
	int version;
	size_t memory;
	size_t exports_most;
	enum fake_hip_pcie pcie;
	bool dmabuf;
	/*
	 * hipMallocAsync() gives pieces of memory that is mapped, instead of memory of
	 * hipMalloc(): state_.use_vm_heap_ in clr's hip_mempool_impl.cpp.
	 */
	bool pools;
	/*
	 * The errno with which the kernel refuses a NIC that attaches to an export, pins
	 * and maps it. amdgpu: EINVAL if memory that must stay in the device would have
	 * to be pinned elsewhere (amdgpu_dma_buf_pin() since 2025), EBUSY if it is pinned
	 * there already (amdgpu_dma_buf_map() before; ScaleX-IO/uGDS#18). 524 (ENOTSUPP)
	 * is NVIDIA's; of amdgpu's operations none returns it, but a NIC's driver may.
	 */
	int attach_error;
	bool managed; /* HSA exports managed memory, which no version does */
	bool hdp;
	/*
	 * hsa_amd_pointer_info() reports memory of hipMemMap() as the reservation around
	 * it, HSA_EXT_POINTER_TYPE_RESERVED_ADDR, as before version 1.12 of the AMD
	 * extensions: hsakmt_fmm_get_mem_info() in fmm.c.
	 */
	bool reserved;
	/*
	 * The kernel pins exports to host memory, and the device goes on with its own:
	 * amdgpu_dma_buf_pin() before Linux 6.15, ROCm/rocm-xio#181. Exports after the
	 * first one share those pages.
	 */
	bool gtt;
	/*
	 * Partitions of one GPU (CPX): hipDeviceGetPCIBusId() has their number in place
	 * of the function (ROCm/rocm_smi_lib#208).
	 */
	bool partitions;
	bool wide; /* BUFFER_ID writes 64 bits, and the lower 32 are always the same */
	bool kernel_polls; /* a kernel in the default stream polls for bytes that have not
			      arrived */
	bool stalled;	   /* devices execute nothing until it is waited for */
	bool capturing;	   /* another thread captures a stream in the global mode */
	bool hmm; /* devices reach all of the process's memory: clr has one object for it
		   */
	char fail_function[64]; /* "": none */
	unsigned int fail_call; /* counted down; the call at 1 fails, once */
	unsigned int fail_error;
	unsigned int
		lost_call; /* counted down; at 1 all calls fail: 2 means the next call */
	unsigned int lost_error;

	/* Counters. */
	size_t allocations; /* alive, of all kinds */
	size_t bytes[FAKE_HIP_MAX_DEVICES];
	size_t exports;	      /* number of exports made */
	size_t exports_open;  /* exports not closed by hsa_amd_portable_close_dmabuf() */
	size_t pcie_exports;  /* exports made with the flag */
	size_t retained;      /* hsa_amd_vmem_retain_alloc_handle(), not released */
	size_t initialised;   /* HIP: 0 or 1 */
	size_t references;    /* of HSA, including HIP's own */
	size_t registrations; /* of hipHostRegister() */
	size_t streams;	      /* alive */
	size_t events;	      /* alive */
	size_t hangs;	      /* calls that would have waited for the polling kernel */
	size_t breaks;	      /* calls that broke the capture */
	/*
	 * Calls that would crash or corrupt the real runtimes: releasing too many
	 * references of HSA, closing an fd that was not exported, exporting memory of
	 * another process.
	 */
	size_t misuses;
	/* The devices' flush registers, which keep the written value. */
	uint32_t registers[FAKE_HIP_MAX_DEVICES];
};

struct fake_hip *fake_hip_control(void);

/*
 * Make HSA report another type (hsa_amd_pointer_type_t) for this memory, as if it were
 * made by hipIpcOpenMemHandle() or hipMemMap().
 */
void fake_hip_set_type(void *pointer, unsigned int type);

/*
 * Map one segment at a reserved address, as hipMemCreate() and hipMemMap() do, and unmap
 * it as hipMemUnmap() does.
 */
bool fake_hip_map(int device, void *space, size_t size);
void fake_hip_unmap(void *space);

/* Does to a device's streams what hipDeviceReset() does. */
void fake_hip_reset(int device);

/* The devices do all that is under way, which nothing waited for. */
void fake_hip_catch_up(void);

/* Called by a NIC that attaches to an export. Returns 0 or attach_error. */
int fake_hip_attach(int fd);

/*
 * Returns the bytes at `pointer` as a kernel sees them that is launched now, until the
 * next launch. clr launches with an acquire of the agent's scope (AMD_OPT_FLUSH is 1 in
 * flags.hpp; VirtualGPU's dispatchPacketHeader_), which leaves the L2 caches as they are.
 * They drop what PCIe writes when it arrives (AMDGPUUsage of LLVM, gfx90a), which is
 * after the host data path: writes stay there until the flush register is written. The
 * device itself must not have written since the last launch.
 */
const void *fake_hip_launch(void *pointer);

/*
 * Returns a CPU address for [pointer, pointer + length), which only kernels of the device
 * could access otherwise. NULL: it is no allocation.
 */
void *fake_hip_reach(void *pointer, size_t length);

#endif
