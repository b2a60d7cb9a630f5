/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_POST_H
#define PIER_SOFT_POST_H

#include <infiniband/verbs.h>

int pier_soft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			struct ibv_send_wr **bad_wr);

/* As ibv_bind_mw(3). */
int pier_soft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

int pier_soft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
			struct ibv_recv_wr **bad_wr);

/*
 * Extended queue pairs (ibv_create_qp_ex(3), ibv_wr_post(3)).
 *
 * errno EOPNOTSUPP: create_flags, or operations that soft0 does not have; EINVAL: without
 * a PD. Otherwise as pier_soft_create_qp().
 */
struct ibv_qp *pier_soft_create_qp_ex(struct ibv_context *context,
				      struct ibv_qp_init_attr_ex *attr);

/* NULL: the queue pair was made without send_ops_flags. */
struct ibv_qp_ex *pier_soft_qp_to_qp_ex(struct ibv_qp *qp);

#endif
