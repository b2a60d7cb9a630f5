/* SPDX-License-Identifier: BSD-3-Clause */
#include "timers.h"
#include "core/log.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/attach.h"
#include "qp.h"

#define SECOND UINT64_C(1000000000)

/* All retries of a NIC (IBTA 9.7.6.1.3). */
static uint64_t asked_limit(const struct soft_qp *qp)
{
	return qp->attr.timeout == 0
		       ? SOFT_NEVER
		       : (UINT64_C(4096) << qp->attr.timeout) * (qp->attr.retry_cnt + 1u);
}

/*
 * How long a peer may stay silent. The attributes are for round trips of hardware links;
 * a software peer also waits for a CPU.
 */
static uint64_t silence_limit(const struct soft_qp *qp)
{
	uint64_t asked = asked_limit(qp);
	uint64_t least = 2 * SECOND + qp->attr.retry_cnt * (SECOND * 2 / 5);

	return asked > least ? asked : least;
}

/* Without a link the peer is not there yet, and may take as long as a connect. */
static uint64_t current_silence_limit(const struct soft_qp *qp)
{
	uint64_t limit = silence_limit(qp);

	/* The link was lost, so the peer is gone and not only slow. */
	if (!pier_soft_link_open(&qp->link) && !pier_soft_is_unused(qp))
		return asked_limit(qp);
	if (!pier_soft_link_open(&qp->link) && limit < 5 * SECOND)
		limit = 5 * SECOND;
	/* The peer may wait for an answer that this end can no longer send. */
	if (qp->link.tx_broken && limit > 2 * SECOND)
		limit = 2 * SECOND;
	return limit;
}

static uint64_t silence_deadline(const struct soft_qp *qp)
{
	uint64_t limit = current_silence_limit(qp);

	return limit > SOFT_NEVER - qp->last_progress ? SOFT_NEVER
						      : qp->last_progress + limit;
}

static bool has_unfinished_sends(struct soft_qp *qp)
{
	return qp->ibv.qp_type == IBV_QPT_RC && qp->ibv.state == IBV_QPS_RTS &&
	       !qp->sq.rnr_until &&
	       qp->sq.done != atomic_load_explicit(&qp->sq.head, memory_order_relaxed);
}

void pier_soft_arm_timers(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);
	bool busy = has_unfinished_sends(qp);

	if (busy && !qp->busy)
		qp->last_progress = context->engine.now;
	qp->busy = busy;
	if (busy)
		pier_soft_arm_timer(&context->engine, silence_deadline(qp));
	if (qp->sq.rnr_until)
		pier_soft_arm_timer(&context->engine, qp->sq.rnr_until);
	if (qp->link.closing)
		pier_soft_arm_timer(&context->engine, qp->link.closing_deadline);
}

void pier_soft_check_timers(struct soft_qp *qp)
{
	uint64_t now = soft_context_of(qp)->engine.now;

	if (qp->sq.rnr_until && now >= qp->sq.rnr_until) {
		qp->sq.rnr_until = 0;
		qp->last_progress = now;
		pier_soft_activate(&qp->end.work);
	}
	if (qp->link.closing && now >= qp->link.closing_deadline)
		pier_soft_lose_link(qp);
	if (qp->busy && has_unfinished_sends(qp) && now >= silence_deadline(qp)) {
		pier_warning("soft0: QP %#x: QP %#x does not answer", qp->ibv.qp_num,
			     qp->attr.dest_qp_num);
		pier_soft_close_link(&qp->link);
		pier_soft_fail_qp(qp, IBV_WC_RETRY_EXC_ERR);
	}
	pier_soft_arm_timers(qp);
}
