/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/golden.h"

#include <pier/endpoint.h>
#include <pier/error.h>

static struct pier_endpoint sample(uint16_t address_length)
{
	struct pier_endpoint endpoint = {
		.qpn = 0xabcdef,
		.psn = 0x123456,
		.lid = 0xfedc,
		.link_layer = PIER_LINK_ETHERNET,
		.mtu = 4096,
		.max_rd_atomic = 16,
		.generation = 0x89abcdef,
		.address_length = address_length,
	};

	for (int i = 0; i < 16; i++)
		endpoint.gid[i] = (uint8_t)(0xf0 + i);
	for (int i = 0; i < address_length; i++)
		endpoint.address[i] = (uint8_t)(i * 7 + 1);
	return endpoint;
}

static void assert_same(const struct pier_endpoint *a, const struct pier_endpoint *b)
{
	assert_int_equal(a->qpn, b->qpn);
	assert_int_equal(a->psn, b->psn);
	assert_int_equal(a->lid, b->lid);
	assert_int_equal(a->link_layer, b->link_layer);
	assert_int_equal(a->mtu, b->mtu);
	assert_int_equal(a->max_rd_atomic, b->max_rd_atomic);
	assert_int_equal(a->generation, b->generation);
	assert_memory_equal(a->gid, b->gid, sizeof(a->gid));
	assert_int_equal(a->address_length, b->address_length);
	assert_memory_equal(a->address, b->address, sizeof(a->address));
}

static void unpacks_what_was_packed(void **state)
{
	(void)state;
	for (uint16_t length = 0; length <= PIER_ENDPOINT_ADDRESS_MAX; length++) {
		struct pier_endpoint before = sample(length), after;
		uint8_t wire[PIER_ENDPOINT_WIRE_MAX];
		char text[PIER_ENDPOINT_TEXT_MAX], blanks[sizeof(text) + 8];
		int size = pier_endpoint_pack(&before, wire, sizeof(wire));

		assert_int_equal(size, 46 + length);
		assert_int_equal(pier_endpoint_unpack(wire, (size_t)size, &after), 0);
		assert_same(&before, &after);

		assert_int_equal(pier_endpoint_to_text(&before, text, sizeof(text)), 0);
		snprintf(blanks, sizeof(blanks), " \t%s\r\n ", text);
		memset(&after, 0, sizeof(after));
		assert_int_equal(pier_endpoint_from_text(blanks, &after), 0);
		assert_same(&before, &after);
	}
}

/* docs/wire.md, byte by byte: other programs rely on it. */
static void has_the_documented_form(void **state)
{
	static const uint8_t expected[] = {
		'P',  'I',  'E',  'P',	1,    0,    48,	  0,	0xef, 0xcd, 0xab, 0,
		0x56, 0x34, 0x12, 0,	0,    0x10, 0,	  0,	0xef, 0xcd, 0xab, 0x89,
		0xdc, 0xfe, 2,	  16,	0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7,
		0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff, 2,    0,    1,	  8,
	};
	struct pier_endpoint endpoint = sample(2);
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];

	(void)state;
	assert_int_equal(pier_endpoint_pack(&endpoint, wire, sizeof(wire)),
			 sizeof(expected));
	assert_memory_equal(wire, expected, sizeof(expected));
}

/* The first version stays readable and writable. */
static void matches_the_golden_text(void **state)
{
	struct pier_endpoint endpoint = sample(2), back;
	char golden[PIER_ENDPOINT_TEXT_MAX + 1], text[PIER_ENDPOINT_TEXT_MAX];

	(void)state;
	read_golden("endpoint_v1.text", golden, sizeof(golden));
	assert_int_equal(pier_endpoint_from_text(golden, &back), 0);
	assert_same(&endpoint, &back);
	assert_int_equal(pier_endpoint_to_text(&endpoint, text, sizeof(text)), 0);
	golden[strcspn(golden, "\n")] = '\0';
	assert_string_equal(text, golden);
}

static void refuses_fields_out_of_range(void **state)
{
	struct {
		struct pier_endpoint endpoint;
		const char *name;
	} cases[] = {
		{ sample(0), "qpn" },	     { sample(0), "psn" },
		{ sample(0), "mtu" },	     { sample(0), "mtu" },
		{ sample(0), "link layer" }, { sample(0), "address" },
	};
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];

	(void)state;
	cases[0].endpoint.qpn = 1 << 24;
	cases[1].endpoint.psn = UINT32_MAX;
	cases[2].endpoint.mtu = 8192;
	cases[3].endpoint.mtu = 1500;
	cases[4].endpoint.link_layer = (enum pier_link_layer)3;
	cases[5].endpoint.address_length = PIER_ENDPOINT_ADDRESS_MAX + 1;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(
			pier_endpoint_pack(&cases[i].endpoint, wire, sizeof(wire)),
			-EINVAL);
		assert_non_null(strstr(pier_error_message(), cases[i].name));
	}
}

