/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PROVIDER_PROVIDER_H
#define PIER_PROVIDER_PROVIDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <infiniband/verbs.h>

/* The longest address that a provider may add to an endpoint, in bytes. */
enum {
	PIER_PROVIDER_ADDRESS_MAX = 192
};

/* One piece of the memory of a region. */
struct pier_provider_part {
	int fd;		 /* a dma-buf (or a memfd where takes_memfd); -1: host memory */
	uint64_t offset; /* of the piece in the fd */
	void *addr;	 /* of host memory */
	uint64_t length; /* in bytes, more than 0 */
};

/* Counts remote writes. */
struct pier_provider_counter {
	/*
	 * A reader that sees the new value also sees the bytes of the writes it counts.
	 */
	atomic_uint_fast64_t value;
	/*
	 * Called each time after `value` grew, on any thread and with locks of the
	 * provider held: it must only wake waiters. NULL: there are none.
	 */
	void (*notify)(struct pier_provider_counter *counter);
};

/*
 * struct ibv_dmah_init_attr and struct ibv_mr_init_attr, which the headers have since
 * rdma-core 59; newer members of the latter, which no bit here announces, are left out.
 */
enum {
	PIER_DMAH_CPU_ID = 1 << 0, /* IBV_DMAH_INIT_ATTR_MASK_... */
	PIER_DMAH_PH = 1 << 1,
	PIER_DMAH_TPH_MEM_TYPE = 1 << 2,

	PIER_REG_IOVA = 1 << 0, /* IBV_REG_MR_MASK_... */
	PIER_REG_ADDR = 1 << 1,
	PIER_REG_FD = 1 << 2,
	PIER_REG_FD_OFFSET = 1 << 3,
	PIER_REG_DMAH = 1 << 4,
};

struct pier_dmah_attr {
	uint32_t comp_mask;
	uint32_t cpu_id;
	uint8_t ph;	      /* the two bits of PCI Express */
	uint8_t tph_mem_type; /* 0: volatile memory, 1: persistent memory */
};

struct pier_reg_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct ibv_dmah *dmah;
};

enum {
	/*
	 * The parts of an indirect key that one request of 1024 bytes, as mlx5 NICs have
	 * them, has room for: it has 192 bytes more (_sq_overhead() in libmlx5's
	 * verbs.c), and 16 for each entry of its list. soft0 has the same limit.
	 */
	PIER_JOIN_PARTS = 52,
	/* All that mlx5_send_wr_set_mkey_access_flags() accepts. */
	PIER_JOIN_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
};

/*
 * The interface to a NIC: a table of libibverbs' own functions. Each member has the
 * signature, the return value and the errno of the libibverbs function of its name; see
 * ibv_reg_mr_iova(3) and so on. Post, poll and request-notify are not here: the channel
 * calls the inline ibv_post_send(), ibv_post_recv(), ibv_post_srq_recv(), ibv_poll_cq()
 * and ibv_req_notify_cq(), which dispatch through the ops of the ibv_context from
 * open_device().
 *
 * A provider that can explain an errno does so with pier_fail().
 */
struct pier_provider {
	const char *name;

	/* reg_dmabuf_mr() also accepts memfds, which the kernel would refuse. */
	bool takes_memfd;
	/* Whenever a post fails, pier_fail() has given the reason. */
	bool explains_posts;
	/* The most pieces that reg_parts() takes; 0 if there is no reg_parts(). */
	uint32_t max_parts;
	/*
	 * reg_parts() uses keys from 1 to this only for callers that ask for one of
	 * them. 0: the provider chooses all keys.
	 */
	uint32_t max_key;

