/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_JOIN_H
#define PIER_SOFT_JOIN_H

#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * One more key over regions: join_mrs() of struct pier_provider, with the rules and the
 * limit of an mlx5 NIC. Until the key is deregistered, which pier_soft_dereg_mr()
 * does, its regions cannot be (EBUSY).
 */

struct ibv_mr *pier_soft_join_mrs(struct ibv_qp *qp, const struct ibv_sge *parts,
				  uint32_t count, int access);

#endif
