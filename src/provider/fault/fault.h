/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_FAULT_H
#define PIER_FAULT_FAULT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "plan.h"
#include "provider/provider.h"
#include "core/list.h"

/*
 * A provider that wraps another one and makes chosen calls fail. Each of its objects is
 * one of its own, with the one beneath in `under`: so everything in the context's ops
 * finds the plan, and nothing of libibverbs or of soft ever sees an object of another.
 *
 * Locks: the context's is taken before those of the provider beneath, and held while
 * that polls, posts, and brings a queue pair to ERR, all of which return at once. No
 * other call is made with it held. The plan's is the innermost.
 */

/* What completions that were turned into errors have for vendor_err. */
enum {
	FAULT_VENDOR_ERROR = 0xfa17,
};

struct fault_context {
	struct ibv_context ibv;
	/* As the one beneath can: a member is NULL where its is. */
	struct pier_provider provider;
	const struct pier_provider *beneath;
	struct ibv_context *under;
	struct pier_fault_plan plan;
	pthread_mutex_t lock; /* all below, and of all CQs and queue pairs */
	struct pier_list qps;
};

struct fault_pd {
	struct ibv_pd ibv;
	struct ibv_pd *under;
};

struct fault_mr {
	struct ibv_mr ibv;
	struct ibv_mr *under;
};

struct fault_mw {
	struct ibv_mw ibv;
	struct ibv_mw *under;
};

/* Its fd is readable when the one beneath is, or when the timer has rung. */
struct fault_channel {
	struct ibv_comp_channel ibv; /* fd: an epoll */
	struct ibv_comp_channel *under;
	int timer_fd;
	struct pier_list cqs;
};

/* A completion that was taken from the device and not handed out yet. */
struct fault_completion {
	struct ibv_wc wc;
	int64_t due;	    /* not before this time */
	uint64_t due_polls; /* nor before so many polls of the queue */
};

struct fault_cq {
	struct ibv_cq ibv;
	struct ibv_cq *under;
	struct pier_list link;		  /* of its channel */
	struct fault_completion *waiting; /* in the order of completing */
	uint32_t count, capacity;
	uint64_t polls;
	bool armed; /* somebody waits for an event */
	/* The device is asked for an event then, and not before; 0: it was. */
	int64_t ask_at;
	bool ask_solicited;
	bool overrun;
	/* Events handed out: destroying waits until all are acknowledged. */
	unsigned int events;
};

/* Two queues; a failure ends what is behind it in the same one. */
enum {
	FAULT_SENDS,
	FAULT_RECEIVES,
	FAULT_QUEUES
};

struct fault_qp {
	struct ibv_qp ibv;
	struct ibv_qp *under;
	struct pier_list link;
	bool failed[FAULT_QUEUES];
	bool signals_all;
	/* Signalled sends that were given to the device and have not completed. */
	uint32_t unanswered;
	/*
	 * The peer is dead: requests are kept here and fail at `dies_at`, or when the
	 * last unanswered one has completed. 0: the peer lives, or they have failed.
	 */
	int64_t dies_at;
	uint64_t *withheld; /* wr_ids */
	uint32_t withheld_count, withheld_capacity;
	/* The next flush of this request is the failure. */
	bool has_victim;
	uint64_t victim;
};

static inline struct fault_context *fault_context(struct ibv_context *context)
{
	return pier_container_of(context, struct fault_context, ibv);
}

static inline struct fault_cq *fault_cq(struct ibv_cq *cq)
{
	return pier_container_of(cq, struct fault_cq, ibv);
}

static inline struct fault_qp *fault_qp(struct ibv_qp *qp)
{
	return pier_container_of(qp, struct fault_qp, ibv);
}

/*
 * When requests to a dead peer fail; INT64_MAX: not yet. Completions of a send queue come
 * in order (IBTA 10.8.5), so requests that were sent before complete first.
 */
static inline int64_t fault_death(const struct fault_qp *qp)
{
	return qp->dies_at && qp->unanswered == 0 ? qp->dies_at : INT64_MAX;
}

static inline struct ibv_pd *fault_under_pd(struct ibv_pd *pd)
{
	return pier_container_of(pd, struct fault_pd, ibv)->under;
}

static inline struct ibv_mr *fault_under_mr(struct ibv_mr *mr)
{
	return pier_container_of(mr, struct fault_mr, ibv)->under;
}

/* region.c */
struct ibv_mr *pier_fault_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				 uint64_t iova, int access);
struct ibv_mr *pier_fault_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
					uint64_t iova, int fd, int access);
struct ibv_mr *pier_fault_reg_parts(struct ibv_pd *pd,
				    const struct pier_provider_part *parts,
				    uint32_t count, uint64_t iova, int access,
				    const uint32_t *key);
int pier_fault_dereg_mr(struct ibv_mr *mr);
struct ibv_mw *pier_fault_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int pier_fault_dealloc_mw(struct ibv_mw *mw);
void pier_fault_set_padding(struct ibv_mr *mr, uint64_t length);
int pier_fault_bind_counter(struct ibv_mr *mr, struct pier_provider_counter *counter);

/* event.c */
struct ibv_comp_channel *pier_fault_create_comp_channel(struct ibv_context *context);
int pier_fault_destroy_comp_channel(struct ibv_comp_channel *channel);
int pier_fault_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			    void **ret_cq_context);
void pier_fault_ack_cq_events(struct ibv_cq *cq, unsigned int count);
int pier_fault_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* With the context locked: set the timer of the CQ's channel, if any, to what is due
 * next. */
void pier_fault_set_timer(struct ibv_cq *cq);

/* cq.c */
struct ibv_cq *pier_fault_create_cq(struct ibv_context *context, int cqe,
				    void *cq_context, struct ibv_comp_channel *channel,
				    int comp_vector);
int pier_fault_destroy_cq(struct ibv_cq *cq);
int pier_fault_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc);
/* With the context locked: take from the device what it has, to the waiting ones. */
int pier_fault_pull(struct fault_cq *cq);
/* With the context locked: a queue pair is reset or destroyed. */
void pier_fault_purge_cq(struct ibv_cq *cq, uint32_t qp_num);

/* qp.c */
struct ibv_qp *pier_fault_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int pier_fault_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int pier_fault_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
			struct ibv_qp_init_attr *ret_init_attr);
int pier_fault_destroy_qp(struct ibv_qp *qp);
int pier_fault_get_qp_address(struct ibv_qp *qp, uint8_t *ret_address, size_t size);
int pier_fault_set_qp_address(struct ibv_qp *qp, const uint8_t *address, size_t length);

/* post.c */
int pier_fault_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			 struct ibv_send_wr **bad_wr);
int pier_fault_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
			 struct ibv_recv_wr **bad_wr);
/* With the context locked. */
struct fault_qp *pier_fault_find_qp(struct fault_context *context, uint32_t qp_num);
/* To ERR, so that what is outstanding is flushed. */
void pier_fault_break_qp(struct fault_qp *qp);
/* Hand what was withheld to a queue pair that is in ERR, which flushes it. */
void pier_fault_release_withheld(struct fault_qp *qp);
/* The time of dead peers is up: ends their requests. */
void pier_fault_bury(struct fault_context *context, int64_t now);

#endif
