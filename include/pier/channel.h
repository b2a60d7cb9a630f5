/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_H
#define PIER_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/device.h>
#include <pier/element.h>
#include <pier/endpoint.h>
#include <pier/export.h>
#include <pier/mr.h>
#include <pier/remote.h>
#include <pier/remote_vec.h>

PIER_BEGIN_DECLS

/**
 * Channels: one reliable connected queue pair, its completion queue, and the
 * bookkeeping that makes it safe.
 *
 *	pier_channel_create(pd, NULL, &channel);
 *	pier_channel_handshake(channel, read_fd, write_fd, timeout_ms);
 *	pier_channel_write(channel, &element, 1, &remote, timeout_ms);
 *	pier_channel_destroy(channel);
 *
 * Requests complete in the order of posting on each of the two queues (sends,
 * writes and reads on one; receives on the other).
 *
 * Time: timeout_ms is in milliseconds; 0 asks without waiting;
 * PIER_TIMEOUT_DEFAULT takes the channel's own; other negative numbers are
 * -EINVAL and do nothing. There is no waiting for ever.
 *
 * Threads: one thread at a time may use a channel, also to connect and to destroy it;
 * it may move between threads when the caller orders that, by a mutex or a join for
 * instance. Different channels are independent, also those of one protection domain,
 * device or shared receive queue. A receive pool or a counter that is bound to a channel
 * belongs to the thread of that channel.
 *
 * Processes: in a child of fork(2), all that is not a plain question about a
 * channel of the parent is -ECHILD (<pier/device.h>).
 */

struct pier_channel;
struct pier_srq;

/** Wait as long as the channel's attributes say. */
#define PIER_TIMEOUT_DEFAULT (-1)

/** What a wait does until something completes. */
enum pier_waiting {
	/**
	 * Looks again and again for spin_us, and then sleeps: a completion that comes
	 * soon costs no system call and no switch of threads, one that takes long
	 * costs no processor. The default.
	 */
	PIER_WAIT_ADAPTIVE = 0,
	/** Looks until the time is up, and never sleeps: the shortest latency. */
	PIER_WAIT_POLL = 1,
	/** Sleeps at once. */
	PIER_WAIT_EVENT = 2,
};

/** How a channel is made. Begin with pier_channel_attr_init(). */
struct pier_channel_attr {
	/** sizeof(struct pier_channel_attr), so that fields can be added. */
	size_t size;
	uint32_t port;	       /**< of the device, from 1 */
	uint32_t max_send_wr;  /**< sends, writes and reads outstanding at once */
	uint32_t max_recv_wr;  /**< receives outstanding at once */
	uint32_t max_send_sge; /**< elements in one send, write or read */
	uint32_t max_recv_sge; /**< elements in one receive */
	/**
	 * Sends and writes up to this many bytes are copied by the CPU at posting,
	 * which needs memory that it reaches at the region's iova; 0: none.
	 */
	uint32_t max_inline;
	/** In bytes; clamped to the port's and the peer's; 0: the port's. */
	uint32_t mtu;
	/**
	 * Reads and atomics under way at once; clamped to the device's, and to what the
	 * peer serves. What this end serves: max_dest_rd_atomic.
	 */
	uint8_t max_rd_atomic;
	/** Local ack timeout, 4.096 us * 2^n, n < 32; 0: none (not advised). */
	uint8_t timeout;
	uint8_t retry_count;	 /**< transport retries, 0 to 7; rxe takes 7 for ever */
	uint8_t rnr_retry_count; /**< 0 to 6; 7: for ever */
	/** Code 0 to 31 of IBTA table 45, 12: 0.64 ms; see pier_rnr_timer_from_us(). */
	uint8_t min_rnr_timer;
	uint8_t service_level; /**< 0 to 15 */
	uint8_t traffic_class;
	uint8_t hop_limit;
	/** Index into the port's GID table; -1: chosen (RoCE v2 preferred). */
	int gid_index;
	/**
	 * First PSN, 24 bits; PIER_PSN_RANDOM: chosen at random. pier_channel_reset()
	 * always chooses another.
	 */
	uint32_t psn;
	/** What peers may do with regions through this channel, enum pier_access. */
	int access;
	/** For calls with PIER_TIMEOUT_DEFAULT; more than 0. */
	int timeout_ms;
	/** Index into the port's partition table (P_Key); 0 is the usual one. */
	uint32_t pkey_index;
	/** What waits on the channel do; later: pier_channel_set_waiting(). */
	enum pier_waiting waiting;
	/** Of PIER_WAIT_ADAPTIVE: microseconds before sleeping, up to 1,000,000. */
	uint32_t spin_us;
	/**
	 * Where the channel takes its receives from: see <pier/srq.h>; then
	 * max_recv_wr and max_recv_sge are not looked at. NULL: it has its own.
	 */
	struct pier_srq *srq;
	/**
	 * Entries of the completion queue; 0: one for each request of both queues. Fewer
	 * are refused: a completion queue that overran is lost, with its channel.
	 */
	uint32_t cq_depth;
	/** Completion vector, and so the interrupt, from 0 to num_comp_vectors - 1. */
	uint32_t comp_vector;
	/** Of packets with a GID, 20 bits; 0: the device's choice. */
	uint32_t flow_label;
	/**
	 * When nothing has completed on a connected channel for this long, pier looks
	 * whether the peer lives; 0: never. See <pier/recovery.h>. The peer's access must
	 * include PIER_ACCESS_REMOTE_WRITE, and timeout must not be 0.
	 */
	uint32_t keepalive_ms;
	/**
	 * Reads and atomics that this end serves at once, up to 255; clamped to the
	 * device's; PIER_RD_ATOMIC_SAME: as max_rd_atomic.
	 */
	uint16_t max_dest_rd_atomic;
	/** InfiniBand: low bits of the LID that is sent from, less than 2^LMC. */
	uint16_t src_path_bits;
	/** Most that is sent, enum ibv_rate; 0: what the port can. */
	uint32_t static_rate;
};

