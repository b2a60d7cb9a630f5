/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_H
#define PIER_CHANNEL_H

#include <poll.h>
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
 * Channels: reliable connections between two processes.
 *
 * A channel is one reliable connected queue pair, its completion queue, and the
 * bookkeeping that makes both safe. Many channels can share one completion queue:
 * <pier/cq.h>.
 *
 *	pier_channel_create(pd, NULL, &channel);
 *	pier_channel_handshake(channel, read_fd, write_fd, timeout_ms);
 *	pier_channel_write(channel, &element, 1, &remote, timeout_ms);
 *	pier_channel_destroy(channel);
 *
 * A channel has two queues: one for sends, writes and reads, the other for receives.
 * The requests of each queue complete in the order of posting.
 *
 * Time: timeout_ms is in milliseconds. 0 checks once without waiting.
 * PIER_TIMEOUT_DEFAULT selects the channel's own timeout. Any other negative number
 * fails with -EINVAL and has no effect. No wait is unlimited. -ETIMEDOUT always means
 * that the time of this call is over; a peer that does not answer is -EHOSTUNREACH. (In a
 * group the time of another rank counts, too: see <pier/group.h>.)
 *
 * Threads: one thread at a time may use a channel, including to connect and to destroy
 * it. A channel may move between threads if the caller orders the accesses, for
 * instance by a mutex or a join. Different channels are independent, even if they share
 * a protection domain, a device or a shared receive queue. Channels that share a
 * completion queue (<pier/cq.h>) belong to one thread. A receive pool or a counter that
 * is bound to a channel belongs to the thread of that channel.
 *
 * Processes: in a child of fork(2), every call except plain queries fails with -ECHILD
 * for a channel of the parent (<pier/device.h>).
 */

struct pier_channel;
struct pier_cq;
struct pier_srq;

/** Use the timeout in the channel's attributes. */
#define PIER_TIMEOUT_DEFAULT (-1)

/** How a wait spends its time until something completes. */
enum pier_waiting {
	/** In attributes: not set. No way to wait. */
	PIER_WAIT_UNSET = 0,
	/**
	 * Poll for spin_us, then sleep. A completion that arrives soon costs no system
	 * call and no context switch; one that takes long occupies no CPU. The default.
	 */
	PIER_WAIT_ADAPTIVE = 1,
	/** Poll until the timeout and never sleep: the lowest latency. */
	PIER_WAIT_POLL = 2,
	/** Sleep at once. */
	PIER_WAIT_EVENT = 3,
};

/**
 * The value of a member of attributes that is not set. It is no legal value of any
 * member. Attributes are initialised to it if their defaults depend on the environment or
 * the device.
 */
#define PIER_UNSET	  UINT32_MAX
/** The same for pier_channel_attr.access, to which flags can be ored. */
#define PIER_ACCESS_UNSET (UINT32_C(1) << 31)

/**
 * The attributes of a new channel. Set them up with pier_channel_attr_init(), which
 * leaves every member unset.
 *
 * An unset member takes the value that the environment variable PIER_CHANNEL gives it,
 * or else its default, which is clamped to the device's limits. A member that is set is
 * used as it is, or refused, also if it is set to its default.
 *
 *	PIER_CHANNEL=tc=106,gid=3,timeout=20
 *
 * pier_channel_attr_parse() describes that text. pier_channel_query() returns the
 * effective values.
 */
