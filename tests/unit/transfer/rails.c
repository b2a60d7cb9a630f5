/* SPDX-License-Identifier: BSD-3-Clause */
/* Rails that fail in the middle: others take over, or the transfer is resumed later. */
#include "soft_fixture.h"

/* The keys of one rail are wrong: the others move its chunks. */
static void other_rails_take_over(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer_attr attr = attr_of(pair, 2, LENGTH);
	struct pier_remote wrong[PARTS];
	struct pier_transfer_status status;
	struct pier_transfer *transfer;

	for (int reading = 0; reading < 2; reading++) {
		attr = attr_of(pair, 2, LENGTH);
		for (int i = 0; i < PARTS; i++) {
			wrong[i] = pair->parts[i];
			wrong[i].rkey += 12345;
		}
		attr.direction = reading ? PIER_TRANSFER_READ : PIER_TRANSFER_WRITE;
		pair->rails[0].parts = wrong;
		shuffle(pair);
		expect_ok(pier_transfer_create(&attr, &transfer));
		expect_result(pier_transfer_wait(transfer, PATIENT), 1);
		pier_transfer_query(transfer, &status, sizeof(status));
		assert_int_equal(status.working_rails, 1);
		assert_int_equal(status.error, 0);
		assert_int_equal(rail_status(transfer, 0).error, -EACCES);
		assert_int_equal(rail_status(transfer, 0).done, 0);
		assert_int_equal(rail_status(transfer, 1).error, 0);
		assert_string_equal(rail_status(transfer, 1).sentence, "");
		assert_int_equal(rail_status(transfer, 1).done, LENGTH);
		expect_ok(pier_transfer_destroy(transfer));
		expect_moved(pair, LENGTH, reading);
		/* Unless the caller forbids it. */
		attr = attr_of(pair, 2, LENGTH);
		attr.flags = PIER_TRANSFER_FAIL_FAST;
		pair->rails[1].parts = wrong;
		expect_result(pier_transfer_run(&attr, PATIENT), -EACCES);
		test_assert_sentence("rail 1 of 2 failed");
		assert_int_equal(pier_channel_outstanding(pair->rails[0].channel), 0);
		assert_int_equal(pier_channel_outstanding(pair->rails[1].channel), 0);
		/* The working rail was allowed to finish its chunks. */
		assert_int_not_equal(
			pier_channel_post_send(pair->rails[0].channel, NULL, 0, NULL),
			-EPIPE);
		shuffle(pair);
	}
}

/* From the callback: kill the far ends of rails after this many bytes. */
struct killer {
	struct pair *pair;
	uint64_t at;
	uint32_t rails; /* the number of rails to kill, from the first */
};

static int kill_rails(void *context, uint64_t done, uint64_t length)
{
	struct killer *killer = context;

	(void)length;
	for (uint32_t i = 0; i < killer->rails && done >= killer->at; i++) {
		struct pier_channel **channel = &killer->pair->there.channels[i];

		expect_ok(pier_channel_destroy(*channel));
		*channel = NULL;
	}
	return 0;
}

static void survives_a_dead_rail(void **state)
{
	struct pair *pair = *state;

	for (uint64_t at = CHUNK; at < LENGTH; at += 9 * CHUNK) {
		struct pier_transfer_attr attr = attr_of(pair, 2, LENGTH);
		struct killer killer = { pair, at, 1 };
		bool reading = (at / CHUNK) & 1;

		attr.direction = reading ? PIER_TRANSFER_READ : PIER_TRANSFER_WRITE;
		attr.progress = kill_rails;
		attr.context = &killer;
		shuffle(pair);
		expect_ok(pier_transfer_run(&attr, PATIENT));
		assert_null(pair->there.channels[0]);
		expect_moved(pair, LENGTH, reading);
	}
}

static uint64_t get64(const uint8_t *wire)
{
	uint64_t value = 0;

	for (int i = 8; i-- > 0;)
		value = value << 8 | wire[i];
	return value;
}

/*
 * After a failure: change the target's bytes that are known to have arrived; they must
 * keep the new value. Returns the number of missing bytes.
 */
static uint64_t mark_arrived(struct pair *pair, const struct pier_transfer *transfer)
{
	uint64_t at = 0, missing = 0;
	uint8_t wire[4096];
	uint32_t count;

	assert_true(pier_transfer_pack(transfer, wire, sizeof(wire)) > 0);
	memcpy(pair->target + GUARD, pair->source + GUARD, LENGTH);
	count = wire[8];
	for (uint32_t i = 0; i <= count; i++) {
		uint64_t offset = i < count ? get64(wire + 24 + 16 * i) : LENGTH;
		uint64_t length = i < count ? get64(wire + 32 + 16 * i) : 0;

		for (; at < offset; at++) {
			assert_int_equal(pair->there.memory[GUARD + at],
					 pair->source[GUARD + at]);
			pair->there.memory[GUARD + at] ^= 0xff;
			pair->target[GUARD + at] ^= 0xff;
		}
		at += length;
		missing += length;
	}
	return missing;
}

static void resumes_exactly_the_missing_bytes(void **state)
{
	struct pair *pair = *state;

	for (uint64_t at = CHUNK; at < LENGTH - 17 * CHUNK; at += 11 * CHUNK) {
		struct pier_transfer_attr attr = attr_of(pair, 2, LENGTH);
		struct killer killer = { pair, at, 2 };
		struct pier_transfer_status status;
		struct pier_transfer *transfer;
		uint64_t missing;

		attr.progress = kill_rails;
		attr.context = &killer;
		shuffle(pair);
		expect_ok(pier_transfer_create(&attr, &transfer));
		assert_true(pier_transfer_wait(transfer, PATIENT) < 0);
		test_assert_sentence("of 1048576 bytes have arrived: rail");
		pier_transfer_query(transfer, &status, sizeof(status));
		assert_true(status.ended);
		assert_int_equal(status.working_rails, 0);
		assert_int_equal(status.in_flight, 0);
		assert_true(status.done >= at && status.done < LENGTH);
		missing = mark_arrived(pair, transfer);
		assert_int_equal(missing, LENGTH - status.done);
		killer.rails = 0;
		attr_of(pair, 1, LENGTH);
		expect_ok(pier_transfer_resume(transfer, pair->rails, 1));
		expect_result(pier_transfer_wait(transfer, PATIENT), 1);
		assert_int_equal(rail_status(transfer, 0).done, missing);
		expect_ok(pier_transfer_destroy(transfer));
		expect_image(&pair->here, pair->source);
		expect_image(&pair->there, pair->target);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		transfer_test(other_rails_take_over),
		transfer_test(survives_a_dead_rail),
		transfer_test(resumes_exactly_the_missing_bytes),
	};

	return cmocka_run_group_tests_name("transfer_rails", tests, NULL, NULL);
}
