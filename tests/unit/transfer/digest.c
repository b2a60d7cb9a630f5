/* SPDX-License-Identifier: BSD-3-Clause */
/* Digests of chunks: bytes that are wrong are found, and right ones arrive as without. */
#include <dlfcn.h>
#include <poll.h>

#include "soft_fixture.h"

static bool missing; /* libisal */

void *__real_dlopen(const char *file, int flags);
void *__wrap_dlopen(const char *file, int flags);

void *__wrap_dlopen(const char *file, int flags)
{
	if (missing && file && strcmp(file, "libisal.so.2") == 0)
		file = "libisal-that-is-missing.so.2";
	return __real_dlopen(file, flags);
}

/* First, before another test has opened it. */
static void sentence_names_the_missing_library(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer_attr attr = attr_of(pair, 1, LENGTH);

	attr.flags = PIER_TRANSFER_DIGEST;
	missing = true;
	expect_result(pier_transfer_run(&attr, PATIENT), -ELIBACC);
	test_assert_sentence("PIER_TRANSFER_DIGEST needs libisal");
	test_assert_sentence("install it (Debian: libisal2)");
	missing = false;
	attr.flags = 0;
	expect_ok(pier_transfer_run(&attr, PATIENT));
	expect_moved(pair, LENGTH, false);
}

static void moves_any_length(void **state)
{
	static const uint64_t lengths[] = { 0, 1, CHUNK + 1, 9 * CHUNK, LENGTH };
	struct pair *pair = *state;

	for (uint32_t rails = 1; rails <= 4; rails *= 2) {
		struct pier_transfer_attr attr = attr_of(pair, rails, 0);

		attr.flags = PIER_TRANSFER_DIGEST;
		for (size_t i = 0; i < 2 * sizeof(lengths) / sizeof(lengths[0]); i++) {
			bool reading = i % 2;

			attr.length = lengths[i / 2];
			attr.direction = reading ? PIER_TRANSFER_READ
						 : PIER_TRANSFER_WRITE;
			shuffle(pair);
			expect_ok(pier_transfer_run(&attr, PATIENT));
			expect_moved(pair, attr.length, reading);
		}
	}
}

/* The chunk's request has ended, and the transfer has not seen it. */
static void await_completion(struct pier_channel *channel)
{
	struct pollfd fd = { .fd = pier_channel_fd(channel), .events = POLLIN };
	int collected;

	while ((collected = pier_channel_arm(channel)) == 0)
		assert_int_equal(poll(&fd, 1, PATIENT), 1);
	assert_true(collected > 0);
}

static struct pier_transfer *begin_chunk(struct pair *pair, bool reading)
{
	struct pier_transfer_attr attr = attr_of(pair, 1, CHUNK);
	struct pier_transfer *transfer;

	attr.flags = PIER_TRANSFER_DIGEST;
	attr.direction = reading ? PIER_TRANSFER_READ : PIER_TRANSFER_WRITE;
	expect_ok(pier_transfer_create(&attr, &transfer));
	expect_result(pier_transfer_progress(transfer), 0);
	await_completion(pair->rails[0].channel);
	return transfer;
}

