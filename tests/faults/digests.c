/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "../conformance/world.h"
#include "../support/manual_clock.h"

/*
 * Transfers over a device that moves wrong bytes and reports success. With a digest each
 * lie ends the transfer, also on a chunk that is moved again; without one, the bytes are
 * wrong and nobody learns of it.
 */

enum {
	CHUNK = 8192,
	CHUNKS = 3,
	LENGTH = CHUNKS * CHUNK,
	AT = 4096, /* offset of the bytes, at both ends */
};

static const char *const lies[] = { "corrupt", "stale", "misplace", "drop" };

enum kind {
	WRITES,
	READS,
	ANNOUNCES,
	KINDS,
};

struct stage {
	struct world *world;
	struct pier_remote target;
	struct pier_rail rails[2];
	struct pier_channel *far; /* the other end of the first rail */
	struct pier_transfer *transfer;
	struct pier_receiver *receiver;
};

static struct world *world_with(void **state, const char *rule, unsigned int number)
{
	static char name[64];

	snprintf(name, sizeof(name), "fault:%s@%u:soft0", rule, number);
	test_device = name;
	test_peer_device = "soft0";
	test_backend = "memfd";
	return world_connected(state);
}

static struct pier_rail rail_of(const struct stage *stage)
{
	return (struct pier_rail){
		.channel = stage->world->a.channel,
		.mr = stage->world->a.area.mr,
		.offset = AT,
		.parts = &stage->target,
		.count = 1,
	};
}

static void make_stage(struct stage *stage, struct world *world)
{
	*stage = (struct stage){ .world = world };
	stage->target = remote_at(&world->b.area, AT, LENGTH);
	stage->rails[0] = rail_of(stage);
}

/* One chunk at a time, so the number of each request is known. */
static struct pier_transfer_attr attr_of(const struct stage *stage, enum kind kind,
					 bool digest)
{
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	attr.rails = stage->rails;
	attr.rail_count = 1;
	attr.length = LENGTH;
	attr.chunk = CHUNK;
	attr.window = 1;
	attr.direction = kind == READS ? PIER_TRANSFER_READ : PIER_TRANSFER_WRITE;
	attr.flags = (digest ? PIER_TRANSFER_DIGEST : 0) |
		     (kind == ANNOUNCES ? PIER_TRANSFER_ANNOUNCE : 0);
	return attr;
}

static void begin_receiver(struct stage *stage, bool digest)
{
	struct pier_receiver_rail rail = { stage->world->b.channel,
					   stage->world->b.area.mr, AT };
	struct pier_receiver_attr attr;

	pier_receiver_attr_init(&attr);
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = LENGTH;
	attr.flags = digest ? PIER_TRANSFER_DIGEST : 0;
	expect_ok(pier_receiver_create(&attr, &stage->receiver));
}

/* The result at the end that compares. */
static int run(struct stage *stage, enum kind kind, bool digest)
{
	struct pier_transfer_attr attr = attr_of(stage, kind, digest);
	int sent = 0, came = 0;

	if (kind != ANNOUNCES)
		return pier_transfer_run(&attr, PATIENT);
	begin_receiver(stage, digest);
	expect_ok(pier_transfer_create(&attr, &stage->transfer));
	while (sent == 0 || came == 0) {
		if (sent == 0)
			sent = pier_transfer_progress(stage->transfer);
		came = pier_receiver_progress(stage->receiver);
	}
	assert_int_equal(sent, 1);
	expect_ok(pier_transfer_destroy(stage->transfer));
	came = pier_receiver_progress(stage->receiver);
	return came == 1 ? 0 : came;
}

static bool bytes_are_right(struct world *world, enum kind kind)
{
	struct area *from = kind == READS ? &world->b.area : &world->a.area;
	struct area *to = kind == READS ? &world->a.area : &world->b.area;

	image_copy(to, AT, from, AT, LENGTH);
	return area_compare(to) < 0;
}

/*
 * The second chunk lies. With a digest each chunk of a one-sided transfer takes two
 * requests of bytes, and one that is announced always does.
 */
static unsigned int second_chunk(enum kind kind, bool digest)
{
	return kind == ANNOUNCES || digest ? 3 : 2;
}

static void digest_finds_each_lie(void **state)
{
	for (int i = 0; i < (int)(sizeof(lies) / sizeof(lies[0])) * KINDS; i++) {
		enum kind kind = (enum kind)(i % KINDS);
		const char *rule = lies[i / KINDS];
		struct stage stage;

		make_stage(&stage, world_with(state, rule, second_chunk(kind, true)));
		expect_result(run(&stage, kind, true), -EBADMSG);
		test_assert_sentence("chunk [8192, +8192)");
		test_assert_sentence("CRC-32C");
		expect_ok(pier_receiver_destroy(stage.receiver));
		world_teardown(state);
		world_setup(state);
	}
}

