/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include <pier/channel.h>
#include <pier/error.h>
#include <pier/post.h>
#include <pier/recovery.h>

#include "tests/support/requests.h"
#include "channel/setup/handshake.h"
#include "nic/nic.h"
#include "core/wire.h"

/*
 * One real end over a NIC that moves nothing, and a scripted peer: its endpoint, its
 * verdict, and four bytes that belong to the caller.
 */

enum {
	SCRIPT_MAX = 512,
	PATIENT_MS = 10000,
	REST = 4,
};

struct script {
	uint8_t bytes[SCRIPT_MAX];
	size_t endpoint, verdict; /* offset of each of these */
	size_t length;
};

struct fixture {
	struct pier_channel *channel;
	struct script script;
	int ours, theirs;
};

static void append(struct script *script, struct pier_message *message)
{
	memcpy(script->bytes + script->length, message->bytes, message->length);
	script->length += message->length;
}

static void write_script_with_gids(struct script *script, uint32_t generation,
				   const uint8_t *gids, size_t gids_size)
{
	struct pier_endpoint peer = { .qpn = 9,
				      .link_layer = PIER_LINK_ETHERNET,
				      .gid = { 0xfd, 9 },
				      .max_rd_atomic = 1,
				      .address_length = (uint16_t)(8 + gids_size),
				      .address = "PrGI\1" };
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX], *payload;
	struct pier_message message;
	size_t size;

	peer.address[6] = (uint8_t)peer.address_length;
	memcpy(peer.address + 8, gids, gids_size);
	size = (size_t)pier_endpoint_pack(&peer, wire, sizeof(wire));
	payload = pier_begin_message(&message, PIER_MESSAGE_ENDPOINT, size);
	memcpy(payload, wire, size);
	append(script, &message);
	script->verdict = script->length;
	payload = pier_begin_message(&message, PIER_MESSAGE_VERDICT, PIER_VERDICT_SIZE);
	pier_put_le32(payload, 0);
	pier_put_le32(payload + 4, generation);
	append(script, &message);
}

static void write_script(struct script *script, uint32_t generation)
{
	static const uint8_t gid[18] = { 2, 0, 0xfd, 9 };

	write_script_with_gids(script, generation, gid, sizeof(gid));
}

static struct fixture open_fixture(void)
{
	struct fixture fixture = { 0 };
	struct pier_endpoint endpoint;
	int fds[2];

	assert_int_equal(pier_channel_create(fake_reset(), NULL, &fixture.channel), 0);
	assert_int_equal(pier_channel_endpoint(fixture.channel, &endpoint), 0);
	write_script(&fixture.script, endpoint.generation);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	fixture.ours = fds[0];
	fixture.theirs = fds[1];
	return fixture;
}

static void close_fixture(struct fixture *fixture)
{
	assert_int_equal(pier_channel_destroy(fixture->channel), 0);
	close(fixture->ours);
	if (fixture->theirs >= 0)
		close(fixture->theirs);
}

/* The peer sends the first `length` bytes of its script and no more. */
static void say(struct fixture *fixture, size_t length)
{
	assert_int_equal(write(fixture->theirs, fixture->script.bytes, length), length);
	assert_int_equal(shutdown(fixture->theirs, SHUT_WR), 0);
}

static int run(struct fixture *fixture)
{
	return pier_channel_handshake(fixture->channel, fixture->ours, fixture->ours,
				      PATIENT_MS);
}

static void reads_only_its_own_messages(void **state)
{
	struct fixture fixture = open_fixture();
	uint8_t rest[16], sent[SCRIPT_MAX];
	ssize_t length;

	(void)state;
	memcpy(fixture.script.bytes + fixture.script.length, "rest", REST);
	say(&fixture, fixture.script.length + REST);
	assert_int_equal(run(&fixture), 0);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(read(fixture.ours, rest, sizeof(rest)), REST);
	assert_memory_equal(rest, "rest", REST);
	assert_int_equal(pier_channel_post_send(fixture.channel, NULL, 0, NULL), 0);
	assert_int_equal(run(&fixture), -EISCONN);
	/* Our messages have the same form, and end with the verdict. */
	length = read(fixture.theirs, sent, sizeof(sent));
	assert_int_equal(length, fixture.script.length);
	assert_memory_equal(sent, "PIER\1\0\1\0", 8);
	assert_memory_equal(sent + fixture.script.verdict,
			    "PIER\1\0\2\0\10\0\0\0\0\0\0\0", 16);
	close_fixture(&fixture);
}

