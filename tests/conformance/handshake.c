/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cases.h"
#include "world.h"

/* Two ends of this process that connect over a stream, each on its own thread. */

struct party {
	struct pier_channel *channel;
	int read_fd, write_fd;
	int timeout_ms;
	int result;
	char sentence[256];
};

static void *shake(void *argument)
{
	struct party *party = argument;

	party->result = pier_channel_handshake(party->channel, party->read_fd,
					       party->write_fd, party->timeout_ms);
	snprintf(party->sentence, sizeof(party->sentence), "%s", pier_error_message());
	return NULL;
}

static void shake_both(struct party *a, struct party *b)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, shake, a), 0);
	shake(b);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static void expect_connected(struct world *world, struct party *a, struct party *b)
{
	struct pier_gather source = gather_at(&world->a.area, 0, 3000);
	struct pier_remote target = remote_at(&world->b.area, 1, 3000);

	if (a->result || b->result)
		fail_msg("handshake: %d (%s) and %d (%s)", a->result, a->sentence,
			 b->result, b->sentence);
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	image_copy(&world->b.area, 1, &world->a.area, 0, 3000);
	world_expect(world);
}

/* The handshake must not consume bytes behind it: the stream stays usable. */
static void expect_rest(int from, int to)
{
	char rest[8];

	assert_int_equal(write(from, "rest", 4), 4);
	assert_int_equal(read(to, rest, sizeof(rest)), 4);
	assert_memory_equal(rest, "rest", 4);
}

static void meets_over(void **state, int socket_flags)
{
	struct world *world = world_prepared(state, NULL);
	struct party a, b;
	int fds[2], flags;

	assert_int_equal(
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | socket_flags, 0, fds),
		0);
	flags = fcntl(fds[0], F_GETFL);
	a = (struct party){ world->a.channel, fds[0], fds[0], PATIENT, 0, "" };
	b = (struct party){ world->b.channel, fds[1], fds[1], PATIENT, 0, "" };
	shake_both(&a, &b);
	expect_connected(world, &a, &b);
	assert_int_equal(fcntl(fds[0], F_GETFL), flags);
	expect_rest(fds[0], fds[1]);
	close(fds[0]);
	close(fds[1]);
}

static void handshake_over_socket_connects(void **state)
{
	meets_over(state, 0);
}

static void handshake_over_nonblocking_socket_connects(void **state)
{
	meets_over(state, SOCK_NONBLOCK);
}

static void handshake_over_two_pipes_connects(void **state)
{
	struct world *world = world_prepared(state, NULL);
	int to_a[2], to_b[2];
	struct party a, b;

	assert_int_equal(pipe2(to_a, O_CLOEXEC), 0);
	assert_int_equal(pipe2(to_b, O_CLOEXEC), 0);
	a = (struct party){ world->a.channel, to_a[0], to_b[1], PATIENT, 0, "" };
	b = (struct party){ world->b.channel, to_b[0], to_a[1], PATIENT, 0, "" };
	shake_both(&a, &b);
	expect_connected(world, &a, &b);
	expect_rest(to_b[1], to_b[0]);
	expect_rest(to_a[1], to_a[0]);
	for (int i = 0; i < 2; i++) {
		close(to_a[i]);
		close(to_b[i]);
	}
}

static void handshake_with_silent_peer_times_out(void **state)
{
	struct world *world = world_prepared(state, NULL);
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	expect_result(pier_channel_handshake(world->a.channel, fds[0], fds[0], BRIEF),
		      -ETIMEDOUT);
	expect_result(pier_channel_handshake(world->a.channel, fds[0], fds[0], BRIEF),
		      -EISCONN);
	close(fds[1]);
	expect_result(pier_channel_handshake(world->b.channel, fds[0], fds[0], PATIENT),
		      -ECONNRESET);
	close(fds[0]);
}

/* The ends of a broken connection rarely notice it at the same time. */
static void handshake_that_timed_out_leaves_its_socket_usable(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct party a, b;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	a = (struct party){ world->a.channel, fds[0], fds[0], PATIENT, 0, "" };
	b = (struct party){ world->b.channel, fds[1], fds[1], PATIENT, 0, "" };
	for (int attempts = 0; attempts < 3; attempts++) {
		for (int i = 0; i < attempts; i++) {
			expect_result(
				pier_channel_handshake(a.channel, fds[0], fds[0], BRIEF),
				-ETIMEDOUT);
			expect_ok(pier_channel_reset(a.channel));
		}
		shake_both(&a, &b);
		expect_connected(world, &a, &b);
		expect_ok(pier_channel_reset(a.channel));
		expect_ok(pier_channel_reset(b.channel));
	}
	expect_result(pier_channel_handshake(b.channel, fds[1], fds[1], BRIEF),
		      -ETIMEDOUT);
	expect_ok(pier_channel_reset(b.channel));
	shake_both(&a, &b);
	expect_connected(world, &a, &b);
	expect_rest(fds[0], fds[1]);
	expect_rest(fds[1], fds[0]);
	close(fds[0]);
	close(fds[1]);
}

static void handshake_with_garbage_is_refused(void **state)
{
	struct world *world = world_prepared(state, NULL);
	uint8_t garbage[600];
	int fds[2];

	for (size_t i = 0; i < sizeof(garbage); i++)
		garbage[i] = (uint8_t)test_random_next(&world->random);
	garbage[0] = 'Q';
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	assert_int_equal(write(fds[1], garbage, sizeof(garbage)), sizeof(garbage));
	expect_result(pier_channel_handshake(world->a.channel, fds[0], fds[0], PATIENT),
		      -EBADMSG);
	close(fds[0]);
	close(fds[1]);
}

/* Endpoints can be exchanged by any means, here as text. */
static void endpoints_in_text_form_connect(void **state)
{
	struct world *world = world_prepared(state, NULL);
	char text[2][PIER_ENDPOINT_TEXT_MAX];
	struct pier_endpoint endpoint;
	struct party good = { 0 };

	expect_ok(pier_channel_endpoint(world->a.channel, &endpoint));
	expect_ok(pier_endpoint_to_text(&endpoint, text[0], sizeof(text[0])));
	expect_ok(pier_channel_endpoint(world->b.channel, &endpoint));
	expect_ok(pier_endpoint_to_text(&endpoint, text[1], sizeof(text[1])));
	expect_ok(pier_endpoint_from_text(text[1], &endpoint));
	expect_ok(pier_channel_connect(world->a.channel, &endpoint));
	expect_ok(pier_endpoint_from_text(text[0], &endpoint));
	expect_ok(pier_channel_connect(world->b.channel, &endpoint));
	expect_connected(world, &good, &good);
}

int run_handshake_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(handshake_over_socket_connects),
		world_case(handshake_over_nonblocking_socket_connects),
		world_case(handshake_over_two_pipes_connects),
		world_case(handshake_with_silent_peer_times_out),
		world_case(handshake_that_timed_out_leaves_its_socket_usable),
		world_case(handshake_with_garbage_is_refused),
		world_case(endpoints_in_text_form_connect),
	};

	return cmocka_run_group_tests_name("handshake", cases, NULL, NULL);
}
