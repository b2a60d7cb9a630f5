/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it: a wait of up to a second, after which `pier cp` looks around anyway, lasts
 * until something happens. So a wait for nothing does not end.
 */

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int interposed_poll(struct pollfd *fds, nfds_t count, int timeout) __asm__("poll");

int interposed_poll(struct pollfd *fds, nfds_t count, int timeout)
{
	struct timespec left = { timeout / 1000, timeout % 1000 * 1000000L };
	bool forever = timeout < 0 || (timeout > 100 && timeout <= 1000);

	return (int)syscall(SYS_ppoll, fds, count, forever ? NULL : &left, NULL, 0);
}
