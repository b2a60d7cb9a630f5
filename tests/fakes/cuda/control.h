/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_CONTROL_H
#define TESTS_FAKES_CUDA_CONTROL_H

/*
 * Settings of the fake CUDA driver, and its counters.
 *
 *	void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
 *	struct fake_cuda *(*find)(void) = dlsym(driver, "fake_cuda_control");
 *	struct fake_cuda *fake = find();
 *
 * Settings are read at each call of the driver, so they may be changed whenever no other
 * thread is inside it. Their initial values come from the environment when the library is
 * loaded; restore() returns to them.
 *
 * The environment, for whole programs (an invalid value aborts):
 *
 *	FAKE_CUDA_DEVICES	number of devices; default 2
 *	FAKE_CUDA_VERSION	of the driver, as in cuDriverGetVersion(); default 13000
 *	FAKE_CUDA_NAMES		of the devices, separated by commas
 *	FAKE_CUDA_PCI		"0000:17:00.0,0000:65:00.0"
 *	FAKE_CUDA_WINDOWS	refused, copied
 *	FAKE_CUDA_PEER_MEMORY	0, 1
 *	FAKE_CUDA_NO_IPC	0, 1
 *	FAKE_CUDA_CONTAINED	0, 1
 *	FAKE_CUDA_NO_PEERS	0, 1
 *	FAKE_CUDA_NO_HOST_RANGES	0, 1
 *	FAKE_CUDA_FAIL		"cuMemAlloc:3:2,cuInit:1:999:5": the third call fails with
 *				2; the first and four more with 999
 * and for all devices together
 *	FAKE_CUDA_MEMORY	bytes of each device
 *	FAKE_CUDA_BAR		bytes that NICs can reach; 0 = no limit
 *	FAKE_CUDA_STATIC_BAR	0, 1
 *	FAKE_CUDA_COHERENT	0, 1
 *	FAKE_CUDA_MANAGED_POOLS	0, 1
 *	FAKE_CUDA_DMABUF	0, 1
 *	FAKE_CUDA_HOST_DMABUF	0, 1
 *	FAKE_CUDA_EVERY_KIND	0, 1
 *	FAKE_CUDA_RANGES	any, base, whole, granules
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

/* The parts of an allocation that can be exported. */
enum fake_cuda_ranges {
	FAKE_CUDA_RANGES_ANY,	/* any whole pages */
	FAKE_CUDA_RANGES_BASE,	/* ranges that begin at the page of its base */
	FAKE_CUDA_RANGES_WHOLE, /* exactly all of its pages */
	/*
	 * Whole pages of the device, 64 KiB, on a host whose pages are smaller. (The
	 * documentation of cuMemGetHandleForAddressRange() wants host pages only; 64 KiB
	 * is the size of the device's small pages, GMMU_PAGE_SIZE_64KB in NVIDIA's open
	 * kernel modules.)
	 */
	FAKE_CUDA_RANGES_GRANULES
};

/* The result of an export over several mappings of cuMemCreate() memory. */
enum fake_cuda_seams {
	FAKE_CUDA_SEAMS_REFUSED, /* CUDA_ERROR_INVALID_VALUE */
	/*
	 * One dma-buf. Without udmabuf it can only be a copy, and is also refused unless
	 * windows are copied.
	 */
	FAKE_CUDA_SEAMS_JOINED
};

/*
 * CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE. The wrong mapping exports and registers
 * like the right one; only the data goes elsewhere (libfabric's pull request 12864: "not
 * an error at registration: ibv_reg_dmabuf_mr succeeds against the wrong physical
 * address"). So a wrong export has pages of its own.
 */
enum fake_cuda_pcie {
	FAKE_CUDA_PCIE_EITHER,	 /* both mappings are right */
	FAKE_CUDA_PCIE_REFUSED,	 /* the flag is CUDA_ERROR_NOT_SUPPORTED */
	FAKE_CUDA_PCIE_REQUIRED, /* exports without the flag are wrong */
	FAKE_CUDA_PCIE_WRONG	 /* exports with the flag are wrong */
};

