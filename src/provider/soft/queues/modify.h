/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_MODIFY_H
#define PIER_SOFT_MODIFY_H

#include <infiniband/verbs.h>

int pier_soft_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
		       struct ibv_qp_init_attr *ret_init_attr);
int pier_soft_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);

#endif
