/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "world.h"

enum {
	CHILD_FAILED = 3,
};

static int report_failure(const char *step)
{
	fprintf(stderr, "child: %s: %s\n", step, pier_error_message());
	return CHILD_FAILED;
}

/* Opens an end, connects to the peer over the stream, and sends the remote region. */
static int child_meet(struct end *end, int stream)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;

	if (end_open(end, test_peer_device) || end_prepare(end, NULL))
		return report_failure("open");
	if (pier_channel_handshake(end->channel, stream, stream, PATIENT))
		return report_failure("handshake");
	if (pier_mr_remote(end->area.mr, &remote))
		return report_failure("remote");
	pier_remote_pack(&remote, wire);
	if (write(stream, wire, sizeof(wire)) != (ssize_t)sizeof(wire))
		return report_failure("write");
	return 0;
}

/* Waits, and then checks its memory. */
static int child_target(int stream)
{
	struct end end = { 0 };
	struct pier_result result;
	int status = child_meet(&end, stream);

	if (status)
		return status;
	if (pier_channel_recv(end.channel, NULL, 0, PATIENT, &result))
		return report_failure("receive");
	for (size_t i = 0; i < CHILD_MOVED; i++)
		end.area.image[CHILD_TARGET + i] = child_byte(result.immediate, i);
	if (area_compare(&end.area) >= 0) {
		fprintf(stderr, "child: byte %ld is wrong\n", area_compare(&end.area));
		return CHILD_FAILED;
	}
	return end_close(&end) ? report_failure("close") : 0;
}

/* Waits until it is killed or its parent is gone. */
static int child_victim(int stream)
{
	struct end end = { 0 };
	int status = child_meet(&end, stream);
	char byte;

	while (status == 0 && read(stream, &byte, 1) > 0)
		continue;
	return status;
}

/* Neither sends nor needs a remote region. */
static int child_idle(int stream)
{
	struct end end = { 0 };
	char byte;

	if (end_open(&end, test_peer_device) || end_prepare(&end, NULL) ||
	    pier_channel_handshake(end.channel, stream, stream, PATIENT))
		return report_failure("open");
	while (read(stream, &byte, 1) > 0)
		continue;
	return 0;
}

int child_play(const char *role, int stream)
{
	static const struct {
		const char *name;
		int (*play)(int stream);
	} roles[] = {
		{ "target", child_target },
		{ "victim", child_victim },
		{ "idle", child_idle },
	};

	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		if (strcmp(role, roles[i].name) == 0)
			return roles[i].play(stream);
	fprintf(stderr, "child: no role \"%s\"\n", role);
	return CHILD_FAILED;
}

static void become_child(const char *role, int stream)
{
	char number[16];

	/* execv(3) closes the other end of the stream and all other fds. */
	if (fcntl(stream, F_SETFD, 0) < 0)
		_exit(CHILD_FAILED);
	snprintf(number, sizeof(number), "%d", stream);
	execl("/proc/self/exe", "conformance", "--device", test_device, "--peer-device",
	      test_peer_device, "--backend", test_backend, "--child", role, "--stream",
	      number, NULL);
	_exit(CHILD_FAILED);
}

pid_t child_start(const char *role, int *ret_stream)
{
	int fds[2];
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		become_child(role, fds[1]);
	close(fds[1]);
	*ret_stream = fds[0];
	return child;
}

void child_kill(pid_t child)
{
	int status;

	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
}
