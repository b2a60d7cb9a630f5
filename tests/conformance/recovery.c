/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "child.h"
#include "world.h"

/* Reset of failed channels, and detection of dead peers. */

enum {
	SEGMENT = 3000,
	DEPTH = 16,
	ROUNDS = 500,	/* rounds with a reset of each end */
	KEEPALIVE = 20, /* ms */
};

static void reset_both(struct world *world)
{
	expect_ok(pier_channel_reset(world->a.channel));
	expect_ok(pier_channel_reset(world->b.channel));
}

/* Writes one segment each way, at offsets that no other write uses. */
static void expect_usable(struct world *world)
{
	struct area *a = &world->a.area, *b = &world->b.area;
	struct pier_gather from_a = gather_at(a, 7, SEGMENT),
			   from_b = gather_at(b, 9, SEGMENT);
	struct pier_remote to_b = remote_at(b, 100000, SEGMENT);
	struct pier_scatter in_a = scatter_at(a, 100000, SEGMENT);
	struct pier_work receive;
	struct pier_result result;

	expect_ok(pier_channel_post_recv(world->a.channel, &in_a, 1, &receive));
	expect_ok(pier_channel_write(world->a.channel, &from_a, 1, &to_b, PATIENT));
	expect_ok(pier_channel_send(world->b.channel, &from_b, 1, PATIENT));
	result = expect_end(world->a.channel, receive, 0);
	assert_int_equal(result.byte_length, SEGMENT);
	image_copy(b, 100000, a, 7, SEGMENT);
	image_copy(a, 100000, b, 9, SEGMENT);
	world_expect(world);
	assert_int_equal(pier_channel_error(world->a.channel, NULL, 0), 0);
	assert_int_equal(pier_channel_error(world->b.channel, NULL, 0), 0);
}

static void channel_works_after_reset_from_error(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, SEGMENT);
	struct pier_remote bad = remote_at(&world->b.area, 0, SEGMENT);
	struct pier_channel_failure failure;
	struct pier_work work, behind, receive;

	bad.rkey ^= 0x5a5a5a5a;
	expect_ok(pier_channel_post_recv(world->a.channel, NULL, 0, &receive));
	expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &bad, &work));
	expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &bad, &behind));
	expect_end(world->a.channel, work, -EACCES);
	expect_end(world->a.channel, behind, -ECANCELED);
	expect_result(pier_channel_error(world->a.channel, &failure, sizeof(failure)),
		      -EACCES);
	assert_int_equal(failure.error_class, PIER_CLASS_REFUSED);
	assert_int_equal(failure.first.opcode, PIER_OP_WRITE);
	reset_both(world);
	expect_end(world->a.channel, receive, -ECANCELED);
	expect_ok(ends_connect(&world->a, &world->b));
	expect_usable(world);
}

static void channel_works_after_reset_from_timeout(void **state)
{
	struct world *world = world_connected(state);
	struct pier_channel_failure failure;

	expect_result(pier_channel_recv(world->a.channel, NULL, 0, 1, NULL), -ETIMEDOUT);
	expect_result(pier_channel_error(world->a.channel, &failure, sizeof(failure)),
		      -ETIMEDOUT);
	assert_int_equal(failure.error_class, PIER_CLASS_STOPPED);
	reset_both(world);
	expect_ok(ends_connect(&world->a, &world->b));
	expect_usable(world);
}

/*
 * All outstanding requests complete. Once both ends are reset, none of them arrives,
 * neither in memory nor as a message.
 */
