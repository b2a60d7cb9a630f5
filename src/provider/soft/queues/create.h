/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CREATE_H
#define PIER_SOFT_CREATE_H

#include <infiniband/verbs.h>

struct ibv_qp *pier_soft_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int pier_soft_destroy_qp(struct ibv_qp *qp);

#endif