static void detects_end_of_stream_at_every_byte(void **state)
{
	size_t length = 1;

	(void)state;
	for (size_t cut = 0; cut < length; cut++) {
		struct fixture fixture = open_fixture();

		length = fixture.script.length;
		say(&fixture, cut);
		assert_int_equal(run(&fixture), -ECONNRESET);
		assert_int_equal(pier_channel_post_send(fixture.channel, NULL, 0, NULL),
				 -ENOTCONN);
		close_fixture(&fixture);
	}
}

/* A peer that has closed its end, so that writing fails too. */
static void detects_a_closed_peer(void **state)
{
	size_t length = 1;

	(void)state;
	for (size_t cut = 0; cut < length; cut++) {
		struct fixture fixture = open_fixture();

		length = fixture.script.length;
		say(&fixture, cut);
		close(fixture.theirs);
		fixture.theirs = -1;
		assert_int_equal(run(&fixture), -ECONNRESET);
		close_fixture(&fixture);
	}
}

static void survives_every_flipped_byte(void **state)
{
	size_t length = 1;

	(void)state;
	for (size_t at = 0; at < length; at++) {
		for (int bit = 0; bit < 8; bit++) {
			struct fixture fixture = open_fixture();
			int error;

			length = fixture.script.length;
			fixture.script.bytes[at] ^= (uint8_t)(1 << bit);
			say(&fixture, length);
			error = run(&fixture);
			/* The contents of an endpoint may change; frames may not. */
			if (at < PIER_MESSAGE_HEADER + 8 || at >= fixture.script.verdict)
				assert_true(error == -EBADMSG || error == -ECONNRESET ||
					    error == -EPROTONOSUPPORT ||
					    error == -ECONNREFUSED);
			close_fixture(&fixture);
		}
	}
}

enum {
	GIDS = 8, /* the header of a list, and a type and a GID: docs/wire.md */
	GID = 18,
};

static const uint8_t ipv4_and_ipv6[2 * GID] = {
	2, [12] = 0xff, 0xff, 192, 0, 2, 9, [GID] = 2, 0, 0xfd, 0, [2 * GID - 1] = 7,
};

/* The peer's endpoint has these GIDs. */
static struct fixture open_fixture_with_gids(const uint8_t *gids, size_t size)
{
	struct fixture fixture = open_fixture();
	uint32_t generation = pier_get_le32(
		fixture.script.bytes + fixture.script.verdict + PIER_MESSAGE_HEADER + 4);

	fixture.script.length = 0;
	write_script_with_gids(&fixture.script, generation, gids, size);
	return fixture;
}

/* The peer's best GID and its endpoint's are not the ones that are used. */
static void agrees_on_gids_with_the_peer(void **state)
{
	struct fixture fixture = open_fixture_with_gids(ipv4_and_ipv6,
							sizeof(ipv4_and_ipv6));
	uint8_t sent[SCRIPT_MAX];

	(void)state;
	say(&fixture, fixture.script.length);
	assert_int_equal(run(&fixture), 0);
	assert_int_equal(fake.rtr.ah_attr.grh.sgid_index, 1);
	assert_memory_equal(fake.rtr.ah_attr.grh.dgid.raw, ipv4_and_ipv6 + GID + 2, 16);
	assert_int_equal(fake.rtr.ah_attr.dlid, 0);
	/* This end has one GID, and sends it in its endpoint. */
	assert_int_equal(read(fixture.theirs, sent, sizeof(sent)),
			 fixture.script.length - GID);
	assert_memory_equal(sent + PIER_MESSAGE_HEADER + 46, "PrGI\1\0\32\0", GIDS);
	assert_int_equal(sent[PIER_MESSAGE_HEADER + 46 + GIDS], IBV_GID_TYPE_ROCE_V2);
	assert_int_equal(sent[PIER_MESSAGE_HEADER + 46 + GIDS + 2], 0xfd);
	close_fixture(&fixture);
}

