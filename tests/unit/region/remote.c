/* SPDX-License-Identifier: BSD-3-Clause */
/* Remote regions. They are values, so no device is needed. */
#include "tests/support/cmocka.h"

#include "tests/support/golden.h"
#include "tests/support/plain_region.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <pier/error.h>
#include <pier/remote.h>

#include "region/mr.h"

static const struct pier_mr local = {
	.mr = &verbs_mr,
	.iova = 0x1000,
	.length = 10,
};

static const struct pier_remote untouched = { 7, 7, 7 };

/* Compare field by field: the struct has padding. */
static void assert_same(const struct pier_remote *a, const struct pier_remote *b)
{
	assert_int_equal(a->addr, b->addr);
	assert_int_equal(a->length, b->length);
	assert_int_equal(a->rkey, b->rkey);
}

static void assert_untouched(const struct pier_remote *remote)
{
	assert_same(remote, &untouched);
}

#define assert_remote(remote, a, l)                     \
	do {                                            \
		assert_int_equal((remote).addr, (a));   \
		assert_int_equal((remote).length, (l)); \
		assert_int_equal((remote).rkey, 0x22);  \
	} while (0)

static void describes_a_region(void **state)
{
	struct pier_remote remote = untouched;

	(void)state;
	assert_int_equal(pier_mr_remote(&local, &remote), -EACCES);
	assert_untouched(&remote);
	assert_int_equal(pier_mr_remote(&region, &remote), 0);
	assert_remote(remote, 0x10123, 1000);
}

static void takes_sub_ranges(void **state)
{
	struct pier_remote all = { 0x10123, 1000, 0x22 }, part = untouched;

	(void)state;
	assert_int_equal(pier_remote_sub(&all, 1001, 0, &part), -ERANGE);
	assert_int_equal(pier_remote_sub(&all, 0, 1001, &part), -ERANGE);
	assert_int_equal(pier_remote_sub(&all, 999, 2, &part), -ERANGE);
	assert_int_equal(pier_remote_sub(&all, UINT64_MAX, 2, &part), -ERANGE);
	assert_int_equal(pier_remote_sub(&all, 2, UINT64_MAX, &part), -ERANGE);
	assert_untouched(&part);
	assert_int_equal(pier_remote_sub(&all, 1000, 0, &part), 0);
	assert_remote(part, 0x10123 + 1000, 0);
	assert_int_equal(pier_remote_sub(&all, 3, 17, &part), 0);
	assert_remote(part, 0x10126, 17);
}

/* A hand-written descriptor whose end exceeds 64 bits. */
static void refuses_sub_ranges_that_wrap(void **state)
{
	struct pier_remote all = { UINT64_MAX - 5, 100, 0x22 }, part = untouched;

	(void)state;
	assert_int_equal(pier_remote_sub(&all, 6, 1, &part), -ERANGE);
	assert_int_equal(pier_remote_sub(&all, 0, 7, &part), -ERANGE);
	assert_untouched(&part);
	assert_int_equal(pier_remote_sub(&all, 0, 5, &part), 0);
}

struct record {
	uint8_t tag;
	uint32_t counter;
	uint64_t values[3];
};

static void narrows_to_elements_and_fields(void **state)
{
	struct pier_remote all = { 0x2000, 3 * sizeof(struct record), 0x22 };
	struct pier_remote part = untouched;

	(void)state;
	assert_int_equal(PIER_REMOTE_ARRAY(&all, struct record, 3, &part), -ERANGE);
	assert_int_equal(PIER_REMOTE_ARRAY(&all, struct record, UINT64_MAX / 2, &part),
			 -ERANGE);
	/* The product wraps to 0, which would be inside. */
	assert_int_equal(PIER_REMOTE_ARRAY(&all, uint64_t, 1ull << 61, &part), -ERANGE);
	assert_int_equal(PIER_REMOTE_STRUCT_ARRAY(&all, struct record, 3, tag, &part),
			 -ERANGE);
	assert_untouched(&part);

	assert_int_equal(PIER_REMOTE_ARRAY(&all, struct record, 2, &part), 0);
	assert_remote(part, 0x2000 + 2 * sizeof(struct record), sizeof(struct record));
	assert_int_equal(PIER_REMOTE_STRUCT(&all, struct record, counter, &part), 0);
	assert_remote(part, 0x2000 + offsetof(struct record, counter), 4);
	assert_int_equal(PIER_REMOTE_STRUCT_ARRAY(&all, struct record, 1, values, &part),
			 0);
	assert_remote(part,
		      0x2000 + sizeof(struct record) + offsetof(struct record, values),
		      24);
}

