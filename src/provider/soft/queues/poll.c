/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <time.h>

#include "poll.h"
#include "core/error.h"
#include "cq.h"
#include "provider/soft/engine.h"
#include "provider/soft/queues/pass.h"
#include "provider/soft/soft.h"

static int take_completions(struct soft_cq *cq, int count, struct ibv_wc *ret_wc,
			    uint64_t *ret_time)
{
	int taken = 0;

	for (; taken < count && cq->count > 0; taken++) {
		ret_wc[taken] = cq->entries[cq->first].wc;
		*ret_time = cq->entries[cq->first].time;
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

/* The same; `ret_time`: of the last completion. */
static int poll_cq(struct soft_cq *cq, int count, struct ibv_wc *ret_wc,
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

	return poll_cq((struct soft_cq *)cq, count, ret_wc, &time);
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
	if (soft_context(ibv_cq->context)->node.meeting.joined)
		pier_soft_announce_waiting(cq);
	pthread_mutex_unlock(&cq->lock);
	pier_soft_end_thread_pause(soft_context(ibv_cq->context));
	return 0;
}

_Static_assert(offsetof(struct ibv_cq, async_events_completed) ==
		       offsetof(struct ibv_cq_ex, async_events_completed),
	       "an extended CQ begins like a CQ");

static struct soft_cq *cq_of(struct ibv_cq_ex *ex)
{
	return (struct soft_cq *)ex;
}

/* One completion; ENOENT: there is none. libibverbs' providers set errno, too. */
static int poll_next(struct ibv_cq_ex *ex)
{
	struct soft_cq *cq = cq_of(ex);
	struct soft_polled *polled = &cq->polled;
	int taken = poll_cq(cq, 1, &polled->wc, &polled->time);

	if (taken != 1) {
		errno = taken ? -taken : ENOENT;
		return errno;
	}
	ex->wr_id = polled->wc.wr_id;
	ex->status = polled->wc.status;
	return 0;
}

static void end_poll(struct ibv_cq_ex *ex)
{
	if (!cq_of(ex)->single_threaded)
		pthread_mutex_unlock(&cq_of(ex)->polled.lock);
}

/* The caller ends the poll only if this succeeds. */
static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	int error;

	if (attr->comp_mask)
		return -pier_fail(EINVAL,
				  "soft0: comp_mask %#x of struct ibv_poll_cq_attr",
				  attr->comp_mask);
	if (!cq_of(ex)->single_threaded)
		pthread_mutex_lock(&cq_of(ex)->polled.lock);
	error = poll_next(ex);
	if (error)
		end_poll(ex);
	return error;
}

#define DEFINE_READER(type, name, member)             \
	static type read_##name(struct ibv_cq_ex *ex) \
	{                                             \
		return cq_of(ex)->polled.member;      \
	}
DEFINE_READER(enum ibv_wc_opcode, opcode, wc.opcode)
DEFINE_READER(uint32_t, vendor_err, wc.vendor_err)
DEFINE_READER(uint32_t, byte_len, wc.byte_len)
/* Also the key of ibv_wc_read_invalidated_rkey(3). */
DEFINE_READER(__be32, imm_data, wc.imm_data)
DEFINE_READER(uint32_t, qp_num, wc.qp_num)
DEFINE_READER(uint32_t, src_qp, wc.src_qp)
DEFINE_READER(unsigned int, wc_flags, wc.wc_flags)
DEFINE_READER(uint32_t, slid, wc.slid)
DEFINE_READER(uint8_t, sl, wc.sl)
DEFINE_READER(uint8_t, dlid_path_bits, wc.dlid_path_bits)
DEFINE_READER(uint64_t, completion_ts, time)

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *ex)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec -
	       (pier_soft_now() - cq_of(ex)->polled.time);
}

enum {
	TIMES = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	WC_FLAGS = IBV_WC_STANDARD_FLAGS | TIMES,
	CQ_FLAGS = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN
};

static int check_attr(const struct ibv_cq_init_attr_ex *attr)
{
	bool has_flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS;

	if (attr->wc_flags & ~(uint64_t)WC_FLAGS)
		return pier_fail(EOPNOTSUPP, "soft0: wc_flags %#llx of an extended CQ",
				 (unsigned long long)attr->wc_flags);
	if ((attr->comp_mask & ~IBV_CQ_INIT_ATTR_MASK_FLAGS) ||
	    (has_flags && (attr->flags & ~CQ_FLAGS)))
		return pier_fail(EOPNOTSUPP,
				 "soft0: comp_mask %#x, flags %#x of an extended CQ",
				 attr->comp_mask, attr->flags);
	return 0;
}

static void set_functions(struct ibv_cq_ex *ex)
{
	ex->start_poll = start_poll;
	ex->next_poll = poll_next;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_wc_flags = read_wc_flags;
	ex->read_slid = read_slid;
	ex->read_sl = read_sl;
	ex->read_dlid_path_bits = read_dlid_path_bits;
	ex->read_completion_ts = read_completion_ts;
	ex->read_completion_wallclock_ns = read_completion_wallclock_ns;
}

struct ibv_cq_ex *pier_soft_create_cq_ex(struct ibv_context *context,
					 struct ibv_cq_init_attr_ex *attr)
{
	int error = check_attr(attr);
	struct ibv_cq *ibv;
	struct soft_cq *cq;

	if (error)
		return pier_null_with(error);
	/* A number that does not fit an int becomes one that is refused. */
	ibv = pier_soft_create_cq(
		context, attr->cqe > INT_MAX ? -1 : (int)attr->cqe, attr->cq_context,
		attr->channel, attr->comp_vector > INT_MAX ? -1 : (int)attr->comp_vector);
	if (!ibv)
		return NULL;
	cq = (struct soft_cq *)ibv;
	cq->has_times = attr->wc_flags & TIMES;
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) {
		cq->single_threaded = attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
		cq->overwrites = attr->flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	}
	set_functions(&cq->ex);
	return &cq->ex;
}