/* Both ends learn the reason. */
static void expect_refused_gids(const uint8_t *gids, size_t size, int error,
				const char *word)
{
	struct fixture fixture = open_fixture_with_gids(gids, size);
	uint8_t sent[SCRIPT_MAX];
	ssize_t length;

	say(&fixture, fixture.script.length);
	assert_int_equal(run(&fixture), -error);
	assert_non_null(strstr(pier_error_message(), word));
	length = read(fixture.theirs, sent, sizeof(sent));
	assert_in_range(length, PIER_VERDICT_SIZE, sizeof(sent));
	assert_int_equal(pier_get_le32(sent + length - 8), error);
	close_fixture(&fixture);
}

static void refuses_a_peer_without_a_common_family(void **state)
{
	(void)state;
	expect_refused_gids(ipv4_and_ipv6, GID, EADDRNOTAVAIL, "::ffff:192.0.2.9");
}

static void refuses_damaged_gids(void **state)
{
	(void)state;
	expect_refused_gids(ipv4_and_ipv6, GID + 1, EINVAL, "no list of 1 to 10 GIDs");
	expect_refused_gids(ipv4_and_ipv6, 0, EINVAL, "no list of 1 to 10 GIDs");
}

static void expect(void (*change)(struct script *script), int expected, const char *word)
{
	struct fixture fixture = open_fixture();

	change(&fixture.script);
	say(&fixture, fixture.script.length);
	assert_int_equal(run(&fixture), expected);
	if (!strstr(pier_error_message(), word))
		fail_msg("no \"%s\" in: %s", word, pier_error_message());
	close_fixture(&fixture);
}

static void other_protocol(struct script *script)
{
	memcpy(script->bytes, "SSH-2.0-OpenSSH_9.2\r\n", 21);
}

static void other_version(struct script *script)
{
	script->bytes[4] = 2;
}

static void other_endpoint_version(struct script *script)
{
	script->bytes[PIER_MESSAGE_HEADER + 4] = 2;
}

static void unknown_type(struct script *script)
{
	script->bytes[6] = 9;
}

static void oversize(struct script *script)
{
	pier_put_le32(script->bytes + 8, UINT32_MAX);
}

static void just_oversize(struct script *script)
{
	pier_put_le32(script->bytes + 8, PIER_ENDPOINT_WIRE_MAX + 1);
}

static void empty(struct script *script)
{
	pier_put_le32(script->bytes + 8, 0);
}

static void refusal(struct script *script)
{
	script->bytes[script->verdict + PIER_MESSAGE_HEADER] = ENETUNREACH;
}

static void early_refusal(struct script *script)
{
	memmove(script->bytes, script->bytes + script->verdict,
		script->length - script->verdict);
	script->length -= script->verdict;
	script->bytes[PIER_MESSAGE_HEADER] = ENOMEM;
}

static void early_verdict(struct script *script)
{
	early_refusal(script);
	script->bytes[PIER_MESSAGE_HEADER] = 0;
}

static void nonsense_verdict(struct script *script)
{
	pier_put_le32(script->bytes + script->verdict + PIER_MESSAGE_HEADER, 1 << 20);
}

static void stale(struct script *script)
{
	script->bytes[script->verdict + PIER_MESSAGE_HEADER + 4] ^= 1;
}

static void two_endpoints(struct script *script)
{
	memmove(script->bytes + script->verdict, script->bytes, script->verdict);
	script->length = 2 * script->verdict;
}