	struct ibv_device **(*get_device_list)(int *ret_count);
	void (*free_device_list)(struct ibv_device **list);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *context);

	int (*query_device)(struct ibv_context *context,
			    struct ibv_device_attr *ret_attr);
	int (*query_port)(struct ibv_context *context, uint8_t port,
			  struct ibv_port_attr *ret_attr);
	/*
	 * Take an asynchronous event, and acknowledge it. The fd of the context is
	 * non-blocking: -1 and EAGAIN if there is none. NULL: the device has no events.
	 */
	int (*get_async_event)(struct ibv_context *context,
			       struct ibv_async_event *ret_event);
	void (*ack_async_event)(struct ibv_async_event *event);

	/*
	 * ibv_query_gid_table(3) with flags 0: the entries of all ports that are not
	 * empty. Returns their number or a negative errno. NULL: one by one.
	 */
	ssize_t (*query_gid_table)(struct ibv_context *context,
				   struct ibv_gid_entry *ret_entries, size_t size);
	/* ibv_query_gid_ex(3) with flags 0; ENODATA if the index is empty. */
	int (*query_gid)(struct ibv_context *context, uint8_t port, uint32_t index,
			 struct ibv_gid_entry *ret_entry);

	/*
	 * Whether regions of host memory may have IBV_ACCESS_ON_DEMAND: their pages are
	 * faulted in when they are accessed. 0 or a positive errno.
	 */
	int (*query_on_demand)(struct ibv_context *context, bool *ret_on_demand);

	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	int (*dealloc_pd)(struct ibv_pd *pd);

	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length,
				 uint64_t iova, int access);
	/* The addr of the result is the offset, as with libibverbs. */
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length,
					uint64_t iova, int fd, int access);
	/*
	 * Beyond verbs: the Data Direct engine, a second PCIe function of the NIC that
	 * reaches a GPU's memory over PCIe where the NIC itself goes through the CPU and
	 * NVLink-C2C. Both are NULL if the driver knows no such thing.
	 *
	 * query: writes the path of that function in sysfs, without "/sys". 0, or a
	 * positive errno: EOPNOTSUPP: not a NIC with such engines; otherwise, with
	 * pier_fail(): the NIC's driver has them, but this NIC has none that can be used,
	 * and dma-bufs of the mapping PCIe do not work without.
	 *
	 * reg: reg_dmabuf_mr() through the engine.
	 */
	int (*query_data_direct)(struct ibv_context *context, char *ret_path,
				 size_t size);
	struct ibv_mr *(*reg_data_direct_mr)(struct ibv_pd *pd, uint64_t offset,
					     size_t length, uint64_t iova, int fd,
					     int access);
	/* Since rdma-core 59; EOPNOTSUPP without it. */
	struct ibv_dmah *(*alloc_dmah)(struct ibv_context *context,
				       struct pier_dmah_attr *attr);
	int (*dealloc_dmah)(struct ibv_dmah *dmah);
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *pd, struct pier_reg_attr *attr);
	int (*dereg_mr)(struct ibv_mr *mr);
	/*
	 * Memory of the NIC, ibv_alloc_dm(3). The copies are members of struct ibv_dm;
	 * NULL: the driver has none. EOPNOTSUPP if the driver has no such memory, or, for
	 * the export, before rdma-core 62.
	 */
	struct ibv_dm *(*alloc_dm)(struct ibv_context *context,
				   struct ibv_alloc_dm_attr *attr);
	int (*free_dm)(struct ibv_dm *dm);
	struct ibv_mr *(*reg_dm_mr)(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
				    size_t length, unsigned int access);
	int (*dm_export_dmabuf_fd)(struct ibv_dm *dm);
	/* Of type 2, and bound by a request; NULL if the device has no windows. */
	struct ibv_mw *(*alloc_mw)(struct ibv_pd *pd, enum ibv_mw_type type);
	int (*dealloc_mw)(struct ibv_mw *mw);

	/*
	 * Beyond verbs, and NULL if the device cannot do it: a region under a key that
	 * the caller chooses, of one or several pieces of memory, of any kinds, which
	 * follow each other from iova on in one flat address space. Without a chosen key,
	 * several pieces are for join_mrs(). The parts and the key are read during the
	 * call only, and an fd can be closed after it. The addr of the result is that of
	 * the first piece: the address of host memory, or the offset in an fd.
	 *
	 * One piece follows the page rule of reg_mr() and reg_dmabuf_mr() (addr or
	 * offset and iova agree modulo the page); several pieces may begin anywhere.
	 *
	 * key: NULL: the provider chooses one above max_key. A chosen key is the lkey
	 * and the rkey, unique in the context, and free again as soon as the region is
	 * gone.
	 *
	 * errno: EINVAL: count is 0, or the sum of the lengths, or iova plus that sum,
	 * exceeds 64 bits; E2BIG: more than max_parts; EKEYREJECTED: key 0 or above
	 * max_key; ENOKEY: the key is in use; otherwise that of reg_mr() or
	 * reg_dmabuf_mr() for the first piece that fails. After a failure nothing is
	 * registered.
	 */
	struct ibv_mr *(*reg_parts)(struct ibv_pd *pd,
				    const struct pier_provider_part *parts,
				    uint32_t count, uint64_t iova, int access,
				    const uint32_t *key);

	/*
	 * Beyond verbs: one more key for regions of one protection domain, whose bytes
	 * follow each other from address 0 on under it (an indirect key of mlx5; soft0
	 * keeps to the same rules). All are NULL if the provider has no such keys.
	 *
	 * can_join: whether the device may have them.
	 *
	 * create_join_qp: create_qp() of a queue pair that join_mrs() uses, for at most
	 * `count` parts; EINVAL if these are too many for one request. There is always
	 * room for PIER_JOIN_PARTS of them, except on NICs whose requests are short.
	 *
	 * join_mrs: makes the key and posts the one request that gives it its bytes, on a
	 * queue pair in RTS. The key works as soon as that request has completed without
	 * an error. `parts` has addresses and lkeys of the regions, and is read during
	 * the call only. The result is a region with the lkey and the rkey; the access
	 * flags that have no meaning for it are left out. Sets errno.
	 *
	 * unjoin_mrs: its counterpart, in place of dereg_mr(), and before that of any
	 * part. 0 or a positive errno.
	 */
	bool (*can_join)(struct ibv_context *context);
	struct ibv_qp *(*create_join_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
					 uint32_t count);
	struct ibv_mr *(*join_mrs)(struct ibv_qp *qp, const struct ibv_sge *parts,
				   uint32_t count, int access);
	int (*unjoin_mrs)(struct ibv_mr *mr);

	/*
	 * Beyond verbs, and NULL if it makes no difference: nothing else uses the
	 * `length` bytes after the region in its file, so a peer of the region may get
	 * the whole file. Called before anyone has the region's key.
	 */
	void (*set_padding)(struct ibv_mr *mr, uint64_t length);

	/*
	 * Beyond verbs, and NULL if the device cannot do it: counts remote writes of at
	 * least one byte into the region by its own key (not through a window that is
	 * bound to it), with or without immediate data. Each write counts once, when its
	 * last byte is in memory; one that fails does not count. The value grows before
	 * the write completes on either side.
	 *
	 * A region has at most one counter (EBUSY), and cannot be deregistered while it
	 * has one (dereg_mr() returns EBUSY); a counter may have several regions. NULL
	 * unbinds, also if nothing is bound, and when the call returns the counter is no
	 * longer touched for this region. 0 or a positive errno.
	 */
	int (*bind_counter)(struct ibv_mr *mr, struct pier_provider_counter *counter);

	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
	int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int cqe,
				    void *cq_context, struct ibv_comp_channel *channel,
				    int comp_vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			    void **ret_cq_context);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);

	struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
	int (*modify_srq)(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
	int (*query_srq)(struct ibv_srq *srq, struct ibv_srq_attr *ret_attr);
	int (*destroy_srq)(struct ibv_srq *srq);

	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	/*
	 * create_qp() of a queue pair whose received bytes are written by the NIC alone.
	 * By default libmlx5's CPU copies small messages from the completion to the
	 * address of the receive's element (scatter to CQE): an iova, where there may be
	 * no memory, or other memory. NULL if it makes no difference.
	 */
	struct ibv_qp *(*create_direct_qp)(struct ibv_pd *pd,
					   struct ibv_qp_init_attr *attr);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
			struct ibv_qp_init_attr *ret_init_attr);
	int (*destroy_qp)(struct ibv_qp *qp);

	/*
	 * Beyond verbs, and NULL if GID, LID and QPN are enough to find the peer: the
	 * address that the peer must pass to set_qp_address() before its QP goes to RTR.
	 * Its content is private to the provider; it travels in the endpoint.
	 *
	 * Both addresses are valid until the QP goes to RESET. Then the QP gets a new
	 * address, so that nobody who had the old one reaches it, and forgets that of
	 * its peer.
	 *
	 * get: writes at most `size` bytes; returns their number, or -errno. set: reads
	 * bytes from a peer, so checks all of them; 0 or -errno (EINVAL: not an address
	 * of this provider; EPROTONOSUPPORT: version).
	 */
	int (*get_qp_address)(struct ibv_qp *qp, uint8_t *ret_address, size_t size);
	int (*set_qp_address)(struct ibv_qp *qp, const uint8_t *address, size_t length);
};

