/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_CHANNEL_H
#define PIER_FAULT_CHANNEL_H

#include <infiniband/verbs.h>

struct fault_comp_channel;

struct ibv_comp_channel *pier_fault_create_comp_channel(struct ibv_context *context);
int pier_fault_destroy_comp_channel(struct ibv_comp_channel *channel);
/* With the context locked: sets the timer to what is due next on any of its CQs. */
void pier_fault_set_channel_timer(struct fault_comp_channel *channel);
/* The same for the channel of a CQ, if it has one. */
void pier_fault_set_timer(struct ibv_cq *cq);

#endif