static void lies_pass_without_a_digest(void **state)
{
	for (int i = 0; i < (int)(sizeof(lies) / sizeof(lies[0])) * KINDS; i++) {
		enum kind kind = (enum kind)(i % KINDS);
		const char *rule = lies[i / KINDS];
		struct stage stage;

		make_stage(&stage, world_with(state, rule, second_chunk(kind, false)));
		expect_ok(run(&stage, kind, false));
		assert_false(bytes_are_right(stage.world, kind));
		expect_ok(pier_receiver_destroy(stage.receiver));
		world_teardown(state);
		world_setup(state);
	}
}

/*
 * A second read that lies is an error as well: nobody knows which of both lied. Bytes of
 * the read before are the same ones, and no lie, if that was the first read.
 */
static void second_read_may_lie(void **state)
{
	for (int i = 0; i < 2 * (int)(sizeof(lies) / sizeof(lies[0])); i++) {
		enum kind kind = i % 2 ? READS : WRITES;
		bool same = kind == READS && strcmp(lies[i / 2], "stale") == 0;
		struct stage stage;

		make_stage(&stage, world_with(state, lies[i / 2], 4));
		expect_result(run(&stage, kind, true), same ? 0 : -EBADMSG);
		if (same)
			assert_true(bytes_are_right(stage.world, kind));
		else
			test_assert_sentence("chunk [8192, +8192)");
		world_teardown(state);
		world_setup(state);
	}
}

/* The place of the second read has the source's bytes already: zeros. */
static void two_requests_may_bring_nothing(void **state)
{
	for (int i = 0; i < 2; i++) {
		enum kind kind = i ? READS : WRITES;
		struct area *area;
		struct stage stage;

		make_stage(&stage, world_with(state, "drop@1,drop", 2));
		area = &stage.world->a.area;
		memset(area->image, 0, AREA_LENGTH);
		expect_ok(pier_buffer_copy_to(area->buffer, 0, area->image, AREA_LENGTH));
		expect_result(run(&stage, kind, true), -EBADMSG);
		test_assert_sentence("chunk [0, +8192)");
		world_teardown(state);
		world_setup(state);
	}
}

static void add_rail(struct stage *stage)
{
	struct world *world = stage->world;
	struct pier_channel *near = world->a.channel;

	stage->far = world->b.channel;
	expect_ok(end_prepare(&world->a, NULL));
	expect_ok(end_prepare(&world->b, NULL));
	expect_ok(ends_connect(&world->a, &world->b));
	stage->rails[1] = rail_of(stage);
	world->a.channel = near;
}

/*
 * The peer's end of the first rail is gone, so the only chunk is moved by the second one,
 * at once or after it was resumed: that request lies.
 */
static void repeated_chunk_is_judged(void **state, bool resumes, bool reading)
{
	struct stage stage;
	struct pier_transfer_attr attr;
	struct pier_channel *second;

	make_stage(&stage, world_with(state, "corrupt", 2));
	attr = attr_of(&stage, reading ? READS : WRITES, true);
	add_rail(&stage);
	second = stage.rails[1].channel;
	expect_ok(pier_channel_destroy(stage.far));
	attr.length = CHUNK;
	attr.rail_count = resumes ? 1 : 2;
	expect_ok(pier_transfer_create(&attr, &stage.transfer));
	if (resumes) {
		assert_true(pier_transfer_wait(stage.transfer, PATIENT) < 0);
		expect_ok(pier_transfer_resume(stage.transfer, &stage.rails[1], 1));
	}
	expect_result(pier_transfer_wait(stage.transfer, PATIENT), -EBADMSG);
	test_assert_sentence(resumes ? "rail 0 of 1" : "rail 1 of 2");
	test_assert_sentence("chunk [0, +8192)");
	/* The rule is spent. */
	expect_ok(pier_transfer_resume(stage.transfer, &stage.rails[1], 1));
	expect_result(pier_transfer_wait(stage.transfer, PATIENT), 1);
	expect_ok(pier_transfer_destroy(stage.transfer));
	expect_ok(pier_channel_destroy(second));
	if (reading)
		image_copy(&stage.world->a.area, AT, &stage.world->b.area, AT, CHUNK);
	else
		image_copy(&stage.world->b.area, AT, &stage.world->a.area, AT, CHUNK);
	world_expect(stage.world);
	world_teardown(state);
	world_setup(state);
}

static void repeated_chunks_are_judged(void **state)
{
	for (int i = 0; i < 4; i++)
		repeated_chunk_is_judged(state, i & 1, i & 2);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		world_case(digest_finds_each_lie),
		world_case(lies_pass_without_a_digest),
		world_case(second_read_may_lie),
		world_case(two_requests_may_bring_nothing),
		world_case(repeated_chunks_are_judged),
	};

	manual_clock_run();
	return cmocka_run_group_tests_name("digests", cases, NULL, NULL);
}
