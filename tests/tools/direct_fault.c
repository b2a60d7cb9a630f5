/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it. DIRECT_FAULT: "refuse": the kernel has no io_uring, as in many containers;
 * "short": only the first page of each write is written; "fail": each write fails. The
 * same for direct reads: "refuse_reads", "short_reads", which end inside a page, and
 * "exit_on_reads": the process exits with status 99.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <liburing.h>

enum {
	PAGE = 4096
};

int interposed_queue_init(unsigned int entries, struct io_uring *ring,
			  unsigned int flags) __asm__("io_uring_queue_init");
int interposed_submit(struct io_uring *ring) __asm__("io_uring_submit");
ssize_t interposed_pread(int fd, void *data, size_t length,
			 off_t offset) __asm__("pread");
ssize_t interposed_pread64(int fd, void *data, size_t length,
			   off_t offset) __asm__("pread64");

static int fault_is(const char *fault)
{
	const char *chosen = getenv("DIRECT_FAULT");

	return chosen && strcmp(chosen, fault) == 0;
}

int interposed_queue_init(unsigned int entries, struct io_uring *ring, unsigned int flags)
{
	struct io_uring_params params = { .flags = flags };

	return fault_is("refuse") ? -EPERM
				  : io_uring_queue_init_params(entries, ring, &params);
}

/* The writes that wait for their submission are the last ones of the queue. */
int interposed_submit(struct io_uring *ring)
{
	struct io_uring_sq *queue = &ring->sq;

	for (unsigned int i = queue->sqe_head; i != queue->sqe_tail; i++) {
		struct io_uring_sqe *write = &queue->sqes[i & queue->ring_mask];

		if (fault_is("short"))
			write->len = PAGE;
		if (fault_is("fail"))
			write->fd = -1;
	}
	return io_uring_submit_and_wait(ring, 0);
}

ssize_t interposed_pread64(int fd, void *data, size_t length, off_t offset)
{
	int direct = fcntl(fd, F_GETFL) & O_DIRECT;

	if (direct && fault_is("exit_on_reads"))
		_exit(99);
	if (direct && fault_is("refuse_reads")) {
		errno = EFAULT;
		return -1;
	}
	if (!direct || !fault_is("short_reads"))
		return syscall(SYS_pread64, fd, data, length, offset);
	return syscall(SYS_pread64, fd, data, PAGE, offset) == PAGE ? PAGE - 1 : -1;
}

ssize_t interposed_pread(int fd, void *data, size_t length, off_t offset)
{
	return interposed_pread64(fd, data, length, offset);
}
