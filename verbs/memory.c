/* SPDX-License-Identifier: BSD-3-Clause */
#include <infiniband/verbs.h>

#include "provider/provider.h"
#include "provider/soft/device.h"

/* Protection domains and regions. */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	return pier_soft_provider.alloc_pd(context);
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	return pier_soft_provider.dealloc_pd(pd);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	return pier_soft_provider.reg_mr(pd, addr, length, iova, (int)access);
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
			       uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				 uint64_t iova, int fd, int access)
{
	return pier_soft_provider.reg_dmabuf_mr(pd, offset, length, iova, fd, access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	return pier_soft_provider.dereg_mr(mr);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		 size_t length, int access)
{
	return pier_soft_verbs.rereg_mr(mr, flags, pd, addr, length, access);
}
