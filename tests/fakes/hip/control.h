/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_HIP_CONTROL_H
#define TESTS_FAKES_HIP_CONTROL_H

/*
 * What a test tells the fake HIP and HSA runtimes, and what they counted.
 *
 *	void *runtime = dlopen("libamdhip64.so.6", RTLD_NOW);
 *	struct fake_hip *(*find)(void) = dlsym(runtime, "fake_hip_control");
 *	struct fake_hip *fake = find();
 *
 * Neither that nor calls of the functions below initialise HIP; every other function of
 * HIP does, as with the real one.
 *
 * Settings may be changed while no other thread is in the runtimes. They begin as the
 * environment says, for whole programs (what cannot be understood aborts):
 *
 *	FAKE_HIP_DEVICES	how many; 2
 *	FAKE_HIP_VERSION	of hipRuntimeGetVersion(); 60241133
 *	FAKE_HIP_MEMORY		bytes of each device; 1 GiB
 *	FAKE_HIP_EXPORTS	that can be open at once; 1000
 *	FAKE_HIP_PCIE		either, refused, required, wrong
 *	FAKE_HIP_DMABUF		0: the kernel's driver has none; 1
 *	FAKE_HIP_POOLS		1: attributes tell of pools; 0
 *	FAKE_HIP_HDP		0: the devices have no flush register; 1
 *	FAKE_HIP_FAIL		"hipMalloc:3:2": its third call from now on fails with 2
 *	FAKE_HIP_LOST		"5:719": of HIP's calls the fifth and all later ones
 *				fail with 719
 */

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#define FAKE_HIP_MAX_DEVICES 8

/*
 * HSA_AMD_DMABUF_MAPPING_TYPE_PCIE. An export that does not suit succeeds, and it is the
 * registration that fails: its fd is an eventfd, which is neither a dma-buf nor a memfd.
 */
enum fake_hip_pcie {
	FAKE_HIP_PCIE_EITHER,	/* both mappings suit */
	FAKE_HIP_PCIE_REFUSED,	/* the flag is an error: a small BAR */
	FAKE_HIP_PCIE_REQUIRED, /* what is exported without it does not suit */
	FAKE_HIP_PCIE_WRONG	/* what is exported with it does not suit */
};

struct fake_hip {
	/* Settings. */
	int devices;
	int version;
	size_t memory;
	size_t exports_most;
	enum fake_hip_pcie pcie;
	bool dmabuf;
	bool pools;
	bool hdp;
	bool exports_virtual; /* memory of hipMemMap(), as newer versions of ROCr do */
	bool kernel_polls;    /* one in the default stream, for bytes that are to come */
	bool capturing;	      /* another thread captures a stream, in the global mode */
	bool hmm; /* devices reach all of the process: clr has an object of all of it */
	char fail_function[64]; /* "": none */
	unsigned int fail_call; /* counted down; at 1 it fails, once */
	unsigned int fail_error;
	unsigned int lost_call; /* counted down; at 1 all fail: set 2 for the next */
	unsigned int lost_error;

	/* Counters. */
	size_t allocations; /* alive, of all kinds */
	size_t bytes[FAKE_HIP_MAX_DEVICES];
	size_t exports;	      /* made */
	size_t exports_open;  /* and not closed by hsa_amd_portable_close_dmabuf() */
	size_t pcie_exports;  /* made with the flag */
	size_t initialised;   /* HIP: 0 or 1 */
	size_t references;    /* of HSA, with that of HIP */
	size_t registrations; /* of hipHostRegister() */
	size_t streams;	      /* alive */
	size_t events;	      /* alive */
	size_t hangs;	      /* calls that would have waited for the kernel that polls */
	size_t breaks;	      /* calls that broke the capture */
	/*
	 * Calls that the real ones would crash or corrupt by: a reference of HSA too
	 * many given back, an fd closed that was not exported, memory of another
	 * process exported.
	 */
	size_t misuses;
	/* The devices' flush registers, which keep what was written. */
	uint32_t registers[FAKE_HIP_MAX_DEVICES];
};

struct fake_hip *fake_hip_control(void);

/*
 * Have HSA tell that this memory is of another type (hsa_amd_pointer_type_t), as if it
 * were made by hipIpcOpenMemHandle() or hipMemMap().
 */
void fake_hip_set_type(void *pointer, unsigned int type);

/*
 * What hipMemCreate() and hipMemMap() would map at an address that is reserved, and what
 * hipMemUnmap() would unmap: one segment.
 */
bool fake_hip_map(int device, void *space, size_t size);
void fake_hip_unmap(void *space);

/* What hipDeviceReset() does to a device's streams. */
void fake_hip_reset(int device);

/* The devices do all that is under way, which nothing waited for. */
void fake_hip_catch_up(void);

/*
 * What a kernel on the device would do: reach [pointer, pointer + length), which the
 * CPU cannot. NULL: it is no allocation.
 */
void *fake_hip_reach(void *pointer, size_t length);

#endif
