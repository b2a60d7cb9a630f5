/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_PAIR_H
#define BENCH_PAIR_H

/* Two processes joined by a socket. Include bench.h first. */

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct plan;

/* Run both sides, the first one in this process. Returns 1 if the other one failed. */
static inline int run_pair(const struct plan *plan,
			   void (*run_side)(const struct plan *plan, int fd, int first))
{
	int fds[2], status;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		die("socketpair");
	child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		run_side(plan, fds[1], 0);
		exit(0);
	}
	close(fds[1]);
	run_side(plan, fds[0], 1);
	return waitpid(child, &status, 0) != child || status != 0;
}

#endif
