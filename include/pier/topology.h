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
 * Topology: the distance between NICs and memory, from the PCIe tree and the NUMA nodes
 * in sysfs (/sys/bus/pci/devices).
 *
 * Virtual machines often hide both. The environment variable PIER_TOPO_FILE names a text
 * file that corrects them, except in programs with raised privileges (secure_getenv(3)):
 *
 *	# The place of a NIC; its speed in Mbit/s.
 *	nic mlx5_0 pci=0000:00:08.0 numa=0 speed=400000
 *	# The NUMA node of any PCI device, such as a GPU.
 *	pci cuda:0 numa=0
 *	# Two places, and a name from pier_distance_name().
 *	distance cuda:0 mlx5_0 switch
 *	distance 0000:00:06.0 mlx5_1 host bridge
 *
 * Each property of `nic` may be missing. `pci=` also gives a place to a NIC without one.
 * A place is a PCI address; or a NIC; or the spec of a unit of memory that has a PCI
 * address, as pier_memory_unit_list() and pier-info(1) report it. CUDA_VISIBLE_DEVICES
 * and its like renumber units. A unit is only asked for if the file names one.
 *
 * Use `c2c` if a GPU reaches a NIC over a coherent link of its processor (NVLink-C2C):
 * sysfs never shows it. `switch` and `switches` make such a GPU use the PCIe mapping
 * (<pier/buffer.h>).
 *
 * A line with an error fails every call that lists, opens or locates NICs by the file,
 * and so does a second line about the same NIC, address or pair. Registrations and
 * pier_location_distance() then ignore the file, with a warning. A line about a NIC or a
 * unit that is not here is ignored alone, with a warning (PIER_LOG=warning prints it).
 *
 * Threads: any thread may call any function.
 */

/** The location of a device. Frozen: other structs contain it. */
struct pier_location {
	char pci[16];  /**< "0000:17:00.0", in lower case; "" if it is on no PCI bus */
	int numa_node; /**< -1 if unknown */
};

/** The distance between two locations, in ascending order. */
enum pier_distance {
	PIER_DISTANCE_SAME = 0,	    /**< functions of one device */
	PIER_DISTANCE_SWITCH = 1,   /**< at most one PCIe switch between them */
	PIER_DISTANCE_SWITCHES = 2, /**< several switches, not through the host bridge */
	PIER_DISTANCE_C2C = 3,	    /**< over NVLink-C2C: only from PIER_TOPO_FILE */
	PIER_DISTANCE_HOST_BRIDGE = 4, /**< through one host bridge of the processor */
	PIER_DISTANCE_NODE = 5,	   /**< through several host bridges of one NUMA node */
	PIER_DISTANCE_SYSTEM = 6,  /**< between NUMA nodes */
	PIER_DISTANCE_UNKNOWN = 7, /**< sysfs does not report it */
};

/**
 * Return the name of a distance: "same", "switch", "switches", "c2c", "host bridge",
 * "node", "system" or "unknown". Cannot fail.
 */
PIER_API const char *pier_distance_name(enum pier_distance distance);

/**
 * Return the location of a NIC. soft0 has no location. Fields that sysfs does not
 * report are "" and -1.
 *
 * Errors: -ECHILD the device belongs to the parent process; those of PIER_TOPO_FILE, as
 * for pier_device_list_near().
 */
PIER_API int pier_device_location(const struct pier_device *device,
				  struct pier_location *ret_location);

/**
 * Return the distance between two locations. Cannot fail: a PIER_TOPO_FILE with an error
 * is ignored, with a warning.
 *
 * a, b  may be NULL: PIER_DISTANCE_UNKNOWN
 */
PIER_API enum pier_distance pier_location_distance(const struct pier_location *a,
						   const struct pier_location *b);

/**
 * Bind the calling thread to the CPUs of a location's NUMA node, as sched_setaffinity(2)
 * does. By default, memory that the thread touches first then comes from that node, too
 * (set_mempolicy(2)); this function changes no memory policy. Threads that it starts
 * later, those of pier included, inherit the CPUs. Other threads stay as they are.
 *
 * The thread never gets a CPU that it could not use before: of the CPUs of the node,
 * those remain that are in its affinity mask, which taskset(1), launchers and cgroups
 * restrict. To move a thread from one node to another, first restore its old mask with
 * sched_setaffinity(2).
 *
 * location  of a NIC: pier_device_location(); of a GPU: that of its
 *           pier_memory_unit, or the node that pier_buffer_query() reports
 *
 * After an error the thread's mask is unchanged. A caller that binds only where this
 * helps ignores -ENODATA.
 *
 * Errors: -ENODATA the node is unknown (-1, as for soft0, machines with one node and many
 * virtual ones), or has no CPUs; -EPERM the thread may use none of the node's CPUs; those
 * of sched_getaffinity(2) and sched_setaffinity(2).
 */
PIER_API int pier_thread_bind_near(const struct pier_location *location);

/** A NIC and its distance from a location. */
struct pier_near_device {
	char name[64];
	struct pier_location location;
	enum pier_distance distance;
	/**
	 * In Mbit/s: the rate of its fastest active port, or of its PCIe link if that is
	 * slower; 0: unknown.
	 */
	uint32_t speed;
};

/**
 * List the RDMA devices, the nearest first, and the fastest first of those at the same
 * distance. The state of their ports is otherwise ignored. soft0 is not listed, because
 * it is selected only by name.
 *
 * Devices that are equally near and fast are spread: the list begins with a different
 * one for each of several GPUs to which they are equally near. The memory's PCI address
 * decides. For memory without one, the rank of this process on its host decides, if its
 * launcher states it in OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID, SLURM_LOCALID or
 * LOCAL_RANK. The choice is the same in each run.
 *
 * ret_list   the list, from malloc(3); free it with free(3)
 * ret_count  its length, which may be 0
 * size       sizeof(**ret_list) in the caller
 *
 * Errors: -EINVAL a line of PIER_TOPO_FILE is wrong; -ENOMEM; those of open(2) for that
 * file.
 */
PIER_API int pier_device_list_near(const struct pier_location *location,
				   struct pier_near_device **ret_list,
				   uint32_t *ret_count, size_t size);

/**
 * Open the device that PIER_DEVICE names. If PIER_DEVICE is unset, open the RDMA device
 * with an active port that is nearest to a buffer's memory. Like
 * pier_device_open(NULL), this never chooses soft0.
 *
 * buffer      NULL, or a buffer whose memory has no location: same as
 *             pier_device_open(NULL)
 * ret_device  the device; close it with pier_device_close()
 *
 * Errors: those of pier_device_open() and of pier_device_list_near().
 */
PIER_API int pier_device_open_near(const struct pier_buffer *buffer,
				   struct pier_device **ret_device);

/** One entry of pier_memory_unit_list(): a GPU. */
struct pier_memory_unit {
	char spec[64];		       /**< the spec for pier_buffer_alloc(): "cuda:0" */
	char name[96];		       /**< "NVIDIA H200" */
	char detail[160];	       /**< limits and other properties, or "" */
	struct pier_location location; /**< of sysfs: PIER_TOPO_FILE changes nothing */
};

/**
 * List the units of all backends that work on this machine: the GPUs.
 *
 * ret_list   the list, from malloc(3); free it with free(3); NULL if it is empty
 * ret_count  its length, which may be 0
 * size       sizeof(**ret_list) in the caller
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_memory_unit_list(struct pier_memory_unit **ret_list,
				   uint32_t *ret_count, size_t size);

PIER_END_DECLS

#endif
