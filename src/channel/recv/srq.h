/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_RECV_SRQ_H
#define PIER_CHANNEL_RECV_SRQ_H

#include <pthread.h>

#include <pier/srq.h>

#include "channel/channel.h"
#include "device/device.h"

/*
 * Receives of a shared queue complete in any order and on the CQ of whichever channel
 * got the message. So they do not stand in a ring, as those of a queue pair do, but in a
 * table whose index is in the wr_id; what is above that is a number that no other
 * request of the queue had.
 *
 * An entry is free, then posted, then a message of a channel, then free. Posted ones and
 * messages together are never more than the table has, so neither the queue nor a CQ that
 * has room for all of them can overrun.
 */
struct pier_srq_entry {
	uint64_t id;		     /* its wr_id; 0: free */
	struct pier_srq_entry *next; /* of the free ones, or of a channel's messages */
	void *context;
	int num_sge;
	bool arrived;
	struct pier_result result; /* of one that has */
};

struct pier_srq {
	struct pier_object object;
	const struct pier_provider *provider;
	struct ibv_srq *srq;
	struct pier_pd *pd;
	struct pier_region_user region_user;
	uint32_t max_wr, max_sge;
	struct pier_recv_pool *pool; /* that owns it, or NULL */

	/*
	 * Of what follows, but not of `arrived`, `result` and `next` of an entry that is
	 * posted or arrived: those belong to the thread of the channel that got it.
	 * Nobody holds it while calling the device.
	 */
	pthread_mutex_t lock;
	struct pier_list channels;
	uint32_t channel_count;
	uint32_t used; /* entries */
	uint64_t serial;
	struct pier_srq_entry *free;
	struct pier_srq_entry *entries;
	struct ibv_sge *sges; /* max_sge for each entry */
};

/* What is to be posted. */
struct pier_srq_recv {
	const struct ibv_sge *sg_list;
	int num_sge;
	void *context;
};

/*
 * pier_create_srq() for a receive pool, which alone posts and destroys, or for the caller
 * (NULL); and pier_destroy_srq().
 */
int pier_make_srq(struct pier_pd *pd, const struct pier_srq_attr *attr,
		  struct pier_recv_pool *pool, struct pier_srq **ret_srq);
int pier_end_srq(struct pier_srq *srq);

/*
 * Post receives in that order, under as few doorbells as it takes. ret_posted: how many
 * were, also with an error; -EAGAIN: there was no room for all.
 */
int pier_srq_post(struct pier_srq *srq, const struct pier_srq_recv *recvs, uint32_t count,
		  uint32_t *ret_posted);

/* A channel has it from now on, and no longer. */
void pier_join_srq(struct pier_channel *channel);
/*
 * The queue pair is stopped first, and what it completed is collected. What has arrived
 * and nobody took is posted again.
 */
void pier_leave_srq(struct pier_channel *channel);

/* The entry of a completion, which then is the channel's; NULL: none. */
struct pier_srq_entry *pier_srq_arrived(struct pier_channel *channel, uint64_t id);

/* The channel's oldest message goes to the caller; there is one. */
void pier_srq_take(struct pier_channel *channel, struct pier_message *ret_message);

/*
 * A wait has run out of time: a queue pair in the error state that has nothing to
 * complete is found by asking for it.
 */
void pier_notice_broken(struct pier_channel *channel);

#endif
