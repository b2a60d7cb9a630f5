/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_GROUP_H
#define PIER_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/device.h>
#include <pier/element.h>
#include <pier/export.h>
#include <pier/remote.h>

PIER_BEGIN_DECLS

/**
 * Groups: a process among others, with a channel to each of them.
 *
 *	pier_group_create(pd, rank, size, NULL, &group);
 *	pier_group_endpoints(group, mine, size * PIER_GROUP_BLOB_SIZE);
 *	MPI_Alltoall(mine, PIER_GROUP_BLOB_SIZE, MPI_BYTE,
 *		     theirs, PIER_GROUP_BLOB_SIZE, MPI_BYTE, MPI_COMM_WORLD);
 *	pier_group_connect(group, theirs, size * PIER_GROUP_BLOB_SIZE, timeout_ms);
 *	pier_group_scatter(group, requests, count, timeout_ms, results);
 *	pier_group_barrier(group, timeout_ms);
 *	pier_group_destroy(group);
 *
 * The members are numbered: ranks from 0 to size - 1. How they exchange their blobs
 * is theirs to choose: a launcher such as MPI, a file, a socket each.
 *
 * Requests on many channels are posted on all of them before any is waited for. A
 * member that fails, or is too late, is named in the sentence and in its result; the
 * requests of the others end as if it were not there, and their channels stay good.
 *
 * A group has two channels for each other rank. One is for requests: those of
 * pier_group_exchange() and its like, and those that the user posts on
 * pier_group_channel(). The other one carries the messages of barriers, so that the
 * user's receives and those of barriers never meet; it holds 8 requests, and no
 * memory. To itself a rank has one channel, which is connected with itself.
 *
 * Time: as for channels (<pier/channel.h>); PIER_TIMEOUT_DEFAULT is that of the
 * channels' attributes. A deadline is one for all ranks of a call, not one for each.
 *
 * Lifetime: a group keeps its protection domain. Its channels are its own, and are
 * destroyed with it.
 *
 * Threads: one thread at a time may use a group, which includes its channels; it may
 * move between threads when the caller orders that. Different groups are independent.
 *
 * Processes: in a child of fork(2), all that is not a plain question about a group of
 * the parent is -ECHILD (<pier/device.h>).
 */

struct pier_group;

/** The most members that a group may have. */
#define PIER_GROUP_MAX 65536

/** Who tells whom in a barrier of n ranks. */
enum pier_barrier_algorithm {
	/**
	 * All tell the first rank, which then tells all: 2 steps, in which the first
	 * rank handles n - 1 messages each. It knows exactly who is missing.
	 */
	PIER_BARRIER_CENTRAL = 1,
	/** Up a binary tree and down again: 2 log2(n) steps, 3 messages for a rank. */
	PIER_BARRIER_BINARY_TREE = 2,
	/** Each tells one at distance 1, 2, 4 and so on: log2(n) steps for all. */
	PIER_BARRIER_DISSEMINATION = 3,
};

/** How a group is made. Begin with pier_group_attr_init(). */
struct pier_group_attr {
	/** sizeof(struct pier_group_attr), so that fields can be added. */
	size_t size;
	/**
	 * Of the channels for requests; borrowed. NULL: those of
	 * pier_channel_create(), but with rnr_retry_count 7: a send waits for the
	 * peer's receive as long as the deadline of the call allows.
	 */
	const struct pier_channel_attr *channel;
	/** Of pier_group_barrier(); the same in all members. */
	enum pier_barrier_algorithm barrier;
	uint32_t flags; /**< none are known: 0 */
};

/** Set every field to its default; docs/design.md says why these. Cannot fail. */
static inline void pier_group_attr_init(struct pier_group_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->barrier = PIER_BARRIER_DISSEMINATION;
}

/**
 * Make a member of a group, whose channels are not connected.
 *
 * rank  of this member, below `size`
 * size  members, from 1 to PIER_GROUP_MAX
 * attr  borrowed; NULL: the defaults
 *
 * Errors: -EINVAL rank, size or an attribute is out of its range; -ENOMEM; others of
 * pier_channel_create().
 */
PIER_API int pier_group_create(struct pier_pd *pd, uint32_t rank, uint32_t size,
			       const struct pier_group_attr *attr,
			       struct pier_group **ret_group);

/**
 * Destroy a group, with its channels; NULL is fine. Outstanding requests are stopped
 * and given up. Never waits for a peer, and may be called as soon as the last
 * operation has returned: a barrier that returned 0 has told all whom it had to.
 *
 * Errors: those of pier_channel_destroy(), after which it can be called again.
 */
PIER_API int pier_group_destroy(struct pier_group *group);

/** Bytes in the blob for one rank: a wire form, see docs/wire.md. */
#define PIER_GROUP_BLOB_SIZE 536

