/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_UNIT_H
#define PIER_BACKENDS_CUDA_UNIT_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/backend.h"
#include "memory.h"

/* A parsed unit. */
struct pier_cuda_spec {
	int device;
	enum pier_cuda_kind kind;
	bool any;	  /* the kind of device memory that suits NICs best */
	uint64_t segment; /* VMM: length of each; 0: one */
};

/*
 * Read a unit: "N", "N:linear", "N:vmm", "N:vmm:SIZE", "N:pool" or "N:host";
 * NULL is "0".
 *
 * Errors: -EINVAL, with a sentence.
 */
int pier_cuda_parse_unit(const char *unit, struct pier_cuda_spec *ret_spec);

/* unit() and locate() of the backend. */
int pier_cuda_unit(uint32_t index, struct pier_backend_unit *ret_unit);
int pier_cuda_locate(const struct pier_memory *memory, char ret_pci[16],
		     int *ret_numa_node);

/* Whether NVLink-C2C joins the device that holds memory to the CPU. */
bool pier_cuda_is_coherent(const struct pier_cuda_memory *memory);

/*
 * Whether all devices can export dma-bufs. False, too, until the process has loaded the
 * driver and initialised it: this does neither.
 */
bool pier_cuda_exports(void);

/*
 * The length in bytes of BAR1, through which other devices reach the memory; 0: unknown.
 *
 * devices  "/sys/bus/pci/devices"
 */
uint64_t pier_cuda_bar1(const char *devices, const char *pci);

#endif
