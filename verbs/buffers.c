/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "provider/provider.h"

/*
 * ibv_alloc_buf(3), of libibverbs 64: ordinary memory, as from a driver without a method
 * of its own (libibverbs/dummy_ops.c). Older headers lack the functions; programs do not
 * look into the handle.
 */
struct ibv_buf {
	struct ibv_pd *pd;
	void *addr;
	size_t size;
};

void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **ret_buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr,
			      size_t length, int access);
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);

void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **ret_buf)
{
	struct ibv_buf *buf = calloc(1, sizeof(*buf));
	int error = buf ? posix_memalign(&buf->addr, (size_t)sysconf(_SC_PAGESIZE), size)
			: ENOMEM;

	if (error) {
		free(buf);
		errno = error;
		return NULL;
	}
	buf->pd = pd;
	buf->size = size;
	*ret_buf = buf;
	return buf->addr;
}

void ibv_free_buf(struct ibv_buf *buf)
{
	free(buf->addr);
	free(buf);
}

struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr,
			      size_t length, int access)
{
	uintptr_t offset = (uintptr_t)addr - (uintptr_t)buf->addr;

	if (pd != buf->pd || offset > buf->size || length > buf->size - offset) {
		errno = EINVAL;
		return NULL;
	}
	return pier_soft_provider.reg_mr(pd, addr, length, (uintptr_t)addr, access);
}

int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf)
{
	(void)buf;
	errno = ENODATA;
	return -1;
}
