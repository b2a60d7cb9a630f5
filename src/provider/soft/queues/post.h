/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_POST_H
#define PIER_SOFT_POST_H

#include <infiniband/verbs.h>

int pier_soft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			struct ibv_send_wr **bad_wr);
int pier_soft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
			struct ibv_recv_wr **bad_wr);

#endif
