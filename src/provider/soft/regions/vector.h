/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_VECTOR_H
#define PIER_SOFT_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <infiniband/verbs.h>

#include "provider/soft/limits.h"

/*
 * As memcpy(3), but the bytes go to memory, as those of a NIC do, instead of the caches
 * of this CPU. All of them are visible to other CPUs before any later store of the
 * caller.
 */
void pier_soft_stream_copy(char *to, const char *from, size_t length);

/*
 * Scatter and gather lists for one copy. A vector that is full ignores what is added, and
 * everything after it: `bytes` has the length that it covers.
 */

struct soft_reach;

struct soft_vector {
	struct iovec parts[SOFT_MAX_VECTOR];
	int count;
	size_t bytes;
	int first;		     /* parts before it have been copied */
	bool steady;		     /* no part can fault */
	int synced[SOFT_MAX_VECTOR]; /* fds of dma-bufs */
	int synced_count;
	bool writes;
	bool streams; /* long parts are written past the caches */
};

void pier_soft_vector_init(struct soft_vector *vector, bool writes);

/* Memory of soft0 itself, which cannot fault. */
void pier_soft_vector_add(struct soft_vector *vector, void *memory, size_t length);

/* False: the key, the range or the rights do not allow it. */
bool pier_soft_vector_add_region(struct soft_vector *vector,
				 const struct soft_reach *reach,
				 const struct ibv_sge *range, uint64_t skip,
				 uint64_t limit, int access);

/* The bytes [skip, skip + limit) of what the elements describe. */
bool pier_soft_vector_add_sges(struct soft_vector *vector, const struct soft_reach *reach,
			       const struct ibv_sge *sges, int count, uint64_t skip,
			       uint64_t limit, int access);

static inline uint64_t pier_soft_total_length(const struct ibv_sge *sges, int count)
{
	uint64_t total = 0;

	for (int i = 0; i < count; i++)
		total += sges[i].length;
	return total;
}

/* Whether pier_soft_vector_add_sges() would take them. */
bool pier_soft_check_sges(const struct soft_reach *reach, const struct ibv_sge *sges,
			  int count, uint64_t limit, int access);

/* As sendmsg(2) and recvmsg(2) without waiting. name: NULL: the peer of the socket. */
ssize_t pier_soft_vector_send(struct soft_vector *vector, int fd,
			      struct sockaddr_un *name);
ssize_t pier_soft_vector_receive(struct soft_vector *vector, int fd);

/* DMA_BUF_SYNC_START before a copy by other means, DMA_BUF_SYNC_END after it. */
void pier_soft_vector_sync(const struct soft_vector *vector, uint64_t edge);

struct soft_vector;

/* Memory that cannot fault, and is also in a file. */
struct soft_extent {
	char *memory;
	int fd; /* -1: reachable by the mapping only */
	uint64_t offset;
	size_t length;
};

/*
 * Copies from the vector into the extent, or back if the vector is written to, as much as
 * both have, and drops the copied bytes from the vector. The copy ends at memory that has
 * vanished; if that is the first byte, it fails with EFAULT.
 */
ssize_t pier_soft_copy(struct soft_vector *vector, const struct soft_extent *extent);

/* The same, bracketed by pier_soft_vector_sync(). */
ssize_t pier_soft_copy_synced(struct soft_vector *vector,
			      const struct soft_extent *extent);

#endif