/*
 * Without /dev/udmabuf, an export is the memfd of the allocation, and cannot begin in its
 * middle.
 */
enum fake_cuda_windows {
	FAKE_CUDA_WINDOWS_REFUSED, /* exports from the middle: CUDA_ERROR_INVALID_VALUE */
	/*
	 * Exports from the middle are new memfds with a copy of the bytes: for tests that
	 * inspect an export, not for NICs.
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
	FAKE_CUDA_OPENED,	 /* cuIpcOpenMemHandle */
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
	uint64_t memory; /* bytes: cuDeviceTotalMem(), and the limit of allocations */
	/*
	 * Bytes that NICs can reach at a time; 0: no limit. An allocation uses the range
	 * between its lowest and highest byte until it is freed, because the fake does
	 * not learn when the last user of a dma-buf has closed it.
	 *
	 * Beyond that attach() is ENOMEM: the driver maps the memory into the BAR when
	 * the NIC's driver maps the dma-buf, and returns NULL if that fails
	 * (nv_dma_buf_map() of NVIDIA's nv-dmabuf.c, ib_umem_dmabuf_map_pages()). With
	 * static_bar it maps at the export, which is CUDA_ERROR_OUT_OF_MEMORY then
	 * (static_phys_addrs in nv_dma_buf_create()).
	 */
	uint64_t bar;
	bool static_bar;
	/*
	 * Joined to the CPU by NVLink-C2C: ...USES_HOST_PAGE_TABLES. Only such a device
	 * has two mappings to choose from.
	 */
	bool coherent;
	/* What attach() returns for every export of the default mapping, or 0. */
	int attach_error;
	bool dmabuf;	  /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */
	bool host_dmabuf; /* CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED */
	bool rdma;	  /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED */
	bool vmm;	  /* ..._VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
	bool vmm_rdma;	  /* ..._GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
	bool pools;	  /* ..._MEMORY_POOLS_SUPPORTED */
	bool every_kind;  /* pools have dma-bufs, too */
	enum fake_cuda_ranges ranges;
	enum fake_cuda_seams seams;
	enum fake_cuda_pcie pcie;
	int ordering; /* ..._GPU_DIRECT_RDMA_WRITES_ORDERING: 0 none, 100 owner, 200 all
		       */
	int flush_options; /* ..._GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: bits 1 and 2 */
	/*
	 * The device is lost at this call from now (1: the next one). That call and all
	 * later ones on the device fail with lost_result. 0: never. Contexts can still be
	 * pushed, popped and queried, and so can pointers.
	 */
	uint64_t lost_in;
	int lost_result; /* 46 CUDA_ERROR_DEVICE_UNAVAILABLE, 214 ..._ECC_UNCORRECTABLE */

	/* Counted. */
	uint64_t calls;		/* calls that use the device */
	uint64_t memory_used;	/* bytes allocated */
	uint64_t bar_used;	/* bytes */
	uint32_t primary_users; /* references to its primary context */
};

struct fake_cuda_call {
	char name[48]; /* without _v2: "cuMemAlloc" */
	/*
	 * This call from now (1: the next one) and the fail_more calls after it fail with
	 * fail_result and do nothing. 0: none.
	 */
	uint64_t fail_in;
	uint64_t fail_more;
	int fail_result;

	uint64_t calls; /* counted */
};