static void reset_during_traffic_completes_requests(void **state)
{
	struct world *world = world_connected(state);

	for (int round = 0; round < 20; round++) {
		struct pier_gather source = gather_at(&world->a.area, 0, 50000);
		struct pier_remote target = remote_at(&world->b.area, 1, 50000);
		struct pier_scatter message = scatter_at(&world->b.area, 60000, 50000);
		struct pier_work work[DEPTH], receive;
		struct pier_result result;

		expect_ok(
			pier_channel_post_recv(world->b.channel, &message, 1, &receive));
		for (int i = 0; i < DEPTH - 1; i++)
			expect_ok(pier_channel_post_write(world->a.channel, &source, 1,
							  &target, &work[i]));
		expect_ok(pier_channel_post_send(world->a.channel, &source, 1,
						 &work[DEPTH - 1]));
		if (round % 2)
			reset_both(world);
		expect_ok(pier_channel_reset(world->b.channel));
		expect_ok(pier_channel_reset(world->a.channel));
		assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
		area_shuffle(world, &world->b.area);
		expect_ok(ends_connect(&world->a, &world->b));
		expect_usable(world);
		for (int i = 0; i < DEPTH; i++) {
			int error = test_work_finish(world->a.channel, work[i], 0,
						     &result);

			/* Resetting one end breaks the other. */
			assert_true(error == 0 || error == -ECANCELED ||
				    error == -EHOSTUNREACH || error == -EREMOTEIO ||
				    error == -EACCES);
		}
		assert_true(test_work_finish(world->b.channel, receive, 0, &result) <= 0);
		world_expect(world);
		reset_both(world);
		expect_ok(ends_connect(&world->a, &world->b));
	}
}

/*
 * The other end is still connected to the old queue pair: its messages must not arrive.
 */
static void late_packets_do_not_reach_a_reset_end(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->b.area, 0, SEGMENT);
	struct pier_remote target = remote_at(&world->a.area, 0, SEGMENT);
	struct pier_scatter place = scatter_at(&world->a.area, 5000, SEGMENT);
	struct pier_work receive;

	expect_ok(pier_channel_reset(world->a.channel));
	expect_ok(pier_channel_post_recv(world->a.channel, &place, 1, &receive));
	assert_true(pier_channel_write(world->b.channel, &source, 1, &target, PATIENT) <
		    0);
	assert_true(pier_channel_error(world->b.channel, NULL, 0) < 0);
	expect_result(pier_work_poll(world->a.channel, receive, NULL), 0);
	world_expect(world);
	expect_ok(pier_channel_reset(world->b.channel));
	expect_ok(ends_connect(&world->a, &world->b));
	source = gather_at(&world->b.area, 0, SEGMENT);
	expect_ok(pier_channel_send(world->b.channel, &source, 1, PATIENT));
	expect_end(world->a.channel, receive, 0);
	image_copy(&world->a.area, 5000, &world->b.area, 0, SEGMENT);
	expect_usable(world);
}

static void stale_endpoint_is_refused(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct pier_endpoint old_a, old_b, a, b;

	expect_ok(pier_channel_endpoint(world->a.channel, &old_a));
	expect_ok(pier_channel_endpoint(world->b.channel, &old_b));
	expect_ok(ends_connect(&world->a, &world->b));
	reset_both(world);
	expect_ok(pier_channel_endpoint(world->a.channel, &a));
	expect_ok(pier_channel_endpoint(world->b.channel, &b));
	/* Its QPN is new if the device (irdma) needs another queue pair after a reset. */
	assert_true(a.generation - old_a.generation - 1 < 2);
	assert_int_not_equal(a.psn, old_a.psn);
	expect_result(pier_channel_connect(world->a.channel, &old_b), -ESTALE);
	expect_result(pier_channel_connect(world->b.channel, &old_a), -ESTALE);
	expect_ok(pier_channel_connect(world->a.channel, &b));
	expect_ok(pier_channel_connect(world->b.channel, &a));
	expect_usable(world);
}

struct party {
	struct pier_channel *channel;
	int fd, result;
};

static void *shake(void *argument)
{
	struct party *party = argument;

	party->result = pier_channel_handshake(party->channel, party->fd, party->fd,
					       PATIENT);
	return NULL;
}

/* Several handshakes use the same stream. */
static void handshake_reconnects_after_reset(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct party a = { .channel = world->a.channel },
		     b = { .channel = world->b.channel };
	pthread_t thread;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	a.fd = fds[0];
	b.fd = fds[1];
	for (int round = 0; round < 5; round++) {
		assert_int_equal(pthread_create(&thread, NULL, shake, &a), 0);
		shake(&b);
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(a.result, 0);
		assert_int_equal(b.result, 0);
		expect_usable(world);
		expect_result(pier_channel_handshake(a.channel, a.fd, a.fd, 0), -EISCONN);
		reset_both(world);
	}
	close(fds[0]);
	close(fds[1]);
}

