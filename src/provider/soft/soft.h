/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SOFT_H
#define PIER_SOFT_SOFT_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include <infiniband/verbs.h>

#include "cq.h"
#include "door.h"
#include "engine.h"
#include "frame.h"
#include "lane.h"
#include "limits.h"
#include "link.h"
#include "qp.h"
#include "region.h"
#include "seal.h"
#include "srq.h"
#include "provider/provider.h"
#include "core/list.h"

/*
 * A NIC in software. One *engine* per opened context plays the hardware; each
 * connected queue pair has one *link*, a byte stream to its peer.
 *
 * Locks, outer first; whoever holds one takes only those after it:
 *
 *	qp->ibv.mutex	  one verb at a time on a queue pair
 *	registry	  which contexts this process has open
 *	engine->lock	  everything the engine touches: links, what was sent and
 *			  received, the tables of regions and queue pairs
 *	sq.lock, rq.lock  posting; the state is written with both held
 *	srq->lock	  posting to a shared receive queue, and taking from it
 *	cq->lock	  the ring of completions
 *	channel->lock	  the queue of completion events
 */

struct soft_pd {
	struct ibv_pd ibv;
	atomic_uint users;
};

struct soft_context {
	struct ibv_context ibv;
	pid_t pid;
	union ibv_gid gid;
	struct pier_list registered;
	struct soft_engine engine;
	struct soft_mr_table mrs;
	struct soft_qp *qps[SOFT_MAX_QP];
	uint32_t next_qp;
	uint16_t qp_generation;
	struct soft_listeners listeners;
	atomic_uint users; /* PDs, CQs, channels */
};

static inline struct soft_context *soft_context(struct ibv_context *context)
{
	return pier_container_of(context, struct soft_context, ibv);
}

static inline struct soft_context *soft_context_of(const struct soft_qp *qp)
{
	return soft_context(qp->ibv.context);
}

/* device.c */
struct ibv_context *pier_soft_open(bool stepped);
/* Whether the GID has the form of those that this file makes: fd00:7069:6572::/64. */
bool pier_soft_is_gid(const union ibv_gid *gid);

/* registry.c */
bool pier_soft_init_sodium(void);
void pier_soft_register(struct soft_context *context);
void pier_soft_unregister(struct soft_context *context);
/* Holds the registry from here to pier_soft_release_registry(). */
struct soft_context *pier_soft_hold_registry(const union ibv_gid *gid);
void pier_soft_release_registry(void);

#endif