struct pier_channel_attr {
	/** sizeof(struct pier_channel_attr), so that fields can be added. */
	size_t size;
	uint32_t port; /**< port of the device, from 1; unset: 1 */
	/** Outstanding sends, writes and reads, at most; unset: 16. */
	uint32_t max_send_wr;
	uint32_t max_recv_wr; /**< outstanding receives, at most; unset: 16 */
	/** Elements per send, write or read, at most; unset: 16. */
	uint32_t max_send_sge;
	uint32_t max_recv_sge; /**< elements per receive, at most; unset: 16 */
	/**
	 * The CPU copies sends and writes of up to this many bytes when they are
	 * posted, so the caller may change the memory at once. Memory that the CPU does
	 * not find at the region's iova is not copied: that of a GPU, a bounce buffer,
	 * an fd of a dma-buf, parts under one key, or any with another iova.
	 * Its requests are posted like longer ones. 0: no inline data. Unset: 0.
	 */
	uint32_t max_inline;
	/**
	 * In bytes; clamped to the port's MTU and the peer's; 0: the port's MTU. Unset:
	 * 0.
	 */
	uint32_t mtu;
	/**
	 * Reads and atomics in flight at once; clamped to the device's limit and to the
	 * number that the peer serves. max_dest_rd_atomic is the number that this end
	 * serves. Up to 255; unset: 16.
	 */
	uint32_t max_rd_atomic;
	/**
	 * Local ack timeout, 4.096 us * 2^n, n < 32; 0: no timeout (not recommended).
	 * Unset: 18, which is 1.07 s: with 7 retries, a peer or a port may be away for 7
	 * seconds.
	 */
	uint32_t timeout;
	/**
	 * Transport retries, 0 to 7; unset: 7. On rxe, where 7 means no limit, 7
	 * becomes 6.
	 */
	uint32_t retry_count;
	/**
	 * Retries after an RNR NAK, 0 to 6; 7: no limit. Unset: 7. The deadline of the
	 * waiting call then bounds a send to a peer that posts no receive, and the error
	 * message names this as a possible cause.
	 */
	uint32_t rnr_retry_count;
	/**
	 * A code of IBTA table 45: 0 is 655.36 ms, 1 to 31 are 0.01, 0.02, 0.03, 0.04,
	 * 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84,
	 * 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84,
	 * 245.76, 327.68 and 491.52 ms. Unset: 12, 0.64 ms.
	 */
	uint32_t min_rnr_timer;
	uint32_t service_level; /**< 0 to 15; unset: 0 */
	/**
	 * Of packets with a GID. PIER_TRAFFIC_CLASS_PORT: with RoCE v2, what the
	 * administrator set for the port
	 * (/sys/class/infiniband/DEVICE/tc/PORT/traffic_class), or 106 (DSCP 26 with
	 * ECN), as in UCX; otherwise 0. Up to 255; unset: PIER_TRAFFIC_CLASS_PORT.
	 */
	uint32_t traffic_class;
	uint32_t hop_limit; /**< of packets with a GID, up to 255; unset: 64 */
	/**
	 * Index into the port's GID table. PIER_GID_ANY: pier offers those of interfaces
	 * of this network namespace to the peer, and both ends choose a pair of one type,
	 * address family and, if possible, subnet, preferring RoCE v2 and IPv4. A peer
	 * without pier uses the one in the endpoint. Unset: PIER_GID_ANY.
	 */
	uint32_t gid_index;
	/**
	 * First PSN, 24 bits; unset: a random one. pier_channel_reset() always chooses a
	 * new one.
	 */
	uint32_t psn;
	/**
	 * The accesses that peers have to regions through this channel: enum pier_access,
	 * ored. Unset is PIER_ACCESS_UNSET here: PIER_ACCESS_SHARED, and with it the
	 * flags that were ored to the unset member.
	 */
	uint32_t access;
	/**
	 * In milliseconds, for calls with PIER_TIMEOUT_DEFAULT; more than 0. Unset is
	 * PIER_TIMEOUT_DEFAULT here: 30 s.
	 */
	int timeout_ms;
	/** Index into the port's partition table (P_Key); unset: 0. */
	uint32_t pkey_index;
	/**
	 * How waits on the channel spend their time. Change it with
	 * pier_channel_set_waiting(). PIER_WAIT_UNSET: PIER_WAIT_ADAPTIVE.
	 */
	enum pier_waiting waiting;
	/**
	 * PIER_WAIT_ADAPTIVE: microseconds of polling before sleeping, up to 1,000,000;
	 * unset: 50.
	 */
	uint32_t spin_us;
	/**
	 * The shared receive queue that provides the channel's receives (<pier/srq.h>);
	 * max_recv_wr and max_recv_sge are then ignored. NULL: the channel has its own
	 * receives.
	 */
	struct pier_srq *srq;
	/**
	 * Entries of the completion queue; 0: one for each request of both queues.
	 * Fewer are refused, because an overrun of the completion queue makes the queue
	 * and its channel unusable. Unset: 0.
	 */
	uint32_t cq_depth;
	/**
	 * Completion vector, which selects the interrupt; 0 to num_comp_vectors - 1.
	 * Unset: pier takes the device's vectors in turn, so that the interrupts of
	 * different channels go to different CPUs.
	 */
	uint32_t comp_vector;
	/** Flow label of packets with a GID, 20 bits; 0: the device chooses; unset: 0. */
	uint32_t flow_label;
	/**
	 * Check that the peer is alive when nothing has completed on a connected
	 * channel for this many milliseconds; 0: never. See <pier/recovery.h>. The
	 * peer's access must include PIER_ACCESS_REMOTE_WRITE, and timeout must not be
	 * 0. Unset: 0.
	 */
	uint32_t keepalive_ms;
	/**
	 * Reads and atomics that this end serves at once, up to 255; clamped to the
	 * device's limit. Unset: the value of max_rd_atomic, but at most a sixteenth of
	 * what the device serves on all its queue pairs (max_res_rd_atom).
	 */
	uint32_t max_dest_rd_atomic;
	/** InfiniBand: low bits of the source LID, less than 2^LMC; unset: 0. */
	uint32_t src_path_bits;
	/** The highest sending rate, enum ibv_rate; 0: the port's own. Unset: 0. */
	uint32_t static_rate;
	/**
	 * The completion queue that the channel shares with others (<pier/cq.h>);
	 * cq_depth and comp_vector are then ignored. NULL: the channel has its own.
	 */
	struct pier_cq *cq;
	/** Any pointer, for pier_channel_context(). */
	void *context;
};

