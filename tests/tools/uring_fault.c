/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it. URING_FAULT: "refuse": the kernel has no io_uring, as in many containers;
 * "short": only the first page of each write is written; "fail": each write fails.
 */

#include <errno.h>
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

static int fault_is(const char *fault)
{
	const char *chosen = getenv("URING_FAULT");

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
