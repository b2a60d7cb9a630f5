/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_H
#define PIER_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Devices and protection domains.
 *
 * A device is an RDMA NIC of libibverbs ("mlx5_0", "rxe0") or "soft0", the software NIC
 * of this library. soft0 needs neither hardware nor privileges, and reaches processes
 * on this host and on others.
 *
 * Threads: any thread may call any function of this header, also on the same device. No
 * thread may use an object while another thread closes it.
 *
 * Processes: devices, protection domains, regions, channels and counters belong to the
 * process that created them. In a child of fork(2), every call that would act on an
 * object of the parent fails at once with -ECHILD, changes nothing, and names the
 * object; calls that only query an object's properties still work. The child must open
 * the device again and create its own objects. It must not close the parent's objects,
 * which the parent can still use; the child's copies last until it exits.
 * <pier/buffer.h> describes the rules for buffers.
 *
 * The library detects forks with pthread_atfork(3). It cannot detect children of
 * vfork(2), _Fork(3) or a direct clone(2), so these must not call pier before
 * execve(2). Also, a child can hang in pier_device_open() if another thread of the
 * parent was inside ibv_get_device_list(3) at the time of the fork: the lock of
 * libibverbs stays held in the child.
 *
 * On kernels before 5.12, a fork separates registered pages from the NIC unless the
 * program called ibv_fork_init(3) before it opened a device. pier does not call it.
 * After ibv_fork_init(3), the memory of regions is not mapped in the child.
 */

struct pier_device;
struct pier_pd;

/** The name of the software NIC. */
#define PIER_SOFT_DEVICE "soft0"

/** The prefix of a device name with a fault plan: see pier_device_open(). */
#define PIER_FAULT_DEVICE "fault"

/** One entry of pier_device_list(). */
struct pier_device_info {
	char name[64];	   /**< the name for pier_device_open() */
	char provider[16]; /**< the device's provider: "verbs" or "soft" */
};

/** Limits and capabilities of an open device; see ibv_query_device(3). */
struct pier_device_attr {
	char name[64];
	char provider[16]; /**< "verbs", "soft", or "fault" with a fault plan */
	char firmware[64];
	uint64_t max_mr_size; /**< longest region that the driver promises, in bytes */
	uint64_t page_sizes;  /**< bit n set: pages of 2^n bytes are supported */
	uint32_t max_qp_wr;   /**< longest send or receive queue, in requests */
	uint32_t max_sge;     /**< the most elements in one request */
	uint32_t max_cqe;     /**< longest completion queue, in entries */
	uint32_t port_count;  /**< ports are numbered from 1 to this number */
	uint32_t
		max_rd_atomic; /**< the most reads and atomics in progress on a channel */
	/**
	 * Whether dma-bufs can be registered. The library finds out by registering fd
	 * -1: a device that supports dma-bufs fails with EBADF.
	 */
	bool dmabuf;
	/** Whether the device accepts an ordinary memfd as a dma-buf (soft0 only). */
	bool memfd_as_dmabuf;
	bool atomics;	     /**< PIER_ACCESS_REMOTE_ATOMIC is possible */
	bool memory_windows; /**< PIER_ACCESS_MW_BIND is possible */
	bool on_demand;	     /**< PIER_ACCESS_ON_DEMAND is possible */
	bool counters;	     /**< it counts peers' writes: pier_counter_bind() */
	/**
	 * The highest key that the caller may request; 0: the device chooses all keys.
	 */
	uint32_t max_requested_key;
	/**
	 * The most parts that fit under one indirect key: pier_mr_reg_attr(). On mlx5
	 * that of NICs with requests of 1024 bytes. 0: the device has no such keys.
	 */
	uint32_t max_joined_ranges;
};

enum pier_link_layer {
	PIER_LINK_UNSPECIFIED = 0,
	PIER_LINK_INFINIBAND = 1,
	PIER_LINK_ETHERNET = 2, /**< RoCE or the software NIC: addressed by GID */
};

/** A port's state and limits; see ibv_query_port(3). */
struct pier_port_attr {
	bool active;
	enum pier_link_layer link_layer;
	uint16_t lid;	       /**< 0 on Ethernet */
	uint32_t active_mtu;   /**< 256, 512, 1024, 2048 or 4096 bytes; 0: unknown */
	uint32_t max_mtu;      /**< same values */
	uint32_t max_msg_size; /**< longest message, in bytes */
	uint32_t gid_count;    /**< GID indexes are 0 to gid_count - 1 */
};

enum pier_gid_type {
	PIER_GID_IB = 0,
	PIER_GID_ROCE_V1 = 1,
	PIER_GID_ROCE_V2 = 2,
};

/** An entry of a port's GID table; see ibv_query_gid_ex(3). */
struct pier_gid_entry {
	uint8_t gid[16]; /**< in network byte order */
	uint32_t index;
	enum pier_gid_type type;
};

