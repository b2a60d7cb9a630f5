/* SPDX-License-Identifier: BSD-3-Clause */
/* Remote vectors. They are values, so no device is needed. */
#include "tests/support/cmocka.h"
#include "tests/support/golden.h"
#include "tests/support/plain_region.h"
#include "tests/support/random.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <pier/remote_vec.h>

#include "region/mr.h"

static const struct pier_mr local = {
	.mr = &verbs_mr,
	.iova = 0x1000,
	.length = 10,
};

/* 10, nothing, 1 and 5 bytes; keys 1 to 4. */
static const struct pier_remote vec[] = {
	{ 0x1000, 10, 1 },
	{ 0x9999, 0, 2 },
	{ 0xffffffffffffff00, 1, 3 },
	{ 0x77, 5, 0xfffffff4 },
};
enum {
	COUNT = sizeof(vec) / sizeof(vec[0]),
	ROOM = 8,
};

/* The output area of the functions, and the bytes they wrote. */
struct output {
	struct pier_remote parts[ROOM];
	uint32_t count;
};

static const struct pier_remote untouched = { 7, 7, 7 };

static struct output no_output(void)
{
	struct output output = { .count = 7 };

	for (int i = 0; i < ROOM; i++)
		output.parts[i] = untouched;
	return output;
}

/* Compare field by field: the struct has padding. */
static void assert_same(const struct pier_remote *a, const struct pier_remote *b)
{
	assert_int_equal(a->addr, b->addr);
	assert_int_equal(a->length, b->length);
	assert_int_equal(a->rkey, b->rkey);
}

/* Expect exactly these parts, and not a byte written behind them. */
static void assert_output(const struct output *output, const struct pier_remote *parts,
			  uint32_t count)
{
	assert_int_equal(output->count, count);
	for (uint32_t i = 0; i < ROOM; i++)
		assert_same(&output->parts[i], i < count ? &parts[i] : &untouched);
}

static void assert_no_output(const struct output *output)
{
	assert_int_equal(output->count, 7);
	for (uint32_t i = 0; i < ROOM; i++)
		assert_same(&output->parts[i], &untouched);
}

static void describes_a_region(void **state)
{
	const struct pier_remote one[] = { { 0x10123, 1000, 0x22 } };
	const struct pier_remote three[] = { { 0x10000, 100, 0x41 },
					     { 0x7007, 1, 0x42 },
					     { 0x10065, 5ull << 30, 0x43 } };
	struct output output = no_output();
	struct pier_remote whole;

	(void)state;
	assert_int_equal(pier_mr_remote_vec(&local, output.parts, ROOM, &output.count),
			 -EACCES);
	assert_int_equal(pier_mr_remote_vec(&parted, output.parts, 2, &output.count),
			 -ENOSPC);
	test_assert_sentence("has 3 parts, and there is room for 2");
	assert_no_output(&output);
	assert_int_equal(pier_mr_remote_vec(&parted, output.parts, 3, &output.count), 0);
	assert_output(&output, three, 3);
	output = no_output();
	assert_int_equal(pier_mr_remote_vec(&region, output.parts, 1, &output.count), 0);
	assert_output(&output, one, 1);
	assert_int_equal(pier_mr_remote(&parted, &whole), -EXDEV);
	test_assert_sentence("pier_mr_remote_vec()");
}

static void adds_up_its_length(void **state)
{
	const struct pier_remote sums[] = { { 0, UINT64_MAX, 1 }, { 0, 1, 1 } };
	const struct pier_remote ends[] = { { 1, 1, 1 }, { 2, UINT64_MAX, 1 } };
	uint64_t length = 7;

	(void)state;
	assert_int_equal(pier_remote_vec_length(sums, 2, &length), -ERANGE);
	test_assert_sentence("parts 0 to 1 overflow");
	assert_int_equal(pier_remote_vec_length(ends, 2, &length), -ERANGE);
	test_assert_sentence("part 1 of");
	assert_int_equal(length, 7);
	assert_int_equal(pier_remote_vec_length(sums, 1, &length), 0);
	assert_int_equal(length, UINT64_MAX);
	assert_int_equal(pier_remote_vec_length(vec, COUNT, &length), 0);
	assert_int_equal(length, 16);
	assert_int_equal(pier_remote_vec_length(NULL, 0, &length), 0);
	assert_int_equal(length, 0);
}