/** Let both ends choose a GID, also if PIER_CHANNEL names one. */
#define PIER_GID_ANY		(UINT32_MAX - 1)
/** No value that a sender may use: the low bits are "congestion experienced". */
#define PIER_TRAFFIC_CLASS_PORT UINT8_MAX

/**
 * Leave every member unset, and the pointers NULL. docs/design/channel.md gives the
 * reasons for the defaults. Cannot fail.
 */
static inline void pier_channel_attr_init(struct pier_channel_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->port = PIER_UNSET;
	attr->max_send_wr = attr->max_recv_wr = PIER_UNSET;
	attr->max_send_sge = attr->max_recv_sge = PIER_UNSET;
	attr->max_inline = PIER_UNSET;
	attr->mtu = PIER_UNSET;
	attr->max_rd_atomic = attr->max_dest_rd_atomic = PIER_UNSET;
	attr->timeout = PIER_UNSET;
	attr->retry_count = attr->rnr_retry_count = PIER_UNSET;
	attr->min_rnr_timer = PIER_UNSET;
	attr->service_level = attr->traffic_class = PIER_UNSET;
	attr->hop_limit = attr->gid_index = attr->flow_label = PIER_UNSET;
	attr->psn = PIER_UNSET;
	attr->access = PIER_ACCESS_UNSET;
	attr->timeout_ms = PIER_TIMEOUT_DEFAULT;
	attr->pkey_index = PIER_UNSET;
	attr->waiting = PIER_WAIT_UNSET;
	attr->spin_us = PIER_UNSET;
	attr->cq_depth = attr->comp_vector = PIER_UNSET;
	attr->keepalive_ms = PIER_UNSET;
	attr->src_path_bits = attr->static_rate = PIER_UNSET;
}

/**
 * Set attributes from text, such as a program's option or the environment variable
 * PIER_CHANNEL: "KEY=NUMBER[,KEY=NUMBER...]". Numbers are decimal, or hexadecimal after
 * "0x". The empty text sets nothing. If a key occurs twice, the later one counts.
 *
 * The keys and their members are port; gid (gid_index); mtu; tc (traffic_class); sl
 * (service_level); pkey (pkey_index); hop_limit; flow_label; timeout; retry
 * (retry_count); rnr_retry (rnr_retry_count); rnr_timer (min_rnr_timer); rd_atomic
 * (max_rd_atomic).
 *
 * Errors: -EINVAL a key is unknown or a number is out of range; the error message names
 * it, and nothing was set.
 */
PIER_API int pier_channel_attr_parse(struct pier_channel_attr *attr, const char *text);

