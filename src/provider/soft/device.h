/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DEVICE_H
#define PIER_SOFT_DEVICE_H

#include <stddef.h>

#include <infiniband/verbs.h>

/*
 * The functions for programs of plain verbs that neither pier_soft_provider nor an
 * ibv_context has. Each is that of libibverbs with its name.
 */
struct soft_verbs {
	/* The same in all processes of a user on this kernel, until it boots again. */
	__be64 (*get_device_guid)(void);
	/*
	 * The queue pairs of this context find their peers by GID and QPN
	 * (connect/meeting.h). NULL: errno, with a sentence.
	 */
	struct ibv_context *(*open_device)(void);
	/*
	 * Returns 0 also while there are objects, as ibv_close_device(3) does:
	 * perftest's ib_send_bw forgets a CQ. The queue pairs then fail, and the rest
	 * stays until the program has destroyed its objects. In a forked child this does
	 * nothing to a context of the parent's.
	 */
	int (*close_device)(struct ibv_context *context);
	int (*get_async_event)(struct ibv_context *context,
			       struct ibv_async_event *ret_event);
	void (*ack_async_event)(struct ibv_async_event *event);
	int (*rereg_mr)(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
			size_t length, int access);
	struct ibv_ah *(*create_ah)(struct ibv_pd *pd, struct ibv_ah_attr *attr);
	int (*destroy_ah)(struct ibv_ah *ah);
	int (*resize_cq)(struct ibv_cq *cq, int cqe);
	struct ibv_qp_ex *(*qp_to_qp_ex)(struct ibv_qp *qp);
};

extern const struct soft_verbs pier_soft_verbs;

/* For tests: a context without a thread, which only pier_soft_step() drives. */
struct ibv_context *pier_soft_open_stepped(void);

#endif