static void reports_each_kind_of_error(void **state)
{
	(void)state;
	expect(other_protocol, -EBADMSG, "not pier");
	expect(other_version, -EPROTONOSUPPORT, "version 2");
	expect(other_endpoint_version, -EPROTONOSUPPORT, "version 2");
	expect(unknown_type, -EBADMSG, "type 9");
	expect(oversize, -EBADMSG, "4294967295");
	expect(just_oversize, -EBADMSG, "257");
	expect(empty, -EBADMSG, "endpoint");
	expect(refusal, -ECONNREFUSED, "Network is unreachable");
	expect(early_refusal, -ECONNREFUSED, "memory");
	expect(early_verdict, -EBADMSG, "verdict");
	expect(nonsense_verdict, -EBADMSG, "0x100000");
	expect(stale, -EBADMSG, "another connection");
	expect(two_endpoints, -EBADMSG, "second endpoint");
}

/* Send the verdict after that of this end, which has connected then. */
static void *answer_late(void *argument)
{
	const struct fixture *peer = argument;
	const struct script *script = &peer->script;
	uint8_t received[SCRIPT_MAX];

	if (write(peer->theirs, script->bytes, script->verdict) < 0 ||
	    recv(peer->theirs, received, script->length, MSG_WAITALL) < 0 ||
	    write(peer->theirs, script->bytes + script->verdict,
		  script->length - script->verdict) < 0)
		return (void *)1;
	return NULL;
}

/* The peer has the endpoint from before the reset. */
static void refuses_a_stale_endpoint_of_itself(void **state)
{
	(void)state;
	for (int age = 0; age < 4; age++) {
		struct fixture fixture = open_fixture();
		struct pier_endpoint endpoint;
		pthread_t thread;
		void *failed;

		for (int i = 0; i < 2; i++)
			assert_int_equal(pier_channel_reset(fixture.channel), 0);
		assert_int_equal(pier_channel_endpoint(fixture.channel, &endpoint), 0);
		fixture.script.length = 0;
		write_script(&fixture.script, endpoint.generation - (uint32_t)age);
		assert_int_equal(pthread_create(&thread, NULL, answer_late, &fixture), 0);
		assert_int_equal(run(&fixture), age == 0   ? 0
						: age <= 2 ? -ESTALE
							   : -EBADMSG);
		assert_int_equal(pthread_join(thread, &failed), 0);
		assert_null(failed);
		close_fixture(&fixture);
	}
}

static void append_verdict(struct script *script, uint32_t error, uint32_t generation)
{
	struct pier_message message;
	uint8_t *payload = pier_begin_message(&message, PIER_MESSAGE_VERDICT,
					      PIER_VERDICT_SIZE);

	pier_put_le32(payload, error);
	pier_put_le32(payload + 4, generation);
	append(script, &message);
}

/* Each attempt of the peer, and how it ended. */
static void skips_what_earlier_handshakes_left(void **state)
{
	struct fixture fixture = open_fixture();
	struct script *script = &fixture.script, attempt;
	struct pier_endpoint endpoint;

	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pier_channel_reset(fixture.channel), 0);
	assert_int_equal(pier_channel_endpoint(fixture.channel, &endpoint), 0);
	attempt = *script;
	script->length = 0;
	/* This end read the endpoint, and then gave up. */
	append_verdict(script, 0, endpoint.generation - 1);
	append_verdict(script, ECONNREFUSED, endpoint.generation - 2);
	append_verdict(script, ETIMEDOUT, 0);
	/* The peer gave up. */
	memcpy(script->bytes + script->length, attempt.bytes, attempt.verdict);
	script->length += attempt.verdict;
	append_verdict(script, ETIMEDOUT, 0);
	memcpy(script->bytes + script->length, attempt.bytes, attempt.verdict);
	script->length += attempt.verdict;
	append_verdict(script, 0, endpoint.generation - 1);
	write_script_with_gids(script, endpoint.generation, ipv4_and_ipv6 + GID, GID);
	say(&fixture, script->length);
	assert_int_equal(run(&fixture), 0);
	assert_memory_equal(fake.rtr.ah_attr.grh.dgid.raw, ipv4_and_ipv6 + GID + 2, 16);
	close_fixture(&fixture);
}

