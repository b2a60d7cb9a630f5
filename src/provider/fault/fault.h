/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_FAULT_H
#define PIER_FAULT_FAULT_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include <infiniband/verbs.h>

#include "plan.h"
#include "provider/provider.h"
#include "core/list.h"

/*
 * A provider that wraps another one and makes chosen calls fail. Each of its objects
 * wraps an object of the provider beneath, in `under`: so every function in the context's
 * ops finds the plan, and neither libibverbs nor soft0 ever sees an object that is not
 * its own.
 *
 * Locks: the context's lock is taken before those of the provider beneath. It is held
 * while that provider polls, posts, or brings a queue pair to ERR, which all return at
 * once, and during no other of its calls. The plan's lock is the innermost.
 */

enum {
	/* The vendor_err of completions that were turned into errors. */
	FAULT_VENDOR_ERROR = 0xfa17,
	/* More asynchronous events at once are lost. */
	FAULT_EVENTS = 8,
};

struct fault_context {
	struct ibv_context ibv;
	struct ibv_device device; /* that of the device beneath, or of its persona */
	/* A member is NULL if that of the provider beneath is. */
	struct pier_provider provider;
	const struct pier_provider *beneath;
	struct ibv_context *under;
	struct ibv_device_attr limits; /* of the device beneath */
	struct pier_fault_plan plan;
	pthread_mutex_t lock; /* of what follows, and of all CQs and queue pairs */
	/* Reads that queue pairs serve, for a persona that shares them. */
	int rd_atomic;
	struct pier_list qps;
	struct pier_list mrs; /* that the CPU reaches: see reach.h */
	struct ibv_async_event reported[FAULT_EVENTS]; /* by the plan, not taken yet */
	uint32_t reported_count;
	struct ibv_qp event_qp; /* of the event that was taken last */
	bool port_down;		/* port 1, by the plan's events */
};

struct fault_pd {
	struct ibv_pd ibv;
	struct ibv_pd *under;
};

struct fault_mr {
	struct ibv_mr ibv;
	struct ibv_mr *under;
	/* See reach.h: the bytes of the region from `iova` on. */
	struct pier_list link;
	uint8_t *bytes;
	uint64_t iova;
	size_t length;
	void *mapping; /* of a dma-buf, or NULL */
	size_t mapped;
};

struct fault_mw {
	struct ibv_mw ibv;
	struct ibv_mw *under;
};

/* Its fd is readable when the one beneath is, or when the timer has expired. */
struct fault_comp_channel {
	struct ibv_comp_channel ibv; /* fd: an epoll */
	struct ibv_comp_channel *under;
	int timer_fd;
	struct pier_list cqs;
};

/* A completion that was taken from the device and not returned to the caller yet. */
struct fault_completion {
	struct ibv_wc wc;
	int64_t due;	    /* not before this time */
	uint64_t due_polls; /* nor before this poll of the queue */
};

struct fault_cq {
	struct ibv_cq ibv;
	struct ibv_cq *under;
	struct pier_list link;		  /* of its channel */
	struct fault_completion *waiting; /* in the order of completion */
	uint32_t count, capacity;
	uint64_t polls;
	bool armed; /* the application waits for an event */
	/* When the device is asked for an event; 0: it was asked. */
	int64_t ask_at;
	bool ask_solicited;
	bool overrun;
	/* Events returned: destroying the CQ waits until all are acknowledged. */
	unsigned int events;
};

struct fault_srq {
	struct ibv_srq ibv;
	struct ibv_srq *under;
	struct pier_list receives; /* of post.h */
};

/* The two queues of a queue pair. A failure flushes what follows it in the same queue. */
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
	/* Signalled sends that the device has not completed. */
	uint32_t unanswered;
	/*
	 * The peer is dead: requests are kept here and fail at `dies_at`, but not before
	 * the last unanswered one has completed. 0: the peer lives, or they have failed.
	 */
	int64_t dies_at;
	uint32_t withheld_count, withheld_capacity;
	/* As the caller set them for a persona; the device may have other values. */
	uint8_t rd_atomic, dest_rd_atomic, sgid_index;
	bool spent;		   /* it was in RESET or ERR: see struct pier_persona */
	bool scatters;		   /* its receives are those of post.h */
	struct pier_list receives; /* of a queue pair without a shared queue */
	struct fault_lies *lies;   /* of lie.c; NULL if no request lies */
	/* The request whose flush is turned into the failure. */
	bool has_first_failed;
	uint64_t first_failed;
	uint64_t withheld[]; /* wr_ids */
};

/* fault_context() and so on: the counterpart of which an object is the first member. */
#define FAULT_COUNTERPART(name)                                                 \
	static inline struct fault_##name *fault_##name(struct ibv_##name *ibv) \
	{                                                                       \
		return pier_container_of(ibv, struct fault_##name, ibv);        \
	}
FAULT_COUNTERPART(context)
FAULT_COUNTERPART(pd)
FAULT_COUNTERPART(mr)
FAULT_COUNTERPART(mw)
FAULT_COUNTERPART(comp_channel)
FAULT_COUNTERPART(cq)
FAULT_COUNTERPART(srq)
FAULT_COUNTERPART(qp)

/*
 * When requests to a dead peer fail; INT64_MAX: not yet. Completions of a send queue come
 * in order (IBTA 10.8.5), so requests that were sent earlier complete first.
 */
static inline int64_t fault_death(const struct fault_qp *qp)
{
	return qp->dies_at && qp->unanswered == 0 ? qp->dies_at : INT64_MAX;
}

/* When a completion is due. One that waits for polls is due at once: a sleeper never
 * polls. */
static inline int64_t fault_due_time(const struct fault_cq *cq,
				     const struct fault_completion *one)
{
	return one->due_polls > cq->polls ? 0 : one->due;
}

/* 0, or the errno that the plan has for this call. */
static inline int fault_fails(struct ibv_context *context,
			      enum pier_fault_occasion occasion)
{
	return pier_fault_fails(&fault_context(context)->plan, occasion);
}

/*
 * A counterpart is allocated before the device makes its object, so that nothing has to
 * be undone. NULL: the call fails as planned, or there is no memory.
 */
static inline void *fault_allocate(struct ibv_context *context,
				   enum pier_fault_occasion occasion, size_t size)
{
	return fault_fails(context, occasion) ? NULL : calloc(1, size);
}

/* The device has not made the object. Returns NULL; errno stays. */
static inline void *fault_free(void *counterpart)
{
	int error = errno;

	free(counterpart);
	errno = error;
	return NULL;
}

/* 0 or an errno: that of the plan, or else that of the provider beneath. */
#define fault_call(context, occasion, member, ...)    \
	(pier_fault_fails(&(context)->plan, occasion) \
		 ?: (context)->beneath->member(__VA_ARGS__))

#endif
