/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "poll.h"
#include "core/error.h"
#include "cq.h"
#include "provider/soft/pass.h"
#include "provider/soft/soft.h"
#include "provider/soft/thread.h"

static int take_completions(struct soft_cq *cq, int count, struct ibv_wc *ret_wc,
			    uint64_t *ret_time)
{
	int taken = 0;

	for (; taken < count && cq->count > 0; taken++) {
		ret_wc[taken] = cq->ring[cq->first].wc;
		*ret_time = cq->ring[cq->first].time;
		pier_soft_remove_cqe(cq);
	}
	return taken;
}

static int poll_once(struct soft_cq *cq, int count, struct ibv_wc *ret_wc,
		     uint64_t *ret_time)
{
	int taken;

	pthread_mutex_lock(&cq->lock);
	taken = take_completions(cq, count, ret_wc, ret_time);
	pier_soft_withdraw_announced(cq);
	if (taken == 0 && cq->overrun)
		taken = -EIO;
	pthread_mutex_unlock(&cq->lock);
	return taken;
}

int pier_soft_poll(struct soft_cq *cq, int count, struct ibv_wc *ret_wc,
		   uint64_t *ret_time)
{
	struct soft_context *context = soft_context(cq->ibv.context);
	int taken;

	if (count <= 0)
		return count < 0 ? -EINVAL : 0;
	pier_soft_count_poll(context);
	taken = poll_once(cq, count, ret_wc, ret_time);
	if (taken == 0) {
		pier_soft_poll_engine(context);
		taken = poll_once(cq, count, ret_wc, ret_time);
	}
	if (taken == -EIO)
		pier_fail(EIO, "soft0: the CQ of %u entries has overrun", cq->capacity);
	return taken;
}

int pier_soft_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc)
{
	uint64_t time;

	return pier_soft_poll((struct soft_cq *)cq, count, ret_wc, &time);
}

/*
 * IBTA 11.4.2.2 asks for an event for later completions only. mlx4 and mlx5 tell the NIC
 * what was polled, so completions that wait count too (mlx5_arm_cq() of rdma-core), and
 * UCX does not poll between arming and waiting. perftest polls after arming, and takes
 * each event for a completion that is still there: polling withdraws such an event.
 */
int pier_soft_req_notify_cq(struct ibv_cq *ibv_cq, int solicited_only)
{
	struct soft_cq *cq = (struct soft_cq *)ibv_cq;

	pthread_mutex_lock(&cq->lock);
	if (!solicited_only)
		cq->armed = SOFT_ARMED_ANY;
	else if (cq->armed == SOFT_UNARMED)
		cq->armed = SOFT_ARMED_SOLICITED;
	if (soft_context(ibv_cq->context)->meeting.joined)
		pier_soft_announce_waiting(cq);
	pthread_mutex_unlock(&cq->lock);
	pier_soft_end_thread_pause(soft_context(ibv_cq->context));
	return 0;
}