/* Both ends must know: an end that cannot connect sends the reason. */
static void sends_its_failure_to_the_peer(void **state)
{
	struct fixture fixture = open_fixture();
	uint8_t sent[SCRIPT_MAX];
	ssize_t length;

	(void)state;
	fake.fail_call = fake.calls + 1;
	say(&fixture, fixture.script.length);
	assert_int_equal(run(&fixture), -ENOSPC);
	assert_non_null(strstr(pier_error_message(), "RTR"));
	length = read(fixture.theirs, sent, sizeof(sent));
	assert_int_equal(length, fixture.script.length);
	assert_int_equal(pier_get_le32(sent + length - 8), ENOSPC);
	close_fixture(&fixture);
}

static int64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void gives_up_after_the_timeout(void **state)
{
	static const size_t silent_after[] = { 0, 5, 12, 40, 84, 86 };

	(void)state;
	for (size_t i = 0; i < sizeof(silent_after) / sizeof(silent_after[0]); i++) {
		for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
			struct fixture fixture = open_fixture();
			int flags = nonblocking ? O_RDWR | O_NONBLOCK : O_RDWR;
			int64_t before = milliseconds();

			assert_int_equal(fcntl(fixture.ours, F_SETFL, flags), 0);
			assert_int_equal(write(fixture.theirs, fixture.script.bytes,
					       silent_after[i]),
					 silent_after[i]);
			assert_int_equal(pier_channel_handshake(fixture.channel,
								fixture.ours,
								fixture.ours, 20),
					 -ETIMEDOUT);
			assert_true(milliseconds() - before >= 20);
			assert_true(milliseconds() - before < 5000);
			assert_int_equal(fcntl(fixture.ours, F_GETFL), flags);
			close_fixture(&fixture);
		}
	}
}

struct speaker {
	int fd;
	const struct script *script;
};

static void *speak_slowly(void *argument)
{
	const struct speaker *speaker = argument;

	for (size_t i = 0; i < speaker->script->length; i++) {
		if (write(speaker->fd, speaker->script->bytes + i, 1) != 1)
			return (void *)1;
		sched_yield();
	}
	return NULL;
}

static void accepts_a_slow_peer(void **state)
{
	struct fixture fixture = open_fixture();
	struct speaker speaker = { fixture.theirs, &fixture.script };
	pthread_t thread;
	void *failed;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, speak_slowly, &speaker), 0);
	assert_int_equal(run(&fixture), 0);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
	close_fixture(&fixture);
}

/*
 * The other pipe has no reader: no signal is raised, and the peer's message is still
 * reported.
 */
static void survives_a_closed_pipe(void **state)
{
	struct fixture fixture = open_fixture();
	int from[2], to[2];

	(void)state;
	assert_int_equal(pipe2(from, O_CLOEXEC), 0);
	assert_int_equal(pipe2(to, O_CLOEXEC), 0);
	close(to[0]);
	assert_int_equal(write(from[1], fixture.script.bytes, fixture.script.length),
			 fixture.script.length);
	assert_int_equal(
		pier_channel_handshake(fixture.channel, from[0], to[1], PATIENT_MS),
		-ECONNRESET);
	close_fixture(&fixture);

	fixture = open_fixture();
	other_version(&fixture.script);
	close(from[0]);
	close(from[1]);
	assert_int_equal(pipe2(from, O_CLOEXEC), 0);
	assert_int_equal(write(from[1], fixture.script.bytes, fixture.script.length),
			 fixture.script.length);
	assert_int_equal(
		pier_channel_handshake(fixture.channel, from[0], to[1], PATIENT_MS),
		-EPROTONOSUPPORT);
	close(from[0]);
	close(from[1]);
	close(to[1]);
	close_fixture(&fixture);
}

