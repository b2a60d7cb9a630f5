/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_SRQ_H
#define PIER_FAULT_SRQ_H

#include <infiniband/verbs.h>

/* Shared receive queues. For the signatures see struct pier_provider. */
struct ibv_srq *pier_fault_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int pier_fault_destroy_srq(struct ibv_srq *ibv);

/* In the ops of a context: each request of the list is one of post_recv@. */
int pier_fault_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr,
			     struct ibv_recv_wr **bad_wr);

#endif
