/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_POLL_H
#define PIER_SOFT_POLL_H

#include <stdint.h>

#include <infiniband/verbs.h>

struct soft_cq;

/* What an application calls to wait for completions. */
int pier_soft_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc);
/* The same; `ret_time`: of the last completion. */
int pier_soft_poll(struct soft_cq *cq, int count, struct ibv_wc *ret_wc,
		   uint64_t *ret_time);
int pier_soft_req_notify_cq(struct ibv_cq *cq, int solicited_only);

#endif
