/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SOFT_H
#define PIER_SOFT_SOFT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <infiniband/verbs.h>

#include "core/list.h"
#include "engine.h"
#include "limits.h"
#include "provider/soft/connect/address.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/connect/meeting.h"
#include "provider/soft/link/early_stream.h"
#include "provider/soft/link/frame.h"
#include "provider/soft/link/link.h"
#include "provider/soft/queues/datagram.h"
#include "provider/soft/queues/events.h"
#include "provider/soft/queues/post.h"
#include "provider/soft/queues/srq.h"
#include "provider/soft/regions/keys.h"

/*
 * A NIC in software. One *engine* per opened context plays the hardware; each connected
 * queue pair has one *link*, a byte stream to its peer. This header has the objects on
 * which all files work. Calls go down only, in this order:
 *
 *	device.c	  the provider's table
 *	queues/post.c, queues/poll.c, thread.c, then pass.c
 *	queues/		  verbs objects, requester and responder
 *	connect/	  how a link comes to be
 *	link/		  streams, shared rings and grants
 *	regions/	  memory
 *	engine.c	  lock, active queue pairs, watched fds, timer
 *
 * Where a lower layer needs an upper one, it calls it through engine.ops.
 *
 * Locks, outer first; a thread that holds one takes only those after it:
 *
 *	builder->lock	  posting requests one member at a time
 *	qp->ibv.mutex	  one verb at a time on a queue pair
 *	registry	  which contexts this process has open
 *	engine->lock	  everything the engine touches: links, what was sent and
 *			  received, the tables of regions and queue pairs
 *	sq.lock, rq.lock  posting; the state is written with both held
 *	srq->lock	  posting to a shared receive queue, and taking from it
 *	cq->lock	  the ring of completions
 *	channel->lock	  the queue of completion events
 *	events.lock	  the queue of asynchronous events
 */

struct soft_pd {
	struct ibv_pd ibv;
	atomic_uint users;
};

struct soft_send {
	uint64_t wr_id;
	enum ibv_wr_opcode opcode;
	unsigned int flags;
	uint64_t length;
	uint64_t address;
	uint64_t operands[2]; /* of an atomic operation, in the order of the frame */
	uint32_t key;
	uint32_t immediate;
	struct soft_bind bind;
	bool executed; /* a local request, not to be repeated after an RNR NAK */
	int sge_count;
	struct ibv_sge *sges;
	uint8_t *inline_data;
	uint64_t copied; /* bytes that were copied by a grant */
};

/*
 * Positions count work requests since RESET; position p lies in slot
 * p % depth. tail <= done <= head: slots before tail are free again, requests
 * before done have completed.
 */
struct soft_send_queue {
	pthread_mutex_t lock;
	struct soft_send *slots;
	struct ibv_sge *sges;
	uint8_t *inline_data;
	uint32_t depth, max_sge, max_inline;
	_Atomic uint64_t head, tail;
	_Atomic uint64_t resets; /* ever: each begins again at position 0 */
	uint64_t done;
	uint64_t transmitted; /* wholly on the stream; the peer may acknowledge it */
	uint64_t queued;      /* next to become a frame */
	uint32_t done_msn;    /* number on the wire of the first request from `done` on */
	uint32_t queued_msn;
	uint32_t reads;	  /* in flight, and atomic operations */
	uint64_t barrier; /* no direct copy until all before it are done */
	uint64_t budget;  /* bytes that may be copied directly in this turn */
	bool silent;	  /* some are done that the peer has not control of */
	/* A request cannot be sent: reported when all before it are done. */
	bool broken;
	uint64_t broken_at;
	enum ibv_wc_status broken_status;
	uint64_t rnr_until; /* 0: not waiting */
	uint8_t rnr_left;
};

struct soft_recv_queue {
	pthread_mutex_t lock;
	struct soft_recv *slots;
	struct ibv_sge *sges;
	uint32_t depth, max_sge;
	_Atomic uint64_t head, tail;
	uint64_t done;
};

struct soft_responder {
	uint32_t expected, acked;
	bool established; /* IBV_EVENT_COMM_EST was reported */
	bool resync;	  /* after an RNR NAK: ignore all until `expected` comes again */
	bool nak;	  /* to be sent */
	enum soft_syndrome syndrome;
	struct soft_read reads[SOFT_MAX_RD_ATOMIC];
	uint32_t first_read, read_count;
};

