/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_DEVICE_H
#define PIER_BACKENDS_HIP_DEVICE_H

#include <stdbool.h>

#include "api.h"

/* The thread's state before pier_hip_enter(), which pier_hip_leave() restores. */
struct pier_hip_saved {
	int device;	   /* its current device */
	unsigned int mode; /* its mode of capturing streams */
	bool changed;	   /* pier changed the device */
	bool relaxed;	   /* pier changed the mode */
	bool clean;	   /* hipPeekAtLastError() reported no error */
};

/*
 * Begin calls on a device. pier_hip_leave() restores the thread's current device and its
 * capture mode, and removes a last error that is pier's. Call it after every enter, also
 * after one that failed.
 *
 * device  its ordinal, or -1: the current one
 */
int pier_hip_enter(const struct pier_hip *hip, int device,
		   struct pier_hip_saved *ret_saved);
void pier_hip_leave(const struct pier_hip *hip, const struct pier_hip_saved *saved);

/*
 * The number of devices, at least one. Leaves the last error set.
 *
 * Errors: -EOPNOTSUPP none, with the reason if it can be found; others of HIP.
 */
int pier_hip_count_devices(const struct pier_hip *hip, int *ret_count);

/*
 * The register that flushes a device's host data path, or NULL: it has none. RCCL asks
 * like this, too (net.cc). HSA would have to be asked by the memory's agent, which before
 * version 1.12 of the extensions is a CPU for memory of hipMemMap().
 */
volatile uint32_t *pier_hip_flush_register(const struct pier_hip *hip, int device);

/*
 * If a folder of PCI devices lacks this function of one, take function 0. For a partition
 * of a GPU (DPX, CPX) the runtimes put the partition's number in place of the function,
 * and the kernel has no such device (ROCm/rocm_smi_lib#208). hwloc (open-mpi/hwloc#701)
 * and RCCL (getPciPath() in xml.cc) take function 0 as well.
 *
 * devices  sysfs's, or a test's
 */
void pier_hip_find_function(const char *devices, char pci[16]);

/* Where a device is: "0000:c1:00.0" in lower case, as sysfs has it, or "". */
void pier_hip_locate(const struct pier_hip *hip, int device, char ret_pci[16]);

#endif