/**
 * Create a channel. It is not connected yet: its queue pair is in INIT, so receives can
 * be posted.
 *
 * attr  borrowed; NULL: the defaults
 *
 * Errors: -EINVAL a value is out of range (the error message names it and the device's
 * limit), PIER_CHANNEL is invalid, srq belongs to another protection domain, or cq to
 * another device; -ENOSPC cq has fewer entries left than the channel needs; -EBUSY cq
 * belongs to a group; -ENETDOWN the port is not active; -EADDRNOTAVAIL the port needs a
 * GID and has no usable one; -EOPNOTSUPP the device cannot have channels
 * (pier_device_check_channels()); -ENOMEM; others of ibv_create_cq(3), ibv_create_qp(3)
 * and ibv_modify_qp(3).
 */
PIER_API int pier_channel_create(struct pier_pd *pd, const struct pier_channel_attr *attr,
				 struct pier_channel **ret_channel);

/**
 * Return the effective attributes, after defaults and clamping.
 *
 * All members are set. Those that were unset can differ from the attributes that were
 * given (see struct pier_channel_attr), and mtu (the path's, once connected), max_inline
 * (less if the device granted less), cq_depth and comp_vector (with a shared completion
 * queue: the queue's), max_rd_atomic, max_dest_rd_atomic, retry_count (on rxe), gid_index
 * and psn.
 *
 * ret_attr  written up to `size` bytes; ret_attr->size becomes `size`
 * size      sizeof(*ret_attr) in the caller
 *
 * Cannot fail.
 */
PIER_API void pier_channel_query(const struct pier_channel *channel,
				 struct pier_channel_attr *ret_attr, size_t size);

/**
 * Return the endpoint that the peer needs to connect to this channel. It offers the GIDs
 * that the port had when the channel was created or reset.
 *
 * Errors: those of the provider.
 */
PIER_API int pier_channel_endpoint(struct pier_channel *channel,
				   struct pier_endpoint *ret_endpoint);

/**
 * Connect to a peer: INIT to RTR to RTS. On Ethernet, choose the GIDs of both ends.
 *
 * The peer must have the endpoint that pier_channel_endpoint() returned, and must
 * connect to this channel. It may be without pier: see struct pier_endpoint.
 *
 * This call does not wait for the peer to be ready; pier_channel_handshake() does.
 * Requests that arrive too early are retried according to the attributes. The call waits
 * up to the channel's timeout_ms for the network to resolve the peer's address.
 *
 * Errors: -EINVAL the endpoint is invalid (the error message names the field);
 * -EPROTONOSUPPORT its address has a version that the library does not know;
 * -EADDRNOTAVAIL no GID of this port has the type and address family of one of the
 * peer's; -EISCONN the channel was connected before, and nothing was changed; -EBUSY the
 * channel belongs to a group or a handshake of it is in progress, and nothing was
 * changed; -EPIPE the channel is broken, for instance after pier_channel_cancel(), and
 * nothing was changed; -ESTALE the endpoint belongs to the connection before
 * pier_channel_reset(), and nothing was changed: reset the peer too and fetch its new
 * endpoint; -ETIMEDOUT, -EHOSTUNREACH, -ECONNREFUSED the peer's NIC cannot be reached;
 * others of ibv_modify_qp(3). If the device cannot serve as many reads and atomics as the
 * endpoint of this end promises, the error message gives the possible number, and the
 * endpoint has it after pier_channel_reset(). After any
 * error except -EISCONN, -EBUSY and -ESTALE the channel can only be reset or destroyed.
 */
PIER_API int pier_channel_connect(struct pier_channel *channel,
				  const struct pier_endpoint *peer);

/**
 * Exchange endpoints with the peer, connect, and wait until the peer is connected too.
 *
 * The endpoints are exchanged over a pair of file descriptors: one socket, or two
 * pipes. The peer must do the same at the same time.
 *
 * read_fd, write_fd  borrowed, and left as they were; blocking or not. No byte beyond
 *                    the handshake is read
 * timeout_ms         for the whole call
 *
 * Errors: those of pier_channel_connect(); -ETIMEDOUT the peer did not answer;
 * -ECONNRESET the peer closed the connection; -EBADMSG the peer sent something other
 * than a handshake; -EPROTONOSUPPORT the peer uses another version of the handshake;
 * -ECONNREFUSED the peer could not connect; -ESTALE one end connects to an endpoint from
 * before a reset of the other; -EBADF an fd is not open; others of read(2) and write(2).
 * After an error the channel can only be reset or destroyed. After -ETIMEDOUT, -EINTR,
 * -ESTALE and -ECONNREFUSED both ends can be reset and repeat the handshake on the same
 * stream, until they meet: what an earlier attempt left in it is skipped. After other
 * errors use a new stream.
 */
