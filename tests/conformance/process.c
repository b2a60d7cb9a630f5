/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "child.h"
#include "world.h"

/* Two processes: see child.h. */

enum {
	/* A NIC may take four times its nominal 4.3 s (timeout 18, 3 retries). */
	NOTICED_WITHIN_MS = PATIENT,
	TARGET = CHILD_TARGET,
	MOVED = CHILD_MOVED,
};

/* Opens and connects the parent's end, and returns the child's remote region. */
static struct pier_remote parent_meet(struct world *world, int stream)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;
	ssize_t have = 0;

	expect_ok(end_open(&world->a, test_device));
	expect_ok(end_prepare(&world->a, NULL));
	expect_ok(pier_channel_handshake(world->a.channel, stream, stream, PATIENT));
	while (have < (ssize_t)sizeof(wire)) {
		ssize_t count = read(stream, wire + have, sizeof(wire) - (size_t)have);

		assert_true(count > 0);
		have += count;
	}
	expect_ok(pier_remote_unpack(wire, sizeof(wire), &remote));
	return remote;
}

static void write_reaches_another_process(void **state)
{
	struct world *world = world_for_channels(state);
	uint32_t pattern = (uint32_t)test_random_next(&world->random);
	struct pier_remote whole, target;
	struct pier_gather source;
	struct pier_scatter back;
	int stream, status;
	pid_t child = child_start("target", &stream);

	whole = parent_meet(world, stream);
	for (size_t i = 0; i < MOVED; i++)
		world->a.area.image[i] = child_byte(pattern, i);
	expect_ok(pier_buffer_copy_to(world->a.area.buffer, 0, world->a.area.image,
				      AREA_LENGTH));
	source = gather_at(&world->a.area, 0, MOVED);
	back = scatter_at(&world->a.area, MOVED + 1, MOVED);
	expect_ok(pier_remote_sub(&whole, TARGET, MOVED, &target));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	expect_ok(pier_channel_read(world->a.channel, &back, 1, &target, PATIENT));
	image_copy(&world->a.area, MOVED + 1, &world->a.area, 0, MOVED);
	area_expect(&world->a.area);
	expect_ok(test_channel_send_imm(world->a.channel, NULL, 0, pattern, PATIENT));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	close(stream);
}

static int64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void killed_peer_fails_requests(void **state)
{
	struct world *world = world_for_channels(state);
	struct pier_remote target;
	struct pier_gather source;
	struct pier_work receive;
	int64_t killed;
	int stream;
	pid_t child = child_start("victim", &stream);

	target = parent_meet(world, stream);
	source = gather_at(&world->a.area, 0, MOVED);
	expect_ok(pier_channel_post_recv(world->a.channel, NULL, 0, &receive));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	child_kill(child);
	killed = milliseconds();
	assert_true(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT) <
		    0);
	expect_end(world->a.channel, receive, -ECANCELED);
	assert_true(milliseconds() - killed < NOTICED_WITHIN_MS);
	expect_result(pier_channel_post_recv(world->a.channel, NULL, 0, NULL), -EPIPE);
	area_expect(&world->a.area);
	close(stream);
}

/* The peer is killed while requests are outstanding: each of them ends. */
static void killed_peer_ends_outstanding_requests(void **state)
{
	enum {
		DEPTH = 8
	};
	struct world *world = world_for_channels(state);
	struct pier_remote target;
	struct pier_gather source;
	struct pier_work work[DEPTH];
	int64_t killed;
	int stream;
	pid_t child = child_start("victim", &stream);

	target = parent_meet(world, stream);
	source = gather_at(&world->a.area, 0, AREA_LENGTH);
	for (int i = 0; i < DEPTH; i++)
		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target,
						  &work[i]));
	child_kill(child);
	killed = milliseconds();
	/* Requests completed before its death may have succeeded. */
	for (int i = 0; i < DEPTH; i++)
		assert_int_not_equal(
			test_work_finish(world->a.channel, work[i], PATIENT, NULL),
			-ESTALE);
	assert_true(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT) <
		    0);
	assert_true(milliseconds() - killed < NOTICED_WITHIN_MS);
	area_expect(&world->a.area);
	close(stream);
}

int run_process_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(write_reaches_another_process),
		world_case(killed_peer_fails_requests),
		world_case(killed_peer_ends_outstanding_requests),
	};

	return cmocka_run_group_tests_name("processes", cases, NULL, NULL);
}