/* CRC-32C bit by bit: https://www.rfc-editor.org/rfc/rfc3720, appendix B.4. */
static uint32_t crc32c(const uint8_t *bytes, size_t length)
{
	uint32_t crc = UINT32_MAX;

	for (size_t i = 0; i < length; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

static void expect_digests(uint32_t source, uint32_t arrived)
{
	char text[128];

	test_assert_sentence("chunk [0, +16384) through soft0");
	snprintf(text, sizeof(text),
		 "source is %08x, and that of the bytes that arrived is %08x", source,
		 arrived);
	test_assert_sentence(text);
	test_assert_sentence("(CRC-32C; path ");
	test_assert_sentence(", mapping ");
}

/* One bit changes after the chunk has arrived; the transfer is resumed, and repairs it.
 */
static void finds_a_wrong_bit(void **state)
{
	struct pair *pair = *state;

	for (int reading = 0; reading < 2; reading++) {
		struct pier_transfer *transfer = begin_chunk(pair, reading);
		const struct side *source = reading ? &pair->there : &pair->here;
		uint8_t *target = (reading ? pair->here : pair->there).memory + GUARD;
		struct pier_transfer_status status;

		target[CHUNK - 1] ^= 0x10;
		expect_result(pier_transfer_wait(transfer, PATIENT), -EBADMSG);
		expect_digests(crc32c(source->memory + GUARD, CHUNK),
			       crc32c(target, CHUNK));
		pier_transfer_query(transfer, &status, sizeof(status));
		assert_int_equal(status.done, 0);
		assert_int_equal(status.in_flight, 0);
		expect_ok(pier_transfer_resume(transfer, pair->rails, 1));
		expect_result(pier_transfer_wait(transfer, PATIENT), 1);
		assert_int_equal(rail_status(transfer, 0).done, CHUNK);
		expect_ok(pier_transfer_destroy(transfer));
		expect_moved(pair, CHUNK, reading);
		shuffle(pair);
	}
}

/* A chunk that was not compared has not arrived. */
static void counts_what_was_compared(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer *transfer = begin_chunk(pair, false);
	struct pier_transfer_attr attr;
	struct pier_transfer_status status;
	uint8_t bytes[256];
	int size;

	expect_result(pier_transfer_cancel(transfer), 0);
	expect_result(pier_transfer_wait(transfer, PATIENT), -ECANCELED);
	pier_transfer_query(transfer, &status, sizeof(status));
	assert_int_equal(status.done, 0);
	size = pier_transfer_pack(transfer, bytes, sizeof(bytes));
	assert_true(size > 0);
	expect_ok(pier_transfer_destroy(transfer));
	attr = attr_of(pair, 1, CHUNK);
	attr.state = bytes;
	attr.state_size = (size_t)size;
	expect_ok(pier_transfer_create(&attr, &transfer));
	pier_transfer_query(transfer, &status, sizeof(status));
	assert_int_equal(status.done, 0);
	expect_ok(pier_transfer_destroy(transfer));
}

/* The far end of a rail goes when some bytes have arrived; the others judge its chunks.
 */
static int kill_rail(void *context, uint64_t done, uint64_t length)
{
	struct pair *pair = context;

	if (done >= length / 4 && pair->there.channels[1]) {
		expect_ok(pier_channel_destroy(pair->there.channels[1]));
		pair->there.channels[1] = NULL;
	}
	return 0;
}

static void other_rails_take_over(void **state)
{
	struct pair *pair = *state;

	for (int reading = 0; reading < 2; reading++) {
		struct pier_transfer_attr attr = attr_of(pair, 3, LENGTH);

		attr.flags = PIER_TRANSFER_DIGEST;
		attr.direction = reading ? PIER_TRANSFER_READ : PIER_TRANSFER_WRITE;
		attr.progress = kill_rail;
		attr.context = pair;
		expect_ok(pier_transfer_run(&attr, PATIENT));
		expect_moved(pair, LENGTH, reading);
		shuffle(pair);
	}
}

/* The region for second reads is gone with the end of the transfer. */
static void ended_transfer_holds_no_region(void **state)
{
	struct pair *pair = *state;
	struct test_census before;
	struct pier_transfer_attr attr = attr_of(pair, 2, LENGTH);
	struct pier_transfer *transfer;

	before = test_take_census();
	attr.flags = PIER_TRANSFER_DIGEST;
	attr.rails = &pair->rails[0];
	expect_ok(pier_transfer_create(&attr, &transfer));
	expect_result(pier_transfer_wait(transfer, PATIENT), 1);
	expect_ok(pier_channel_destroy(pair->here.channels[0]));
	expect_ok(pier_channel_destroy(pair->here.channels[1]));
	pair->here.channels[0] = pair->here.channels[1] = NULL;
	expect_ok(pier_mr_dereg(pair->here.mr));
	expect_ok(pier_pd_dealloc(pair->here.pd));
	expect_ok(pier_transfer_destroy(transfer));
	expect_ok(pier_pd_alloc(pair->here.device, &pair->here.pd));
	expect_ok(pier_mr_reg_buffer(pair->here.pd, pair->here.buffer, 0, AREA,
				     PIER_ACCESS_SHARED, PIER_POLICY_DIRECT,
				     &pair->here.mr));
	connect_rail(pair, 0);
	connect_rail(pair, 1);
	test_assert_census(&before);
}

static struct pier_receiver *begin_receiver(const struct pair *pair, uint32_t rails,
					    uint64_t length, uint32_t flags)
{
	struct pier_receiver_rail given[MAX_RAILS];
	struct pier_receiver_attr attr;
	struct pier_receiver *receiver;

	pier_receiver_attr_init(&attr);
	for (uint32_t i = 0; i < rails; i++)
		given[i] = (struct pier_receiver_rail){ pair->there.channels[i],
							pair->there.mr, GUARD };
	attr.rails = given;
	attr.rail_count = rails;
	attr.length = length;
	attr.flags = flags;
	expect_ok(pier_receiver_create(&attr, &receiver));
	return receiver;
}

/* With parts that end on blocks, as announced chunks need them. */
static struct pier_transfer *begin_announced(struct pair *pair, uint32_t rails,
					     uint64_t length, uint32_t flags)
{
	struct pier_transfer_attr attr;
	struct pier_transfer *transfer;

	pier_transfer_attr_init(&attr);
	expect_ok(pier_mr_remote(pair->there.mr, &pair->parts[0]));
	for (uint32_t i = 0; i < rails; i++)
		pair->rails[i].count = 1;
	attr.rails = pair->rails;
	attr.rail_count = rails;
	attr.length = length;
	attr.chunk = CHUNK;
	attr.flags = PIER_TRANSFER_ANNOUNCE | flags;
	expect_ok(pier_transfer_create(&attr, &transfer));
	return transfer;
}

/* Drive both to the end. Returns the receiver's result. */
static int end_both(struct pier_transfer *transfer, struct pier_receiver *receiver)
{
	int sent = 0, came = 0;

	while (sent == 0 || came == 0) {
		if (sent == 0)
			sent = pier_transfer_progress(transfer);
		came = pier_receiver_progress(receiver);
	}
	expect_result(sent, 1);
	return pier_receiver_progress(receiver);
}

static void receiver_compares_digests(void **state)
{
	static const uint64_t lengths[] = { 1, 4096, CHUNK + 1, LENGTH };
	struct pair *pair = *state;

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct pier_transfer *transfer;
		struct pier_receiver *receiver;

		connect_rail(pair, 0);
		connect_rail(pair, 1);
		shuffle(pair);
		receiver = begin_receiver(pair, 2, lengths[i], PIER_TRANSFER_DIGEST);
		transfer = begin_announced(pair, 2, lengths[i], PIER_TRANSFER_DIGEST);
		expect_result(end_both(transfer, receiver), 1);
		expect_ok(pier_transfer_destroy(transfer));
		expect_ok(pier_receiver_destroy(receiver));
		expect_moved(pair, lengths[i], false);
	}
}

static void receiver_finds_a_wrong_bit(void **state)
{
	struct pair *pair = *state;
	uint8_t *target = pair->there.memory + GUARD;
	struct pier_transfer *transfer;
	struct pier_receiver *receiver;

	connect_rail(pair, 0);
	receiver = begin_receiver(pair, 1, CHUNK, PIER_TRANSFER_DIGEST);
	transfer = begin_announced(pair, 1, CHUNK, PIER_TRANSFER_DIGEST);
	expect_result(pier_transfer_progress(transfer), 0);
	await_completion(pair->rails[0].channel);
	target[0] ^= 1;
	expect_result(end_both(transfer, receiver), -EBADMSG);
	expect_digests(crc32c(pair->here.memory + GUARD, CHUNK), crc32c(target, CHUNK));
	expect_result(pier_receiver_resume(
			      receiver,
			      &(struct pier_receiver_rail){ pair->there.channels[0],
							    pair->there.mr, GUARD },
			      1),
		      -EBADMSG);
	expect_ok(pier_transfer_destroy(transfer));
	expect_ok(pier_receiver_destroy(receiver));
}

static void ends_must_agree(void **state)
{
	static const char *const sentences[] = {
		"the peer announced a chunk without a digest",
		"the peer sent a message, and no chunk: if it is a digest",
	};
	struct pair *pair = *state;

	for (uint32_t i = 0; i < 2; i++) {
		struct pier_transfer *transfer;
		struct pier_receiver *receiver;

		connect_rail(pair, 0);
		receiver = begin_receiver(pair, 1, CHUNK, i ? 0 : PIER_TRANSFER_DIGEST);
		transfer = begin_announced(pair, 1, CHUNK, i ? PIER_TRANSFER_DIGEST : 0);
		expect_result(end_both(transfer, receiver), -EBADMSG);
		test_assert_sentence(sentences[i]);
		expect_ok(pier_transfer_destroy(transfer));
		expect_ok(pier_receiver_destroy(receiver));
	}
}

static void environment_sets_the_flag(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer_attr attr = attr_of(pair, 1, CHUNK);
	struct pier_transfer *transfer;

	setenv("PIER_TRANSFER_DIGEST", "on", 1);
	expect_ok(pier_transfer_create(&attr, &transfer));
	unsetenv("PIER_TRANSFER_DIGEST");
	expect_result(pier_transfer_progress(transfer), 0);
	await_completion(pair->rails[0].channel);
	pair->there.memory[GUARD] ^= 1;
	expect_result(pier_transfer_wait(transfer, PATIENT), -EBADMSG);
	expect_ok(pier_transfer_destroy(transfer));
}

static void impossible_digests_are_refused(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer_attr attr = attr_of(pair, 1, CHUNK);
	struct pier_transfer *transfer;

	attr.flags = PIER_TRANSFER_DIGEST | PIER_TRANSFER_ANNOUNCE;
	attr.length = 0;
	attr.stream_size = 16 * 4096;
	attr.chunk = 4096;
	expect_result(pier_transfer_create(&attr, &transfer), -EINVAL);
	test_assert_sentence("a stream has no digests");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		transfer_test(sentence_names_the_missing_library),
		transfer_test(moves_any_length),
		transfer_test(finds_a_wrong_bit),
		transfer_test(counts_what_was_compared),
		transfer_test(other_rails_take_over),
		transfer_test(ended_transfer_holds_no_region),
		transfer_test(receiver_compares_digests),
		transfer_test(receiver_finds_a_wrong_bit),
		transfer_test(ends_must_agree),
		transfer_test(environment_sets_the_flag),
		transfer_test(impossible_digests_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
