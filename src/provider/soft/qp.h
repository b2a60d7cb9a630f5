/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_QP_H
#define PIER_SOFT_QP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "door.h"
#include "frame.h"
#include "limits.h"
#include "link.h"
#include "srq.h"
#include "core/list.h"

/* Queue pairs: their queues, states, and both halves of the protocol. */

struct soft_context;

/* What binds a window, by keys, since objects may go before it is its turn. */
struct soft_bind {
	uint32_t window, region, key;
	int access;
	uint64_t address, length;
};

struct soft_send {
	uint64_t wr_id;
	enum ibv_wr_opcode opcode;
	unsigned int flags;
	uint64_t length;
	uint64_t address;
	uint64_t operands[2]; /* of an atomic operation, as the frame has them */
	uint32_t key;
	uint32_t immediate;
	struct soft_bind bind;
	bool executed; /* a local request, which is not to be repeated after an RNR NAK */
	int sge_count;
	struct ibv_sge *sges;
	uint8_t *inline_data;
	uint64_t placed; /* bytes that were copied straight into their place */
};

/* Done by this end alone: it is not on the wire, and has no number there. */
static inline bool pier_soft_is_local_wr(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}

static inline bool pier_soft_is_atomic_wr(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
	       opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

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
	uint64_t done;
	uint64_t transmitted; /* wholly on the stream; the peer may acknowledge it */
	uint64_t staged;      /* next to be turned into a frame */
	uint32_t done_msn;    /* numbers on the wire: of what is at `done` or behind it */
	uint32_t staged_msn;
	uint32_t reads;	  /* in flight, and atomic operations */
	uint64_t barrier; /* nothing is placed until all before it are done */
	uint64_t budget;  /* bytes that may be placed in this turn */
	bool silent;	  /* some are done that the peer has not heard of */
	/* A request that cannot be sent; reported when all before it are done. */
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
	bool resync; /* after an RNR NAK: ignore all until `expected` comes again */
	bool nak;    /* to be sent */
	enum soft_syndrome syndrome;
	struct soft_read reads[SOFT_MAX_RD_ATOMIC];
	uint32_t first_read, read_count;
};

struct soft_qp {
	struct ibv_qp ibv;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct soft_send_queue sq;
	struct soft_recv_queue rq; /* without slots where there is an SRQ */
	struct soft_srq *srq;
	struct soft_taken taken; /* from the SRQ */
	struct soft_responder responder;
	struct soft_link link;
	struct soft_parked parked;
	uint8_t secret[SOFT_SECRET_SIZE];
	bool has_peer_address;
	struct soft_address peer_address;
	bool busy; /* has unfinished requests; the ack timer runs */
	uint64_t last_progress;
	struct pier_list windows; /* bound to this queue pair */
	struct pier_list active;
	/* The doorbell: a stack that posters push to and the engine empties. */
	atomic_bool rung;
	struct soft_qp *next_rung;
};

/* qp.c, modify.c, query.c */
struct ibv_qp *pier_soft_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int pier_soft_destroy_qp(struct ibv_qp *qp);
int pier_soft_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
		       struct ibv_qp_init_attr *ret_init_attr);
int pier_soft_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
/* Checks mask and values for the change; 0 or -errno with a sentence. */
int pier_soft_check_transition(enum ibv_qp_state from, const struct ibv_qp_attr *attr,
			       int mask, enum ibv_qp_state *ret_to);
/* With the engine locked. */
struct soft_qp *pier_soft_find_qp(struct soft_context *context, uint32_t qpn);
void pier_soft_set_state(struct soft_qp *qp, enum ibv_qp_state state);

/* post.c */
int pier_soft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			struct ibv_send_wr **bad_wr);
int pier_soft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
			struct ibv_recv_wr **bad_wr);

/* complete.c; with the engine locked */
void pier_soft_complete_send(struct soft_qp *qp, enum ibv_wc_status status);
void pier_soft_complete_recv(struct soft_qp *qp, enum ibv_wc_status status,
			     const struct soft_header *header);
/* ERR: the oldest send fails with `status` (SUCCESS: is flushed), the rest flushes. */
void pier_soft_fail_qp(struct soft_qp *qp, enum ibv_wc_status status);
void pier_soft_flush_recvs(struct soft_qp *qp);
void pier_soft_flush_sends(struct soft_qp *qp);

/* requester.c, timers.c; with the engine locked. The bool: false, the peer is out of
 * line. */
bool pier_soft_stage_request(struct soft_qp *qp);
/* The local requests that are next, also without a link. */
void pier_soft_run_local(struct soft_qp *qp);
bool pier_soft_handle_ack(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_handle_nak(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_begin_read_response(struct soft_qp *qp, const struct soft_header *header);
void pier_soft_break_sends(struct soft_qp *qp, uint64_t position,
			   enum ibv_wc_status status);
void pier_soft_finish_read(struct soft_qp *qp);
void pier_soft_check_timers(struct soft_qp *qp);
void pier_soft_arm_timers(struct soft_qp *qp);
void pier_soft_finish_transmit(struct soft_qp *qp, const struct soft_staged *frame);

/* responder.c; with the engine locked */
/* The receive that a message goes into: its slot, or what was taken from the SRQ. */
const struct soft_recv *pier_soft_current_recv(const struct soft_qp *qp);
bool pier_soft_handle_skip(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_begin_request(struct soft_qp *qp, const struct soft_header *header);
void pier_soft_finish_request(struct soft_qp *qp);
void pier_soft_drop_requests(struct soft_link *link);
void pier_soft_refuse(struct soft_qp *qp, enum soft_syndrome syndrome);
bool pier_soft_stage_ack(struct soft_qp *qp);
bool pier_soft_stage_read_response(struct soft_qp *qp);

/* window.c; with the engine locked */
enum ibv_wc_status pier_soft_execute_local(struct soft_qp *qp,
					   const struct soft_send *send);

/* atomic.c; with the engine locked */
enum ibv_atomic_cap pier_soft_atomic_cap(void);
/* NO_NAK: the word is there, and the peer may change it. */
enum soft_syndrome pier_soft_check_atomic(struct soft_qp *qp,
					  const struct soft_header *header);
/* Does it, with the link's operands, and tells what the word was. */
enum soft_syndrome pier_soft_execute_atomic(struct soft_qp *qp,
					    const struct soft_header *header,
					    uint64_t *ret_word);

#endif