#define PIER_PSN_RANDOM	    UINT32_MAX
#define PIER_RD_ATOMIC_SAME UINT16_MAX

/** Set every field to its default; docs/design.md says why these. Cannot fail. */
static inline void pier_channel_attr_init(struct pier_channel_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->port = 1;
	attr->max_send_wr = 16;
	attr->max_recv_wr = 16;
	attr->max_send_sge = 16;
	attr->max_recv_sge = 16;
	attr->max_rd_atomic = 16;
	attr->timeout = 14;
	attr->retry_count = 6;
	attr->rnr_retry_count = 6;
	attr->min_rnr_timer = 12;
	attr->hop_limit = 64;
	attr->gid_index = -1;
	attr->psn = PIER_PSN_RANDOM;
	attr->access = PIER_ACCESS_SHARED;
	attr->timeout_ms = 30000;
	attr->waiting = PIER_WAIT_ADAPTIVE;
	attr->spin_us = 50;
	attr->max_dest_rd_atomic = PIER_RD_ATOMIC_SAME;
}

/**
 * Make a channel that is not connected: its queue pair is in INIT, so receives
 * can be posted.
 *
 * attr  borrowed; NULL: the defaults, lowered to what the device can
 *
 * Errors: -EINVAL a value out of range (the sentence names it, and the device's
 * limit), or srq is of another protection domain; -ENETDOWN the port is not active;
 * -EADDRNOTAVAIL the port has no usable GID and needs one; -ENOMEM; others of
 * ibv_create_cq(3), ibv_create_qp(3) and ibv_modify_qp(3).
 */
PIER_API int pier_channel_create(struct pier_pd *pd, const struct pier_channel_attr *attr,
				 struct pier_channel **ret_channel);

/**
 * What became of the attributes: as they were given, but for what was chosen or clamped,
 * which are mtu (once connected, that of the path), max_inline (less where the device
 * gave less), cq_depth, max_rd_atomic, max_dest_rd_atomic, gid_index and psn.
 *
 * ret_attr  its size must be set before; begin with pier_channel_attr_init()
 *
 * Errors: -EINVAL ret_attr->size is that of no header.
 */
PIER_API int pier_channel_query(const struct pier_channel *channel,
				struct pier_channel_attr *ret_attr);

/** What the peer must know. Errors: those of the provider. */
PIER_API int pier_channel_endpoint(struct pier_channel *channel,
				   struct pier_endpoint *ret_endpoint);