struct fake_cuda {
	int version;	  /* of the driver; newer functions do not exist */
	uint32_t devices; /* 0: cuInit() is CUDA_ERROR_NO_DEVICE */
	enum fake_cuda_windows windows;
	/*
	 * As if nvidia-peermem were loaded: ibv_reg_mr() accepts addresses of device
	 * memory, which the CPU can then read as well. Applies to later allocations.
	 */
	bool peer_memory;
	/* Mappings have neither CU_POINTER_ATTRIBUTE_BUFFER_ID nor ..._MEMORY_BLOCK_ID.
	 */
	bool no_mapping_ids;
	/*
	 * The default pool is a managed one (cuMemPoolCreate() with
	 * CU_MEM_ALLOCATION_TYPE_MANAGED). Exporting its memory kills the process, as a
	 * driver of CUDA 13.1 does.
	 */
	bool managed_pools;
	/* Registered memory has no ..._RANGE_START_ADDR and ..._RANGE_SIZE. */
	bool no_host_ranges;
	/*
	 * cuCtxGetFlags() reports CU_CTX_MAP_HOST, which cuCtxSetFlags() refuses: cuda.h
	 * calls the flag deprecated, and UCX and PSM3 never pass back what they read.
	 */
	bool maps_host;
	/*
	 * As if another thread were in cudaLaunchKernel(), which holds the context's lock
	 * until this thread goes on. cuCtxSetFlags() takes that lock (UCX's pull requests
	 * 10599 and 11705), would never return, and fails with CUDA_ERROR_NOT_READY.
	 */
	bool launching;
	/*
	 * As if a kernel in a blocking stream polled for bytes that have not arrived.
	 * Calls that wait for the default stream would never return, and fail with
	 * CUDA_ERROR_NOT_READY.
	 */
	bool kernel_polls;
	/*
	 * As if another thread captured a stream into a graph in the global mode. Calls
	 * on a device in a thread that is not in relaxed mode break the capture, and fail
	 * with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
	 */
	bool capturing;
	/*
	 * The devices make no asynchronous copy before something waits for it: queries
	 * are CUDA_ERROR_NOT_READY until then. Once it is not set any more, queries let
	 * them go on.
	 */
	bool stalled;
	/* As MIG devices of different GPU instances: no memory is shared (MIG user
	 * guide).
	 */
	bool no_ipc;
	/* As if each process were in a container with a PID namespace of its own. */
	bool contained;
	/* As devices below different root complexes: none has access to another's memory.
	 */
	bool no_peers;
	struct fake_cuda_device device[FAKE_CUDA_MAX_DEVICES];
	/* One for each function of the driver; the rest have no name. */
	struct fake_cuda_call call[FAKE_CUDA_MAX_CALLS];

	/* Counted. */
	bool udmabuf;			/* exports are real dma-bufs */
	uint64_t live[FAKE_CUDA_KINDS]; /* objects that exist, by kind */
	uint64_t current;		/* contexts on the stacks of all threads */
	uint64_t abandoned; /* contexts that were on the stack when their thread ended */
	uint64_t pushes;    /* by cuCtxPushCurrent() and cuCtxCreate() */
	uint64_t exports;   /* that succeeded */
	uint64_t pcie_exports; /* of these, those with the PCIe flag */
	uint64_t copies;
	uint64_t copied_bytes;
	uint64_t hangs;	    /* calls that waited for kernel_polls */
	uint64_t deadlocks; /* calls that waited for launching */
	uint64_t breaks;    /* broken captures */
	uint64_t flushes;   /* cuFlushGPUDirectRDMAWrites() that succeeded */

	/*
	 * Restores the initial settings, finds lost devices again, and resets the counts.
	 */
	void (*restore)(void);
	/*
	 * Reads device memory as the device sees it, without a context and uncounted.
	 * Returns 0, or -1 if some of it is not memory of this driver.
	 */
	int (*read)(uint64_t address, void *ret_bytes, size_t length);
	int (*write)(uint64_t address, const void *bytes, size_t length);
	/*
	 * What the kernel module says to a NIC's driver that attaches an exported fd and
	 * maps it: 0 or a positive errno. 524 (ENOTSUPP, which the kernel should not let
	 * out) if the topology does not suit, as for the PCIe mapping of a device that is
	 * not coherent (nv_dma_buf_attach()); ENOMEM if the BAR is used up. soft0 does
	 * not ask: a test that registers has to.
	 */
	int (*attach)(int fd);
};

/* Returns the driver's control block. */
struct fake_cuda *fake_cuda_control(void);

/* Returns a function's entry by its name without _v2, or NULL. */
static inline struct fake_cuda_call *fake_cuda_call(struct fake_cuda *fake,
						    const char *name)
{
	for (size_t i = 0; i < FAKE_CUDA_MAX_CALLS; i++)
		if (strcmp(fake->call[i].name, name) == 0)
			return &fake->call[i];
	return NULL;
}

#endif