static void narrows_without_checks(void **state)
{
	struct pier_remote all = { 0x2000, 0, 0x22 }, part;

	(void)state;
	part = PIER_REMOTE_ARRAY_UNCHECKED(&all, struct record, 2);
	assert_remote(part, 0x2000 + 2 * sizeof(struct record), sizeof(struct record));
	part = PIER_REMOTE_STRUCT_UNCHECKED(&all, struct record, counter);
	assert_remote(part, 0x2000 + offsetof(struct record, counter), 4);
	part = PIER_REMOTE_STRUCT_ARRAY_UNCHECKED(&all, struct record, 1, values);
	assert_remote(part,
		      0x2000 + sizeof(struct record) + offsetof(struct record, values),
		      24);
}

static void has_the_documented_wire_form(void **state)
{
	static const uint8_t golden[PIER_REMOTE_WIRE_SIZE] = {
		'P',  'r',  'M',  'R',	1, 0,	 32,   0,    0x78, 0x56, 0x34,
		0x12, 0,    0,	  0,	0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
		0x22, 0x11, 0x00, 0x10, 0, 0,	 0,    0,    0,	   0,
	};
	const struct pier_remote remote = { 0x1122334455667788, 0x1000, 0x12345678 };
	struct pier_remote back = untouched;
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];

	(void)state;
	pier_remote_pack(&remote, wire);
	assert_memory_equal(wire, golden, sizeof(golden));
	assert_int_equal(pier_remote_unpack(golden, sizeof(golden), &back), 0);
	assert_same(&remote, &back);
}