/**
 * Connect to a peer that was told pier_channel_endpoint() and connects to us:
 * INIT to RTR to RTS. The peer may be without pier: see struct pier_endpoint.
 *
 * Nothing says that the peer is ready. Requests that arrive too early are
 * retried as the attributes say; pier_channel_handshake() waits for the peer.
 *
 * Errors: -EINVAL an endpoint that cannot be (the sentence names the field);
 * -EISCONN connected before, and nothing was changed; -ESTALE the endpoint is of the
 * connection before pier_channel_reset(), and nothing was changed: the peer is to be
 * reset too, and its new endpoint to be asked for; -ETIMEDOUT, -EHOSTUNREACH,
 * -ECONNREFUSED the peer's NIC cannot be reached; others of ibv_modify_qp(3).
 * After other errors the channel can only be reset or destroyed.
 */
PIER_API int pier_channel_connect(struct pier_channel *channel,
				  const struct pier_endpoint *peer);

/**
 * Exchange endpoints with the peer over a pair of file descriptors (one socket,
 * or two pipes), connect, and wait until the peer is connected too. The peer
 * does the same at the same time.
 *
 * read_fd, write_fd  borrowed; blocking or not; left as they were, and not one
 *                    byte beyond the handshake is read
 * timeout_ms         for all of it
 *
 * Errors: those of pier_channel_connect(); -ETIMEDOUT the peer did not answer;
 * -ECONNRESET the peer closed the connection; -EBADMSG it sent something else;
 * -EPROTONOSUPPORT it speaks another version; -ECONNREFUSED it could not
 * connect; -ESTALE one end connects to an endpoint from before a reset of the other;
 * -EBADF an fd is not open; others of read(2), write(2). After an error the channel can
 * only be reset or destroyed.
 */
PIER_API int pier_channel_handshake(struct pier_channel *channel, int read_fd,
				    int write_fd, int timeout_ms);

/**
 * Destroy a channel; NULL is fine. Outstanding requests are stopped and given
 * up, so that afterwards the NIC does not touch their memory. Never waits for
 * the peer. What counters have bound on the channel ends with it.
 *
 * Memory windows of the channel (pier_bind_sub_mr()) lose their keys, and are
 * still to be deregistered.
 *
 * Errors: those of ibv_dealloc_mw(3), ibv_destroy_qp(3) and ibv_destroy_cq(3),
 * which do not happen by anything that a caller can do.
 */
PIER_API int pier_channel_destroy(struct pier_channel *channel);

/** Values of pier_result.opcode: what completed. */
enum pier_opcode {
	PIER_OP_SEND = 1,
	PIER_OP_WRITE = 2,
	PIER_OP_READ = 3,
	/** A send of the peer arrived in a receive. */
	PIER_OP_RECV = 4,
	/** A write with immediate of the peer used up a receive. */
	PIER_OP_RECV_WRITE_IMM = 5,
	/** A memory window was bound: pier_bind_sub_mr(). */
	PIER_OP_BIND = 6,
	/** Atomics: <pier/post.h>. */
	PIER_OP_COMPARE_SWAP = 7,
	PIER_OP_FETCH_ADD = 8,
	/** pier's own, to see whether the peer lives: pier_channel_attr.keepalive_ms. */
	PIER_OP_KEEPALIVE = 9,
};

/** How a request ended. */
struct pier_result {
	/**
	 * 0, or a negative errno for the verbs status: -ECANCELED flushed behind
	 * another error, -ETIMEDOUT the peer did not answer, -EAGAIN it posted no
	 * receive, -EACCES it refused the access, -EREMOTEIO it failed,
	 * -EMSGSIZE the message did not fit, -EFAULT local memory refused, -EIO
	 * anything else.
	 */
	int error;
	uint32_t status;	   /**< enum ibv_wc_status */
	uint32_t vendor_error;	   /**< the device's own code; 0 without error */
	enum pier_opcode opcode;   /**< valid without error */
	uint32_t byte_length;	   /**< received or read, in bytes; valid without error */
	uint32_t immediate;	   /**< in host order; if has_immediate */
	uint32_t invalidated_rkey; /**< if has_invalidated */
	bool has_immediate;	   /**< of a receive */
	bool has_invalidated;	   /**< of a receive: the peer's send ended a window */
};

