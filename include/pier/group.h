/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_GROUP_H
#define PIER_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/device.h>
#include <pier/export.h>
#include <pier/post.h>

PIER_BEGIN_DECLS

/**
 * Groups: sets of processes, each with a channel to every other one.
 *
 *	pier_group_create(pd, rank, size, NULL, &group);
 *	pier_group_endpoints(group, mine, size * PIER_GROUP_BLOB_SIZE);
 *	MPI_Alltoall(mine, PIER_GROUP_BLOB_SIZE, MPI_BYTE,
 *		     theirs, PIER_GROUP_BLOB_SIZE, MPI_BYTE, MPI_COMM_WORLD);
 *	pier_group_connect(group, theirs, size * PIER_GROUP_BLOB_SIZE, timeout_ms);
 *	pier_group_exchange(group, requests, count, timeout_ms, results);
 *	pier_group_barrier(group, timeout_ms);
 *	pier_group_destroy(group);
 *
 * The members are numbered: ranks from 0 to size - 1. They may exchange their blobs by
 * any means: a launcher such as MPI, a file, or a socket for each pair.
 *
 * Requests on many channels are all posted before the call waits for any of them. If a
 * member fails or is too late, the error message names it, and the results of its
 * requests have the error. The requests of the other members end as if that member did
 * not exist, and their channels keep working.
 *
 * A group has two channels for each other rank. One carries requests: those of
 * pier_group_exchange(), and those that the user posts on pier_group_channel(). The
 * other carries the messages of barriers, so the user's receives and those of barriers
 * never mix; it has room for 8 requests and uses no memory. For itself a rank has one
 * channel, which is connected to itself.
 *
 * All channels of a group share a completion queue, and so one fd (<pier/cq.h>):
 * pier_channel_attr.cq as pier_channel_query() returns it, which the group owns. If the
 * device's longest queue (max_cqe of ibv_query_device(3)) is too short for all, there
 * are several. The caller can give a queue of its own in the channel attributes.
 *
 * Time: as for channels (<pier/channel.h>). PIER_TIMEOUT_DEFAULT selects the timeout in
 * the channels' attributes. A call has one deadline for all ranks, not one for each.
 * After a pier_group_wait() that times out, the caller can wait again. The other calls
 * end what they have begun: pier_group_exchange() stops the channels of late requests,
 * and a barrier or connecting fails in all members: with -ETIMEDOUT also in those whose
 * own time is not over.
 *
 * Lifetime: a group keeps its protection domain. It owns its channels, and destroys
 * them.
 *
 * Threads: one thread at a time may use a group and its channels. A group may move
 * between threads if the caller orders the accesses. Different groups are independent.
 *
 * Processes: in a child of fork(2), every call except plain queries fails with -ECHILD
 * for a group of the parent (<pier/device.h>).
 */

struct pier_group;

/** The most members that a group may have. */
#define PIER_GROUP_MAX 65536

/** The pattern of messages in a barrier of n ranks. */
enum pier_barrier_algorithm {
	/**
	 * All ranks notify the first rank, which then notifies all: 2 steps, in which
	 * the first rank handles n - 1 messages each. The first rank can name every
	 * missing rank.
	 */
	PIER_BARRIER_CENTRAL = 1,
	/** Up a binary tree and down again: 2 log2(n) steps, 3 messages per rank. */
	PIER_BARRIER_BINARY_TREE = 2,
	/**
	 * Each rank notifies one at distance 1, 2, 4 and so on: log2(n) steps for all.
	 */
	PIER_BARRIER_DISSEMINATION = 3,
};

/** The attributes of a new group. Set them up with pier_group_attr_init(). */
struct pier_group_attr {
	/** sizeof(struct pier_group_attr), so that fields can be added. */
	size_t size;
	/**
	 * Attributes of the channels for requests; borrowed. NULL: the defaults of
	 * pier_channel_create(). With their rnr_retry_count of 7, a send waits for the
	 * peer's receive until the deadline of the call.
	 */
	const struct pier_channel_attr *channel;
	/** For pier_group_barrier(); must be the same in all members. */
	enum pier_barrier_algorithm barrier;
	uint32_t flags; /**< must be 0: no flag is defined */
};

/** Set every field to its default. Cannot fail. */
static inline void pier_group_attr_init(struct pier_group_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->barrier = PIER_BARRIER_DISSEMINATION;
}

/**
 * Create a member of a group. Its channels are not connected yet.
 *
 * rank  of this member, less than `size`
 * size  number of members, 1 to PIER_GROUP_MAX
 * attr  borrowed; NULL: the defaults
 *
 * Errors: -EINVAL rank, size or an attribute is out of range; -ENOMEM; others of
 * pier_channel_create().
 */
PIER_API int pier_group_create(struct pier_pd *pd, uint32_t rank, uint32_t size,
			       const struct pier_group_attr *attr,
			       struct pier_group **ret_group);

