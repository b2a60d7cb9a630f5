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
 * A device is an RDMA NIC that libibverbs knows ("mlx5_0", "rxe0") or the
 * software NIC of this library, "soft0", which needs neither hardware nor
 * privilege and reaches processes on this host and on others.
 *
 * Threads: all functions of this header may be called from any thread, on the
 * same device too; nothing else may use an object while it is being closed.
 *
 * Processes: devices, protection domains, regions, channels and counters are those of
 * the process that made them. In a child of fork(2) every call that would do something
 * with one of the parent's is -ECHILD at once, changes nothing and names the
 * object; calls that only tell what an object is still do. The child opens the
 * device again, makes objects of its own, and closes none of the parent's, which
 * go on working: what the child inherited goes with it. <pier/buffer.h> says what
 * it may do with buffers.
 *
 * Children are told by pthread_atfork(3): those of vfork(2), of _Fork(3) and of
 * clone(2) called directly are not noticed, and must not use pier at all before
 * execve(2). Nor can pier help where another thread of the program is itself inside
 * ibv_get_device_list(3) during the fork: a lock of libibverbs then stays held in the
 * child, in which pier_open_device() hangs.
 *
 * On kernels before 5.12 a fork takes pages away from under a NIC unless
 * ibv_fork_init(3) was called before a device was opened, which pier leaves to the
 * program; memory of regions is then not there in the child.
 */

struct pier_device;
struct pier_pd;

/** The software NIC's name. */
#define PIER_SOFT_DEVICE "soft0"

/** Begins the name of a device behind a plan of faults: see pier_open_device(). */
#define PIER_FAULT_DEVICE "fault"

/** One entry of pier_device_list(). */
struct pier_device_info {
	char name[64];	   /**< what pier_open_device() takes */
	char provider[16]; /**< who drives it: "verbs" or "soft" */
};

/** Limits and abilities of an open device; see ibv_query_device(3). */
struct pier_device_attr {
	char name[64];
	char provider[16]; /**< "verbs", "soft" or, behind a plan of faults, "fault" */
	char firmware[64];
	uint64_t max_mr_size;  /**< longest memory region, in bytes */
	uint64_t page_sizes;   /**< bit n set: pages of 2^n bytes are supported */
	uint32_t max_qp_wr;    /**< longest send or receive queue, in requests */
	uint32_t max_sge;      /**< elements in one request */
	uint32_t max_cqe;      /**< longest completion queue */
	uint32_t port_count;   /**< ports are numbered from 1 to this */
	uint8_t max_rd_atomic; /**< reads and atomics served at once on a channel */
	/**
	 * 1: dma-bufs can be registered; 0: they cannot; found by registering fd
	 * -1, which a device that can answers with EBADF.
	 */
	bool dmabuf;
	/** An ordinary memfd is taken where a dma-buf is asked for (soft0 only). */
	bool memfd_as_dmabuf;
	bool atomics;	     /**< PIER_ACCESS_REMOTE_ATOMIC is possible */
	bool memory_windows; /**< PIER_ACCESS_MW_BIND is possible */
	bool on_demand;	     /**< PIER_ACCESS_ON_DEMAND is possible */
	bool counters;	     /**< it counts writes of peers: pier_counter_bind() */
	/** Highest key that can be asked for; 0: the device chooses all keys. */
	uint32_t max_requested_key;
	/** Ranges that the device joins under one key; 0 or 1: it does not. */
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
	uint32_t max_mtu;      /**< likewise */
	uint32_t max_msg_size; /**< longest message, in bytes */
	uint32_t gid_count;    /**< GID indexes run from 0 to this, less one */
};

enum pier_gid_type {
	PIER_GID_IB = 0,
	PIER_GID_ROCE_V1 = 1,
	PIER_GID_ROCE_V2 = 2,
};

/** An entry of a port's GID table; see ibv_query_gid_ex(3). */
struct pier_gid_entry {
	uint8_t gid[16]; /**< in network order */
	uint32_t index;
	enum pier_gid_type type;
};

/**
 * List the devices of this machine: those of libibverbs, then soft0. The list
 * always has soft0, unless the library was built without it (-Dsoft=disabled).
 *
 * ret_list   the caller's, to be given to pier_device_list_free()
 * ret_count  its length
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_device_list(struct pier_device_info **ret_list, size_t *ret_count);

/** Free what pier_device_list() gave; NULL is fine. */
PIER_API void pier_device_list_free(struct pier_device_info *list);

