/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include <pier/recovery.h>

#include "../conformance/world.h"
#include "../support/manual_clock.h"

/*
 * An epoch of a loader on a device with a fault plan. Whatever fails, its fills continue
 * after the channel was reset, and every slot arrives once, in order and complete.
 */

enum {
	SLOTS = 4,
	SLOT_SIZE = 40000,
	FILLS = 30,
	READS = 40,
	STALL_MS = 200,
	TRIES = 200,
};

struct epoch {
	struct world *world;
	struct pier_ring *ring;
	struct pier_ring_source source;
	struct pier_remote remote;
	struct pier_ring_read reads[FILLS][READS];
	int begun, failures;
};

static const char *plan;

static void choose_reads(struct epoch *epoch)
{
	for (int i = 0; i < FILLS * READS; i++) {
		struct pier_ring_read *read = &epoch->reads[i / READS][i % READS];
		uint64_t length = test_random_below(&epoch->world->random, 1000);

		*read = (struct pier_ring_read){
			.offset = (uint64_t)(i % READS) * 1000,
			.length = (uint32_t)length,
			.remote_offset = test_random_below(&epoch->world->random,
							   AREA_LENGTH - length),
		};
	}
}

/* A device that has faults may refuse anything, but not for ever. */
#define INSIST(call)                                                \
	do {                                                        \
		int tries_ = 0;                                     \
                                                                    \
		while ((call) != 0)                                 \
			if (++tries_ == TRIES)                      \
				fail_msg("%s: %s: %s", plan, #call, \
					 pier_error_message());     \
	} while (0)

/* Connect the channels again if the local one is broken. */
static void repair(struct epoch *epoch)
{
	struct world *world = epoch->world;

	if (!pier_channel_error(world->a.channel, NULL, 0))
		return;
	INSIST(pier_channel_reset(world->a.channel));
	INSIST(pier_channel_reset(world->b.channel));
	expect_ok(ends_connect(&world->a, &world->b));
}

static int continue_fill(struct epoch *epoch, uint32_t number)
{
	repair(epoch);
	return pier_ring_retry(epoch->ring, number, &epoch->source, 1);
}

static void begin_fills(struct epoch *epoch)
{
	int error = 0;

	while (epoch->begun < FILLS && error != -EAGAIN) {
		repair(epoch);
		error = pier_ring_fill(epoch->ring, &epoch->source, 1,
				       epoch->reads[epoch->begun], READS, NULL);
		epoch->begun += error == 0;
	}
}

static void expect_slot(const struct epoch *epoch, const struct pier_ring_slot *slot,
			int number)
{
	const struct pier_ring_read *reads = epoch->reads[number];
	static uint8_t found[SLOT_SIZE];

	assert_int_equal(slot->sequence, number);
	assert_int_equal(slot->missing, 0);
	expect_ok(pier_buffer_copy_from(epoch->world->a.area.buffer, slot->offset, found,
					SLOT_SIZE));
	for (int i = 0; i < READS; i++)
		if (memcmp(found + reads[i].offset,
			   epoch->world->b.area.image + reads[i].remote_offset,
			   reads[i].length) != 0)
			fail_msg("%s: read %d of fill %d is wrong", plan, i, number);
}

static void run_epoch(struct epoch *epoch)
{
	struct pier_ring_slot slot;

	for (int done = 0; done < FILLS;) {
		int result;

		begin_fills(epoch);
		result = pier_ring_next(epoch->ring, PATIENT, &slot);
		if (result == 1) {
			expect_slot(epoch, &slot, done++);
			expect_ok(pier_ring_release(epoch->ring, &slot));
			continue;
		}
		assert_int_not_equal(result, 0);
		assert_int_equal(slot.error, result);
		epoch->failures++;
		INSIST(continue_fill(epoch, slot.number));
	}
}

static void epoch_survives(void **state)
{
	struct epoch epoch = { .world = world_connected(state) };
	struct pier_ring_attr attr;

	pier_ring_attr_init(&attr);
	attr.mr = epoch.world->a.area.mr;
	attr.slots = SLOTS;
	attr.slot_size = SLOT_SIZE;
	attr.stall_ms = STALL_MS;
	expect_ok(pier_ring_create(epoch.world->a.pd, &attr, &epoch.ring));
	expect_ok(pier_mr_remote(epoch.world->b.area.mr, &epoch.remote));
	epoch.source = (struct pier_ring_source){ epoch.world->a.channel, &epoch.remote,
						  1 };
	choose_reads(&epoch);
	run_epoch(&epoch);
	print_message("%s: %d failures\n", plan, epoch.failures);
	expect_ok(pier_ring_destroy(epoch.ring));
	/* The slots have other bytes than the image of the area. */
	expect_ok(pier_buffer_copy_from(epoch.world->a.area.buffer, 0,
					epoch.world->a.area.image, AREA_LENGTH));
}

int main(void)
{
	static const char *const rules[] = {
		"wc~20=REM_OP_ERR",    "post_send~300=EIO", "late~4=20polls",
		"late~10=2ms",	       "lost~60",	    "poll_cq~200=EIO",
		"req_notify_cq~5=EIO",
	};
	const struct CMUnitTest cases[] = { world_case(epoch_survives) };
	int failed = 0;

	test_backend = "memfd";
	manual_clock_run();
	test_peer_device = "soft0";
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		char device[64];

		snprintf(device, sizeof(device), "fault:seed=%zu,%s:soft0", i + 1,
			 rules[i]);
		test_device = plan = device;
		failed += cmocka_run_group_tests_name("fault_rings", cases, NULL, NULL);
	}
	return failed;
}
