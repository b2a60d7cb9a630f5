/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_POST_H
#define PIER_SOFT_POST_H

#include <stdint.h>

#include <infiniband/verbs.h>

struct soft_qp;

/*
 * Checks a request, and stores it at `position` of the send queue, which is locked. The
 * engine sees it when the head of the queue has passed it. 0 or -errno with a sentence.
 */
int pier_soft_store_send(struct soft_qp *qp, uint64_t position,
			 const struct ibv_send_wr *wr);
int pier_soft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			struct ibv_send_wr **bad_wr);
/* As ibv_bind_mw(3). */
int pier_soft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int pier_soft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
			struct ibv_recv_wr **bad_wr);

#endif