/**
 * What the other members must know: one blob for each rank, that of rank r at r *
 * PIER_GROUP_BLOB_SIZE, so that MPI_Alltoall() with blocks of that size delivers them.
 *
 * size  of ret_blobs, in bytes: the group's size * PIER_GROUP_BLOB_SIZE or more
 *
 * With soft0 the blobs hold the secrets by which channels prove who they are: send
 * them only over what you trust.
 *
 * Errors: -ENOSPC size is too small; those of pier_channel_endpoint().
 */
PIER_API int pier_group_endpoints(struct pier_group *group, void *ret_blobs, size_t size);

/**
 * Connect to all other members, which do the same, and wait until all are connected.
 *
 * blobs       what each rank made for this one, that of rank r at r *
 *             PIER_GROUP_BLOB_SIZE; they may be hostile. The one of this rank itself
 *             is not looked at
 * size        in bytes: exactly the group's size * PIER_GROUP_BLOB_SIZE
 * timeout_ms  for all of it
 *
 * Members should call it within a second of each other: a message to one that is not
 * there yet is repeated, as the channel's attributes say (but for at least 1.8
 * seconds), and then fails.
 *
 * When it returns 0 all others have connected to this member, and requests to any of
 * them arrive. When it fails the sentence names the rank, as pier_group_failed_rank()
 * does, those that are connected are told, and the group can only be destroyed.
 *
 * Errors: -EMSGSIZE size is another; of a blob: -EBADMSG not one, -EPROTONOSUPPORT of
 * another version, -EINVAL of another rank, for another rank, of a group of another
 * size, or an endpoint that cannot be; -EISCONN connected before; -ETIMEDOUT a rank did
 * not connect in time; -ECONNREFUSED a rank could not connect, as it says or another
 * one says of it; -ECONNRESET a rank is gone; others of pier_channel_connect().
 */
PIER_API int pier_group_connect(struct pier_group *group, const void *blobs, size_t size,
				int timeout_ms);

/**
 * Exchange blobs with all other members over a socket to each, and connect: for those
 * who have no launcher. The others do the same at the same time.
 *
 * sockets     by rank, `size` of them: connected stream sockets (TCP, Unix), borrowed;
 *             blocking or not; left as they were, and not one byte beyond the blobs
 *             is read. The one of this rank itself is not looked at
 * timeout_ms  for all of it
 *
 * When it fails the sentence names the rank, and the group can only be destroyed.
 *
 * Errors: those of pier_group_connect(); -EBADF an fd is not open, which changes
 * nothing where it is negative; -ETIMEDOUT a rank did not send its blob; -ECONNRESET a
 * rank closed its socket; -ENOMEM; others of poll(2), recv(2) and send(2), such as
 * -ENOTSOCK.
 */
PIER_API int pier_group_handshake(struct pier_group *group, const int *sockets,
				  int timeout_ms);

/** This member's number, and how many there are. Cannot fail. */
PIER_API uint32_t pier_group_rank(const struct pier_group *group);
PIER_API uint32_t pier_group_size(const struct pier_group *group);

/**
 * The channel for requests to a rank, also to this rank itself; NULL for a rank that
 * there is not.
 *
 * It is the group's: do with it what can be done with a channel but destroy it
 * (-EBUSY) and connect it (which is pier_group_connect()'s). Receives that are posted
 * on it take what the peer sends in their order, whether they or the peer's sends were
 * posted by pier_group_exchange() or by pier_post_recv(). Cannot fail otherwise.
 */
PIER_API struct pier_channel *pier_group_channel(const struct pier_group *group,
						 uint32_t rank);

/** One request of many. What its opcode does not use is not looked at. */
struct pier_group_request {
	uint32_t rank; /**< the peer */
	/** PIER_OP_SEND, _WRITE, _READ or _RECV; 0: see pier_group_scatter(). */
	enum pier_opcode opcode;
	union {
		const struct pier_gather *gather;   /**< of a send or write */
		const struct pier_scatter *scatter; /**< of a read or receive */
	};
	int num_sge;			  /**< how many elements; 0: none */
	const struct pier_remote *remote; /**< of a write or read */
	bool has_immediate;		  /**< of a send or write: it carries */
	uint32_t immediate;		  /**< this, in host order */
};

/**
 * Post requests to several ranks at once, and wait until all have ended.
 *
 * requests, count  in any order, any number of them, several for one rank too; borrowed
 *                  for the call. Those of one rank are posted in their order on each
 *                  of the two queues, as the queues take them
 * timeout_ms       for all of them
 * ret_results      one for each request, in the same order; or NULL. Also written when
 *                  requests failed
 *
 * pier_group_exchange() takes all four opcodes, so that ranks can send and receive at
 * once. pier_group_scatter() takes writes, which is also what opcode 0 stands for, and
 * sends; pier_group_gather() takes reads, or opcode 0, and receives.
 *
 * Of a request that was refused when it was posted, the result has the error that its
 * post call returned, and 0 for a status. Of one that did not end in time the error is
 * -ETIMEDOUT; its channel is stopped, so that its memory is safe to use again, and
 * broken, as by pier_work_wait(). No other rank's channel is touched.
 *
 * Returns 0 if all went well; else the error of the first of the requests that failed,
 * with a sentence that says why and names the ranks of all that did.
 * Errors: those of pier_post_write(), pier_post_read(), pier_post_send() and
 * pier_post_recv() but -EAGAIN for a full queue, and of completions, in their
 * pier_result.error; before anything is posted, and without results: -EINVAL
 * timeout_ms, a rank that there is not, or an opcode that the call does not take;
 * -ENOTCONN not connected; -ENOMEM.
 */