/* The peer neither sends nor reads, and the pipe to it is full. */
static void does_not_hang_on_a_full_pipe(void **state)
{
	struct fixture fixture = open_fixture();
	static const char page[4096];
	int to[2];

	(void)state;
	assert_int_equal(pipe2(to, O_CLOEXEC | O_NONBLOCK), 0);
	while (write(to[1], page, sizeof(page)) > 0)
		continue;
	assert_int_equal(fcntl(to[1], F_SETFL, 0), 0);
	say(&fixture, fixture.script.length);
	assert_int_equal(pier_channel_handshake(fixture.channel, fixture.ours, to[1], 20),
			 -ETIMEDOUT);
	close(to[0]);
	close(to[1]);
	close_fixture(&fixture);
}

/* Steps whose fds and time are checked. */
static int step(struct fixture *fixture, struct pollfd fds[2])
{
	int timeout_ms = -1, result;

	result = pier_channel_handshake_step(fixture->channel, fds, &timeout_ms);
	if (result == 0)
		assert_in_range(timeout_ms, 1, PATIENT_MS);
	return result;
}

static void start(struct fixture *fixture)
{
	assert_int_equal(pier_channel_handshake_start(fixture->channel, fixture->ours,
						      fixture->ours, PATIENT_MS),
			 0);
}

/* This thread plays the peer, too, so a step that waited would never return. */
static void steps_through_byte_by_byte(void **state)
{
	struct fixture fixture = open_fixture();
	struct pollfd fds[2];
	uint8_t sent[SCRIPT_MAX];

	(void)state;
	start(&fixture);
	for (size_t i = 0; i < fixture.script.length; i++) {
		assert_int_equal(step(&fixture, fds), 0);
		assert_int_equal(fds[0].fd, fixture.ours);
		assert_int_equal(fds[0].events, POLLIN);
		assert_int_equal(fds[1].fd, -1);
		assert_int_equal(step(&fixture, fds), 0);
		assert_int_equal(write(fixture.theirs, fixture.script.bytes + i, 1), 1);
		assert_int_equal(poll(fds, 2, 0), 1);
	}
	assert_int_equal(step(&fixture, fds), 1);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(read(fixture.theirs, sent, sizeof(sent)), fixture.script.length);
	assert_int_equal(pier_channel_post_send(fixture.channel, NULL, 0, NULL), 0);
	assert_int_equal(step(&fixture, fds), -EINVAL);
	close_fixture(&fixture);
}

static void steps_ask_for_room_to_write(void **state)
{
	struct fixture fixture = open_fixture();
	static char page[4096];
	struct pollfd fds[2];
	int to[2];

	(void)state;
	assert_int_equal(pipe2(to, O_CLOEXEC | O_NONBLOCK), 0);
	while (write(to[1], page, sizeof(page)) > 0)
		continue;
	say(&fixture, fixture.script.length);
	assert_int_equal(pier_channel_handshake_start(fixture.channel, fixture.ours,
						      to[1], PATIENT_MS),
			 0);
	assert_int_equal(step(&fixture, fds), 0);
	assert_int_equal(fds[0].fd, -1);
	assert_int_equal(fds[1].fd, to[1]);
	assert_int_equal(fds[1].events, POLLOUT);
	while (read(to[0], page, sizeof(page)) > 0)
		continue;
	assert_int_equal(poll(fds, 2, 0), 1);
	assert_int_equal(step(&fixture, fds), 1);
	close(to[0]);
	close(to[1]);
	close_fixture(&fixture);
}

static void steps_report_a_closed_peer(void **state)
{
	size_t length = 1;

	(void)state;
	for (size_t cut = 0; cut < length; cut++) {
		struct fixture fixture = open_fixture();
		struct pollfd fds[2];

		length = fixture.script.length;
		start(&fixture);
		assert_int_equal(step(&fixture, fds), 0);
		say(&fixture, cut);
		assert_int_equal(step(&fixture, fds), -ECONNRESET);
		assert_int_equal(step(&fixture, fds), -EINVAL);
		assert_int_equal(pier_channel_post_send(fixture.channel, NULL, 0, NULL),
				 -ENOTCONN);
		close_fixture(&fixture);
	}
}

