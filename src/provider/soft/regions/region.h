/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_REGION_H
#define PIER_SOFT_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/* The verbs of regions: how they are registered, changed and deregistered. */

struct pier_provider_counter;
struct pier_provider_part;
struct pier_dmah_attr;
struct pier_reg_attr;

struct ibv_mr *pier_soft_reg_parts(struct ibv_pd *pd,
				   const struct pier_provider_part *parts, uint32_t count,
				   uint64_t iova, int access, const uint32_t *key);
struct ibv_mr *pier_soft_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, int access);
struct ibv_mr *pier_soft_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				       uint64_t iova, int fd, int access);

/*
 * The device model has no PCIe: a DMA handle's values are checked as in the kernel, and
 * have no effect.
 */
struct ibv_dmah *pier_soft_alloc_dmah(struct ibv_context *context,
				      struct pier_dmah_attr *attr);
int pier_soft_dealloc_dmah(struct ibv_dmah *dmah);
struct ibv_mr *pier_soft_reg_mr_ex(struct ibv_pd *pd, struct pier_reg_attr *attr);

/*
 * A region whose first address is 0, of any bytes of an fd. It counts as one of `users`.
 */
struct ibv_mr *pier_soft_reg_zero_based(struct ibv_pd *pd, int fd, uint64_t offset,
					size_t length, int access, atomic_uint *users);

/*
 * One more key over regions: join_mrs() of struct pier_provider, with the rules and the
 * limit of an mlx5 NIC. Until pier_soft_dereg_mr() deregisters the key, its regions
 * cannot be (EBUSY).
 */
struct ibv_mr *pier_soft_join_mrs(struct ibv_qp *qp, const struct ibv_sge *parts,
				  uint32_t count, int access);
int pier_soft_dereg_mr(struct ibv_mr *mr);

/*
 * As ibv_rereg_mr(3), for one piece of host memory; the keys stay. 0, or
 * IBV_REREG_MR_ERR_INPUT with errno, and the region is as before: EINVAL: flags, access,
 * or not such memory; EBUSY: a window or a counter is bound to it; otherwise as
 * pier_soft_reg_mr().
 */
int pier_soft_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		       size_t length, int access);

void pier_soft_set_padding(struct ibv_mr *mr, uint64_t length);
int pier_soft_bind_counter(struct ibv_mr *mr, struct pier_provider_counter *counter);

/*
 * As ibv_advise_mr(3): faults in the pages of on-demand regions, before it returns. 0 or
 * a positive errno: EINVAL: flags or advice; ENOENT: no such key; EPERM: another PD, not
 * registered on demand, or not writable; EFAULT: outside the region, or not mapped.
 */
int pier_soft_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice,
			uint32_t flags, struct ibv_sge *sges, uint32_t count);

#endif
