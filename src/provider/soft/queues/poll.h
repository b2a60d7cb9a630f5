/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_POLL_H
#define PIER_SOFT_POLL_H

#include <infiniband/verbs.h>

/* The calls by which an application waits for completions. */
int pier_soft_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc);
int pier_soft_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/*
 * Extended completion queues (ibv_create_cq_ex(3)): completions are polled one by one and
 * their members read by functions. ibv_cq_ex_to_cq(3) is a completion queue like any
 * other. Time stamps are nanoseconds of CLOCK_MONOTONIC, so hca_core_clock is 1,000,000.
 *
 * errno EOPNOTSUPP: VLAN tags, flow tags and tag matching, which soft0 does not have, or
 * a parent domain. Otherwise as pier_soft_create_cq().
 */
struct ibv_cq_ex *pier_soft_create_cq_ex(struct ibv_context *context,
					 struct ibv_cq_init_attr_ex *attr);

#endif
