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
 * Receive pools: receives that post themselves again, so that messages just arrive.
 *
 *	pier_recv_pool_create(channel, NULL, &pool);
 *	while (pier_recv_pool_wait(pool, timeout_ms, &message) == 0) {
 *		use(message.pointer, message.length);
 *		pier_recv_pool_release(pool, &message);
 *	}
 *
 * or, with attr.deliver set, delivered to a function:
 *
 *	while (pier_recv_pool_deliver(pool, timeout_ms) >= 0)
 *		;
 *
 * A pool has a number of slots of one length, in one region. Each is posted as a receive,
 * gets a message, is the user's until the function returned or the message was released
 * (in any order), and is posted again, several under one doorbell. Slots that the user
 * keeps are missing until then; with none left, senders are retried as their
 * rnr_retry_count says.
 *
 * A pool receives either for one channel (pier_recv_pool_create()), or for any number of
 * them (pier_recv_pool_create_shared()) by a shared receive queue of its own, which needs
 * memory for what arrives and not for every peer; what <pier/srq.h> says about those
 * holds.
 *
 * Messages are sends and writes with immediate; the latter use up a slot, and put no
 * bytes into it. Messages of one channel come in the order in which the peer posted
 * them; those of different channels take turns. A message may be empty, or as long as a
 * slot. A longer one breaks its channel, on both ends.
 *
 * When a channel breaks, what had arrived is handed out first. Then the calls that ask
 * for messages return -EPIPE, with the cause in pier_error_message() and the channel in
 * pier_recv_pool_broken(): of a pool of one channel from then on; of a shared pool once
 * for each such channel, whereupon the others go on, and from then on when none is left.
 *
 * On a pool's own channel pier_post_recv() can be used as well: receives get messages in
 * the order in which they were posted, the pool's and the others.
 *
 * Lifetime: a pool keeps its protection domain, and a region that it was given. A channel
 * may be destroyed before its pool: what had arrived and was not handed out is then lost,
 * messages that were handed out stay until they are released.
 *
 * Threads: one thread at a time uses a pool, and it uses the pool's channels with it: the
 * channel that it was made on; of a shared pool all of them, also to prepare and destroy
 * them. Other threads can do so when the caller orders that. A message that was handed
 * out may be read by any thread, and is released by the one that uses the pool.
 *
 * Processes: in a child of fork(2) all calls are -ECHILD for a pool of the parent
 * (<pier/device.h>).
 */

struct pier_recv_pool;

/** A message in a slot. A value: copy it, release it once. */
struct pier_pool_message {
	struct pier_channel *channel; /**< on which it arrived */
	/** Where the CPU reads it, or NULL: the pool was given its region, or cannot. */
	const void *pointer;
	struct pier_mr *mr; /**< of the pool */
	uint64_t iova;	    /**< of the slot, for elements of mr */
	uint64_t offset;    /**< of the slot, from the beginning of mr */
	uint32_t length;    /**< bytes in the slot; 0 for a write with immediate */
	uint32_t slot;	    /**< its number, from 0 */
	uint64_t sequence;  /**< how many messages the pool handed out before it */
	/** As of a receive: immediate, what was written, invalidated_rkey. No error. */
	struct pier_result result;
};

/** What a pier_deliver_fn returns. */
enum pier_delivery {
	PIER_DELIVERED = 0, /**< the slot is posted again */
	PIER_KEPT = 1,	    /**< it stays until pier_recv_pool_release() */
};

/**
 * Gets a message, on the thread that called pier_recv_pool_deliver(). It may use the
 * channel (and answer, and wait), release other messages of the pool, but neither ask the
 * pool for messages nor destroy it (-EBUSY), nor destroy its channels.
 *
 * message  valid until it returns; copy it to keep it
 * context  of the attributes
 */
typedef enum pier_delivery (*pier_deliver_fn)(const struct pier_pool_message *message,
					      void *context);

/** How a pool is made. Begin with pier_recv_pool_attr_init(). */
struct pier_recv_pool_attr {
	/** sizeof(struct pier_recv_pool_attr), so that fields can be added. */
	size_t size;
	/**
	 * Slots, at least 1. Of a pool of one channel as many are posted at once as
	 * max_recv_wr allows; more help when messages are kept.
	 */
	uint32_t count;
	uint32_t length; /**< of a slot, in bytes, at least 1 */
	/** Memory of the pool's own, as of pier_buffer_alloc(); with mr not looked at. */
	const char *spec;
	enum pier_policy policy; /**< for registering that */
	int timeout_ms;		 /**< for calls with PIER_TIMEOUT_DEFAULT; more than 0 */
	/**
	 * Or a region of the caller with LOCAL_WRITE, of the same protection domain; it
	 * is kept. Slot n has the bytes from offset + n * length; none may cross a seam.
	 */
	struct pier_mr *mr;
	uint64_t offset;
	pier_deliver_fn deliver; /**< for pier_recv_pool_deliver(), or NULL */
	void *context;		 /**< of deliver */
};

