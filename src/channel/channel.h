/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_CHANNEL_H
#define PIER_CHANNEL_CHANNEL_H

#include <pier/channel.h>
#include <pier/post.h>
#include <pier/verbs.h>

#include "channel/cq/completions.h"
#include "device/pd.h"
#include "provider/provider.h"
#include "queue.h"
#include "core/list.h"

enum pier_channel_state {
	PIER_CHANNEL_PREPARED,
	PIER_CHANNEL_CONNECTED,
	PIER_CHANNEL_FAILED, /* while connecting or resetting */
};

/* The state of keepalive.c. */
struct pier_keepalive {
	int64_t since;	    /* no completion since then, see pier_now(); 0: unknown */
	uint64_t completed; /* completions of both queues at that time */
	int64_t stops_at;   /* when stopping the channel ends, at the latest; 0: no */
	uint32_t polls;	    /* since the clock was last read */
	bool outstanding;
};

/* Enough of an endpoint to recognise an older one of the same queue pair. */
struct pier_known_peer {
	uint32_t qpn, generation; /* 0: unknown */
	uint8_t gid[16];
};

struct pier_channel {
	struct pier_object object;
	struct pier_hot_channel; /* qp to idle_calls: -fms-extensions */

	struct pier_queue receives;
	enum pier_channel_state state;
	int broken;	       /* 0, or the error of the first request that failed */
	uint32_t max_msg_size; /* of the port */
	uint32_t max_read_sge; /* some devices take fewer elements for a read than for a
				  write */
	bool has_atomics;
	struct pier_channel_attr attr;
	/* Bindings of counters, sorted by immediate; NULL: none. See counter.h. */
	struct pier_counter_binding **arrivals;
	uint32_t arrival_count;

	/* For a channel with a shared receive queue (attr.srq): see srq_post.h. */
	struct pier_list srq_link;
	struct pier_srq_entry *first_message, **last_message;
	/* For a channel with a shared completion queue (attr.cq): see members.h. */
	struct pier_channel *cq_next;
	struct pier_list ready_link;
	bool internal; /* pier_cq_poll() does not return it */

	bool reported_broken;	     /* a receive pool has reported the error */
	struct pier_recv_pool *pool; /* of the channel's own receives, or NULL */

	const struct pier_provider *provider;
	struct pier_pd *pd;
	struct pier_region_user region_user;
	atomic_uint qp_num;		     /* other threads may read it */
	struct pier_scope *scope;	     /* the innermost open one, or NULL */
	struct pier_list windows;	     /* bound to the queue pair: region/mr.h */
	struct pier_completions completions; /* its own, or those of attr.cq */
	uint32_t port_mtu;		     /* in bytes; at most attr.mtu */
	uint16_t lid;
	enum pier_link_layer link_layer;
	bool use_grh; /* packets carry GIDs */
	/*
	 * The GIDs that its endpoint offers; NULL: `gid` alone. The one in use is `gid`.
	 */
	struct pier_shared_gids *gids;
	struct ibv_gid_entry gid;
	uint32_t path_mtu; /* 0: not connected */
	uint32_t psn;
	uint32_t generation; /* of the endpoint; never 0 */
	uint32_t resets;
	/*
	 * Collected by another channel of the completion queue, or left by a receiver:
	 * the next pier_channel_arm() reports it.
	 */
	bool unseen;
	bool is_reset; /* the queue pair was moved to RESET and not to INIT since */
	struct pier_known_peer last_peer;
	struct pier_handshake *handshake; /* in progress, or NULL */
	struct pier_keepalive keepalive;
	bool cause_is_flush;	  /* a better cause may follow */
	char cause[512];	  /* the error sentence of `broken` */
	struct pier_result first; /* what broke it; status 0: pier itself did */
	uint64_t flushed;	  /* requests flushed after that */

	/* max_send_sge elements of the request that vec.c is posting. */
	struct ibv_sge scratch[];
};

_Static_assert(offsetof(struct pier_channel, qp) == PIER_HOT_OFFSET,
	       "where <pier/inline.h> reads it");

/* The queue of a request, from its id. */
static inline struct pier_queue *pier_queue_of(struct pier_channel *channel, uint64_t id)
{
	return id & PIER_ID_RECEIVE ? &channel->receives : &channel->sends;
}

/* Fails with -EBUSY for an object that has another owner. doing: "resetting a channel" */
int pier_check_owner(const struct pier_object *object, const struct pier_object *pd,
		     const char *doing);

/* Resolve PIER_TIMEOUT_DEFAULT. Errors: -EINVAL other negative numbers. */
int pier_channel_timeout(const struct pier_channel *channel, int timeout_ms,
			 int *ret_timeout_ms);

/* Open or close the queues for posting, after `state` or `broken` changed. */
void pier_update_ready(struct pier_channel *channel);

/*
 * A request with that opcode has failed: the first failure breaks the channel. Returns
 * the result of the request.
 */
struct pier_result pier_note_failure(struct pier_channel *channel,
				     const struct ibv_wc *wc, enum pier_opcode opcode,
				     void *context) __attribute__((cold));

/*
 * The request of that entry has failed at this end: add its regions to the sentence of
 * the channel, if it is the first failure, and take them out of the caches.
 */
void pier_blame_regions(struct pier_channel *channel, const struct pier_queue *queue,
			const struct pier_entry *entry) __attribute__((cold));

/* Break the channel for another reason than a failed request, unless it is broken. */
void pier_break_channel(struct pier_channel *channel, int error, const char *cause);

/* Fails with -EPIPE and the sentence of the first cause. */
int pier_fail_broken(const struct pier_channel *channel);

/* Leave the sentence of a failed request for pier_error_message(). */
void pier_explain_failure(const struct pier_channel *channel,
			  const struct pier_result *result) __attribute__((cold));

#endif
