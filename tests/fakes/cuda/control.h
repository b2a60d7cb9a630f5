/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_CONTROL_H
#define TESTS_FAKES_CUDA_CONTROL_H

/*
 * What a test tells the fake CUDA driver, and what it counted.
 *
 *	void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
 *	struct fake_cuda *(*find)(void) = dlsym(driver, "fake_cuda_control");
 *	struct fake_cuda *fake = find();
 *
 * Settings are read at each call of the driver, so they may be changed at any time
 * that no other thread is inside of it. They begin as the environment says when the
 * library is loaded; restore() goes back to that.
 *
 * The environment, for whole programs (a value that cannot be understood aborts):
 *
 *	FAKE_CUDA_DEVICES	how many; default 2
 *	FAKE_CUDA_VERSION	of the driver, as cuDriverGetVersion() has it; 13000
 *	FAKE_CUDA_NAMES		of the devices, with commas between them
 *	FAKE_CUDA_PCI		"0000:17:00.0,0000:65:00.0"
 *	FAKE_CUDA_WINDOWS	refused, copied
 *	FAKE_CUDA_PEER_MEMORY	0, 1
 *	FAKE_CUDA_FAIL		"cuMemAlloc:3:2,cuInit:1:999:5": the third call fails with
 *				2; the first and four more with 999
 * and for all devices at once
 *	FAKE_CUDA_MEMORY	bytes of each device
 *	FAKE_CUDA_BAR		bytes that can be exported; 0 = no limit
 *	FAKE_CUDA_DMABUF	0, 1
 *	FAKE_CUDA_HOST_DMABUF	0, 1
 *	FAKE_CUDA_RANGES	any, base, whole
 *	FAKE_CUDA_SEAMS		refused, joined
 *	FAKE_CUDA_PCIE		either, refused, required, wrong
 *	FAKE_CUDA_ORDERING	none, owner, all
 *	FAKE_CUDA_FLUSH		bits of the options: 0 to 3
 *	FAKE_CUDA_LOST		"0:5:46": device 0 fails with 46 from its fifth call on
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FAKE_CUDA_MAX_DEVICES 8
#define FAKE_CUDA_MAX_CALLS   96

/* Which part of an allocation can be exported. */
enum fake_cuda_ranges {
	FAKE_CUDA_RANGES_ANY,  /* any whole pages */
	FAKE_CUDA_RANGES_BASE, /* those that begin at the page of its base */
	FAKE_CUDA_RANGES_WHOLE /* all of its pages, neither more nor less */
};

/* What an export over several mappings of cuMemCreate() memory gets. */
enum fake_cuda_seams {
	FAKE_CUDA_SEAMS_REFUSED, /* CUDA_ERROR_INVALID_VALUE */
	/*
	 * One dma-buf. Where there is no udmabuf it can only be a copy: refused too,
	 * unless windows are copied.
	 */
	FAKE_CUDA_SEAMS_JOINED
};

/*
 * CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE. An export whose mapping does not suit
 * succeeds, as with the real driver, and it is the registration that fails: its fd is an
 * eventfd, which is neither a dma-buf (EINVAL from the kernel's dma_buf_get()) nor a
 * memfd (EINVAL from soft0).
 */
enum fake_cuda_pcie {
	FAKE_CUDA_PCIE_EITHER,	 /* both mappings suit */
	FAKE_CUDA_PCIE_REFUSED,	 /* the flag is CUDA_ERROR_NOT_SUPPORTED */
	FAKE_CUDA_PCIE_REQUIRED, /* what is exported without it does not suit */
	FAKE_CUDA_PCIE_WRONG	 /* what is exported with it does not suit */
};

/*
 * Where there is no /dev/udmabuf, an export is the memfd that holds the allocation, and
 * a memfd cannot begin in its middle.
 */
enum fake_cuda_windows {
	FAKE_CUDA_WINDOWS_REFUSED, /* parts from the middle: CUDA_ERROR_INVALID_VALUE */
	/*
	 * A memfd of their own with the bytes as they are now: for tests that look
	 * at an export, and no NIC.
	 */
	FAKE_CUDA_WINDOWS_COPIED
};

enum fake_cuda_kind {
	FAKE_CUDA_DEVICE_MEMORY, /* cuMemAlloc */
	FAKE_CUDA_POOL_MEMORY,	 /* cuMemAllocAsync */
	FAKE_CUDA_MANAGED,	 /* cuMemAllocManaged */
	FAKE_CUDA_HOST,		 /* cuMemHostAlloc */
	FAKE_CUDA_REGISTERED,	 /* cuMemHostRegister */
	FAKE_CUDA_RESERVATION,	 /* cuMemAddressReserve */
	FAKE_CUDA_MAPPING,	 /* cuMemMap */
	FAKE_CUDA_HANDLE,  /* references of cuMemCreate, cuMemRetainAllocationHandle */
	FAKE_CUDA_CONTEXT, /* cuCtxCreate */
	FAKE_CUDA_PRIMARY, /* references of cuDevicePrimaryCtxRetain, of all devices */
	FAKE_CUDA_STREAM,  /* cuStreamCreate */
	FAKE_CUDA_EVENT,   /* cuEventCreate */
	FAKE_CUDA_KINDS
};