/* Exact heap copies, so that a sanitizer sees any byte read beyond them. */
static int unpack_copy(const uint8_t *wire, size_t size, struct pier_endpoint *ret)
{
	uint8_t *copy = malloc(size ? size : 1);
	int result;

	memcpy(copy, wire, size);
	result = pier_endpoint_unpack(copy, size, ret);
	free(copy);
	return result;
}

static void refuses_every_other_length(void **state)
{
	struct pier_endpoint endpoint = sample(20), untouched = sample(3),
			     result = untouched;
	uint8_t wire[2 * PIER_ENDPOINT_WIRE_MAX] = { 0 };
	int size = pier_endpoint_pack(&endpoint, wire, sizeof(wire));

	(void)state;
	for (size_t length = 0; length < sizeof(wire); length++)
		if (length != (size_t)size)
			assert_int_equal(unpack_copy(wire, length, &result), -EMSGSIZE);
	assert_same(&result, &untouched);
	for (size_t length = 0; length < (size_t)size; length++) {
		char *small = malloc(length ? length : 1);

		assert_int_equal(pier_endpoint_pack(&endpoint, small, length), -ENOSPC);
		free(small);
	}
}

/* An accepted endpoint has only one wire form. */
static void survives_every_flipped_byte(void **state)
{
	struct pier_endpoint endpoint = sample(5), result;
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX], again[PIER_ENDPOINT_WIRE_MAX];
	int size = pier_endpoint_pack(&endpoint, wire, sizeof(wire));

	(void)state;
	for (int at = 0; at < size; at++) {
		for (int flip = 1; flip < 256; flip++) {
			int error;

			wire[at] ^= (uint8_t)flip;
			error = unpack_copy(wire, (size_t)size, &result);
			if (error == 0) {
				assert_true(at >= 8);
				assert_int_equal(
					pier_endpoint_pack(&result, again, sizeof(again)),
					size);
				assert_memory_equal(wire, again, (size_t)size);
			} else {
				assert_true(error == -EBADMSG || error == -EMSGSIZE ||
					    error == -EPROTONOSUPPORT);
			}
			wire[at] ^= (uint8_t)flip;
		}
	}
}

static void reports_different_errors(void **state)
{
	struct pier_endpoint endpoint = sample(0), result;
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];
	size_t size = (size_t)pier_endpoint_pack(&endpoint, wire, sizeof(wire));

	(void)state;
	assert_int_equal(pier_endpoint_unpack(NULL, size, &result), -EINVAL);
	wire[4] = 2;
	assert_int_equal(pier_endpoint_unpack(wire, size, &result), -EPROTONOSUPPORT);
	wire[4] = 1;
	wire[0] = 'X';
	assert_int_equal(pier_endpoint_unpack(wire, size, &result), -EBADMSG);
	wire[0] = 'P';
	wire[11] = 1; /* a qpn of 25 bits */
	assert_int_equal(pier_endpoint_unpack(wire, size, &result), -EBADMSG);
	wire[11] = 0;
	wire[44] = 1; /* a missing address */
	assert_int_equal(pier_endpoint_unpack(wire, size, &result), -EBADMSG);
	wire[44] = 0;
	assert_int_equal(pier_endpoint_unpack(wire, size, &result), 0);
}

static void rejects_malformed_texts(void **state)
{
	struct pier_endpoint endpoint = sample(0), result;
	char text[PIER_ENDPOINT_TEXT_MAX], changed[sizeof(text) + 1200];
	size_t length;

	(void)state;
	assert_int_equal(pier_endpoint_to_text(&endpoint, text, sizeof(text)), 0);
	length = strlen(text);
	for (size_t size = 0; size <= length; size++)
		assert_int_equal(pier_endpoint_to_text(&endpoint, changed, size),
				 -ENOSPC);
	assert_int_equal(pier_endpoint_to_text(&endpoint, changed, length + 1), 0);

	for (size_t cut = 0; cut < length; cut++) {
		memcpy(changed, text, cut);
		changed[cut] = '\0';
		assert_true(pier_endpoint_from_text(changed, &result) < 0);
	}
	snprintf(changed, sizeof(changed), "%s 00", text);
	assert_int_equal(pier_endpoint_from_text(changed, &result), -EBADMSG);
	snprintf(changed, sizeof(changed), "%s0g", text);
	assert_int_equal(pier_endpoint_from_text(changed, &result), -EBADMSG);
	snprintf(changed, sizeof(changed), "%s%01000d", text, 0);
	assert_int_equal(pier_endpoint_from_text(changed, &result), -EBADMSG);
	/* As getenv(3) returns it. */
	assert_int_equal(pier_endpoint_from_text(NULL, &result), -EINVAL);
	assert_int_equal(pier_endpoint_from_text("", &result), -EBADMSG);
	assert_int_equal(pier_endpoint_from_text("pier-endpoint:", &result), -EMSGSIZE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unpacks_what_was_packed),
		cmocka_unit_test(has_the_documented_form),
		cmocka_unit_test(matches_the_golden_text),
		cmocka_unit_test(refuses_fields_out_of_range),
		cmocka_unit_test(refuses_every_other_length),
		cmocka_unit_test(survives_every_flipped_byte),
		cmocka_unit_test(reports_different_errors),
		cmocka_unit_test(rejects_malformed_texts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
