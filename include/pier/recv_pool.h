/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_RECV_POOL_H
#define PIER_RECV_POOL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/device.h>
#include <pier/export.h>
#include <pier/mr.h>
#include <pier/srq.h>

PIER_BEGIN_DECLS

/**
 * Receive pools: receives that are posted again as soon as their messages are released.
 *
 *	attr.channel = channel;                    a struct pier_recv_pool_attr
 *	pier_recv_pool_create(pd, &attr, &pool);
 *	while (pier_recv_pool_wait(pool, timeout_ms, &message) == 1) {
 *		use(message.pointer, message.length);
 *		pier_recv_pool_release(pool, &message);
 *	}
 *
 * A pool has a number of slots of equal length in one region. Each slot is posted as a
 * receive. When a message arrives in it, the slot belongs to the user until the message
 * is released, in any order. It is then posted again, together with others under one
 * doorbell. Slots that the user keeps cannot receive. If no slot is left, senders retry
 * according to their rnr_retry_count.
 *
 * A pool receives for one channel (pier_recv_pool_attr.channel), or for any number of
 * channels through a shared receive queue of its own (pier_recv_pool_srq()). The latter
 * needs memory for messages that arrive, not for every peer, and follows the rules of
 * <pier/srq.h>.
 *
 * Messages are sends and writes with immediate data. The latter use up a slot but put
 * no bytes into it. Messages of one channel are returned in the order in which the peer
 * posted them; channels of a shared pool take turns. A message may be empty, and at
 * most as long as a slot. A longer one breaks its channel at both ends.
 *
 * When a channel breaks, the messages that had arrived are returned first. Then the
 * calls that return messages fail with -EPIPE; pier_error_message() has the cause, and
 * the message names the channel. A pool of one channel fails this way until the channel
 * is reset (<pier/recovery.h>); the next call for a message then posts the slots again,
 * and the pool continues. A shared pool fails once for each broken channel and continues
 * with the others; when no working channel is left, it fails from then on.
 *
 * On the channel of a pool for one channel, pier_channel_post_recv() may be used as well.
 * Receives get messages in the order in which they were posted, whether the pool or the
 * caller posted them.
 *
 * Lifetime: a pool keeps its protection domain, and the region that it was given. A
 * channel may be destroyed before its pool. Messages that had arrived and were not
 * returned are then lost; messages that were returned stay valid until they are
 * released.
 *
 * Threads: one thread at a time may use a pool, and the same thread uses the pool's
 * channels: the channel on which it was created, or all channels of a shared pool,
 * including to create and destroy them. Pool and channels may move to another thread if
 * the caller orders the accesses. Any thread may read a message that was returned; the
 * thread that uses the pool releases it.
 *
 * Processes: in a child of fork(2), every call except plain queries fails with -ECHILD
 * for a pool of the parent (<pier/device.h>).
 */

struct pier_recv_pool;

/** A message in a slot. It is a value: it can be copied, and is released once. */
struct pier_pool_message {
	struct pier_channel *channel; /**< on which it arrived */
	/**
	 * The CPU's pointer to the bytes; NULL if the pool was given its region, or the
	 * CPU cannot reach the memory.
	 */
	const void *pointer;
	struct pier_mr *mr; /**< the region of the pool */
	uint64_t iova;	    /**< of the slot, for elements of mr */
	uint64_t offset;    /**< of the slot, from the beginning of mr */
	uint32_t length;    /**< bytes in the slot; 0 for a write with immediate */
	uint32_t slot;	    /**< number of the slot, from 0 */
	uint64_t sequence;  /**< messages that the pool returned before it */
	/**
	 * As for a receive: immediate, byte_length (for a write with immediate, the
	 * bytes that it wrote), invalidated_rkey. Never an error.
	 */
	struct pier_result result;
	uint64_t reserved[2]; /**< 0; for later members */
};

