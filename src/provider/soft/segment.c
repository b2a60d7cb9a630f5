/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/fd.h"
#include "soft.h"

/* The environment variable is a switch for tests: frames over the socket. */
static bool is_wanted(void)
{
	const char *wanted = secure_getenv("PIER_SOFT_SHARED");

	return (!wanted || strcmp(wanted, "off") != 0) &&
	       pier_soft_may_write(0, SOFT_SEGMENT_SIZE) && pier_soft_may_touch_holes();
}

/* Consumes the fd. */
static struct soft_segment *map_segment(int fd)
{
	struct soft_segment *segment = calloc(1, sizeof(*segment));
	void *memory;

	if (!segment) {
		pier_close_fd(fd);
		return NULL;
	}
	memory = mmap(NULL, SOFT_SEGMENT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED) {
		pier_close_fd(fd);
		free(segment);
		return NULL;
	}
	/* A child has no use for it, and must not keep it from going away. */
	madvise(memory, SOFT_SEGMENT_SIZE, MADV_DONTFORK);
	atomic_init(&segment->users, 1);
	segment->fd = fd;
	segment->shared = memory;
	return segment;
}

struct soft_segment *pier_soft_create_segment(void)
{
	int fd;

	if (!is_wanted())
		return NULL;
	fd = memfd_create("pier-soft", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return NULL;
	if (!pier_soft_is_spare(fd) || ftruncate(fd, SOFT_SEGMENT_SIZE) < 0 ||
	    fcntl(fd, F_ADD_SEALS, SOFT_FINAL_SEALS) < 0) {
		pier_close_fd(fd);
		return NULL;
	}
	return map_segment(fd);
}

struct soft_segment *pier_soft_adopt_segment(int borrowed)
{
	struct stat status;
	int fd;

	if (!is_wanted() || !pier_soft_is_fixed(borrowed) ||
	    fstat(borrowed, &status) < 0 || status.st_size != SOFT_SEGMENT_SIZE)
		return NULL;
	fd = fcntl(borrowed, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0 && !pier_soft_is_spare(fd))
		fd = pier_close_fd(fd);
	return fd < 0 ? NULL : map_segment(fd);
}

void pier_soft_drop_segment(struct soft_segment *segment)
{
	if (!segment || atomic_fetch_sub(&segment->users, 1) > 1)
		return;
	munmap(segment->shared, SOFT_SEGMENT_SIZE);
	pier_close_fd(segment->fd);
	free(segment);
}