/**
 * An outstanding request. A value: copy it, ask for it once. The channel keeps the
 * result until pier_work_poll() or pier_work_wait() handed it out, or pier_work_drop()
 * gave it up; it can keep at least max_send_wr of those of the send queue, and
 * max_recv_wr of the receive queue. One that nobody asks for and nobody gives up takes
 * one of these places until the channel is gone, and does no other harm.
 */
struct pier_work {
	uint64_t id;
};

/**
 * Post one request, without waiting for it.
 *
 * sg_list, num_sge  the elements, up to max_send_sge or max_recv_sge; borrowed
 *                   for the call; 0 elements: an empty message. A write or read of
 *                   more of them becomes several requests: pier_post_write_vec()
 * remote            for write and read: as long as the elements together, or
 *                   longer (the rest is left alone); NULL only without
 *                   elements: immediate data alone
 * immediate         32 bits that the peer finds in its receive, in host order;
 *                   verbs, and so a peer without pier, has them in network order
 * ret_work          handle of the request; NULL: nobody will ask, and its slot
 *                   is given back when it completes (an error still breaks the
 *                   channel and is found by whatever is asked next)
 *
 * A posted request owns nothing; its memory must stay registered until it has
 * completed.
 *
 * Errors: -EINVAL too many elements of a send or receive, or remote is NULL; -ERANGE
 * remote is shorter than the elements; -EMSGSIZE longer than the port's max_msg_size;
 * -EAGAIN the queue is full: wait for something first; or it keeps too many results
 * that nobody has asked for; -EINVAL also a receive, and the channel has a shared
 * receive queue;
 * -ENOTCONN not connected (a receive may be posted before); -EPIPE the channel is broken
 * (the sentence tells the first cause); -EOPNOTSUPP a read, and max_rd_atomic of one end
 * is 0; others of ibv_post_send(3) and ibv_post_recv(3).
 */
PIER_API int pier_post_send(struct pier_channel *channel,
			    const struct pier_gather *sg_list, int num_sge,
			    struct pier_work *ret_work);
PIER_API int pier_post_send_imm(struct pier_channel *channel,
				const struct pier_gather *sg_list, int num_sge,
				uint32_t immediate, struct pier_work *ret_work);
PIER_API int pier_post_recv(struct pier_channel *channel,
			    const struct pier_scatter *sg_list, int num_sge,
			    struct pier_work *ret_work);
PIER_API int pier_post_write(struct pier_channel *channel,
			     const struct pier_gather *sg_list, int num_sge,
			     const struct pier_remote *remote,
			     struct pier_work *ret_work);
PIER_API int pier_post_write_imm(struct pier_channel *channel,
				 const struct pier_gather *sg_list, int num_sge,
				 const struct pier_remote *remote, uint32_t immediate,
				 struct pier_work *ret_work);
PIER_API int pier_post_read(struct pier_channel *channel,
			    const struct pier_scatter *sg_list, int num_sge,
			    const struct pier_remote *remote, struct pier_work *ret_work);

/**
 * Whether a request has completed; does not wait.
 *
 * Returns 1 and writes the result, after which the handle is used up; 0 and
 * writes nothing while it is outstanding. A request that failed is complete: 1,
 * with the error in the result and its sentence in pier_error_message().
 *
 * Errors: -ESTALE the handle was used up before, or is of another channel;
 * -EIO ibv_poll_cq(3) failed.
 */
PIER_API int pier_work_poll(struct pier_channel *channel, struct pier_work work,
			    struct pier_result *ret_result);

/**
 * Wait for a request to complete, asleep where it takes long.
 *
 * ret_result  may be NULL; also written when the request failed
 *
 * When the time is up (with 0: at once), or waiting fails, the queue pair is
 * driven to the error state and what was outstanding is collected, so that
 * memory is safe to use again; the channel is then broken, and the handle used
 * up. To ask without that: pier_work_poll().
 *
 * Returns 0, or the request's error (ret_result->error).
 * Errors: also -ETIMEDOUT the time was up (the result then says what became of
 * the request, which may have completed at the last moment); -ESTALE as
 * pier_work_poll(); -EINVAL timeout_ms; -EIO and others of ibv_poll_cq(3),
 * ibv_req_notify_cq(3) and poll(2).
 */
