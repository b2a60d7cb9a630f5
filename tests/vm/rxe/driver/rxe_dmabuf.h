/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Memory regions on dma-bufs.
 */

#ifndef RXE_DMABUF_H
#define RXE_DMABUF_H

#include <linux/types.h>

struct ib_mr;
struct ib_pd;
struct rxe_mr;
struct uverbs_attr_bundle;

#ifdef CONFIG_INFINIBAND_USER_MEM

struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset,
				     u64 length, u64 iova, int fd, int access,
				     struct uverbs_attr_bundle *attrs);
void rxe_dmabuf_release(struct rxe_mr *mr);

#else

/* no user memory: uverbs answers -EOPNOTSUPP */
#define rxe_reg_user_mr_dmabuf NULL

static inline void rxe_dmabuf_release(struct rxe_mr *mr)
{
}

#endif

#endif /* RXE_DMABUF_H */