/* Messages that have arrived count, however late the step is. */
static void steps_end_at_their_deadline(void **state)
{
	struct fixture fixture = open_fixture();
	struct pollfd fds[2];

	(void)state;
	assert_int_equal(pier_channel_handshake_start(fixture.channel, fixture.ours,
						      fixture.ours, 0),
			 0);
	assert_int_equal(step(&fixture, fds), -ETIMEDOUT);
	assert_non_null(strstr(pier_error_message(), "0 bytes"));
	close_fixture(&fixture);

	fixture = open_fixture();
	say(&fixture, fixture.script.length);
	assert_int_equal(pier_channel_handshake_start(fixture.channel, fixture.ours,
						      fixture.ours, 0),
			 0);
	assert_int_equal(step(&fixture, fds), 1);
	close_fixture(&fixture);
}

/* The verdict of a peer that gave up waiting is left over from an earlier handshake. */
static void say_left_over(const struct fixture *fixture, int count)
{
	struct pier_message verdict;
	uint8_t *payload = pier_begin_message(&verdict, PIER_MESSAGE_VERDICT,
					      PIER_VERDICT_SIZE);

	memset(payload, 0, PIER_VERDICT_SIZE);
	pier_put_le32(payload, ETIMEDOUT);
	for (int i = 0; i < count; i++)
		assert_int_equal(write(fixture->theirs, verdict.bytes, verdict.length),
				 verdict.length);
}

/* Each step ends, and so does the handshake, as long as there is something to skip. */
static void steps_skip_one_message(void **state)
{
	struct fixture fixture = open_fixture();
	struct pollfd fds[2];

	(void)state;
	start(&fixture);
	say_left_over(&fixture, 2);
	say(&fixture, fixture.script.length);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(step(&fixture, fds), 0);
		assert_int_equal(poll(fds, 2, 0), 1);
	}
	assert_int_equal(step(&fixture, fds), 1);
	close_fixture(&fixture);

	fixture = open_fixture();
	say_left_over(&fixture, 2);
	assert_int_equal(pier_channel_handshake_start(fixture.channel, fixture.ours,
						      fixture.ours, 0),
			 0);
	assert_int_equal(step(&fixture, fds), -ETIMEDOUT);
	assert_non_null(strstr(pier_error_message(), "earlier"));
	close_fixture(&fixture);
}

/* The next step is due after a pause, whatever the fds do. */
static void steps_do_not_wait_for_an_address(void **state)
{
	struct fixture fixture = open_fixture();
	struct pollfd fds[2];

	(void)state;
	say(&fixture, fixture.script.length);
	start(&fixture);
	fake.unresolved = 3;
	for (int i = 3; i > 0; i--) {
		assert_int_equal(fake.unresolved, i);
		assert_int_equal(step(&fixture, fds), 0);
		assert_int_equal(fds[0].fd, -1);
		assert_int_equal(fds[1].fd, -1);
	}
	assert_int_equal(step(&fixture, fds), 1);
	close_fixture(&fixture);
}

static void a_handshake_in_progress_can_be_given_up(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_endpoint endpoint;
	struct pollfd fds[2];

	(void)state;
	start(&fixture);
	assert_int_equal(step(&fixture, fds), 0);
	assert_int_equal(run(&fixture), -EBUSY);
	assert_int_equal(pier_channel_endpoint(fixture.channel, &endpoint), 0);
	assert_int_equal(pier_channel_connect(fixture.channel, &endpoint), -EBUSY);
	assert_int_equal(pier_channel_handshake_start(fixture.channel, fixture.ours,
						      fixture.ours, PATIENT_MS),
			 -EBUSY);
	assert_int_equal(step(&fixture, fds), 0);
	assert_int_equal(pier_channel_reset(fixture.channel), 0);
	assert_int_equal(step(&fixture, fds), -EINVAL);
	start(&fixture);
	assert_int_equal(step(&fixture, fds), 0);
	close_fixture(&fixture);
}