/**
 * Destroy a group and its channels; NULL is allowed.
 *
 * Outstanding requests are stopped and discarded. Never waits for a peer. May be called
 * as soon as the last operation has returned: a barrier that returned 0 has notified
 * every rank that it had to.
 *
 * Errors: those of pier_channel_destroy(), after which the call can be repeated.
 */
PIER_API int pier_group_destroy(struct pier_group *group);

/** Bytes in the blob for one rank: a wire form, see docs/wire.md. */
#define PIER_GROUP_BLOB_SIZE 536

/**
 * Return the blobs that the other members need to connect: one for each rank. The blob
 * for rank r is at offset r * PIER_GROUP_BLOB_SIZE, so MPI_Alltoall() with blocks of
 * that size delivers them.
 *
 * size  of ret_blobs, in bytes: at least the group's size * PIER_GROUP_BLOB_SIZE
 *
 * With soft0 the blobs contain the secrets by which channels authenticate: send them
 * only over a trusted connection.
 *
 * Errors: -ENOSPC size is too small; those of pier_channel_endpoint().
 */
PIER_API int pier_group_endpoints(struct pier_group *group, void *ret_blobs, size_t size);

/**
 * Connect to all other members, which do the same, and wait until all are connected.
 *
 * blobs       the blob that each rank made for this one; that of rank r at offset r *
 *             PIER_GROUP_BLOB_SIZE. They may be hostile. The blob of this rank is
 *             ignored
 * size        in bytes: exactly the group's size * PIER_GROUP_BLOB_SIZE
 * timeout_ms  for the whole call
 *
 * Members should call it within a second of each other. A message to a member that is
 * not ready is repeated as the channel's attributes say, for at least 1.8 seconds, and
 * then fails.
 *
 * If 0 is returned, all other members have connected to this one, and requests to any
 * of them arrive. If the call fails, the error message and pier_group_failed_rank()
 * name the rank, the members that are connected are notified, and the group can only be
 * destroyed.
 *
 * Errors: -EMSGSIZE size is wrong; -EBADMSG a blob is invalid; -EPROTONOSUPPORT a blob
 * has another version; -EINVAL a blob is from another rank, for another rank, or from a
 * group of another size, or has an invalid endpoint; -EISCONN connected before;
 * -ETIMEDOUT a rank did not connect in time; -ECONNREFUSED a rank could not connect, as
 * it or another rank reported; -ECONNRESET a rank is gone; others of
 * pier_channel_connect().
 */
PIER_API int pier_group_connect(struct pier_group *group, const void *blobs, size_t size,
				int timeout_ms);

/**
 * Exchange blobs with all other members over one socket each, and connect. This is for
 * programs without a launcher. The other members must do the same at the same time.
 *
 * sockets     by rank, `size` of them: connected stream sockets (TCP, Unix). They are
 *             borrowed, and left as they were; blocking or not. No byte beyond the
 *             blobs is read. The entry of this rank is ignored. In a group of one
 *             rank it may be NULL
 * timeout_ms  for the whole call
 *
 * If the call fails, the error message names the rank, and the group can only be
 * destroyed. Use new sockets for the next group: those of this one may contain blobs.
 *
 * Errors: those of pier_group_connect(); -EBADF an fd is not open (nothing is changed
 * if it is negative); -ETIMEDOUT a rank did not send its blob; -ECONNRESET a rank
 * closed its socket; -ENOMEM; others of poll(2), recv(2) and send(2), such as
 * -ENOTSOCK.
 */
PIER_API int pier_group_handshake(struct pier_group *group, const int *sockets,
				  int timeout_ms);

/**
 * Return the channel for requests to a rank, which may be this rank itself. Returns
 * NULL if the group has no such rank. Cannot fail otherwise.
 *
 * The group owns the channel. Everything that can be done with a channel is allowed,
 * except connecting, resetting and destroying it, which fail with -EBUSY:
 * pier_group_connect() and pier_group_destroy() do that. The peer's sends arrive in this
 * rank's receives in the order in which each side posted them. It makes no difference
 * whether pier_group_exchange() or the user, for instance by pier_channel_post_recv(),
 * posted them.
 */
PIER_API struct pier_channel *pier_group_channel(const struct pier_group *group,
						 uint32_t rank);

/** One request of pier_group_exchange(). Frozen, as struct pier_request. */
struct pier_group_request {
	uint32_t rank;		     /**< the peer */
	struct pier_request request; /**< as for pier_channel_post_request() */
};

