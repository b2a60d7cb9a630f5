/* SPDX-License-Identifier: BSD-3-Clause */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "soft_fake.h"
#include "provider/soft/connect/address.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/link.h"
#include "provider/soft/soft.h"

void fake_make(struct fake *fake, struct soft_fixture *fixture)
{
	memset(fake, 0, sizeof(*fake));
	/* The lowest name of soft0's form, so the other end calls it. */
	memcpy(fake->gid.raw, soft_context(fixture->context)->node.gid.raw, 8);
	fake->gid.raw[15] = 1;
	fake->qpn = 77;
	assert_true(pier_soft_random(fake->address.secret, SOFT_SECRET_SIZE));
	fixture_describe(fixture, &fake->to_fixture);
}

void fake_connect(struct soft_fixture *fixture, const struct fake *fake)
{
	struct fixture_endpoint endpoint = { .gid = fake->gid, .qpn = fake->qpn };

	endpoint.blob_length = pier_soft_pack_address(&fake->address, endpoint.blob,
						      sizeof(endpoint.blob));
	fixture_connect(fixture, &endpoint);
}

int fake_dial(const struct soft_fixture *fixture)
{
	struct sockaddr_un name;
	socklen_t length = pier_soft_unix_name(
		&soft_context(fixture->context)->node.meeting,
		&soft_context(fixture->context)->node.gid, &name);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&name, length), 0);
	return fd;
}

bool fake_hangs_up(int fd)
{
	uint64_t deadline = fixture_milliseconds() + FIXTURE_DEADLINE_MS;
	struct pollfd waited = { .fd = fd, .events = POLLIN };
	char bytes[256];

	while (fixture_milliseconds() < deadline) {
		if (poll(&waited, 1, 100) == 1 && read(fd, bytes, sizeof(bytes)) <= 0)
			return true;
	}
	return false;
}

void fake_say_hello(const struct fake *fake, int fd, uint8_t *ret_transcript)
{
	struct soft_hello hello = {
		.from = fake->gid,
		.to = fake->to_fixture.gid,
		.from_qpn = fake->qpn,
		.to_qpn = fake->to_fixture.qpn,
	};
	uint8_t bytes[SOFT_HELLO_SIZE], challenge[SOFT_CHALLENGE_SIZE];

	pier_soft_pack_hello(&hello, bytes);
	fixture_write_all(fd, bytes, sizeof(bytes));
	fixture_read_all(fd, challenge, sizeof(challenge));
	pier_soft_hash_transcript(bytes, challenge, SOFT_PLAIN, ret_transcript);
}

void fake_prove(const struct fake *fake, int fd, const uint8_t *transcript)
{
	struct soft_address its;
	uint8_t proof[SOFT_PROOF_SIZE];

	assert_int_equal(pier_soft_unpack_address(fake->to_fixture.blob,
						  fake->to_fixture.blob_length, &its),
			 0);
	pier_soft_prove(its.secret, SOFT_CALLER_PROVES, transcript, proof);
	pier_soft_prove(fake->address.secret, SOFT_CALLER_IDENTITY, transcript,
			proof + SOFT_MAC_SIZE);
	fixture_write_all(fd, proof, sizeof(proof));
}

int fake_call(const struct fake *fake, const struct soft_fixture *fixture)
{
	uint8_t transcript[SOFT_MAC_SIZE], welcome[SOFT_WELCOME_SIZE];
	int fd = fake_dial(fixture);

	fake_say_hello(fake, fd, transcript);
	fake_prove(fake, fd, transcript);
	fixture_read_all(fd, welcome, sizeof(welcome));
	return fd;
}

void fake_send(int fd, struct soft_header header)
{
	uint8_t bytes[SOFT_HEADER_SIZE];

	pier_soft_pack_header(&header, bytes);
	fixture_write_all(fd, bytes, sizeof(bytes));
}

void fake_step(struct soft_fixture *fixture)
{
	for (int i = 0; i < 50; i++)
		fixture_step(fixture, NULL);
}

int fake_call_stepped(const struct fake *fake, struct soft_fixture *fixture)
{
	struct soft_hello hello = {
		.from = fake->gid,
		.to = fake->to_fixture.gid,
		.from_qpn = fake->qpn,
		.to_qpn = fake->to_fixture.qpn,
	};
	uint8_t bytes[SOFT_HELLO_SIZE], challenge[SOFT_CHALLENGE_SIZE];
	uint8_t transcript[SOFT_MAC_SIZE];
	int fd = fake_dial(fixture);

	pier_soft_pack_hello(&hello, bytes);
	fixture_write_all(fd, bytes, sizeof(bytes));
	fake_step(fixture);
	fixture_read_all(fd, challenge, sizeof(challenge));
	pier_soft_hash_transcript(bytes, challenge, SOFT_PLAIN, transcript);
	fake_prove(fake, fd, transcript);
	fake_step(fixture);
	fixture_read_all(fd, challenge, SOFT_WELCOME_SIZE);
	return fd;
}

struct soft_header fake_next(int fd)
{
	uint8_t bytes[SOFT_HEADER_SIZE];
	struct soft_header header;

	fixture_read_all(fd, bytes, sizeof(bytes));
	assert_true(pier_soft_unpack_header(bytes, &header));
	return header;
}
