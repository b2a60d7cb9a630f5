/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_CQ_H
#define PIER_FAULT_CQ_H

#include <stdint.h>

#include <infiniband/verbs.h>

struct fault_cq;

struct ibv_cq *pier_fault_create_cq(struct ibv_context *context, int cqe,
				    void *cq_context, struct ibv_comp_channel *channel,
				    int comp_vector);
int pier_fault_destroy_cq(struct ibv_cq *cq);
int pier_fault_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc);
int pier_fault_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			    void **ret_cq_context);
int pier_fault_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* With the context locked: takes the completions that the device has. 0 or -errno. */
int pier_fault_take_completions(struct fault_cq *cq);
/* With the context locked: drops the completions of a queue pair. */
void pier_fault_purge_cq(struct ibv_cq *cq, uint32_t qp_num);

#endif
