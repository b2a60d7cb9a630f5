/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_REGION_H
#define PIER_SOFT_REGION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <infiniband/verbs.h>

#include "limits.h"

/* Memory that the engine may reach: regions, their keys, and lists of pieces. */

struct pier_provider_part;
struct soft_context;
struct soft_qp;

struct soft_piece {
	char *memory; /* where it lies in this process */
	void *window; /* what to unmap, for a dma-buf */
	size_t window_size;
	int sync_fd; /* of a real dma-buf: brackets our accesses; else -1 */
};

struct soft_mr {
	struct ibv_mr ibv;
	uint64_t iova;
	int access;
	struct soft_piece piece;
};

/* The key of slot i is i << 12 | generation. */
struct soft_mr_slot {
	struct soft_mr *mr;
	uint32_t generation;
	uint32_t next_free;
};

struct soft_mr_table {
	struct soft_mr_slot *slots;
	uint32_t capacity;
	/* Reused oldest first, which keeps a stale key stale for long. */
	uint32_t first_free, last_free;
};

/* region.c */
struct soft_mr *pier_soft_find_mr(struct soft_context *context, struct ibv_pd *pd,
				  uint32_t key, uint64_t address, uint64_t length,
				  int access);
struct ibv_mr *pier_soft_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, int access);
struct ibv_mr *pier_soft_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				       uint64_t iova, int fd, int access);
int pier_soft_dereg_mr(struct ibv_mr *mr);

/* keys.c; with the engine locked */
struct soft_mr *pier_soft_find_key(const struct soft_mr_table *table, uint32_t key);
bool pier_soft_take_key(struct soft_mr_table *table, struct soft_mr *mr);
void pier_soft_release_key(struct soft_mr_table *table, const struct soft_mr *mr);

/* host.c, dmabuf.c: makes memory reachable; also after a failure detach() follows. */
int pier_soft_attach_host(struct soft_piece *piece, const struct pier_provider_part *part,
			  int access);
int pier_soft_attach_fd(struct soft_piece *piece, const struct pier_provider_part *part,
			int access);
void pier_soft_detach(struct soft_piece *piece);

/* Scatter and gather lists for one system call; vector.c */
struct soft_vector {
	struct iovec parts[SOFT_MAX_VECTOR];
	int count;
	size_t bytes;
	int synced[SOFT_MAX_VECTOR]; /* fds of dma-bufs */
	int synced_count;
	bool writes;
};

void pier_soft_vector_init(struct soft_vector *vector, bool writes);
bool pier_soft_vector_add(struct soft_vector *vector, void *memory, size_t length);
/* False when the keys, the ranges or the rights do not allow it. */
bool pier_soft_vector_add_region(struct soft_vector *vector, struct soft_qp *qp,
				 const struct ibv_sge *range, uint64_t skip,
				 uint64_t limit, int access);
bool pier_soft_vector_add_sges(struct soft_vector *vector, struct soft_qp *qp,
			       const struct ibv_sge *sges, int count, uint64_t skip,
			       uint64_t limit, int access);
/* Whether add_sges() would take them. */
bool pier_soft_check_sges(struct soft_qp *qp, const struct ibv_sge *sges, int count,
			  uint64_t limit, int access);
ssize_t pier_soft_vector_send(struct soft_vector *vector, int fd);
ssize_t pier_soft_vector_receive(struct soft_vector *vector, int fd);

#endif