PIER_API int pier_work_wait(struct pier_channel *channel, struct pier_work work,
			    int timeout_ms, struct pier_result *ret_result);

/**
 * Nobody will ask for this request any more: its handle is used up, and its place is
 * given back when it completes. What pier_post_send() with NULL does at once.
 *
 * Errors: -ESTALE as pier_work_poll().
 */
PIER_API int pier_work_drop(struct pier_channel *channel, struct pier_work work);

/**
 * Post one request and wait for it: pier_post_...() and pier_work_wait().
 * Errors: those of both.
 */
PIER_API int pier_channel_send(struct pier_channel *channel,
			       const struct pier_gather *sg_list, int num_sge,
			       int timeout_ms);
PIER_API int pier_channel_send_imm(struct pier_channel *channel,
				   const struct pier_gather *sg_list, int num_sge,
				   uint32_t immediate, int timeout_ms);
PIER_API int pier_channel_recv(struct pier_channel *channel,
			       const struct pier_scatter *sg_list, int num_sge,
			       int timeout_ms, struct pier_result *ret_result);
PIER_API int pier_channel_write(struct pier_channel *channel,
				const struct pier_gather *sg_list, int num_sge,
				const struct pier_remote *remote, int timeout_ms);
PIER_API int pier_channel_write_imm(struct pier_channel *channel,
				    const struct pier_gather *sg_list, int num_sge,
				    const struct pier_remote *remote, uint32_t immediate,
				    int timeout_ms);
PIER_API int pier_channel_read(struct pier_channel *channel,
			       const struct pier_scatter *sg_list, int num_sge,
			       const struct pier_remote *remote, int timeout_ms);

/**
 * Post a write to, or a read from, a remote vector: in as few requests as it takes,
 * without waiting.
 *
 * sg_list, num_sge  the elements, any number of them, as of pier_mr_gather_list();
 *                   borrowed for the call
 * parts, count      as long as the elements together, or longer (the rest is left
 *                   alone); borrowed for the call
 * ret_work          handle of all of it, or NULL, as of pier_post_write()
 *
 * A request ends at the end of a remote part, after max_send_sge elements (reads: also
 * max_sge_rd of ibv_query_device(3)) or with the port's max_msg_size. Elements and parts
 * of length 0 do not count; where nothing is to be moved, one empty request is posted.
 *
 * The requests are in the order of the bytes, and nobody watches any but the last: they
 * complete in order, so its completion is that of all (InfiniBand Architecture
 * Specification, volume 1, 9.5). When another of them failed it ends with -ECANCELED,
 * and the sentence tells the cause. Its result has the byte_length of the last request.
 *
 * All is checked before anything is posted. If the device then refuses a request behind
 * the first, which is not to be expected, the channel is broken and what was posted is
 * stopped, so that the memory is free again and nobody takes a part of it for all of it;
 * how much of it arrived is not known.
 *
 * Errors: those of pier_post_write() and pier_post_read(); -ERANGE the vector is shorter
 * than the elements, or as pier_remote_vec_length(); -EAGAIN the send queue has too few
 * free places now: wait for something first; -E2BIG more requests are needed than
 * max_send_wr (the sentence says how many): pier_channel_write_vec() can do that.
 */
PIER_API int pier_post_write_vec(struct pier_channel *channel,
				 const struct pier_gather *sg_list, uint32_t num_sge,
				 const struct pier_remote *parts, uint32_t count,
				 struct pier_work *ret_work);
PIER_API int pier_post_read_vec(struct pier_channel *channel,
				const struct pier_scatter *sg_list, uint32_t num_sge,
				const struct pier_remote *parts, uint32_t count,
				struct pier_work *ret_work);

/**
 * Write to, or read from, a remote vector, and wait until all of it is done: any number
 * of requests, which are posted as the send queue takes them.
 *
 * timeout_ms  for all of it
 *
 * What is wrong with the arguments is found before anything is posted. Later, on every
 * error, the channel is broken, nothing is under way any more, and how much of it
 * arrived is not known.
 *
 * Errors: those of pier_post_write_vec() but -E2BIG, -EAGAIN only where the send queue
 * takes no request at all; those of pier_work_wait(); where a request failed, that one's
 * (or of another on the channel that failed before).
 */