/* Compare byte by byte: where each byte of the vector is, and its key. */
static void assert_bytes(const struct output *output, uint64_t offset, uint64_t length)
{
	uint64_t at = 0, start = 0;
	uint32_t part = 0;

	for (uint32_t i = 0; i < output->count; i++) {
		assert_int_not_equal(output->parts[i].length, 0);
		for (uint64_t byte = 0; byte < output->parts[i].length; byte++, at++) {
			while (offset + at - start >= vec[part].length)
				start += vec[part++].length;
			assert_int_equal(output->parts[i].rkey, vec[part].rkey);
			assert_int_equal(output->parts[i].addr + byte,
					 vec[part].addr + offset + at - start);
		}
	}
	assert_int_equal(at, length);
}

static void takes_sub_ranges(void **state)
{
	(void)state;
	for (uint64_t offset = 0; offset <= 17; offset++) {
		for (uint64_t length = 0; length <= 18; length++) {
			struct output output = no_output();
			int error = pier_remote_vec_sub(vec, COUNT, offset, length,
							output.parts, 3, &output.count);

			if (offset + length > 16) {
				assert_int_equal(error, -ERANGE);
				assert_no_output(&output);
				continue;
			}
			assert_int_equal(error, 0);
			assert_bytes(&output, offset, length);
			for (uint32_t i = output.count; i < ROOM; i++)
				assert_same(&output.parts[i], &untouched);
		}
	}
}

static void refuses_invalid_sub_ranges(void **state)
{
	const struct pier_remote sums[] = { { 0, UINT64_MAX, 1 }, { 0, 1, 1 } };
	struct output output = no_output();

	(void)state;
	assert_int_equal(
		pier_remote_vec_sub(vec, COUNT, 9, 3, output.parts, 2, &output.count),
		-ENOSPC);
	test_assert_sentence("have 3 parts, and there is room for 2");
	assert_int_equal(pier_remote_vec_sub(vec, COUNT, UINT64_MAX, 2, output.parts,
					     ROOM, &output.count),
			 -ERANGE);
	assert_int_equal(pier_remote_vec_sub(vec, COUNT, 2, UINT64_MAX, output.parts,
					     ROOM, &output.count),
			 -ERANGE);
	assert_int_equal(
		pier_remote_vec_sub(sums, 2, 0, 1, output.parts, ROOM, &output.count),
		-ERANGE);
	assert_int_equal(
		pier_remote_vec_sub(NULL, 0, 0, 1, output.parts, ROOM, &output.count),
		-ERANGE);
	assert_no_output(&output);
	assert_int_equal(pier_remote_vec_sub(NULL, 0, 0, 0, NULL, 0, &output.count), 0);
	assert_int_equal(output.count, 0);
}

struct record {
	uint8_t tag;
	uint32_t counter;
};

/* The vector of the golden file and its wire form. */
static const struct pier_remote golden_vec[] = {
	{ 0x1122334455667788, 0x1000, 0x12345678 },
	{ 0x99, 0, 0xffffffff },
};
static const uint8_t golden_wire[PIER_REMOTE_VEC_WIRE_SIZE(2)] = {
	'P',  'r',  'M',  'V',	1,    0,    64,	  0,	/* magic, version, length */
	2,    0,    0,	  0,	0,    0,    0,	  0,	/* count, reserved */
	0x78, 0x56, 0x34, 0x12, 0,    0,    0,	  0,	/* rkey, reserved */
	0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, /* addr */
	0x00, 0x10, 0,	  0,	0,    0,    0,	  0,	/* length */
	0xff, 0xff, 0xff, 0xff, 0,    0,    0,	  0,	/* rkey, reserved */
	0x99, 0,    0,	  0,	0,    0,    0,	  0,	/* addr */
	0,    0,    0,	  0,	0,    0,    0,	  0,	/* length */
};

static void has_the_documented_wire_form(void **state)
{
	uint8_t wire[sizeof(golden_wire) + 1];
	struct output output = no_output();

	(void)state;
	memset(wire, 0x77, sizeof(wire));
	assert_int_equal(pier_remote_vec_pack(golden_vec, 2, wire, sizeof(wire)), 64);
	assert_memory_equal(wire, golden_wire, sizeof(golden_wire));
	assert_int_equal(wire[64], 0x77);
	assert_int_equal(pier_remote_vec_unpack(wire, 64, output.parts, 2, &output.count),
			 0);
	assert_output(&output, golden_vec, 2);
	output = no_output();
	assert_int_equal(pier_remote_vec_pack(NULL, 0, wire, 16), 16);
	assert_int_equal(pier_remote_vec_unpack(wire, 16, NULL, 0, &output.count), 0);
	assert_int_equal(output.count, 0);
}

