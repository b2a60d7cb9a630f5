/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_UD_ADDRESS_H
#define PIER_SOFT_UD_ADDRESS_H

#include <infiniband/verbs.h>

/* Address handles, and whom the requests of a UD queue pair are for. */

struct soft_qp;

/*
 * As ibv_create_ah(3). NULL: errno, with a sentence; EHOSTUNREACH: no process of this
 * user on this host has that GID.
 */
struct ibv_ah *pier_soft_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int pier_soft_destroy_ah(struct ibv_ah *ah);
/* Whether a UD queue pair can send this. 0 or -errno with a sentence. */
int pier_soft_check_datagram(const struct soft_qp *qp, const struct ibv_send_wr *wr);
/* Copies what the address handle says, which the caller may destroy after posting. */
void pier_soft_store_destination(struct soft_qp *qp, uint64_t position,
				 const struct ibv_send_wr *wr);

#endif
