/* SPDX-License-Identifier: BSD-3-Clause */
#include "other.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

static const struct {
	const char *name;
	int (*run)(int stream);
} bodies[] = {
	{ "target", process_target },
	{ "victim", process_victim },
	{ "idle victim", recovery_victim },
};

int other_run(const char *body, int stream)
{
	fcntl(stream, F_SETFD, FD_CLOEXEC);
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
		if (strcmp(bodies[i].name, body) == 0)
			return bodies[i].run(stream);
	}
	fprintf(stderr, "no body \"%s\"\n", body);
	return 2;
}

/* Between fork(2) and exec, so nothing that takes a lock. */
static void become_other(const char *body, int fd, const char *number)
{
	fcntl(fd, F_SETFD, 0);
	execl("/proc/self/exe", "conformance", "--device", test_device, "--peer-device",
	      test_peer_device, "--backend", test_backend, "--other", body, "--stream",
	      number, (char *)NULL);
	_exit(2);
}

pid_t other_start(const char *body, int *ret_stream)
{
	char number[16];
	int fds[2];
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	snprintf(number, sizeof(number), "%d", fds[1]);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		become_other(body, fds[1], number);
	close(fds[1]);
	*ret_stream = fds[0];
	return child;
}
