/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_SIZES_H
#define PIER_FAULT_SIZES_H

#include <stdbool.h>

#include <infiniband/verbs.h>

/*
 * Whether a driver creates queues of these sizes, for drivers that count in units of
 * their own and not in requests: see struct pier_persona.
 */
bool pier_persona_fits_mlx5(const struct ibv_qp_cap *cap);
bool pier_persona_fits_irdma(const struct ibv_qp_cap *cap);

#endif