PIER_API int pier_group_exchange(struct pier_group *group,
				 const struct pier_group_request *requests,
				 uint32_t count, int timeout_ms,
				 struct pier_result *ret_results);
PIER_API int pier_group_scatter(struct pier_group *group,
				const struct pier_group_request *requests, uint32_t count,
				int timeout_ms, struct pier_result *ret_results);
PIER_API int pier_group_gather(struct pier_group *group,
			       const struct pier_group_request *requests, uint32_t count,
			       int timeout_ms, struct pier_result *ret_results);

/** Where one copy of a multicast goes. */
struct pier_group_target {
	uint32_t rank;
	const struct pier_remote *remote; /**< of a write */
};

/**
 * Write or send the same elements to several ranks at once, and wait until all have
 * them: pier_group_scatter() of one request to many targets.
 *
 * request  its rank and remote are not looked at; opcode 0: a write
 *
 * Returns and errors: as pier_group_scatter(); one result for each target.
 */
PIER_API int pier_group_multicast(struct pier_group *group,
				  const struct pier_group_request *request,
				  const struct pier_group_target *targets, uint32_t count,
				  int timeout_ms, struct pier_result *ret_results);

/** A request that the user posted on the channel of a rank. */
struct pier_group_work {
	uint32_t rank;
	struct pier_work work;
};

/**
 * Wait for requests that were posted on several channels of a group, as
 * pier_post_write(pier_group_channel(group, rank), ...) does: for all at once, asleep
 * where it takes long. Their handles are used up, whatever they ended with.
 *
 * Returns, errors and results: as pier_group_exchange(), with those of pier_work_wait().
 */
PIER_API int pier_group_wait(struct pier_group *group,
			     const struct pier_group_work *works, uint32_t count,
			     int timeout_ms, struct pier_result *ret_results);

/**
 * Wait until all ranks, or all of some ranks, have come here; any number of times.
 *
 * algorithm   the same in all ranks that take part; 0: the group's
 * ranks       in ascending order, this rank among them; the same in all of them;
 *             borrowed. NULL: all ranks
 * count       of ranks; without ranks it is not looked at
 * timeout_ms  for this rank. Who waits longest should have the longest: the first that
 *             gives up ends the barrier for all that are still in it
 *
 * Any two ranks come to the barriers that they share in the same order. Returning 0
 * says that all have come. What a rank wrote, and what had completed before it came,
 * is in memory then; requests that are still outstanding are not ordered by it.
 *
 * When a barrier fails this rank says so to all others, for up to 50 ms beyond its
 * deadline, so that those who wait for it, or will, fail at once and can name the same
 * culprit; pier_group_failed_rank() tells it. From then on barriers of this member are
 * -EPIPE. Requests are not concerned, and work with all members whose channels are good.
 * A barrier may fail in some ranks and succeed in those that had no more to wait for;
 * these find out at the next one.
 *
 * Who is blamed: with PIER_BARRIER_CENTRAL the first rank names all that did not come.
 * Otherwise it is the one whom this rank waited for, or whom another rank named: that
 * one may itself have waited for somebody, who is not known here. A member that is
 * gone is named itself, as soon as the device notices (soft0: at once).
 *
 * Errors: -ETIMEDOUT a rank did not come in time; -ECONNRESET a rank is gone;
 * -EPROTO a rank is in another barrier (of another algorithm or other ranks), or sent
 * something other than a barrier message; -EPIPE a barrier failed before, and the
 * sentence gives its reason; -ENOTCONN not connected; -EINVAL timeout_ms, algorithm, or
 * ranks (the sentence says what is wrong with them), which breaks nothing; others of
 * pier_work_wait().
 */
PIER_API int pier_group_barrier(struct pier_group *group, int timeout_ms);
PIER_API int pier_group_barrier_of(struct pier_group *group,
				   enum pier_barrier_algorithm algorithm,
				   const uint32_t *ranks, uint32_t count, int timeout_ms);

/**
 * The rank that a failed barrier or pier_group_connect() is blamed on: the first if
 * there are several. It may be this rank itself, where another one says so.
 *
 * Returns -1 if neither has failed. Cannot fail.
 */
PIER_API int pier_group_failed_rank(const struct pier_group *group);

PIER_END_DECLS

#endif
