/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <linux/dma-buf.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "segments.h"
#include "vector.h"
#include "keys.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/*
 * Memory that is read into again and again, such as the slots of a loader, lies in the
 * caches of the CPU that used it last. If that CPU has a last-level cache of its own, a
 * plain store has to fetch each line from there: copying 32 samples of 112 KiB, which
 * another thread then compares, took three times as long. A store past the caches
 * (MOVNTDQ) only invalidates the line.
 */

#ifdef __SSE2__

enum {
	LINE = 64
};

static void stream_line(char *to, const char *from)
{
	__m128i *target = (__m128i *)to;
	const __m128i *source = (const __m128i *)from;
	__m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
	__m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);

	_mm_stream_si128(target, a);
	_mm_stream_si128(target + 1, b);
	_mm_stream_si128(target + 2, c);
	_mm_stream_si128(target + 3, d);
}

void pier_soft_stream_copy(char *to, const char *from, size_t length)
{
	size_t head = -(uintptr_t)to % LINE, done;

	if (head > length)
		head = length;
	memcpy(to, from, head);
	for (done = head; length - done >= LINE; done += LINE)
		stream_line(to + done, from + done);
	memcpy(to + done, from + done, length - done);
	/* Stores past the caches are not ordered with others. */
	_mm_sfence();
}

#else

void pier_soft_stream_copy(char *to, const char *from, size_t length)
{
	memcpy(to, from, length);
}

#endif

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

bool pier_soft_vector_add_region(struct soft_vector *vector,
				 const struct soft_reach *reach,
				 const struct ibv_sge *range, uint64_t skip,
				 uint64_t limit, int access)
{
	const struct soft_mr *mr = pier_soft_find_range(reach, range->lkey, range->addr,
							range->length, access);
	uint64_t length = range->length - skip;

	if (!mr)
		return false;
	add_segments(vector, mr, range->addr - mr->iova + skip,
		     length < limit ? length : limit);
	return true;
}

/* Elements of length 0 are skipped without a look at their key, as hardware does. */
bool pier_soft_vector_add_sges(struct soft_vector *vector, const struct soft_reach *reach,
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
		if (!pier_soft_vector_add_region(vector, reach, &sges[i], skip, part,
						 access))
			return false;
		skip = 0;
		limit -= part;
	}
	return true;
}

bool pier_soft_check_sges(const struct soft_reach *reach, const struct ibv_sge *sges,
			  int count, uint64_t limit, int access)
{
	for (int i = 0; i < count && limit > 0; i++) {
		if (sges[i].length == 0)
			continue;
		if (!pier_soft_find_mr(reach->pd, sges[i].lkey, sges[i].addr,
				       sges[i].length, access))
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

ssize_t pier_soft_vector_send(struct soft_vector *vector, int fd,
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

/*
 * Memory that may vanish at any time, as that of an application, is accessed by the
 * kernel only: preadv(2) and pwritev(2) on the file behind the extent fail with EFAULT
 * where a memcpy() would end in SIGSEGV or SIGBUS. Memory that cannot vanish is copied
 * directly.
 */

enum {
	/* Shorter copies gain nothing, and are used sooner. */
	STREAM_BYTES = 32 * 1024
};

static void drop_front(struct soft_vector *vector, size_t length)
{
	struct iovec *part = &vector->parts[vector->first];

	for (; length > 0 && length >= part->iov_len; part++, vector->first++)
		length -= part->iov_len;
	if (length > 0) {
		part->iov_base = (char *)part->iov_base + length;
		part->iov_len -= length;
	}
}

static ssize_t copy_steady(struct soft_vector *vector, const struct soft_extent *extent)
{
	size_t done = 0;

	while (done < extent->length && vector->first < vector->count) {
		const struct iovec *part = &vector->parts[vector->first];
		size_t length = extent->length - done;

		if (length > part->iov_len)
			length = part->iov_len;
		if (vector->streams && length >= STREAM_BYTES)
			pier_soft_stream_copy(part->iov_base, extent->memory + done,
					      length);
		else if (vector->writes)
			memcpy(part->iov_base, extent->memory + done, length);
		else
			memcpy(extent->memory + done, part->iov_base, length);
		drop_front(vector, length);
		done += length;
	}
	return (ssize_t)done;
}

/*
 * The number of parts that begin inside the first `length` bytes. `ret_surplus`: by how
 * much the last one is longer.
 */
static int count_parts(const struct soft_vector *vector, size_t length,
		       size_t *ret_surplus)
{
	int count = 0;
	size_t sum = 0;

	while (sum < length && vector->first + count < vector->count)
		sum += vector->parts[vector->first + count++].iov_len;
	*ret_surplus = sum > length ? sum - length : 0;
	return count;
}

static ssize_t copy_by_kernel(struct soft_vector *vector,
			      const struct soft_extent *extent)
{
	struct iovec *parts = vector->parts + vector->first;
	size_t surplus;
	int count = count_parts(vector, extent->length, &surplus);
	ssize_t copied;

	if (count == 0)
		return 0;
	parts[count - 1].iov_len -= surplus;
	if (vector->writes)
		copied = preadv(extent->fd, parts, count, (off_t)extent->offset);
	else
		copied = pwritev(extent->fd, parts, count, (off_t)extent->offset);
	parts[count - 1].iov_len += surplus;
	if (copied > 0)
		drop_front(vector, (size_t)copied);
	return copied;
}

ssize_t pier_soft_copy(struct soft_vector *vector, const struct soft_extent *extent)
{
	if (vector->steady)
		return copy_steady(vector, extent);
	return copy_by_kernel(vector, extent);
}

ssize_t pier_soft_copy_synced(struct soft_vector *vector,
			      const struct soft_extent *extent)
{
	ssize_t copied;

	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	copied = pier_soft_copy(vector, extent);
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	return copied;
}
