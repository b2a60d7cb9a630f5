/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_CHANNEL_H
#define PIER_CHANNEL_CHANNEL_H

#include <pier/channel.h>
#include <pier/post.h>
#include <pier/verbs.h>

#include "device/device.h"
#include "provider/provider.h"
#include "queue.h"
#include "core/list.h"

enum pier_channel_state {
	PIER_CHANNEL_PREPARED,
	PIER_CHANNEL_CONNECTED,
	PIER_CHANNEL_FAILED, /* at connecting or resetting */
};

/* Of keepalive.c. */
struct pier_keepalive {
	int64_t since;	    /* nothing has completed since, see pier_now(); 0: look */
	uint64_t completed; /* of both queues, until then */
	uint32_t polls;	    /* without a look at the clock */
	bool outstanding;
};

/* Enough of an endpoint to know an older one of the same queue pair. */
struct pier_known_peer {
	uint32_t qpn, generation; /* 0: nothing is known */
	uint8_t gid[16];
};

struct pier_channel {
	struct pier_object object;
	struct pier_hot_channel; /* qp to idle_calls: -fms-extensions */

	struct pier_queue receives;
	enum pier_channel_state state;
	int broken;	       /* 0, or the error of the first request that failed */
	uint32_t max_msg_size; /* of the port */
	uint32_t max_read_sge; /* some devices take fewer than for a write */
	bool has_atomics;
	struct pier_channel_attr attr;
	/* Immediates that counters are bound to; NULL: none. See counter.h. */
	struct pier_counter_binding **arrivals;
	uint32_t arrival_count;

	/* With a shared receive queue, which is attr.srq; see srq.h. */
	struct pier_list srq_link;
	struct pier_srq_entry *first_message, **last_message;
	bool told_broken;	     /* a receive pool has told its user */
	struct pier_recv_pool *pool; /* on the channel's own receives, or NULL */

	const struct pier_provider *provider;
	struct pier_pd *pd;
	struct pier_region_user region_user;
	uint32_t qp_num;	  /* as long as the channel, also for other threads */
	struct pier_scope *scope; /* the innermost that is open, or NULL */
	struct pier_list windows; /* bound to the queue pair: region/window.h */
	struct ibv_comp_channel *events;
	uint32_t port_mtu; /* in bytes, also not more than attr.mtu */
	uint16_t lid;
	enum pier_link_layer link_layer;
	bool use_grh; /* packets carry GIDs */
	struct ibv_gid_entry gid;
	uint32_t path_mtu; /* 0: not connected */
	uint32_t psn;
	uint32_t generation; /* in the endpoint; not 0 */
	uint32_t resets;
	bool unseen;   /* receives were collected that their owner has not looked at */
	bool is_reset; /* the queue pair: to RESET, and not to INIT since */
	struct pier_known_peer last_peer;
	struct pier_keepalive keepalive;
	bool cause_is_flush;	  /* a better cause may follow */
	char cause[512];	  /* the sentence of `broken` */
	struct pier_result first; /* what broke it; without a status: pier did */
	uint64_t flushed;	  /* behind that */

	/* max_send_sge elements: of the request that vec.c is posting. */
	struct ibv_sge scratch[];
};

_Static_assert(offsetof(struct pier_channel, qp) == PIER_HOT_OFFSET,
	       "where <pier/inline.h> reads it");

/* The queue of a request, by its id. */
static inline struct pier_queue *pier_queue_of(struct pier_channel *channel, uint64_t id)
{
	return id & PIER_ID_RECEIVE ? &channel->receives : &channel->sends;
}

/*
 * pier_channel_create() and pier_channel_destroy() for an owner that is not the
 * caller: one whose parent is not its PD is destroyed by nobody else.
 *
 * owner  the parent in the table of objects; it describes itself
 */
int pier_make_channel(struct pier_pd *pd, const struct pier_channel_attr *attr,
		      const struct pier_object *owner, struct pier_channel **ret_channel);
int pier_end_channel(struct pier_channel *channel);

/* -EBUSY of a channel with an owner. doing: "destroying" */
int pier_check_owner(const struct pier_channel *channel, const char *doing);

/* PIER_TIMEOUT_DEFAULT resolved. Errors: -EINVAL other negative numbers. */
int pier_channel_timeout(const struct pier_channel *channel, int timeout_ms,
			 int *ret_timeout_ms);

/*
 * Wait until a request that is outstanding has completed, as pier_work_wait() does.
 * timeout_ms: what the caller was given, for the sentence.
 */
int pier_wait_until(struct pier_channel *channel, struct pier_work work, int64_t deadline,
		    int timeout_ms, struct pier_result *ret_result);

/*
 * Wait until the send queue takes `count` more requests. 0, -ETIMEDOUT, or another error
 * of waiting; nothing is stopped. A broken channel is found by who posts next.
 */
int pier_wait_for_room(struct pier_channel *channel, uint32_t count, int64_t deadline);

/* Likewise until all of each queue before these positions have completed. */
int pier_wait_for_positions(struct pier_channel *channel, uint64_t sends,
			    uint64_t receives, int64_t deadline);

/* Likewise until a message of a shared receive queue is there, or the channel is broken.
 */
int pier_wait_for_message(struct pier_channel *channel, int64_t deadline);

/* Leaves the sentence of a request that failed for pier_error_message(). */
void pier_explain_failure(const struct pier_channel *channel,
			  const struct pier_result *result) __attribute__((cold));

/* Open or close the queues for posting, after `state` or `broken` changed. */
void pier_update_ready(struct pier_channel *channel);

/*
 * Whether the opcode is of the send queue, with flags that go with it. 0, -EINVAL, or
 * -EOPNOTSUPP.
 */
int pier_check_form(const struct pier_channel *channel,
		    const struct pier_request *request);

/* Preparing it: ask the port; bring the queue pair from RESET to INIT. */
int pier_query_channel_port(struct pier_channel *channel);
int pier_modify_to_init(struct pier_channel *channel);

/* Bring the queue pair to a state that needs no more said. 0, or a positive errno. */
int pier_modify_state(struct pier_channel *channel, enum ibv_qp_state state);

/* What this end serves at once. */
uint8_t pier_served_reads(const struct pier_channel *channel);

/*
 * A request of that opcode has failed: the first one breaks the channel. Returns its
 * result.
 */
struct pier_result pier_note_failure(struct pier_channel *channel,
				     const struct ibv_wc *wc, enum pier_opcode opcode)
	__attribute__((cold));

/* -EPIPE, with the sentence of the first cause. */
int pier_fail_broken(const struct pier_channel *channel);

/* The channel is broken by something else than a request: its first cause. */
void pier_break_channel(struct pier_channel *channel, int error, const char *cause);

/*
 * Post a request of the send queue that has no elements. wr: without its id, which
 * this fills in.
 *
 * Errors: -EPIPE, -ENOTCONN, -EAGAIN; others of ibv_post_send(3).
 */
int pier_post_local(struct pier_channel *channel, struct ibv_send_wr *wr,
		    enum pier_opcode opcode, struct pier_work *ret_work);

/*
 * Move completions from the CQ to their slots.
 *
 * Returns how many, or -errno of ibv_poll_cq().
 */
int pier_collect(struct pier_channel *channel);

/*
 * Stop everything that is outstanding, and return when nothing is: the queue
 * pair goes to the error state and its completions are collected; if they do
 * not come in time, it goes to RESET, which gives no completions, and the slots
 * are filled in here.
 */
void pier_stop_channel(struct pier_channel *channel);

/* No completion will come any more: those that are missing are made up. */
void pier_fill_in_flush(struct pier_channel *channel);

#endif