static void rejects_hostile_wire_forms(void **state)
{
	const struct pier_remote remote = { 0x1000, 0x1000, 0x12345678 };
	uint8_t wire[PIER_REMOTE_WIRE_SIZE], bad[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote back = untouched;

	(void)state;
	pier_remote_pack(&remote, wire);
	for (size_t size = 0; size < sizeof(wire); size++)
		assert_int_equal(pier_remote_unpack(wire, size, &back), -EMSGSIZE);
	/* Each byte of the header and each reserved byte has exactly one valid value. */
	for (size_t i = 0; i < 16; i++) {
		if (i >= 8 && i < 12)
			continue;
		memcpy(bad, wire, sizeof(bad));
		bad[i] ^= 0x40;
		assert_int_equal(pier_remote_unpack(bad, sizeof(bad), &back),
				 i == 4 || i == 5 ? -EPROTONOSUPPORT : -EBADMSG);
	}
	memcpy(bad, wire, sizeof(bad));
	memset(bad + 16, 0xff, 8);
	assert_int_equal(pier_remote_unpack(bad, sizeof(bad), &back), -EBADMSG);
	assert_untouched(&back);
}

static void has_the_documented_text_form(void **state)
{
	const struct pier_remote remote = { 0x1122334455667788, 0x1000, 0x12345678 };
	char golden[PIER_REMOTE_TEXT_SIZE + 1], text[PIER_REMOTE_TEXT_SIZE];
	struct pier_remote back = untouched;

	(void)state;
	read_golden("remote_v1.text", golden, sizeof(golden));
	assert_int_equal(pier_remote_from_text(golden, &back), 0);
	assert_same(&remote, &back);
	pier_remote_to_text(&remote, text);
	assert_int_equal(strlen(text), sizeof(text) - 1);
	golden[strcspn(golden, "\n")] = '\0';
	assert_string_equal(text, golden);
}

static void rejects_hostile_texts(void **state)
{
	const struct pier_remote remote = { 0x1000, 0x1000, 0x12345678 };
	char text[PIER_REMOTE_TEXT_SIZE], changed[2 * sizeof(text)];
	struct pier_remote back = untouched;

	(void)state;
	pier_remote_to_text(&remote, text);
	for (size_t cut = 0; cut < sizeof(text) - 1; cut++) {
		memcpy(changed, text, cut);
		changed[cut] = '\0';
		assert_true(pier_remote_from_text(changed, &back) < 0);
	}
	snprintf(changed, sizeof(changed), "%s00", text);
	assert_int_equal(pier_remote_from_text(changed, &back), -EBADMSG);
	snprintf(changed, sizeof(changed), "%s g", text);
	assert_int_equal(pier_remote_from_text(changed, &back), -EBADMSG);
	snprintf(changed, sizeof(changed), "pier-endpoint:%s", strchr(text, ':') + 1);
	assert_int_equal(pier_remote_from_text(changed, &back), -EBADMSG);
	assert_int_equal(pier_remote_from_text(NULL, &back), -EINVAL);
	assert_int_equal(pier_remote_from_text("pier-remote:", &back), -EMSGSIZE);
	/* The version is the fifth byte. */
	snprintf(changed, sizeof(changed), "%s", text);
	changed[strlen("pier-remote:") + 9] = '2';
	assert_int_equal(pier_remote_from_text(changed, &back), -EPROTONOSUPPORT);
	assert_untouched(&back);
}

static void knows_which_region_encloses_another(void **state)
{
	(void)state;
	assert_true(pier_mr_encloses(&region, 0x10123, 1000));
	assert_true(pier_mr_encloses(&region, 0x10123 + 1000, 0));
	assert_false(pier_mr_encloses(&region, 0x10123 + 1001, 0));
	assert_false(pier_mr_encloses(&region, 0x10122, 0));
	assert_false(pier_mr_encloses(&region, 0x10123, 1001));
	assert_false(pier_mr_encloses(&region, 0x10124, UINT64_MAX));
}

/* Not pier_remote_sub(), whose plain case in <pier/inline.h> is unchecked. */
static void refuses_null(void **state)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote = { 0 };
	uint64_t length;

	(void)state;
	assert_int_equal(pier_remote_element(NULL, 0, 1, 0, 1, &remote), -EINVAL);
	test_assert_sentence("remote is NULL");
	assert_int_equal(pier_remote_unpack(NULL, sizeof(wire), &remote), -EINVAL);
	test_assert_sentence("wire is NULL");
	assert_int_equal(pier_remote_vec_length(NULL, 1, &length), -EINVAL);
	test_assert_sentence("parts is NULL");
	assert_int_equal(pier_remote_vec_pack(NULL, 1, wire, sizeof(wire)), -EINVAL);
	assert_int_equal(pier_remote_vec_unpack(NULL, sizeof(wire), NULL, 0, NULL),
			 -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(describes_a_region),
		cmocka_unit_test(takes_sub_ranges),
		cmocka_unit_test(refuses_sub_ranges_that_wrap),
		cmocka_unit_test(narrows_to_elements_and_fields),
		cmocka_unit_test(narrows_without_checks),
		cmocka_unit_test(has_the_documented_wire_form),
		cmocka_unit_test(rejects_hostile_wire_forms),

		cmocka_unit_test(knows_which_region_encloses_another),
		cmocka_unit_test(has_the_documented_text_form),
		cmocka_unit_test(rejects_hostile_texts),
		cmocka_unit_test(refuses_null),
	};

	return cmocka_run_group_tests_name("remote", tests, NULL, NULL);
}