/**
 * Post requests to several ranks at once, and wait until all have ended.
 *
 * requests, count  in any order, any number of them, also several for one rank;
 *                  borrowed for the call. The requests for one rank are posted in their
 *                  order on each of its two queues, as the queues have room
 * timeout_ms       for all of them together
 * ret_results      one for each request, in the same order; or NULL. Also written if
 *                  requests failed
 *
 * Requests with different opcodes can be mixed, so that ranks send and receive at the
 * same time.
 *
 * If a request was refused when it was posted, its result has the error of the post
 * call and the status 0. If a request did not end in time, its error is -ETIMEDOUT. Its
 * channel is then stopped, so that its memory is safe to reuse, and is broken, as for
 * pier_channel_send(). The channels of other ranks are not affected.
 *
 * Returns 0 if all requests succeeded; otherwise the error of the first request that
 * failed, with an error message that gives the reason and names the ranks of all failed
 * requests.
 *
 * Errors: those of pier_channel_post_request(), except -EAGAIN for a full queue; those of
 * completions (pier_result.error). Before anything is posted, and without results:
 * -EINVAL timeout_ms is invalid, or a rank does not exist; -ENOTCONN the group is not
 * connected; -ENOMEM.
 */
PIER_API int pier_group_exchange(struct pier_group *group,
				 const struct pier_group_request *requests,
				 uint32_t count, int timeout_ms,
				 struct pier_result *ret_results);

/** A request that the user posted on the channel of a rank. Frozen. */
struct pier_group_work {
	uint32_t rank;
	struct pier_work work;
};

/**
 * Wait until all of the given requests have completed, which were posted on channels of a
 * group, for instance by pier_channel_post_write(pier_group_channel(group, rank), ...).
 *
 * ret_results  one for each request, in the same order; must not be NULL if count > 0
 *
 * Returns 1 and writes all results if all requests have completed, also if some failed
 * (pier_result.error; -ESTALE the handle is used up or belongs to another channel). The
 * error message then gives the first reason and names the ranks of all failed requests.
 * Returns 0 if a request is outstanding and timeout_ms is 0.
 *
 * After 0 and after an error no handle is used up, no result is written, and the
 * requests continue: wait again.
 *
 * Errors: -ETIMEDOUT a request did not complete in time, and the error message names the
 * ranks of all that did not; -EINVAL timeout_ms is invalid, or a rank does not exist;
 * -ENOTCONN the group is not connected; others of pier_work_wait().
 */
PIER_API int pier_group_wait(struct pier_group *group,
			     const struct pier_group_work *works, uint32_t count,
			     int timeout_ms, struct pier_result *ret_results);

/**
 * Wait until all ranks, or all of the given ranks, have reached the barrier. May be
 * called any number of times.
 *
 * algorithm   must be the same in all ranks that take part; 0: that of the group
 * ranks       in ascending order, including this rank; must be the same in all ranks
 *             that take part; borrowed. NULL: all ranks
 * count       number of ranks; ignored if ranks is NULL
 * timeout_ms  for this rank. The first rank that gives up ends the barrier for all that
 *             are still waiting, so give the longest timeout to the rank that waits
 *             longest
 *
 * Any two ranks must reach the barriers that they share in the same order. If 0 is
 * returned, all ranks have reached the barrier. Everything that a rank wrote, and that
 * completed before the rank reached the barrier, is in memory then. The barrier does
 * not order requests that are still outstanding.
 *
 * When a barrier fails, this rank notifies all others, for up to 50 ms beyond its
 * deadline. Ranks that wait for it, now or later, then fail at once and name the same
 * failed rank, which pier_group_failed_rank() returns. From then on barriers of this
 * member fail with -EPIPE. Requests are not affected, and work with all members whose
 * channels are intact. A barrier may fail in some ranks and succeed in others that had
 * nothing more to wait for; the others fail at the next barrier.
 *
 * Which rank is named depends on the algorithm. With PIER_BARRIER_CENTRAL the first
 * rank names all ranks that are missing. With the others, each rank names the one that
 * it waited for, or the one that another rank named. That rank may itself have been
 * waiting for another one, which is unknown here. If a member is gone, its own rank is
 * named as soon as the device notices (soft0: at once).
 *
 * Errors: -ETIMEDOUT a rank did not reach the barrier in time; -ECONNRESET a rank is
 * gone; -EPROTO a rank is in another barrier (another algorithm or other ranks), or
 * sent something other than a barrier message; -EPIPE a barrier failed before, and the
 * error message gives its reason; -ENOTCONN the group is not connected; -EINVAL
 * timeout_ms, algorithm or ranks is invalid (the error message gives the reason), which
 * breaks nothing; others of pier_work_wait().
 */
PIER_API int pier_group_barrier(struct pier_group *group, int timeout_ms);
PIER_API int pier_group_barrier_of(struct pier_group *group,
				   enum pier_barrier_algorithm algorithm,
				   const uint32_t *ranks, uint32_t count, int timeout_ms);

/**
 * Return the rank that caused a barrier or pier_group_connect() to fail; the first if
 * there are several. It can be this rank itself, if another rank reported it.
 *
 * Returns -1 if neither has failed. Cannot fail.
 */
PIER_API int pier_group_failed_rank(const struct pier_group *group);

PIER_END_DECLS

#endif