static void refuses_to_pack_invalid_vectors(void **state)
{
	static const struct pier_remote many[PIER_MR_PARTS_MAX + 1];
	const struct pier_remote ends[] = { { 2, UINT64_MAX, 1 } };
	static uint8_t wire[PIER_REMOTE_VEC_WIRE_MAX + 24];

	(void)state;
	memset(wire, 0x77, sizeof(wire));
	assert_int_equal(
		pier_remote_vec_pack(many, PIER_MR_PARTS_MAX + 1, wire, sizeof(wire)),
		-E2BIG);
	assert_int_equal(pier_remote_vec_pack(ends, 1, wire, sizeof(wire)), -ERANGE);
	assert_int_equal(pier_remote_vec_pack(golden_vec, 2, wire, 63), -ENOSPC);
	for (size_t i = 0; i < sizeof(wire); i++)
		assert_int_equal(wire[i], 0x77);
	assert_int_equal(pier_remote_vec_pack(many, PIER_MR_PARTS_MAX, wire,
					      PIER_REMOTE_VEC_WIRE_MAX),
			 PIER_REMOTE_VEC_WIRE_MAX);
}

static void refuse_wire(const void *wire, size_t size, int error)
{
	struct output output = no_output();

	assert_int_equal(
		pier_remote_vec_unpack(wire, size, output.parts, ROOM, &output.count),
		error);
	assert_no_output(&output);
}

static void rejects_hostile_wire_forms(void **state)
{
	uint8_t bad[sizeof(golden_wire) + 1] = { 0 };
	struct output output = no_output();

	(void)state;
	for (size_t size = 0; size < sizeof(golden_wire); size++)
		refuse_wire(golden_wire, size, -EMSGSIZE);
	memcpy(bad, golden_wire, sizeof(golden_wire));
	refuse_wire(bad, sizeof(bad), -EMSGSIZE);
	/* Each byte of the header and each reserved byte has exactly one valid value. */
	for (size_t i = 0; i < sizeof(golden_wire); i++) {
		bool reserved = i >= 16 && (i - 16) % 24 >= 4 && (i - 16) % 24 < 8;

		if (i >= 16 && !reserved)
			continue;
		memcpy(bad, golden_wire, sizeof(golden_wire));
		bad[i] ^= 0x80;
		refuse_wire(bad, sizeof(golden_wire),
			    i == 4 || i == 5   ? -EPROTONOSUPPORT
			    : i == 6 || i == 7 ? -EMSGSIZE
					       : -EBADMSG);
	}
	/* First the end of a part wraps, then the sum. */
	memcpy(bad, golden_wire, sizeof(golden_wire));
	memset(bad + 24, 0xff, 8);
	refuse_wire(bad, sizeof(golden_wire), -EBADMSG);
	memset(bad + 24, 0, 8);
	memset(bad + 48, 0, 8);
	memset(bad + 56, 0xff, 8);
	refuse_wire(bad, sizeof(golden_wire), -EBADMSG);
	assert_int_equal(pier_remote_vec_unpack(golden_wire, sizeof(golden_wire),
						output.parts, 1, &output.count),
			 -ENOSPC);
	test_assert_sentence("of 2 parts, and there is room for 1");
	assert_no_output(&output);
}

/* More parts than allowed; all else is valid. */
static void rejects_too_many_parts(void **state)
{
	enum {
		TOO_MANY = PIER_MR_PARTS_MAX + 1,
		SIZE = PIER_REMOTE_VEC_WIRE_SIZE(TOO_MANY),
	};
	static const struct pier_remote parts[PIER_MR_PARTS_MAX];
	static struct pier_remote back[TOO_MANY];
	static uint8_t wire[SIZE];
	uint32_t count = 7;

	(void)state;
	assert_int_equal(pier_remote_vec_pack(parts, PIER_MR_PARTS_MAX, wire, SIZE),
			 PIER_REMOTE_VEC_WIRE_MAX);
	assert_int_equal(pier_remote_vec_unpack(wire, PIER_REMOTE_VEC_WIRE_MAX, back,
						TOO_MANY, &count),
			 0);
	assert_int_equal(count, PIER_MR_PARTS_MAX);
	wire[6] = SIZE & 0xff;
	wire[7] = SIZE >> 8;
	wire[8] = TOO_MANY & 0xff;
	wire[9] = TOO_MANY >> 8;
	assert_int_equal(pier_remote_vec_unpack(wire, SIZE, back, TOO_MANY, &count),
			 -EBADMSG);
	assert_int_equal(count, PIER_MR_PARTS_MAX);
}