struct fake_cuda_device {
	char name[96];
	char pci[16];	   /* "0000:17:00.0" */
	int numa_node;	   /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID */
	int compute_major; /* compute capability */
	int compute_minor;
	uint64_t memory; /* bytes: cuDeviceTotalMem(), and what can be allocated */
	/*
	 * Bytes that can be exported at a time, beyond which an export is
	 * CUDA_ERROR_OUT_OF_MEMORY; 0: no limit. An allocation takes what lies between
	 * the lowest and the highest byte exported of it until it is freed, since the
	 * driver is not told when the last user of a dma-buf has closed it.
	 */
	uint64_t bar;
	bool dmabuf;	  /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */
	bool host_dmabuf; /* CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED */
	bool rdma;	  /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED */
	bool vmm;	  /* ..._VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
	bool vmm_rdma;	  /* ..._GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
	bool pools;	  /* ..._MEMORY_POOLS_SUPPORTED */
	enum fake_cuda_ranges ranges;
	enum fake_cuda_seams seams;
	enum fake_cuda_pcie pcie;
	int ordering; /* ..._GPU_DIRECT_RDMA_WRITES_ORDERING: 0 none, 100 owner, 200 all
		       */
	int flush_options; /* ..._GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: bits 1 and 2 */
	/*
	 * The device is lost at its call of this number from now, 1 being the next one,
	 * and it and every later one that works on the device fails with lost_result; 0:
	 * never. Contexts can still be pushed, popped and asked for, and pointers
	 * queried.
	 */
	uint64_t lost_in;
	int lost_result; /* 46 CUDA_ERROR_DEVICE_UNAVAILABLE, 214 ..._ECC_UNCORRECTABLE */

	/* Counted. */
	uint64_t calls;		/* that work on the device */
	uint64_t memory_used;	/* bytes allocated */
	uint64_t bar_used;	/* bytes */
	uint32_t primary_users; /* references to its primary context */
};

struct fake_cuda_call {
	char name[48]; /* without _v2: "cuMemAlloc" */
	/*
	 * Its call of this number from now, 1 being the next one, fails with
	 * fail_result and does nothing, and fail_more calls after it too; 0: none.
	 */
	uint64_t fail_in;
	uint64_t fail_more;
	int fail_result;

	uint64_t calls; /* counted */
};

struct fake_cuda {
	int version;	  /* of the driver; what came later does not exist */
	uint32_t devices; /* 0: cuInit() is CUDA_ERROR_NO_DEVICE */
	enum fake_cuda_windows windows;
	/*
	 * As if nvidia-peermem were there: ibv_reg_mr() can take the addresses of device
	 * memory, which then the CPU can read as well. For what is allocated later.
	 */
	bool peer_memory;
	/* Mappings have neither CU_POINTER_ATTRIBUTE_BUFFER_ID nor ..._MEMORY_BLOCK_ID.
	 */
	bool no_mapping_ids;
	/*
	 * As if a kernel in a blocking stream polled for bytes that are still to come.
	 * What waits for the default stream would never return, and is
	 * CUDA_ERROR_NOT_READY.
	 */
	bool kernel_polls;
	/*
	 * As if another thread captured a stream into a graph in the global mode. What
	 * works on a device in a thread that is not relaxed breaks that, and is
	 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
	 */
	bool capturing;
	/*
	 * The devices make no asynchronous copy before something waits for it: queries
	 * are CUDA_ERROR_NOT_READY until then. Once it is not set any more, queries let
	 * them go on.
	 */
	bool stalled;
	struct fake_cuda_device device[FAKE_CUDA_MAX_DEVICES];
	/* One for each function that the driver has; the rest have no name. */
	struct fake_cuda_call call[FAKE_CUDA_MAX_CALLS];

	/* Counted. */
	bool udmabuf;			/* exports are real dma-bufs */
	uint64_t live[FAKE_CUDA_KINDS]; /* what was made and not undone */
	uint64_t current;		/* contexts on the stacks of all threads */
	uint64_t abandoned;		/* ..., that were on it when their thread ended */
	uint64_t pushes;		/* by cuCtxPushCurrent() and cuCtxCreate() */
	uint64_t exports;		/* that succeeded */
	uint64_t pcie_exports;		/* of these, with the PCIe flag */
	uint64_t copies;
	uint64_t copied_bytes;
	uint64_t hangs;	  /* that waited for kernel_polls */
	uint64_t breaks;  /* of what was captured */
	uint64_t flushes; /* cuFlushGPUDirectRDMAWrites() that succeeded */

	/* All settings as at the start, devices found again, and calls counted from 0. */
	void (*restore)(void);
	/*
	 * Device memory as the device sees it, with no context and not counted. Returns
	 * 0, or -1: some of it is not memory of this driver.
	 */
	int (*read)(uint64_t address, void *ret_bytes, size_t length);
	int (*write)(uint64_t address, const void *bytes, size_t length);
};

/* The one that the driver has. */
struct fake_cuda *fake_cuda_control(void);

/* One function's entry, by its name without _v2; NULL: it has none of that name. */
static inline struct fake_cuda_call *fake_cuda_call(struct fake_cuda *fake,
						    const char *name)
{
	for (size_t i = 0; i < FAKE_CUDA_MAX_CALLS; i++)
		if (strcmp(fake->call[i].name, name) == 0)
			return &fake->call[i];
	return NULL;
}

#endif
