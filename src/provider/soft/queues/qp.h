/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_QP_H
#define PIER_SOFT_QP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "counter.h"
#include "events.h"
#include "provider/soft/connect/node.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/link.h"
#include "provider/soft/regions/keys.h"
#include "provider/soft/soft.h"
#include "srq.h"

/* Queue pairs: their queues, how requests complete, and how a queue pair fails. */

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
	struct soft_recvs recvs;
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

/*
 * Of an extended queue pair (ibv_wr_post(3)): each member of a request is set by a call.
 * The calls build a struct ibv_send_wr, which is queued like any other; the engine sees
 * the requests of a batch when it is complete.
 */
struct soft_builder {
	pthread_mutex_t lock; /* from wr_start() to wr_complete() or wr_abort() */
	uint64_t first;	      /* position of the batch in the send queue */
	uint64_t resets;      /* of the send queue, when the batch began */
	uint32_t count;	      /* requests of the batch that are queued */
	int error;	      /* of the first step that failed, or 0 */
	bool building;	      /* `wr` is to be queued, too */
	struct ibv_send_wr wr;
	struct ibv_sge sges[SOFT_MAX_SGE];
	uint8_t inline_data[SOFT_MAX_INLINE];
};

/* The receiver of a datagram. */
struct soft_destination {
	struct ibv_global_route route;
	uint32_t qpn, qkey;
};

/* State of UD queue pairs alone. */
struct soft_ud {
	struct soft_destination *destinations; /* of the slots of the send queue */
	uint64_t stalled_since;		       /* a receiver has no room; 0: none */
	union ibv_gid slow; /* had no room for so long that it is not waited for */
	bool has_slow;
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
	struct soft_reach reach;
	struct soft_end end; /* what link/ and connect/ know of it */
	struct soft_link link;
	struct soft_connection connection;
	struct soft_ud ud;
	bool lost_in_rtr; /* the engine brought it from RTR to ERR: see modify.c */
	bool busy;	  /* has unfinished requests; the ack timer runs */
	uint64_t last_progress;
	struct soft_event_source events;
	/* By the number of the bit of PIER_COUNTS_*; NULL: not counted. */
	struct soft_comp_counter *counters[PIER_COUNTED_KINDS];
};

/* With the engine locked. */
static inline struct soft_qp *pier_soft_qp_at(const struct soft_context *context,
					      uint32_t index)
{
	struct soft_connection *connection = context->node.connections[index];

	return connection ? pier_container_of(connection, struct soft_qp, connection)
			  : NULL;
}

static inline struct soft_qp *pier_soft_find_qp(const struct soft_context *context,
						uint32_t qpn)
{
	struct soft_qp *qp = pier_soft_qp_at(context, qpn % SOFT_MAX_QP);

	return qp && qp->ibv.qp_num == qpn ? qp : NULL;
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

/* Posted, and not complete. */
static inline bool pier_soft_has_sends(const struct soft_send_queue *sq)
{
	return sq->done != atomic_load_explicit(&sq->head, memory_order_acquire);
}

static inline bool pier_soft_is_local_at(const struct soft_send_queue *sq,
					 uint64_t position)
{
	return pier_soft_is_local_wr(pier_soft_send_at(sq, position)->opcode);
}

/* All below: with the engine locked. */

/*
 * Counts an operation, whatever its signalling. `kind`: one of PIER_COUNTS_*, or 0: of no
 * kind that verbs counts.
 */
void pier_soft_count_completion(struct soft_qp *qp, uint32_t kind,
				enum ibv_wc_status status);

/* Completes the oldest send. */
void pier_soft_complete_send(struct soft_qp *qp, enum ibv_wc_status status);

/* The receive of the current message: a slot of the queue pair, or taken from its SRQ. */
const struct soft_recv *pier_soft_current_recv(const struct soft_qp *qp);

/*
 * Completes the current receive. `header`: of the message, and of a datagram with the QPN
 * of the sender as its key; NULL: the receive is flushed.
 */
void pier_soft_complete_recv(struct soft_qp *qp, enum ibv_wc_status status,
			     const struct soft_header *header);

void pier_soft_set_state(struct soft_qp *qp, enum ibv_qp_state state);

/*
 * Makes the stream that waits in the connection the link, if the queue pair wants one and
 * has not exchanged anything yet.
 */
void pier_soft_take_stream(struct soft_qp *qp);

/*
 * Brings the queue pair to ERR: its oldest send fails with `status` (SUCCESS: is
 * flushed), and the other requests are flushed.
 */
void pier_soft_fail_qp(struct soft_qp *qp, enum ibv_wc_status status);

/* Closes the link of a peer that is gone or violates the protocol, and fails. */
void pier_soft_lose_link(struct soft_qp *qp);

void pier_soft_flush_recvs(struct soft_qp *qp);
void pier_soft_flush_sends(struct soft_qp *qp);

#endif
