/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_ADVISE_H
#define PIER_SOFT_ADVISE_H

#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * As ibv_advise_mr(3): faults in the pages of on-demand regions, before it returns. 0 or
 * a positive errno: EINVAL: flags or advice; ENOENT: no such key; EPERM: another PD, not
 * registered on demand, or not writable; EFAULT: outside the region, or not mapped.
 */
int pier_soft_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice,
			uint32_t flags, struct ibv_sge *sges, uint32_t count);

#endif
