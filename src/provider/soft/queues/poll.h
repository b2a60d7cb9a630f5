/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_POLL_H
#define PIER_SOFT_POLL_H

#include <infiniband/verbs.h>

/* What an application calls to wait for completions. */
int pier_soft_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc);
int pier_soft_req_notify_cq(struct ibv_cq *cq, int solicited_only);

#endif