PIER_API int pier_channel_handshake(struct pier_channel *channel, int read_fd,
				    int write_fd, int timeout_ms);

/**
 * Begin pier_channel_handshake() without waiting: for one thread that connects many
 * channels, for instance a server whose callers may be slow. Nothing is read or written
 * before the first pier_channel_handshake_step(), except that the peer is told if the
 * call fails:
 *
 *	pier_channel_handshake_start(channel, socket, socket, timeout_ms);
 *	while ((result = pier_channel_handshake_step(channel, fds, &left_ms)) == 0)
 *		poll(fds, 2, left_ms);
 *
 * Until the last step the channel cannot be used for anything else, and the fds must
 * stay open. pier_channel_reset() and pier_channel_destroy() give the handshake up,
 * without a word to the peer, perhaps in the middle of a message; close the fds then.
 *
 * read_fd, write_fd  as for pier_channel_handshake()
 * timeout_ms         from now until the last step
 *
 * Errors: -EINVAL timeout_ms is invalid; -EISCONN, -EBUSY and -EPIPE as for
 * pier_channel_connect(), -EBUSY also while a handshake is in progress; -EBADF an fd is
 * not open; -ENOMEM; those of pier_channel_endpoint(), after which the channel can only
 * be reset or destroyed. After the others nothing was changed.
 */
PIER_API int pier_channel_handshake_start(struct pier_channel *channel, int read_fd,
					  int write_fd, int timeout_ms);

/**
 * Continue a handshake as far as is possible without waiting for the peer.
 *
 * The call waits for the device alone: each attempt of RTR can take the kernel a second
 * if the network does not resolve the peer's address, and soft0 up to 5 s if the process
 * of the peer is stopped. The next attempt follows after a pause of the same length.
 *
 * ret_fds         two elements: what to wait for with poll(2), to read and to write. fd
 *                 is -1 if there is nothing, which poll(2) ignores
 * ret_timeout_ms  call again after this time at the latest, in milliseconds
 *
 * Calls that come too early do no harm. After the deadline, the next call returns
 * -ETIMEDOUT unless the peer's messages have arrived.
 *
 * Returns 1 when both ends are connected, and 0, with ret_fds and ret_timeout_ms set,
 * before that.
 *
 * Errors: those of pier_channel_handshake() except -EINTR, with the same consequences;
 * -EINVAL no handshake is in progress.
 */
PIER_API int pier_channel_handshake_step(struct pier_channel *channel,
					 struct pollfd *ret_fds, int *ret_timeout_ms);

/**
 * Destroy a channel; NULL is allowed.
 *
 * Outstanding requests are stopped and discarded; afterwards the NIC does not touch
 * their memory. Never waits for the peer. Bindings of counters to the channel end.
 *
 * Memory windows of the channel (pier_mr_bind_sub()) lose their keys, but must still be
 * passed to pier_mr_dereg().
 *
 * Errors: those of ibv_dealloc_mw(3), ibv_destroy_qp(3) and ibv_destroy_cq(3), none of
 * which a caller can cause.
 */
PIER_API int pier_channel_destroy(struct pier_channel *channel);

/** The kind of request that completed: values of pier_result.opcode. */
enum pier_opcode {
	PIER_OP_SEND = 1,
	PIER_OP_WRITE = 2,
	PIER_OP_READ = 3,
	/** A send of the peer arrived in a receive. */
	PIER_OP_RECV = 4,
	/** A write with immediate data of the peer used up a receive. */
	PIER_OP_RECV_WRITE_IMM = 5,
	/** A memory window was bound: pier_mr_bind_sub(). */
	PIER_OP_BIND = 6,
	/** Atomics: <pier/post.h>. */
	PIER_OP_COMPARE_SWAP = 7,
	PIER_OP_FETCH_ADD = 8,
	/** A keepalive, posted by pier itself: pier_channel_attr.keepalive_ms. */
	PIER_OP_KEEPALIVE = 9,
};