PIER_API int pier_channel_write_vec(struct pier_channel *channel,
				    const struct pier_gather *sg_list, uint32_t num_sge,
				    const struct pier_remote *parts, uint32_t count,
				    int timeout_ms);
PIER_API int pier_channel_read_vec(struct pier_channel *channel,
				   const struct pier_scatter *sg_list, uint32_t num_sge,
				   const struct pier_remote *parts, uint32_t count,
				   int timeout_ms);

/**
 * Let the peer of a channel use a part of a region: [offset, offset + length) becomes
 * a sub-region with rights of its own, whose addresses are those of the region and
 * whose key is not. What the peer is to be told is given by pier_mr_remote().
 *
 * access      PIER_ACCESS_REMOTE_READ, _REMOTE_WRITE and _REMOTE_ATOMIC, one of them
 *             or more; writing and atomics need a region with LOCAL_WRITE. The
 *             channel's own access must allow it too
 * timeout_ms  for the binding of a window
 *
 * It is a memory window of type 2 where the device has those, the region was
 * registered with PIER_ACCESS_MW_BIND and has one key for its own addresses, and the
 * channel is connected; or else a region of its own, as of pier_reg_sub_mr().
 * pier_mr_is_window() tells which. A region of its own costs a registration and can
 * be used by every peer in the protection domain that knows its key; a window costs
 * one request on the channel, and its key is good on this channel alone.
 *
 * A window is for the peer: it has no lkey, elements of it are refused with -EACCES,
 * and it can have no sub-regions; use the region for these. The region is kept:
 * deregistering it is -EBUSY until the window is gone. pier_dereg_mr() of the window
 * takes the right away, without asking the peer: what the peer then has under way
 * with that key fails on its end with -EACCES, which breaks the channel, and may have
 * been done in part. Packets that the device was working on may still be written:
 * the memory is its owner's alone when the region is deregistered or the channel is
 * destroyed. pier_channel_destroy() takes the right away as well; the struct is
 * still to be given to pier_dereg_mr(), before or afterwards, from any thread.
 *
 * rxe does not look at the bounds of a window, so that a window there is bound to a
 * region of its own, registered for it, with no rights for any peer.
 *
 * Errors: -EINVAL timeout_ms, length 0, an access that is not possible, a region that
 * is a window, or that is in another protection domain than the channel; -ERANGE the
 * part leaves the region; -EPIPE the channel is broken; -ENOTCONN it failed to
 * connect; -EOPNOTSUPP REMOTE_ATOMIC, and the device has no atomics; -EAGAIN the send
 * queue is full; of a window also -ENOMEM and others of ibv_alloc_mw(3), and what
 * pier_work_wait() returns for a request that failed (-EIO: the device refused to bind)
 * or whose time was up, either of which breaks the channel; of a region also those of
 * pier_reg_sub_mr(). Nothing stays registered.
 */
PIER_API int pier_bind_sub_mr(struct pier_channel *channel, struct pier_mr *mr,
			      uint64_t offset, uint64_t length, int access,
			      int timeout_ms, struct pier_mr **ret_mr);

/**
 * Collect completions, without waiting. The other calls do this by themselves.
 *
 * Returns how many were collected, 0 if none.
 * Errors: -EIO ibv_poll_cq(3) failed.
 */
PIER_API int pier_channel_poll(struct pier_channel *channel);

/**
 * An fd that poll(2) and epoll(7) report as readable after something completed
 * that was not collected when pier_channel_arm() was called. It is the
 * channel's: do not read or close it. Cannot fail.
 */
PIER_API int pier_channel_fd(const struct pier_channel *channel);

/**
 * Ask for pier_channel_fd() to become readable at the next completion, and take
 * away what made it readable before. What is complete already is collected
 * first, so no wake-up is lost: arm, look at the requests, then sleep.
 *
 * Returns how many completions were collected, or more where a receiver has left some
 * (<pier/receiver.h>): if not 0, look before sleeping.
 * Errors: those of ibv_req_notify_cq(3); -EIO ibv_poll_cq(3) failed.
 */
PIER_API int pier_channel_arm(struct pier_channel *channel);

/** How many requests are posted and not completed. Cannot fail. */
PIER_API uint32_t pier_channel_outstanding(const struct pier_channel *channel);

PIER_END_DECLS

#endif