struct soft_qp {
	union { /* the second begins with the first */
		struct ibv_qp ibv;
		struct ibv_qp_ex ex;
	};
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct soft_builder *builder; /* NULL: not made for ibv_wr_post(3) */
	struct soft_send_queue sq;
	struct soft_recv_queue rq; /* without slots if there is an SRQ */
	struct soft_srq *srq;
	struct soft_taken taken; /* from the SRQ */
	struct soft_responder responder;
	struct soft_link link;
	struct soft_ud ud;
	struct soft_early_stream early;
	uint8_t secret[SOFT_SECRET_SIZE];
	bool has_peer_address;
	struct soft_address peer_address;
	bool lost_in_rtr; /* the engine brought it from RTR to ERR: see modify.c */
	bool busy;	  /* has unfinished requests; the ack timer runs */
	uint64_t last_progress;
	struct pier_list windows; /* bound to this queue pair */
	struct soft_event_source events;
	struct pier_list active;
	/* The doorbell: posters push to a stack, which the engine empties. */
	atomic_bool rung;
	struct soft_qp *next_rung;
};

struct soft_context {
	uint32_t handles; /* that are open; under the registry's lock */
	pid_t pid;
	union ibv_gid gid;
	struct soft_meeting meeting; /* of contexts that programs open by verbs */
	struct pier_list registered;
	struct soft_engine engine;
	struct soft_mr_table mrs;
	struct soft_qp *qps[SOFT_MAX_QP];
	uint32_t next_qp;
	uint16_t qp_generation;
	struct soft_listeners listeners;
};

/*
 * What ibv_open_device() returns. Programs of plain verbs take it for granted that all
 * contexts of a device have one GID and one space of QPNs, so in a process theirs share
 * one soft_context. Any other handle has its own.
 */
struct soft_handle {
	struct verbs_context verbs;
	struct soft_context *context;
	struct soft_events events;
	atomic_uint users; /* PDs, CQs, channels, and the program until it closes it */
	void (*close)(struct soft_handle *handle); /* without users */
};

static inline struct soft_handle *soft_handle(struct ibv_context *context)
{
	return pier_container_of(context, struct soft_handle, verbs.context);
}

static inline void pier_soft_use_handle(struct ibv_context *context)
{
	atomic_fetch_add(&soft_handle(context)->users, 1);
}

/* Without locks: the last user closes the handle. */
static inline void pier_soft_leave_handle(struct ibv_context *context)
{
	struct soft_handle *handle = soft_handle(context);

	if (atomic_fetch_sub(&handle->users, 1) == 1)
		handle->close(handle);
}

static inline struct soft_context *soft_context(struct ibv_context *context)
{
	return soft_handle(context)->context;
}

static inline struct soft_context *soft_context_of(const struct soft_qp *qp)
{
	return soft_context(qp->ibv.context);
}

/* Nothing was acknowledged in either direction: the link may be replaced. */
static inline bool pier_soft_is_unused(const struct soft_qp *qp)
{
	return qp->sq.done_msn == 0 && qp->responder.expected == 0;
}

/* With the engine locked. */
static inline struct soft_qp *pier_soft_find_qp(struct soft_context *context,
						uint32_t qpn)
{
	struct soft_qp *qp = context->qps[qpn % SOFT_MAX_QP];

	return qp && qp->ibv.qp_num == qpn ? qp : NULL;
}

/* Executed by this end alone: not on the wire, and without a number there. */
static inline bool pier_soft_is_local_wr(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}

static inline bool pier_soft_is_atomic_wr(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
	       opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* Counts against max_rd_atomic, and completes by a response of its own. */
static inline bool pier_soft_has_response(const struct soft_send *send)
{
	return send->opcode == IBV_WR_RDMA_READ || pier_soft_is_atomic_wr(send->opcode);
}

static inline struct soft_send *pier_soft_send_at(const struct soft_send_queue *sq,
						  uint64_t position)
{
	return &sq->slots[position % sq->depth];
}

static inline bool pier_soft_is_local_at(const struct soft_send_queue *sq,
					 uint64_t position)
{
	return pier_soft_is_local_wr(pier_soft_send_at(sq, position)->opcode);
}

#endif
