/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_TRANSITION_H
#define PIER_SOFT_TRANSITION_H

#include <infiniband/verbs.h>

/* Checks mask and values for a change of state. 0 or -errno with a sentence. */
int pier_soft_check_transition(enum ibv_qp_type type, enum ibv_qp_state from,
			       const struct ibv_qp_attr *attr, int mask,
			       enum ibv_qp_state *ret_to);

/* Checks a path to a peer, of a queue pair or an address handle. */
int pier_soft_check_path(const struct ibv_ah_attr *path);

#endif