/**
 * Open a device.
 *
 * name  a name of pier_device_list(); or "fault:PLAN:NAME", such a device behind a
 *       plan of faults; or NULL: the device that the environment variable PIER_DEVICE
 *       names in either way, or else the first RDMA device that opens and has an active
 *       port. NULL never chooses soft0: name it, or set PIER_DEVICE=soft0. Programs that
 *       run with raised privileges ignore PIER_DEVICE (secure_getenv(3)).
 *
 * Every call gives an object of its own, to be closed with
 * pier_close_device(). soft0 starts a thread, which ends at the close; it reads
 * PIER_SOFT_ADDRESS and PIER_SOFT_PEERS, without which it does not use TCP (pier(1)).
 *
 * A plan of faults makes chosen calls of the device fail, so that a program's own
 * handling of errors can be tested where there is no NIC; with PIER_DEVICE the program
 * need not know. It is a list of rules with commas between them:
 *
 *	fault:reg@3=ENOMEM:soft0		the third registration fails
 *	fault:wc@5=RETRY_EXC_ERR,late@2=50ms:soft0
 *	fault:seed=7,post_send~20=EIO:mlx5_0	one request in twenty is refused
 *
 * A rule says what, when and how: NAME@N is the Nth occasion, counted from 1 by each rule
 * for itself and for the device as it was opened; NAME@N+ that and all behind it;
 * NAME~N one in N by chance. The same seed makes the same choices. seed=NUMBER gives
 * one; without it one is drawn. The log tells it at level info, with every fault that
 * strikes, and so does the sentence of a call that fails.
 *
 *	CALL@N=ERRNO	the call of the verbs interface of that name fails: open_device,
 *			close_device, query_device, query_port, query_gid,
 *			query_on_demand, alloc_pd, dealloc_pd, reg_mr, reg_dmabuf_mr,
 *			reg_parts, dereg_mr, alloc_mw, dealloc_mw, bind_counter,
 *			create_comp_channel, destroy_comp_channel, create_cq,
 *			destroy_cq, create_qp, modify_qp, query_qp, destroy_qp,
 *			get_qp_address, set_qp_address, post_send, post_recv (these
 *			two for each request of a list), poll_cq, req_notify_cq,
 *			get_cq_event. ERRNO is a name as in errno(3)
 *	reg@N=ERRNO	a registration in whatever form
 *	call@N=ERRNO	whichever call it is, but for the last three
 *	wc@N=STATUS	the completion fails, with a name of enum ibv_wc_status without
 *			IBV_WC_, such as REM_ACCESS_ERR, and the vendor code 0xfa17;
 *			the queue pair is in the error state and what is behind it
 *			is flushed. The request itself may have been carried out
 *	late@N=TIME	the completion is held back for that time (50us, 50ms, 2s; an
 *			hour at most), or with late@N=9polls for so many polls of its
 *			queue; what is behind it on its queue pair waits too. Who
 *			sleeps on the completion channel is woken then
 *	lost@N		the completion never comes
 *	overrun@N	the completion queue overruns: the completion is lost, polling
 *			fails from then on, its queue pairs go to the error state
 *	dead@N=TIME	counted in requests that are sent: from this one on the peer of
 *			its queue pair is dead. Nothing is sent any more. After that
 *			time (without one: 500ms), when the requests before it have
 *			completed, the request ends with RETRY_EXC_ERR and what is
 *			behind it is flushed
 *	event@N=TIME	counted in requests for an event: the event comes no sooner than
 *			that after it was asked for
 *
 * Completions are counted as they are taken from the device. What only asks what a
 * device can while it is opened (alloc_pd, reg_dmabuf_mr) counts for call@ alone. The
 * device is called "fault:NAME", "fault" is who drives it, and it is in no list; of
 * libibverbs' functions only those may be used on what is made of it that <pier/verbs.h>
 * names for soft0. It is slower than the device itself.
 *
 * Errors: -ENODEV no such device (the sentence lists those that exist), or no RDMA device
 * can be chosen (the sentence has the reason for each that was passed over); -EINVAL the
 * plan is none (the sentence names the rule and what is wrong with it); -EACCES or
 * -EPERM not allowed to open it; -ENOMEM; what ibv_open_device(3) leaves in errno, or
 * what a plan says.
 */
PIER_API int pier_open_device(const char *name, struct pier_device **ret_device);

/**
 * Close a device; NULL is fine.
 *
 * Errors: -EBUSY it still has protection domains, and nothing was changed; the
 * sentence counts the objects below it, and debug messages list them with their
 * callers (<pier/object.h>). -ECHILD it is the parent's. Others of
 * ibv_close_device(3), and it is still open.
 */
PIER_API int pier_close_device(struct pier_device *device);

/** The device's name; valid until it is closed. Cannot fail. */
PIER_API const char *pier_device_name(const struct pier_device *device);

/**
 * Ask a device for its limits.
 *
 * Errors: those of ibv_query_device(3), negated; -ECHILD.
 */
PIER_API int pier_query_device(struct pier_device *device,
			       struct pier_device_attr *ret_attr);

/**
 * Ask for the state of a port, numbered from 1.
 *
 * Errors: -EINVAL no such port; -ECHILD; others of ibv_query_port(3), negated.
 */
PIER_API int pier_query_port(struct pier_device *device, uint32_t port,
			     struct pier_port_attr *ret_attr);

/**
 * Read the GID table of a port.
 *
 * Errors: -ENODATA the index is valid but empty; -EINVAL no such port or
 * index; -ECHILD; others of ibv_query_gid_ex(3), negated.
 */
PIER_API int pier_query_gid(struct pier_device *device, uint32_t port, uint32_t index,
			    struct pier_gid_entry *ret_entry);

/**
 * Allocate a protection domain: what regions and channels of one PD may reach
 * together. See ibv_alloc_pd(3).
 *
 * Errors: -ENOMEM; -ECHILD; what ibv_alloc_pd(3) leaves in errno.
 */
PIER_API int pier_alloc_pd(struct pier_device *device, struct pier_pd **ret_pd);

/**
 * Give a protection domain back; NULL is fine.
 *
 * Errors: -EBUSY it still has regions, channels or counters, which the sentence counts,
 * and nothing was changed; -ECHILD it is the parent's.
 */
PIER_API int pier_dealloc_pd(struct pier_pd *pd);

/** The device of a protection domain. Cannot fail. */
PIER_API struct pier_device *pier_pd_device(const struct pier_pd *pd);

PIER_END_DECLS

#endif
