/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "spool.h"

enum {
	SPOOL_MAX = 256 << 20,
	SPOOL_STEP = 65536,
};

/* Returns 1 if the file ends at its size, 0 if it does not, -1 if it cannot be read. */
static int size_is_true(const struct source *source)
{
	if (source->size > 0) {
		char last;
		ssize_t count = read_at(source->fd, source->size - 1, &last, 1);

		if (count <= 0)
			return (int)count;
	}
	return ends_at(source, source->size);
}

static int write_spool(int spool, const char *data, size_t length)
{
	while (length > 0) {
		ssize_t count = write(spool, data, length);

		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return -1;
		data += count;
		length -= (size_t)count;
	}
	return 0;
}

/* Copy the file up to its end, and set the size to the number of bytes read. */
static int fill_spool(struct source *source, struct failure *failure)
{
	char data[SPOOL_STEP];
	uint64_t size = 0;

	for (;;) {
		ssize_t count = read_at(source->fd, size, data, sizeof(data));

		if (count < 0)
			return fail_source(source, failure);
		if (count == 0)
			break;
		size += (uint64_t)count;
		if (size > SPOOL_MAX)
			return fail(failure, EXIT_FILE,
				    "%s does not end at its size (%lld bytes) and is "
				    "larger than the %d MiB that pier cp buffers for "
				    "such a file",
				    source->path, (long long)source->stat.st_size,
				    SPOOL_MAX >> 20);
		if (write_spool(source->content, data, (size_t)count) < 0)
			return fail(failure, EXIT_FILE, "cannot buffer %s in memory: %s",
				    source->path, strerror(errno));
	}
	source->size = size;
	source->sparse = false;
	return 0;
}

int spool_source(struct source *source, struct failure *failure)
{
	int is_true = size_is_true(source);

	if (is_true < 0)
		return fail_source(source, failure);
	if (is_true)
		return 0;
	source->content = memfd_create("pier cp", MFD_CLOEXEC);
	if (source->content < 0)
		return fail(failure, EXIT_FILE, "cannot buffer %s in memory: %s",
			    source->path, strerror(errno));
	return fill_spool(source, failure);
}