static inline struct ibv_qp *pier_create_direct_qp(const struct pier_provider *provider,
						   struct ibv_pd *pd,
						   struct ibv_qp_init_attr *attr)
{
	return provider->create_direct_qp ? provider->create_direct_qp(pd, attr)
					  : provider->create_qp(pd, attr);
}

static inline bool pier_can_join(const struct pier_provider *provider,
				 struct ibv_context *context)
{
	return provider->can_join && provider->can_join(context);
}

extern const struct pier_provider pier_verbs_provider;
extern const struct pier_provider pier_soft_provider;

/*
 * The providers of this build, in the order in which their devices are listed and tried.
 * NULL ends the list.
 */
extern const struct pier_provider *const pier_providers[];

/*
 * If the device `name` does not exist because this build leaves its provider out: a
 * sentence that says so. Otherwise NULL.
 */
const char *pier_explain_missing_device(const char *name);

/*
 * The third provider, fault, wraps another one and makes chosen calls fail, according to
 * a plan; <pier/device.h> describes its text. It lists no devices: this opens a device of
 * another provider behind it.
 *
 * ret_provider  the provider for the context and its objects; it is gone when the
 *               context is closed
 *
 * Returns 0, or a negative errno with a sentence: -EINVAL: the plan is not valid;
 * -ENODEV: this build leaves the provider out; or the error of opening the device.
 */
int pier_fault_open(const struct pier_provider *beneath, struct ibv_device *device,
		    const char *plan, size_t length,
		    const struct pier_provider **ret_provider,
		    struct ibv_context **ret_context);

/* The caller has queried what the device can do: the plan counts calls from here on. */
void pier_fault_opened(struct ibv_context *context);

#endif
