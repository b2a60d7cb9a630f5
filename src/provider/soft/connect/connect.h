/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CONNECT_H
#define PIER_SOFT_CONNECT_H

#include <infiniband/verbs.h>

struct soft_qp;

/* Finds and reaches the peer before the queue pair goes to RTR. */
int pier_soft_connect(struct soft_qp *qp, const struct ibv_qp_attr *attr);

#endif
