/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "soft_peer.h"

enum {
	NOBODY = 65534
};

ssize_t peer_send(int socket, const void *bytes, size_t length, int fd, int count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * PEER_MAX_FDS)];
	struct iovec part = { .iov_base = (void *)bytes, .iov_len = length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct cmsghdr *header = (struct cmsghdr *)control;

	if (count > 0) {
		memset(control, 0, sizeof(control));
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int) * count);
		for (int i = 0; i < count; i++)
			memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(fd));
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
	}
	return sendmsg(socket, &message, MSG_NOSIGNAL);
}

ssize_t peer_receive(int socket, void *ret_bytes, size_t size, int *ret_fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * PEER_MAX_FDS)];
	struct iovec part = { .iov_base = ret_bytes, .iov_len = size };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *header = received < 0 ? NULL : CMSG_FIRSTHDR(&message);

	*ret_fd = -1;
	for (; header; header = CMSG_NXTHDR(&message, header)) {
		size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; i < count; i++) {
			if (*ret_fd >= 0)
				close(*ret_fd);
			memcpy(ret_fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
		}
	}
	return received;
}

int peer_memfd(uint64_t size, unsigned int flags, int seals)
{
	int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

enum ibv_wc_status peer_transfer(struct soft_fixture *from, struct soft_fixture *to,
				 enum ibv_wr_opcode opcode, uint32_t key,
				 uint64_t address, uint32_t length)
{
	struct fixture_endpoint remote = { .rkey = key };

	assert_int_equal(fixture_post(from, opcode, 1, 0, length, &remote, address,
				      IBV_SEND_SIGNALED),
			 0);
	return fixture_wait(from, from->send_cq, to).status;
}

void peer_become_nobody(void)
{
	if (setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
	    setresuid(NOBODY, NOBODY, NOBODY) < 0)
		_exit(99);
}

bool peer_is_root(void)
{
	if (geteuid() == 0)
		return true;
	puts("skip: only root can be another user");
	return false;
}

void peer_expect_fds(int expected)
{
	uint64_t deadline = fixture_milliseconds() + FIXTURE_DEADLINE_MS;

	while (fixture_count_fds() != expected && fixture_milliseconds() < deadline)
		;
	assert_int_equal(fixture_count_fds(), expected);
}