/** How a request ended. Frozen: <pier/inline.h> compiles the layout into programs. */
struct pier_result {
	/**
	 * 0, or a negative errno for the verbs status: -ECANCELED the request was
	 * flushed behind another error; -EHOSTUNREACH the peer did not answer; -EAGAIN
	 * the peer had posted no receive; -EACCES the peer refused the access;
	 * -EREMOTEIO the peer failed; -EMSGSIZE the message did not fit; -EFAULT local
	 * memory was refused; -EIO any other error. Never -ETIMEDOUT, which only a call
	 * returns at its own deadline (pier_group_exchange() for each late request). In
	 * struct pier_channel_failure also the error of the call that stopped the
	 * channel.
	 */
	int error;
	uint32_t status;	   /**< enum ibv_wc_status */
	uint32_t vendor_error;	   /**< the device's own code; 0 without an error */
	enum pier_opcode opcode;   /**< valid without an error */
	uint32_t byte_length;	   /**< bytes received or read; valid without an error */
	uint32_t immediate;	   /**< in host order; valid if has_immediate */
	uint32_t invalidated_rkey; /**< valid if has_invalidated */
	bool has_immediate;	   /**< receives only */
	bool has_invalidated; /**< receives only: the peer's send invalidated a window */
	/** The request's own: pier_request.context, or that of pier_srq_post_recv(). */
	void *context;
};

/**
 * The handle of an outstanding request. It is a value, can be copied, and yields its
 * result once. Frozen, as struct pier_result.
 *
 * The channel keeps the result until pier_work_poll() or pier_work_wait() returns it or
 * pier_work_drop() discards it. It can keep at least max_send_wr results of the send
 * queue and max_recv_wr of the receive queue. A result that is neither fetched nor
 * dropped occupies one of these places until the channel is destroyed, and does no
 * other harm.
 */
struct pier_work {
	uint64_t id;
};

/**
 * Post one request, without waiting for it.
 *
 * sg_list, num_sge  the elements, up to max_send_sge or max_recv_sge; borrowed for the
 *                   call. 0 elements: an empty message. sg_list must not be NULL if
 *                   num_sge > 0. A write or read with more elements becomes several
 *                   requests: see pier_channel_post_request()
 * remote            for writes and reads: at least as long as the elements together;
 *                   the rest is not touched. May be NULL only without elements
 * ret_work          handle of the request. NULL: no handle, and the place in the queue
 *                   is free again when the request completes; an error still breaks the
 *                   channel, and the next call that fetches a result reports it
 *
 * A posted request does not own its memory, which must stay registered until the
 * request has completed.
 *
 * Immediate data as a signal: when the peer's receive completes, the bytes of this write
 * and of all earlier writes on the channel are in the peer's memory (InfiniBand
 * Architecture Specification, volume 1, 9.5; for relaxed ordering, ibv_reg_mr(3)).
 * Adaptive routing does not change this. But switches may spread only the packets of
 * plain writes over several paths. Therefore write long payloads without immediate
 * data, and then a write of no bytes with it (PIER_POST_IMMEDIATE), both with
 * pier_channel_post_batch(). Nothing orders the bytes of one write, nor of several,
 * before such a completion: do not poll memory for the last byte.
 *
 * Errors: -EINVAL a send or receive has too many elements, remote is NULL, or a receive
 * is posted although the channel has a shared receive queue; -ERANGE remote is shorter
 * than the elements; -EMSGSIZE the message is longer than the port's max_msg_size;
 * -EAGAIN the queue is full (wait for a request first), or it keeps too many results
 * that were not fetched; -ENOTCONN the channel is not connected (a receive may be
 * posted before); -EPIPE the channel is broken (the error message gives the first
 * cause); -EOPNOTSUPP a read, and max_rd_atomic of one end is 0, or a receive in memory
 * that the CPU does not find at the region's iova, on a NIC whose provider copies short
 * messages by the CPU (hns); others of ibv_post_send(3) and ibv_post_recv(3).
 */