/**
 * List the devices of this machine: those of libibverbs, then soft0. soft0 is always
 * listed, unless the library was built without it (-Dsoft=disabled).
 *
 * ret_list   the list, from malloc(3); free it with free(3)
 * ret_count  its length
 * size       sizeof(**ret_list) in the caller
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_device_list(struct pier_device_info **ret_list, uint32_t *ret_count,
			      size_t size);

/**
 * Open a device.
 *
 * name        a name from pier_device_list(); or "fault:PLAN:NAME", the device NAME
 *             with a fault plan; or NULL. NULL opens the device that the environment
 *             variable PIER_DEVICE names in either form. If PIER_DEVICE is unset, NULL
 *             opens the first RDMA device that can be opened, can have channels
 *             (pier_device_check_channels()) and has an active port of InfiniBand or
 *             Ethernet.
 *             NULL never chooses soft0: name it, or set PIER_DEVICE=soft0. Programs
 *             that run with raised privileges ignore PIER_DEVICE (secure_getenv(3)).
 * ret_device  the device; close it with pier_device_close()
 *
 * Every call returns a separate object. soft0 starts a thread, which ends when the
 * device is closed. soft0 reads PIER_SOFT_ADDRESS and PIER_SOFT_PEERS; without them it
 * does not use TCP (pier(1)).
 *
 * A fault plan makes chosen calls of the device fail, for tests of a program's error
 * handling: "fault:reg@3=ENOMEM:soft0" is soft0, whose third registration fails.
 * pier-fault(7) describes the plans.
 *
 * Errors: -ENODEV there is no such device (pier_error_message() lists those that
 * exist), no RDMA device can be chosen (pier_error_message() gives the reason for each
 * that was rejected), or this build has no fault plans; -EINVAL the fault plan is
 * malformed (pier_error_message() names the rule and the mistake), or PIER_CANARY,
 * PIER_DMABUF, PIER_PEERMEM or PIER_RELAXED_ORDERING (pier(1)), which are read here, is
 * not "on", "off" or "auto"; -EACCES or -EPERM the caller may not open the device;
 * -ENOMEM; the errno of ibv_open_device(3), or of a fault plan.
 */
PIER_API int pier_device_open(const char *name, struct pier_device **ret_device);

/**
 * Close a device. NULL is allowed.
 *
 * Errors: -EBUSY the device still has protection domains, or buffers in its memory
 * (pier_buffer_alloc_on_nic()); nothing was changed.
 * pier_error_message() counts the objects of the device, and debug messages list them
 * with their callers (<pier/object.h>). -ECHILD the device belongs to the parent
 * process. Others of ibv_close_device(3); the device is then still open.
 */
PIER_API int pier_device_close(struct pier_device *device);

/** Return the name of a device; valid until it is closed. Cannot fail. */
PIER_API const char *pier_device_name(const struct pier_device *device);

/**
 * Query the limits and capabilities of a device.
 *
 * ret_attr  written up to `size` bytes
 * size      sizeof(*ret_attr) in the caller
 *
 * Errors: those of ibv_query_device(3), negated; -ECHILD the device belongs to the
 * parent process.
 */
PIER_API int pier_device_query(struct pier_device *device,
			       struct pier_device_attr *ret_attr, size_t size);

/**
 * Check whether a device can have channels. The library finds out when it opens the
 * device, by creating the smallest reliable connected (RC) queue pair. Amazon's EFA
 * refuses it, and the queue pairs of an iWARP device can only be connected by rdma_cm,
 * which pier does not use. Such a device registers memory all the same.
 *
 * Returns 0 if it can, or if that queue pair failed because of the process or the moment:
 * a limit of a cgroup, or the rights of a container. pier_channel_create() then returns
 * that error.
 *
 * Errors: -EOPNOTSUPP it cannot (pier_error_message() gives the reason), and
 * pier_channel_create() fails likewise.
 */
PIER_API int pier_device_check_channels(const struct pier_device *device);

/**
 * Query the state and limits of a port.
 *
 * port      from 1 to port_count
 * ret_attr  written up to `size` bytes
 * size      sizeof(*ret_attr) in the caller
 *
 * Errors: -EINVAL there is no such port; -ECHILD the device belongs to the parent
 * process; others of ibv_query_port(3), negated.
 */
PIER_API int pier_device_query_port(struct pier_device *device, uint32_t port,
				    struct pier_port_attr *ret_attr, size_t size);

/**
 * Read an entry of a port's GID table.
 *
 * port       from 1 to port_count
 * index      from 0 to gid_count - 1
 * ret_entry  written up to `size` bytes
 * size       sizeof(*ret_entry) in the caller
 *
 * Errors: -ENODATA the entry is empty; -EINVAL there is no such port or index; -ECHILD
 * the device belongs to the parent process; others of ibv_query_gid_ex(3), negated.
 */
PIER_API int pier_device_query_gid(struct pier_device *device, uint32_t port,
				   uint32_t index, struct pier_gid_entry *ret_entry,
				   size_t size);

/**
 * Allocate a protection domain. Regions and channels can be used together only within
 * one protection domain. See ibv_alloc_pd(3).
 *
 * ret_pd  the protection domain; give it to pier_pd_dealloc()
 *
 * Errors: -ENOMEM; -ECHILD the device belongs to the parent process; the errno of
 * ibv_alloc_pd(3).
 */
PIER_API int pier_pd_alloc(struct pier_device *device, struct pier_pd **ret_pd);

/**
 * Deallocate a protection domain. NULL is allowed.
 *
 * Errors: -EBUSY it still has regions, channels or counters, which pier_error_message()
 * counts; nothing was changed. -ECHILD it belongs to the parent process.
 */
PIER_API int pier_pd_dealloc(struct pier_pd *pd);

/** Return the device of a protection domain. Cannot fail. */
PIER_API struct pier_device *pier_pd_device(const struct pier_pd *pd);

PIER_END_DECLS

#endif
