/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_RECV_SRQ_POST_H
#define PIER_CHANNEL_RECV_SRQ_POST_H

#include <pthread.h>

#include <pier/srq.h>

#include "channel/channel.h"
#include "device/pd.h"

/* The entries of a shared receive queue: free, posted, arrived, free. */

/*
 * Receives of a shared queue complete in any order, on the CQ of the channel that got
 * the message. Their entries therefore form a table instead of a ring. The low bits of
 * the wr_id are the index; the bits above are a serial number, so that no two receives
 * of the queue have the same wr_id.
 *
 * An entry is free, then posted, then a message of a channel, then free. Posted entries
 * and messages together never exceed the table, so neither the queue nor a CQ that has
 * room for all of them can overrun.
 */
struct pier_srq_entry {
	uint64_t id; /* its wr_id; 0: free */
	struct pier_srq_entry
		*next; /* in the list of free entries, or of a channel's messages */
	void *context;
	uint32_t num_sge;
	bool arrived;
	struct pier_result result; /* if it has arrived */
};

struct pier_srq {
	struct pier_object object;
	const struct pier_provider *provider;
	struct ibv_srq *srq;
	struct pier_pd *pd;
	struct pier_region_user region_user;
	uint32_t max_wr, max_sge;
	struct pier_recv_pool *pool; /* the owner, or NULL */

	/*
	 * Protects what follows, except `arrived`, `result` and `next` of an entry that
	 * is posted or has arrived: those belong to the thread of its channel. Not held
	 * while calling the device.
	 */
	pthread_mutex_t lock;
	struct pier_list channels;
	uint32_t channel_count;
	uint32_t used; /* entries in use */
	uint64_t serial;
	struct pier_srq_entry *free;
	struct pier_srq_entry *entries;
	struct ibv_sge *sges; /* max_sge of each entry */
};

/* A receive to post. */
struct pier_srq_recv {
	const struct ibv_sge *sg_list;
	uint32_t num_sge;
	void *context;
};

/*
 * Post receives in that order, with as few doorbells as possible.
 *
 * ret_posted  how many were posted, also with an error
 *
 * Errors: -EAGAIN there was no room for all; others of ibv_post_srq_recv(3).
 */
int pier_srq_post(struct pier_srq *srq, const struct pier_srq_recv *recvs, uint32_t count,
		  uint32_t *ret_posted);

/* The entry of a completion, which now belongs to the channel; NULL: none. */
struct pier_srq_entry *pier_srq_arrived(struct pier_channel *channel, uint64_t id);

/* Take the result of the channel's oldest message. There must be one. */
struct pier_result pier_srq_take(struct pier_channel *channel);

/* Post the receives of all messages that nobody took from the channel again. */
void pier_srq_post_again(struct pier_channel *channel);

#endif
