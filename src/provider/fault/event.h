/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_EVENT_H
#define PIER_FAULT_EVENT_H

#include <infiniband/verbs.h>

int pier_fault_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			    void **ret_cq_context);
int pier_fault_req_notify_cq(struct ibv_cq *cq, int solicited_only);

#endif
