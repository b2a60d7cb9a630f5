/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_POST_H
#define PIER_FAULT_POST_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#include "fault.h"

/*
 * Scatter to CQE, as libmlx5 does it (copy_to_scat() in providers/mlx5/qp.c): when a
 * short message is polled, the CPU copies it to the addresses of the receive's elements,
 * and the NIC writes nothing. Here the device beneath has written it by then: the bytes
 * are taken from the region, which gets other ones instead.
 */

/* All with the context's lock held, and `receives` of a queue pair or a shared queue. */

void pier_fault_forget_receives(struct pier_list *receives);
/* A completion is about to be returned. */
void pier_fault_scatter(struct fault_context *context, struct fault_qp *qp,
			const struct ibv_wc *wc);

int pier_fault_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			 struct ibv_send_wr **bad_wr);
int pier_fault_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
			 struct ibv_recv_wr **bad_wr);
int pier_fault_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
			     struct ibv_recv_wr **bad_wr);

#endif
