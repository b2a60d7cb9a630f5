/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <linux/dma-buf.h>
#include <sys/socket.h>

#include "vector.h"
#include "dmabuf.h"
#include "segments.h"
#include "provider/soft/soft.h"
#include "region.h"
#include "window.h"

void pier_soft_vector_init(struct soft_vector *vector, bool writes)
{
	vector->count = 0;
	vector->bytes = 0;
	vector->first = 0;
	vector->steady = true;
	vector->synced_count = 0;
	vector->writes = writes;
	vector->streams = false;
}

void pier_soft_vector_add(struct soft_vector *vector, void *memory, size_t length)
{
	if (length == 0 || vector->count == SOFT_MAX_VECTOR)
		return;
	vector->parts[vector->count].iov_base = memory;
	vector->parts[vector->count].iov_len = length;
	vector->count++;
	vector->bytes += length;
}

static void add_synced(struct soft_vector *vector, int fd)
{
	if (fd < 0)
		return;
	for (int i = 0; i < vector->synced_count; i++) {
		if (vector->synced[i] == fd)
			return;
	}
	vector->synced[vector->synced_count++] = fd;
}

/* A segment that does not fit must not be added to `synced`, which has the same length.
 */
static void add_segments(struct soft_vector *vector, const struct soft_mr *mr,
			 uint64_t offset, uint64_t length)
{
	const struct soft_segment *segment = pier_soft_find_segment(mr, offset);

	for (; length > 0 && vector->count < SOFT_MAX_VECTOR; segment++) {
		uint64_t part = segment->end - offset;

		if (part > length)
			part = length;
		pier_soft_vector_add(vector, segment->memory + (offset - segment->start),
				     part);
		vector->steady &= segment->steady;
		add_synced(vector, segment->dmabuf ? segment->fd : -1);
		offset += part;
		length -= part;
	}
}

bool pier_soft_vector_add_region(struct soft_vector *vector, struct soft_qp *qp,
				 const struct ibv_sge *range, uint64_t skip,
				 uint64_t limit, int access)
{
	const struct soft_mr *mr = pier_soft_find_range(qp, range->lkey, range->addr,
							range->length, access);
	uint64_t length = range->length - skip;

	if (!mr)
		return false;
	add_segments(vector, mr, range->addr - mr->iova + skip,
		     length < limit ? length : limit);
	return true;
}

/* Elements of length 0 are skipped without a look at their key, as hardware does. */
bool pier_soft_vector_add_sges(struct soft_vector *vector, struct soft_qp *qp,
			       const struct ibv_sge *sges, int count, uint64_t skip,
			       uint64_t limit, int access)
{
	for (int i = 0; i < count && limit > 0; i++) {
		uint64_t part;

		if (skip >= sges[i].length) {
			skip -= sges[i].length;
			continue;
		}
		part = sges[i].length - skip;
		if (part > limit)
			part = limit;
		if (!pier_soft_vector_add_region(vector, qp, &sges[i], skip, part,
						 access))
			return false;
		skip = 0;
		limit -= part;
	}
	return true;
}

bool pier_soft_check_sges(struct soft_qp *qp, const struct ibv_sge *sges, int count,
			  uint64_t limit, int access)
{
	for (int i = 0; i < count && limit > 0; i++) {
		if (sges[i].length == 0)
			continue;
		if (!pier_soft_find_mr(soft_context_of(qp), qp->ibv.pd, sges[i].lkey,
				       sges[i].addr, sges[i].length, access))
			return false;
		limit -= sges[i].length < limit ? sges[i].length : limit;
	}
	return true;
}

/*
 * Keeps the caches of the CPU and of the device that owns the memory coherent:
 * dma-buf.h.
 */
void pier_soft_vector_sync(const struct soft_vector *vector, uint64_t edge)
{
	uint64_t direction = vector->writes ? DMA_BUF_SYNC_WRITE : DMA_BUF_SYNC_READ;

	for (int i = 0; i < vector->synced_count; i++)
		pier_soft_sync(vector->synced[i], direction | edge);
}

ssize_t pier_soft_vector_send_to(struct soft_vector *vector, int fd,
				 struct sockaddr_un *name)
{
	struct msghdr message = {
		.msg_name = name,
		.msg_namelen = name ? sizeof(*name) : 0,
		.msg_iov = vector->parts,
		.msg_iovlen = vector->count,
	};
	ssize_t sent;

	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	return sent;
}

ssize_t pier_soft_vector_send(struct soft_vector *vector, int fd)
{
	return pier_soft_vector_send_to(vector, fd, NULL);
}

ssize_t pier_soft_vector_receive(struct soft_vector *vector, int fd)
{
	struct msghdr message = {
		.msg_iov = vector->parts,
		.msg_iovlen = vector->count,
	};
	ssize_t received;

	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	received = recvmsg(fd, &message, MSG_DONTWAIT);
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	return received;
}