PIER_API int pier_channel_post_send(struct pier_channel *channel,
				    const struct pier_gather *sg_list, uint32_t num_sge,
				    struct pier_work *ret_work);
PIER_API int pier_channel_post_recv(struct pier_channel *channel,
				    const struct pier_scatter *sg_list, uint32_t num_sge,
				    struct pier_work *ret_work);
PIER_API int pier_channel_post_write(struct pier_channel *channel,
				     const struct pier_gather *sg_list, uint32_t num_sge,
				     const struct pier_remote *remote,
				     struct pier_work *ret_work);
PIER_API int pier_channel_post_read(struct pier_channel *channel,
				    const struct pier_scatter *sg_list, uint32_t num_sge,
				    const struct pier_remote *remote,
				    struct pier_work *ret_work);

/**
 * Check whether a request has completed, without waiting.
 *
 * ret_result  may be NULL
 *
 * Returns 1 and writes the result if the request has completed; the handle is then used
 * up. Returns 0 and writes nothing while the request is outstanding. A failed request
 * has completed: 1 is returned, the result has the error, and pier_error_message()
 * describes it.
 *
 * Errors: -ESTALE the handle is used up or belongs to another channel; -EIO
 * ibv_poll_cq(3) failed.
 */
PIER_API int pier_work_poll(struct pier_channel *channel, struct pier_work work,
			    struct pier_result *ret_result);

/**
 * Wait until a request has completed.
 *
 * pier_channel_set_waiting() sets how long the call polls before it sleeps.
 *
 * ret_result  may be NULL
 *
 * Returns 1 and writes the result if the request has completed, also if it failed
 * (ret_result->error): see pier_work_poll(). Returns 0 and writes nothing if the request
 * is outstanding and timeout_ms is 0.
 *
 * After an error the request is still outstanding and its memory in use: wait again, or
 * call pier_channel_cancel() to get the memory back.
 *
 * Errors: -ETIMEDOUT the request did not complete in time; -ESTALE as for
 * pier_work_poll(); -EINVAL timeout_ms is invalid; -EINTR (<pier/waiting.h>); -EIO and
 * others of ibv_poll_cq(3), ibv_req_notify_cq(3) and poll(2).
 */
PIER_API int pier_work_wait(struct pier_channel *channel, struct pier_work work,
			    int timeout_ms, struct pier_result *ret_result);

/**
 * Drop a request whose result is not needed. The handle is used up at once, and the
 * place in the queue is free again when the request completes, as if
 * pier_channel_post_send() had been called with ret_work NULL.
 *
 * Errors: -ESTALE as for pier_work_poll().
 */
PIER_API int pier_work_drop(struct pier_channel *channel, struct pier_work work);

/**
 * Post one request and wait until it has completed.
 *
 * At the timeout (with timeout_ms 0: at once), or if waiting fails, the queue pair is
 * driven to the error state and all outstanding requests are collected, so their memory
 * is safe to reuse. The channel is then broken, as after pier_channel_cancel().
 *
 * ret_result  may be NULL; also written if the request failed, or was stopped
 *
 * Returns 0 if the request succeeded.
 *
 * Errors: those of posting and of pier_work_wait(); and that of the request
 * (pier_result.error).
 */
PIER_API int pier_channel_send(struct pier_channel *channel,
			       const struct pier_gather *sg_list, uint32_t num_sge,
			       int timeout_ms);
PIER_API int pier_channel_recv(struct pier_channel *channel,
			       const struct pier_scatter *sg_list, uint32_t num_sge,
			       int timeout_ms, struct pier_result *ret_result);
PIER_API int pier_channel_write(struct pier_channel *channel,
				const struct pier_gather *sg_list, uint32_t num_sge,
				const struct pier_remote *remote, int timeout_ms);
PIER_API int pier_channel_read(struct pier_channel *channel,
			       const struct pier_scatter *sg_list, uint32_t num_sge,
			       const struct pier_remote *remote, int timeout_ms);

