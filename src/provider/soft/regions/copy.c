/* SPDX-License-Identifier: BSD-3-Clause */
#include <linux/dma-buf.h>
#include <string.h>
#include <sys/uio.h>

#include "copy.h"
#include "stream_copy.h"
#include "vector.h"

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
