/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <time.h>

#include "cq_ex.h"
#include "core/error.h"
#include "cq.h"
#include "poll.h"
#include "provider/soft/engine.h"

_Static_assert(offsetof(struct ibv_cq, async_events_completed) ==
		       offsetof(struct ibv_cq_ex, async_events_completed),
	       "an extended CQ begins like a CQ");

static struct soft_cq *soft_cq_of(struct ibv_cq_ex *ex)
{
	return (struct soft_cq *)ex;
}

/* One completion; ENOENT: there is none. libibverbs' providers set errno, too. */
static int poll_next(struct ibv_cq_ex *ex)
{
	struct soft_cq *cq = soft_cq_of(ex);
	struct soft_polled *polled = &cq->polled;
	int taken = pier_soft_poll(cq, 1, &polled->wc, &polled->time);

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
	if (!soft_cq_of(ex)->single_threaded)
		pthread_mutex_unlock(&soft_cq_of(ex)->polled.lock);
}

/* The caller ends the poll only if this succeeds. */
static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	int error;

	if (attr->comp_mask)
		return -pier_fail(EINVAL,
				  "soft0: comp_mask %#x of struct ibv_poll_cq_attr",
				  attr->comp_mask);
	if (!soft_cq_of(ex)->single_threaded)
		pthread_mutex_lock(&soft_cq_of(ex)->polled.lock);
	error = poll_next(ex);
	if (error)
		end_poll(ex);
	return error;
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.byte_len;
}

/* Also the key of ibv_wc_read_invalidated_rkey(3). */
static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.imm_data;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.src_qp;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.wc_flags;
}

static uint32_t read_slid(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.slid;
}

static uint8_t read_sl(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.sl;
}

static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.wc.dlid_path_bits;
}

static uint64_t read_completion_ts(struct ibv_cq_ex *ex)
{
	return soft_cq_of(ex)->polled.time;
}

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *ex)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec -
	       (pier_soft_now() - soft_cq_of(ex)->polled.time);
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

	if (error) {
		errno = -error;
		return NULL;
	}
	/* What does not fit an int becomes a number that is refused. */
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