static void has_the_documented_text_form(void **state)
{
	char golden[PIER_REMOTE_VEC_TEXT_SIZE(2) + 1];
	char text[PIER_REMOTE_VEC_TEXT_SIZE(2)];
	struct output output = no_output();

	(void)state;
	read_golden("remote_vec_v1.text", golden, sizeof(golden));
	assert_int_equal(
		pier_remote_vec_from_text(golden, output.parts, ROOM, &output.count), 0);
	assert_output(&output, golden_vec, 2);
	assert_int_equal(pier_remote_vec_to_text(golden_vec, 2, text, sizeof(text) - 1),
			 -ENOSPC);
	assert_int_equal(pier_remote_vec_to_text(golden_vec, 2, text, sizeof(text)), 0);
	assert_int_equal(strlen(text), sizeof(text) - 1);
	golden[strcspn(golden, "\n")] = '\0';
	assert_string_equal(text, golden);
}

static void refuse_text(const char *text, int error)
{
	struct output output = no_output();

	assert_int_equal(
		pier_remote_vec_from_text(text, output.parts, ROOM, &output.count),
		error);
	assert_no_output(&output);
}

static void rejects_hostile_texts(void **state)
{
	char text[PIER_REMOTE_VEC_TEXT_SIZE(2)], changed[sizeof(text) + 8];
	static char longest[2 * PIER_REMOTE_VEC_TEXT_SIZE(PIER_MR_PARTS_MAX)];

	(void)state;
	assert_int_equal(pier_remote_vec_to_text(golden_vec, 2, text, sizeof(text)), 0);
	for (size_t cut = 0; cut < sizeof(text) - 1; cut++) {
		bool odd = cut < 16 || cut % 2 != 0;

		memcpy(changed, text, cut);
		changed[cut] = '\0';
		refuse_text(changed, odd ? -EBADMSG : -EMSGSIZE);
	}
	snprintf(changed, sizeof(changed), "%s00", text);
	refuse_text(changed, -EMSGSIZE);
	snprintf(changed, sizeof(changed), "%s g", text);
	refuse_text(changed, -EBADMSG);
	snprintf(changed, sizeof(changed), "pier-remote:%s", text + 16);
	refuse_text(changed, -EBADMSG);
	refuse_text(NULL, -EINVAL);
	memset(longest, '0', sizeof(longest) - 1);
	memcpy(longest, text, 16);
	refuse_text(longest, -EBADMSG);
}

/* Unpacking returns what was packed. */
static void agrees_with_a_table_of_bytes(void **state)
{
	struct test_random random = test_random_start();
	static uint8_t wire[PIER_REMOTE_VEC_WIRE_MAX];
	static struct pier_remote parts[PIER_MR_PARTS_MAX], back[PIER_MR_PARTS_MAX];

	(void)state;
	for (int round = 0; round < 200; round++) {
		uint32_t count = (uint32_t)test_random_below(&random, 1025), found = 7;
		int size;

		for (uint32_t i = 0; i < count; i++)
			parts[i] = (struct pier_remote){
				.addr = test_random_next(&random) >> 1,
				.length = test_random_below(&random, 1ull << 40),
				.rkey = (uint32_t)test_random_next(&random),
			};
		size = pier_remote_vec_pack(parts, count, wire, sizeof(wire));
		assert_int_equal(size, PIER_REMOTE_VEC_WIRE_SIZE(count));
		assert_int_equal(pier_remote_vec_unpack(wire, (size_t)size, back,
							PIER_MR_PARTS_MAX, &found),
				 0);
		assert_int_equal(found, count);
		for (uint32_t i = 0; i < count; i++)
			assert_same(&parts[i], &back[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(describes_a_region),
		cmocka_unit_test(adds_up_its_length),
		cmocka_unit_test(takes_sub_ranges),
		cmocka_unit_test(refuses_invalid_sub_ranges),
		cmocka_unit_test(has_the_documented_wire_form),
		cmocka_unit_test(refuses_to_pack_invalid_vectors),
		cmocka_unit_test(rejects_hostile_wire_forms),
		cmocka_unit_test(rejects_too_many_parts),
		cmocka_unit_test(has_the_documented_text_form),
		cmocka_unit_test(rejects_hostile_texts),
		cmocka_unit_test(agrees_with_a_table_of_bytes),
	};

	return cmocka_run_group_tests_name("remote_vec", tests, NULL, NULL);
}