/**
 * Set every field to its default: 16 slots of 4 KiB host memory that the pool allocates.
 * Cannot fail.
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
 * Make a pool on a channel with receives of its own, connected or only prepared, and post
 * its slots.
 *
 * attr  borrowed, as all that it points to, but mr is kept; NULL: the defaults
 *
 * Errors: -EINVAL count, length, timeout_ms, neither spec nor mr, mr of another
 * protection domain, a channel with a shared receive queue; -EBUSY the channel has a
 * pool; -EMSGSIZE length is more than the port's max_msg_size; -ERANGE the slots leave
 * mr; -EXDEV one crosses a seam of it; -EACCES it lacks LOCAL_WRITE; -EPIPE the channel
 * is broken; -ENOMEM; others of pier_buffer_alloc(), pier_reg_buffer_mr() and
 * ibv_post_recv(3). If the device took some of the receives and then refused one, which
 * is not to be expected, the channel is stopped, and broken afterwards.
 */
PIER_API int pier_recv_pool_create(struct pier_channel *channel,
				   const struct pier_recv_pool_attr *attr,
				   struct pier_recv_pool **ret_pool);

/**
 * Make a pool with a shared receive queue of its own, and post its slots. Channels have
 * it that were prepared with pier_recv_pool_srq() in their attributes.
 *
 * Errors: as pier_recv_pool_create() and pier_create_srq().
 */
PIER_API int pier_recv_pool_create_shared(struct pier_pd *pd,
					  const struct pier_recv_pool_attr *attr,
					  struct pier_recv_pool **ret_pool);

/**
 * For the attributes of channels that are to be of a shared pool; the pool's, so that it
 * cannot be posted to or destroyed. NULL of a pool of one channel. Cannot fail.
 */
PIER_API struct pier_srq *pier_recv_pool_srq(const struct pier_recv_pool *pool);

/**
 * Destroy a pool, with the memory that it allocated; NULL is fine.
 *
 * A receive that is posted cannot be taken back: so a channel that still has some is
 * stopped, and is broken afterwards.
 *
 * Errors: -EBUSY messages are not released, or channels have the shared receive queue,
 * or it is delivering; others of pier_dereg_mr() and ibv_destroy_srq(3).
 */
PIER_API int pier_recv_pool_destroy(struct pier_recv_pool *pool);

/**
 * The next message; does not wait.
 *
 * Returns 1 and writes the message, which is to be given to pier_recv_pool_release();
 * 0 and writes nothing while there is none.
 *
 * Errors: -EPIPE as above; -EBUSY it is delivering; -EIO ibv_poll_cq(3) failed; others of
 * ibv_post_recv(3) and ibv_post_srq_recv(3), when slots could not be posted: they stay
 * for the next call.
 */
PIER_API int pier_recv_pool_poll(struct pier_recv_pool *pool,
				 struct pier_pool_message *ret_message);

/**
 * Wait for the next message, asleep where it takes long. When the time is up nothing is
 * stopped. PIER_TIMEOUT_DEFAULT takes the pool's.
 *
 * Errors: -ETIMEDOUT; -EINVAL timeout_ms; those of pier_recv_pool_poll(); -ENOMEM;
 * others of ibv_req_notify_cq(3) and poll(2).
 */
PIER_API int pier_recv_pool_wait(struct pier_recv_pool *pool, int timeout_ms,
				 struct pier_pool_message *ret_message);

/**
 * Give the slot of a message back, to be posted again.
 *
 * Errors: -ESTALE it was given back before, or is not of this pool.
 */
PIER_API int pier_recv_pool_release(struct pier_recv_pool *pool,
				    const struct pier_pool_message *message);

/**
 * Wait until there is a message, and deliver what is there, at most as many as the pool
 * has slots, by the function of the attributes.
 *
 * Returns how many: at least 1, or with timeout_ms 0 also 0. What goes wrong behind the
 * first message is told by the next call.
 *
 * Errors: -EINVAL the pool has no function; else as pier_recv_pool_wait().
 */
PIER_API int pier_recv_pool_deliver(struct pier_recv_pool *pool, int timeout_ms);

/** The channel of the last -EPIPE; NULL: none, or it is destroyed. Cannot fail. */
PIER_API struct pier_channel *pier_recv_pool_broken(const struct pier_recv_pool *pool);

PIER_END_DECLS

#endif
