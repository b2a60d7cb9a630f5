/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_MODIFY_H
#define PIER_SOFT_MODIFY_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "provider/comp_counter.h"

/* The verbs of queue pairs, from their creation on. */

struct ibv_qp *pier_soft_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int pier_soft_destroy_qp(struct ibv_qp *qp);
int pier_soft_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
		       struct ibv_qp_init_attr *ret_init_attr);
int pier_soft_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);

/* ibv_qp_attach_comp_cntr(3) */
int pier_soft_attach_counter(struct ibv_qp *qp, struct pier_comp_counter *counter,
			     const struct pier_comp_counter_attach_attr *attr);

/* As get_qp_address() and set_qp_address() of provider.h. */
int pier_soft_get_qp_address(struct ibv_qp *qp, uint8_t *ret_address, size_t size);
int pier_soft_set_qp_address(struct ibv_qp *qp, const uint8_t *address, size_t length);

#endif
