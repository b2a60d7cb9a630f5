/* SPDX-License-Identifier: BSD-3-Clause */
#include "failure.h"
#include "core/log.h"
#include "fault.h"

struct fault_qp *pier_fault_find_qp(struct fault_context *context, uint32_t qp_num)
{
	pier_list_for_each(link, &context->qps) {
		struct fault_qp *qp = pier_container_of(link, struct fault_qp, link);

		if (qp->ibv.qp_num == qp_num)
			return qp;
	}
	return NULL;
}

/*
 * A queue pair in ERR flushes what is posted to it, after everything posted before: so
 * the device itself gives the completions their order, their entries in the CQ and their
 * event.
 */
void pier_fault_release_withheld(struct fault_qp *qp)
{
	for (uint32_t i = 0; i < qp->withheld_count; i++) {
		struct ibv_send_wr wr = { .wr_id = qp->withheld[i],
					  .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED },
				   *bad;
		int error = ibv_post_send(qp->under, &wr, &bad);

		if (error)
			pier_warning("fault: queue pair %#x does not flush: errno %d",
				     qp->ibv.qp_num, error);
	}
	qp->withheld_count = 0;
	qp->dies_at = 0;
}

void pier_fault_break_qp(struct fault_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int error = fault_context(qp->ibv.context)
			    ->beneath->modify_qp(qp->under, &attr, IBV_QP_STATE);

	if (error)
		pier_warning("fault: queue pair %#x does not go to ERR: errno %d",
			     qp->ibv.qp_num, error);
	qp->ibv.state = IBV_QPS_ERR;
	pier_fault_release_withheld(qp);
}

void pier_fault_fail_dead_peers(struct fault_context *context, int64_t now)
{
	pier_list_for_each(link, &context->qps) {
		struct fault_qp *qp = pier_container_of(link, struct fault_qp, link);

		if (now < fault_death(qp))
			continue;
		qp->has_first_failed = true;
		qp->first_failed = qp->withheld[0];
		pier_fault_break_qp(qp);
	}
}
