/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_VECTOR_H
#define PIER_SOFT_VECTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <infiniband/verbs.h>

#include "provider/soft/limits.h"

/*
 * Scatter and gather lists for one copy. A vector that is full ignores what is added, and
 * everything after it: `bytes` has the length that it covers.
 */

struct soft_qp;

struct soft_vector {
	struct iovec parts[SOFT_MAX_VECTOR];
	int count;
	size_t bytes;
	int first;		     /* parts before it have been copied */
	bool steady;		     /* no part can fault */
	int synced[SOFT_MAX_VECTOR]; /* fds of dma-bufs */
	int synced_count;
	bool writes;
	bool streams; /* long parts are written past the caches: stream_copy.c */
};

void pier_soft_vector_init(struct soft_vector *vector, bool writes);
/* Memory of soft0 itself, which cannot fault. */
void pier_soft_vector_add(struct soft_vector *vector, void *memory, size_t length);
/* False: the key, the range or the rights do not allow it. */
bool pier_soft_vector_add_region(struct soft_vector *vector, struct soft_qp *qp,
				 const struct ibv_sge *range, uint64_t skip,
				 uint64_t limit, int access);
/* The bytes [skip, skip + limit) of what the elements describe. */
bool pier_soft_vector_add_sges(struct soft_vector *vector, struct soft_qp *qp,
			       const struct ibv_sge *sges, int count, uint64_t skip,
			       uint64_t limit, int access);
/* Whether pier_soft_vector_add_sges() would take them. */
bool pier_soft_check_sges(struct soft_qp *qp, const struct ibv_sge *sges, int count,
			  uint64_t limit, int access);
/* As sendmsg(2) and recvmsg(2) without waiting. */
ssize_t pier_soft_vector_send(struct soft_vector *vector, int fd);
ssize_t pier_soft_vector_send_to(struct soft_vector *vector, int fd,
				 struct sockaddr_un *name);
ssize_t pier_soft_vector_receive(struct soft_vector *vector, int fd);
/* DMA_BUF_SYNC_START before a copy by other means, DMA_BUF_SYNC_END after it. */
void pier_soft_vector_sync(const struct soft_vector *vector, uint64_t edge);

#endif
