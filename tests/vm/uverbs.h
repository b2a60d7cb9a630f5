/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_VM_UVERBS_H
#define TESTS_VM_UVERBS_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * The registration of dma-bufs as the kernel offers it, without the part of
 * libibverbs that would stand in between: its provider for rxe has no
 * reg_dmabuf_mr, and answers EOPNOTSUPP without asking the kernel.
 *
 * Functions return 0 or a negative errno, the kernel's.
 */

struct uverbs_mr {
	uint32_t handle; /* of the kernel's object */
	uint32_t lkey, rkey;
};

/* True for a device of the rxe driver. The functions below work only with rxe. */
bool uverbs_is_rxe(struct ibv_context *context);

int uverbs_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, uint64_t length,
			 uint64_t iova, int fd, int access, struct uverbs_mr *ret_mr);
int uverbs_dereg_mr(struct ibv_context *context, const struct uverbs_mr *mr);

#endif