static void channels_survive_many_resets(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 7, 100);
	struct test_census before = test_take_census();

	for (int round = 0; round < ROUNDS; round++) {
		if (round % 2)
			expect_ok(
				pier_channel_post_recv(world->b.channel, NULL, 0, NULL));
		if (round % 3)
			expect_ok(pier_channel_post_send(world->a.channel, &source, 1,
							 NULL));
		reset_both(world);
		expect_ok(ends_connect(&world->a, &world->b));
		if (round % 50 == 0)
			expect_usable(world);
	}
	expect_usable(world);
	test_assert_census(&before);
}

/* Empty writes that a living peer acknowledges change nothing. */
static void keepalive_finds_the_peer_alive(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct pier_channel_failure failure;
	struct world *world;

	attr.keepalive_ms = KEEPALIVE;
	world = world_connected_with(state, &attr);
	expect_result(pier_channel_recv(world->a.channel, NULL, 0, 10 * KEEPALIVE, NULL),
		      -ETIMEDOUT);
	pier_channel_error(world->a.channel, &failure, sizeof(failure));
	if (failure.error_class != PIER_CLASS_STOPPED)
		fail_msg("%s", failure.sentence);
	reset_both(world);
	expect_ok(ends_connect(&world->a, &world->b));
	expect_usable(world);
}

/* The error names the missing right, and does not report the peer as dead. */
static void keepalive_needs_write_access(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct pier_channel_failure failure;
	struct world *world;

	attr.keepalive_ms = KEEPALIVE;
	attr.access = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_READ;
	world = world_connected_with(state, &attr);
	expect_result(pier_channel_recv(world->a.channel, NULL, 0, PATIENT, NULL),
		      -ECANCELED);
	expect_result(pier_channel_error(world->a.channel, &failure, sizeof(failure)),
		      -EACCES);
	assert_int_equal(failure.first.opcode, PIER_OP_KEEPALIVE);
	assert_non_null(strstr(failure.sentence, "REMOTE_WRITE"));
}

/*
 * Neither side sends, so without keepalive the receive would wait for its full timeout.
 */
static void keepalive_detects_a_killed_peer(void **state)
{
	struct world *world = world_for_channels(state);
	struct pier_channel_attr attr = test_attr();
	struct pier_work receive;
	int first, second;
	pid_t victim = child_start("idle", &first), heir = child_start("idle", &second);

	attr.keepalive_ms = KEEPALIVE;
	expect_ok(end_open(&world->a, test_device));
	expect_ok(end_prepare(&world->a, &attr));
	expect_ok(pier_channel_handshake(world->a.channel, first, first, PATIENT));
	expect_ok(pier_channel_post_recv(world->a.channel, NULL, 0, &receive));
	child_kill(victim);
	expect_result(test_work_finish(world->a.channel, receive, PATIENT, NULL),
		      -ECANCELED);
	assert_true(pier_channel_error(world->a.channel, NULL, 0) < 0);
	/* The channel works again with another peer. */
	expect_ok(pier_channel_reset(world->a.channel));
	expect_ok(pier_channel_handshake(world->a.channel, second, second, PATIENT));
	/* An empty write needs only a living peer. */
	expect_ok(pier_channel_write(world->a.channel, NULL, 0, NULL, PATIENT));
	child_kill(heir);
	close(first);
	close(second);
}

int run_recovery_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(channel_works_after_reset_from_error),
		world_case(channel_works_after_reset_from_timeout),
		world_case(reset_during_traffic_completes_requests),
		world_case(late_packets_do_not_reach_a_reset_end),
		world_case(stale_endpoint_is_refused),
		world_case(handshake_reconnects_after_reset),
		world_case(channels_survive_many_resets),
		world_case(keepalive_finds_the_peer_alive),
		world_case(keepalive_needs_write_access),
		world_case(keepalive_detects_a_killed_peer),
	};

	return cmocka_run_group_tests_name("recovery", cases, NULL, NULL);
}