static void refuses_null(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_scatter element = { .length = 0 };
	struct pier_channel_attr attr;
	char text[16];

	(void)state;
	assert_int_equal(pier_channel_connect(fixture.channel, NULL), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "NULL"));
	assert_int_equal(pier_endpoint_pack(NULL, text, sizeof(text)), -EINVAL);
	assert_int_equal(pier_endpoint_to_text(NULL, text, sizeof(text)), -EINVAL);
	assert_int_equal(pier_channel_attr_parse(&attr, NULL), -EINVAL);
	/* The endpoint was not used: the channel can still be connected. */
	say(&fixture, fixture.script.length);
	assert_int_equal(run(&fixture), 0);
	assert_int_equal(test_post_fetch_add(fixture.channel, &element, NULL, 1, NULL),
			 -EINVAL);
	assert_non_null(strstr(pier_error_message(), "remote is NULL"));
	close_fixture(&fixture);
}

static void reports_bad_fds(void **state)
{
	struct fixture fixture = open_fixture();

	(void)state;
	assert_int_equal(
		pier_channel_handshake(fixture.channel, 1 << 20, fixture.ours, 1000),
		-EBADF);
	close_fixture(&fixture);
}

/* poll(2) ignores negative fds, and would wait until the timeout. */
static void reports_negative_fds(void **state)
{
	struct fixture fixture = open_fixture();
	struct timespec before, after;

	(void)state;
	clock_gettime(CLOCK_MONOTONIC, &before);
	assert_int_equal(
		pier_channel_handshake(fixture.channel, -1, fixture.ours, PATIENT_MS),
		-EBADF);
	assert_non_null(strstr(pier_error_message(), "read_fd -1"));
	close_fixture(&fixture);
	fixture = open_fixture();
	say(&fixture, fixture.script.length);
	assert_int_equal(
		pier_channel_handshake(fixture.channel, fixture.ours, -1, PATIENT_MS),
		-EBADF);
	assert_non_null(strstr(pier_error_message(), "write_fd -1"));
	clock_gettime(CLOCK_MONOTONIC, &after);
	assert_true(after.tv_sec - before.tv_sec < PATIENT_MS / 1000 / 2);
	close_fixture(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_only_its_own_messages),
		cmocka_unit_test(detects_end_of_stream_at_every_byte),
		cmocka_unit_test(detects_a_closed_peer),
		cmocka_unit_test(survives_every_flipped_byte),
		cmocka_unit_test(agrees_on_gids_with_the_peer),
		cmocka_unit_test(refuses_a_peer_without_a_common_family),
		cmocka_unit_test(refuses_damaged_gids),
		cmocka_unit_test(reports_each_kind_of_error),
		cmocka_unit_test(refuses_a_stale_endpoint_of_itself),
		cmocka_unit_test(skips_what_earlier_handshakes_left),
		cmocka_unit_test(sends_its_failure_to_the_peer),
		cmocka_unit_test(gives_up_after_the_timeout),
		cmocka_unit_test(accepts_a_slow_peer),
		cmocka_unit_test(survives_a_closed_pipe),
		cmocka_unit_test(does_not_hang_on_a_full_pipe),
		cmocka_unit_test(steps_through_byte_by_byte),
		cmocka_unit_test(steps_ask_for_room_to_write),
		cmocka_unit_test(steps_report_a_closed_peer),
		cmocka_unit_test(steps_end_at_their_deadline),
		cmocka_unit_test(steps_skip_one_message),
		cmocka_unit_test(steps_do_not_wait_for_an_address),
		cmocka_unit_test(a_handshake_in_progress_can_be_given_up),
		cmocka_unit_test(refuses_null),
		cmocka_unit_test(reports_bad_fds),
		cmocka_unit_test(reports_negative_fds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
