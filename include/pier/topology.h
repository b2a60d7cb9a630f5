/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOPOLOGY_H
#define PIER_TOPOLOGY_H

#include <stddef.h>
#include <stdint.h>

#include <pier/buffer.h>
#include <pier/device.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Topology: which NIC is near to which memory, by the PCIe tree in sysfs
 * (/sys/bus/pci/devices) and the NUMA nodes there.
 *
 * Threads: any thread may call any function.
 */

/** Where a piece of hardware is. */
struct pier_location {
	char pci[16];  /**< "0000:17:00.0", in lower case; "" where it is on no PCI bus */
	int numa_node; /**< -1: not known */
};

/** How far it is from one to the other, the nearest first. */
enum pier_distance {
	PIER_DISTANCE_SAME = 0,	       /**< functions of one device */
	PIER_DISTANCE_SWITCH = 1,      /**< no more than one PCIe switch between them */
	PIER_DISTANCE_SWITCHES = 2,    /**< several switches, without the host bridge */
	PIER_DISTANCE_HOST_BRIDGE = 3, /**< by the same host bridge of the processor */
	PIER_DISTANCE_NODE = 4,	       /**< by several host bridges of a NUMA node */
	PIER_DISTANCE_SYSTEM = 5,      /**< from one NUMA node to another */
	PIER_DISTANCE_UNKNOWN = 6,     /**< sysfs does not tell */
};

/** "same", "switch", "switches", "host bridge", "node", "system" or "unknown". */
PIER_API const char *pier_distance_name(enum pier_distance distance);

/**
 * Where a NIC is. soft0 is nowhere.
 *
 * Errors: -ECHILD. What sysfs does not tell is "" and -1.
 */
PIER_API int pier_device_location(const struct pier_device *device,
				  struct pier_location *ret_location);

/** How far it is between two places. Cannot fail. */
PIER_API enum pier_distance pier_location_distance(const struct pier_location *a,
						   const struct pier_location *b);

/** A NIC, and how far it is from some place. */
struct pier_near_device {
	char name[64];
	struct pier_location location;
	enum pier_distance distance;
};

/**
 * List the RDMA devices, the nearest first; equally far ones are in the order of
 * pier_device_list(). The state of ports is ignored. soft0 is not listed, because it is
 * chosen by name only.
 *
 * ret_list   the caller's, to be given to pier_near_device_list_free()
 * ret_count  its length, which may be 0
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_near_device_list(const struct pier_location *location,
				   struct pier_near_device **ret_list, size_t *ret_count);

/** Free what pier_near_device_list() gave; NULL is fine. */
PIER_API void pier_near_device_list_free(struct pier_near_device *list);

/**
 * Open the device that PIER_DEVICE names, or else the RDMA device with an active port that
 * is nearest to a buffer's memory. Like pier_open_device(NULL) it never chooses soft0.
 *
 * buffer  NULL, or of memory that is nowhere: as pier_open_device(NULL)
 *
 * Errors: those of pier_open_device().
 */
PIER_API int pier_open_near_device(const struct pier_buffer *buffer,
				   struct pier_device **ret_device);

/** One entry of pier_memory_unit_list(): a GPU. */
struct pier_memory_unit {
	char spec[64];	  /**< what pier_buffer_alloc() takes: "cuda:0" */
	char name[96];	  /**< "NVIDIA H200" */
	char detail[160]; /**< limits and the like, or "" */
	struct pier_location location;
};

/**
 * List the units of all backends that work here: the GPUs.
 *
 * ret_list   the caller's, to be given to pier_memory_unit_list_free()
 * ret_count  its length; 0 and a list of NULL where there are none
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_memory_unit_list(struct pier_memory_unit **ret_list, size_t *ret_count);

/** Free what pier_memory_unit_list() gave; NULL is fine. */
PIER_API void pier_memory_unit_list_free(struct pier_memory_unit *list);

PIER_END_DECLS

#endif
