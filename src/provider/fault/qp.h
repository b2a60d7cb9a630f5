/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_QP_H
#define PIER_FAULT_QP_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

/* Shared receive queues. For the signatures see struct pier_provider. */
struct ibv_srq *pier_fault_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int pier_fault_destroy_srq(struct ibv_srq *ibv);

struct ibv_qp *pier_fault_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *pier_fault_create_direct_qp(struct ibv_pd *pd,
					   struct ibv_qp_init_attr *attr);
struct ibv_qp *pier_fault_create_join_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
					 uint32_t parts);
int pier_fault_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int pier_fault_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
			struct ibv_qp_init_attr *ret_init_attr);
int pier_fault_destroy_qp(struct ibv_qp *qp);
int pier_fault_get_qp_address(struct ibv_qp *qp, uint8_t *ret_address, size_t size);
int pier_fault_set_qp_address(struct ibv_qp *qp, const uint8_t *address, size_t length);

#endif