/** The attributes of a new pool. Set them up with pier_recv_pool_attr_init(). */
struct pier_recv_pool_attr {
	/** sizeof(struct pier_recv_pool_attr), so that fields can be added. */
	size_t size;
	/**
	 * Number of slots, at least 1. A pool of one channel posts at most max_recv_wr
	 * of them at once; more slots help if messages are kept.
	 */
	uint32_t count;
	uint32_t length; /**< of a slot, in bytes, at least 1 */
	/**
	 * Memory that the pool allocates: a specification for pier_buffer_alloc().
	 * Ignored if mr is set.
	 */
	const char *spec;
	enum pier_policy policy; /**< for registering the allocated memory */
	/** In milliseconds, for calls with PIER_TIMEOUT_DEFAULT; more than 0. */
	int timeout_ms;
	/**
	 * Instead of spec: a region of the caller with LOCAL_WRITE, in the same
	 * protection domain; the pool keeps it. Slot n begins at offset + n * length,
	 * in bytes. No slot may cross a seam.
	 */
	struct pier_mr *mr;
	uint64_t offset;
	/**
	 * The channel to receive for, with receives of its own; connected or not. NULL:
	 * the pool has a shared receive queue for any number of channels. Create these
	 * with pier_recv_pool_srq() in their attributes.
	 */
	struct pier_channel *channel;
};

/**
 * Set every field to its default: 16 slots of 4 KiB of host memory that the pool
 * allocates. Cannot fail.
 */
static inline void pier_recv_pool_attr_init(struct pier_recv_pool_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->count = 16;
	attr->length = 4096;
	attr->spec = "host";
	attr->policy = PIER_POLICY_DIRECT;
	attr->timeout_ms = 30000;
}

/**
 * Create a pool, and post its slots.
 *
 * attr  borrowed with everything it points to, except mr, which is kept; NULL: the
 *       defaults
 *
 * Errors: -EINVAL count, length or timeout_ms is invalid, neither spec nor mr is set,
 * mr or channel belongs to another protection domain, or the channel has a shared receive
 * queue; -EBUSY the channel has a pool; -EMSGSIZE length is more than the port's
 * max_msg_size; -ERANGE the slots do not fit into mr; -EXDEV a slot crosses a seam of mr;
 * -EACCES mr lacks LOCAL_WRITE; -EPIPE the channel is broken; -ENOMEM; others of
 * pier_buffer_alloc(), pier_mr_reg_buffer(), ibv_post_recv(3) and, without a channel,
 * pier_srq_create(). If the device refuses a receive after it accepted others, which is
 * not expected, the channel is stopped and broken.
 */
PIER_API int pier_recv_pool_create(struct pier_pd *pd,
				   const struct pier_recv_pool_attr *attr,
				   struct pier_recv_pool **ret_pool);

/**
 * Return the shared receive queue of a pool, for the attributes of its channels.
 *
 * Returns NULL for a pool of one channel. The queue belongs to the pool: posting to it
 * and destroying it fail. Cannot fail.
 */
PIER_API struct pier_srq *pier_recv_pool_srq(const struct pier_recv_pool *pool);

/**
 * Destroy a pool and the memory that it allocated; NULL is allowed.
 *
 * Posted receives cannot be withdrawn. A channel that still has some of them is
 * therefore stopped and is broken afterwards.
 *
 * Errors: -EBUSY messages are not released, or channels use the shared receive queue;
 * others of pier_mr_dereg() and ibv_destroy_srq(3).
 */
PIER_API int pier_recv_pool_destroy(struct pier_recv_pool *pool);

/**
 * Take the next message, and wait for it. Sleeps if that takes long. A timeout stops
 * nothing.
 *
 * timeout_ms  in milliseconds; 0: do not wait; PIER_TIMEOUT_DEFAULT: the pool's
 *
 * Returns 1 and writes the message, which must be passed to pier_recv_pool_release().
 * Returns 0 and writes nothing if there is none and timeout_ms is 0.
 *
 * Errors: -ETIMEDOUT no message arrived in time; -EINVAL timeout_ms is invalid; -EPIPE
 * ret_message->channel is broken, as described in <pier/recv_pool.h>, or was destroyed
 * (NULL); -EINTR (<pier/waiting.h>); -EIO ibv_poll_cq(3) failed; -ENOMEM; others of
 * ibv_req_notify_cq(3) and poll(2), and of ibv_post_recv(3) and ibv_post_srq_recv(3) if
 * slots could not be posted: the next call tries again.
 */
PIER_API int pier_recv_pool_wait(struct pier_recv_pool *pool, int timeout_ms,
				 struct pier_pool_message *ret_message);

/**
 * Release a message: its slot can be posted again.
 *
 * Errors: -ESTALE the message was released before, or belongs to another pool.
 */
PIER_API int pier_recv_pool_release(struct pier_recv_pool *pool,
				    const struct pier_pool_message *message);

PIER_END_DECLS

#endif
