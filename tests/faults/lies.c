/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "../conformance/world.h"
#include "../support/manual_clock.h"

/*
 * Rules whose requests succeed with wrong bytes. Each case checks every byte of both
 * ends, so a lie changes what its manual page says, and nothing else. The channel itself
 * notices none of the lies in bytes.
 */

enum {
	LENGTH = 1000,
	CHANGED = 256,	     /* the most bytes that a rule makes up */
	FIRST = 7,	     /* offsets: of the request before the lie */
	SECOND = 2 * LENGTH, /* of the one that lies */
	THIRD = 4 * LENGTH,
};

static struct world *behind(void **state, const char *plan, const char *backend)
{
	static char name[256];

	snprintf(name, sizeof(name), "fault:%s:soft0", plan);
	test_device = name;
	test_peer_device = "soft0";
	test_backend = backend;
	return world_connected(state);
}

/* What arrives at `to` if the request of the bytes at SECOND lies. */
typedef void lie(struct area *to, const struct area *from, size_t length);

static void flipped(struct area *to, const struct area *from, size_t length)
{
	image_copy(to, SECOND, from, SECOND, length);
	to->image[SECOND + (length < CHANGED ? length : CHANGED) / 2] ^= 1;
}

static void dropped(struct area *to, const struct area *from, size_t length)
{
	(void)to;
	(void)from;
	(void)length;
}

static void stale(struct area *to, const struct area *from, size_t length)
{
	image_copy(to, SECOND, from, SECOND, length);
	image_copy(to, SECOND, from, FIRST, length < CHANGED ? length : CHANGED);
}

static void misplaced(struct area *to, const struct area *from, size_t length)
{
	size_t half = length / 2;

	image_copy(to, SECOND, from, SECOND + half, length - half);
	image_copy(to, SECOND + length - half, from, SECOND, half);
}

static const struct {
	const char *rule;
	lie *lie;
} lies[] = {
	{ "corrupt", flipped },
	{ "stale", stale },
	{ "misplace", misplaced },
	{ "drop", dropped },
};

static void write_at(struct world *world, size_t offset, size_t length)
{
	struct pier_gather source = gather_at(&world->a.area, offset, length);
	struct pier_remote target = remote_at(&world->b.area, offset, length);

	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
}

static void read_at(struct world *world, size_t offset, size_t length)
{
	struct pier_scatter target = scatter_at(&world->a.area, offset, length);
	struct pier_remote source = remote_at(&world->b.area, offset, length);

	expect_ok(pier_channel_read(world->a.channel, &target, 1, &source, PATIENT));
}

/* A long one is sent from two elements, of which neither is a half. */
static void send_at(struct world *world, size_t offset, size_t length)
{
	size_t rest = length == LENGTH ? LENGTH / 3 : 0;
	const struct pier_gather source[] = {
		gather_at(&world->a.area, offset, length - rest),
		gather_at(&world->a.area, offset + length - rest, rest ? rest : 1),
	};
	struct pier_scatter target = scatter_at(&world->b.area, offset, length);
	struct pier_result result;
	struct pier_work receive;

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
	expect_ok(pier_channel_send(world->a.channel, source, rest ? 2 : 1, PATIENT));
	result = expect_end(world->b.channel, receive, 0);
	assert_int_equal(result.byte_length, length);
}

typedef void request(struct world *world, size_t offset, size_t length);

/* The second of three requests lies. */
static void expect_lies(void **state, request *move, bool reads, size_t count)
{
	static const char *const backends[] = { "host", "memfd" };
	static const size_t lengths[] = { LENGTH, 3 };
	char plan[32];

	for (size_t i = 0; i < 2 * 2 * count; i++) {
		size_t which = i / 4, length = lengths[i % 2];
		struct world *world;
		struct area *from, *to;

		snprintf(plan, sizeof(plan), "%s@2", lies[which].rule);
		world = behind(state, plan, backends[i / 2 % 2]);
		from = reads ? &world->b.area : &world->a.area;
		to = reads ? &world->a.area : &world->b.area;
		move(world, FIRST, length);
		image_copy(to, FIRST, from, FIRST, length);
		world_expect(world);
		move(world, SECOND, length);
		lies[which].lie(to, from, length);
		world_expect(world);
		move(world, THIRD, length);
		image_copy(to, THIRD, from, THIRD, length);
		world_expect(world);
		world_teardown(state);
		world_setup(state);
	}
}

static void writes_lie(void **state)
{
	expect_lies(state, write_at, false, 4);
}

static void reads_lie(void **state)
{
	expect_lies(state, read_at, true, 4);
}

static void messages_lie(void **state)
{
	struct world *world;
	struct pier_scatter target;
	struct pier_gather source;
	struct pier_work receive;

	expect_lies(state, send_at, false, 3);
	/* A dropped message was sent, and never arrives. The next one does. */
	world = behind(state, "drop@1", "host");
	source = gather_at(&world->a.area, FIRST, LENGTH);
	target = scatter_at(&world->b.area, FIRST, LENGTH);
	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
	expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
	expect_result(pier_work_poll(world->b.channel, receive, NULL), 0);
	world_expect(world);
	expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
	expect_end(world->b.channel, receive, 0);
	image_copy(&world->b.area, FIRST, &world->a.area, FIRST, LENGTH);
	world_expect(world);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		world_case(writes_lie),
		world_case(reads_lie),
		world_case(messages_lie),
	};

	manual_clock_run();
	return cmocka_run_group_tests_name("faults that lie", cases, NULL, NULL);
}