/**
 * Let the peer of a channel access the range [offset, offset + length) of a region.
 *
 * The range becomes a sub-region with its own rights and its own key, and with the
 * addresses of the region. pier_mr_remote() returns the address and key for the peer.
 *
 * access      PIER_ACCESS_REMOTE_READ, _REMOTE_WRITE and _REMOTE_ATOMIC, at least one
 *             of them. Writes and atomics need a region with LOCAL_WRITE. The channel's
 *             own access must also allow them
 * timeout_ms  for binding a window
 *
 * The sub-region is a memory window of type 2 if the device has them, the region was
 * registered with PIER_ACCESS_MW_BIND and has one key for its own addresses, and the
 * channel is connected. Otherwise it is a region of its own, as created by
 * pier_mr_reg_sub(). pier_mr_query() returns which of the two it is. A region of
 * its own costs a registration, and every peer in the protection domain that knows its
 * key can use it. A window costs one request on the channel, and its key is valid on
 * this channel only.
 *
 * A window is for the peer only: it has no lkey, its elements are refused with -EACCES,
 * and it cannot have sub-regions. Use the region for these. The window keeps the
 * region: deregistering the region fails with -EBUSY until the window is gone.
 *
 * pier_mr_dereg() of the window revokes the right without asking the peer. Requests
 * that the peer then has in flight with that key fail at its end with -EACCES, which
 * breaks the channel; they may have been executed in part. The device may still write
 * packets that it was processing. Only when the region is deregistered or the channel
 * is destroyed does the memory belong to its owner alone. pier_channel_destroy()
 * revokes the right as well; the struct must still be passed to pier_mr_dereg(), before
 * or afterwards, from any thread.
 *
 * rxe does not check the bounds of a window. On rxe a window is therefore bound to a
 * region that is registered for it alone, and that gives no rights to any peer.
 *
 * Errors: -EINVAL timeout_ms is invalid, length is 0, access is not possible, the
 * region is a window, or the region and the channel are in different protection
 * domains; -ERANGE the range is not inside the region; -EPIPE the channel is broken;
 * -ENOTCONN the channel failed to connect; -EOPNOTSUPP REMOTE_ATOMIC, and the device
 * has no atomics; -EAGAIN the send queue is full. For a window also -ENOMEM and others
 * of ibv_alloc_mw(3), and the errors that pier_work_wait() returns for a failed request
 * (-EIO: the device refused to bind) or a timeout, both of which break the channel. For
 * a region also those of pier_mr_reg_sub(). After an error nothing stays registered.
 */
PIER_API int pier_mr_bind_sub(struct pier_channel *channel, struct pier_mr *mr,
			      uint64_t offset, uint64_t length, uint32_t access,
			      int timeout_ms, struct pier_mr **ret_mr);

/**
 * Collect completions, without waiting. The other calls do this themselves.
 *
 * Returns the number of completions of this channel collected, or 0.
 *
 * Errors: -EIO ibv_poll_cq(3) failed.
 */
PIER_API int pier_channel_poll(struct pier_channel *channel);

/**
 * Return an fd for poll(2) and epoll(7). After pier_channel_arm(), it becomes readable
 * at the next completion that the call did not collect. The channel, or its shared
 * completion queue, owns the fd: do not read or close it. Cannot fail.
 */
PIER_API int pier_channel_fd(const struct pier_channel *channel);

/**
 * Make pier_channel_fd() readable at the next completion, and clear its current
 * readiness.
 *
 * Completions that are already present are collected first, so no wake-up is lost. Arm,
 * check the requests, then sleep.
 *
 * Returns the number of completions collected, including those of other channels that
 * share the completion queue, or a larger number if a receiver left some uncollected
 * (<pier/receiver.h>), or if a call for another channel of a shared completion queue has
 * collected some since the last call. If it is not 0, check the requests of all channels
 * of the queue before sleeping.
 *
 * Errors: those of ibv_req_notify_cq(3) and ibv_get_cq_event(3), the latter for instance
 * -EIO after the device was removed; -EIO ibv_poll_cq(3) failed.
 */
PIER_API int pier_channel_arm(struct pier_channel *channel);

/** Return the pointer in the channel's attributes: pier_channel_attr.context. Cannot
 * fail. */
PIER_API void *pier_channel_context(const struct pier_channel *channel);

/** Return the number of requests that are posted and not completed. Cannot fail. */
PIER_API uint32_t pier_channel_outstanding(const struct pier_channel *channel);

PIER_END_DECLS

#endif
