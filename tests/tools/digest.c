/* SPDX-License-Identifier: BSD-3-Clause */
#include "core/wire.h"
#include "../../tools/cp/digest.h"
#include "../support/cmocka.h"

static const uint8_t secret[CP_SECRET_SIZE] = { 1, 2, 3 };
static struct failure failure;

/* What both sides agree on, with libsodium in place of libcrypto. */
static void make_expected_tag(const char *context, uint64_t number, const uint8_t *bytes,
			      size_t length, uint8_t *ret_tag)
{
	uint8_t key[crypto_onetimeauth_KEYBYTES];

	crypto_kdf_derive_from_key(key, sizeof(key), number, context, secret);
	crypto_onetimeauth(ret_tag, bytes, length, key);
}

static void tag_is_poly1305_of_bytes_and_place(void **state)
{
	static const size_t lengths[] = { 0, 1, 15, 16, 17, 4095, 65536, 65551 };
	static uint8_t bytes[65551 + 24];
	uint8_t tag[CP_TAG_SIZE], expected[CP_TAG_SIZE];

	(void)state;
	randombytes_buf_deterministic(bytes, sizeof(bytes), secret);
	for (size_t i = 0; i < 8; i++) {
		size_t length = lengths[i];
		struct chunk chunk = { 7 + i, i << 33, length ? length : 9, !length };
		struct tag_state tag_state;

		begin_tag(&tag_state, secret, chunk.number);
		update_tag(&tag_state, bytes, length / 3);
		update_tag(&tag_state, bytes + length / 3, length - length / 3);
		assert_int_equal(finish_tag(&tag_state, &chunk, tag, &failure), 0);
		drop_tag(&tag_state);
		pier_put_le64(bytes + length, chunk.offset);
		pier_put_le64(bytes + length + 8, chunk.length);
		pier_put_le64(bytes + length + 16, chunk.hole);
		make_expected_tag("cp-chunk", chunk.number, bytes, length + 24, expected);
		assert_memory_equal(tag, expected, CP_TAG_SIZE);
		assert_true(tags_equal(tag, expected));
	}
}

static void tag_of_a_segment_covers_its_bytes_alone(void **state)
{
	uint8_t tag[CP_TAG_SIZE], expected[CP_TAG_SIZE];
	struct tag_state tag_state;

	(void)state;
	begin_segment_tag(&tag_state, secret, 5);
	update_tag(&tag_state, secret, sizeof(secret));
	assert_int_equal(finish_segment_tag(&tag_state, tag, &failure), 0);
	make_expected_tag("cp-kept-", 5, secret, sizeof(secret), expected);
	assert_memory_equal(tag, expected, CP_TAG_SIZE);
}

static void tags_that_differ_in_a_bit_are_not_equal(void **state)
{
	(void)state;
	for (size_t i = 0; i < 8 * CP_TAG_SIZE; i++) {
		uint8_t tag[CP_TAG_SIZE] = { 0 }, other[CP_TAG_SIZE] = { 0 };

		other[i / 8] ^= (uint8_t)(1 << i % 8);
		assert_false(tags_equal(tag, other));
	}
}

static void tag_that_libcrypto_failed_to_compute_is_a_failure(void **state)
{
	struct chunk chunk = { .length = sizeof(secret) };
	struct failure none = { .status = 0 };
	uint8_t tag[CP_TAG_SIZE];
	struct tag_state tag_state;

	(void)state;
	begin_tag(&tag_state, secret, 0);
	drop_tag(&tag_state);
	update_tag(&tag_state, secret, sizeof(secret));
	assert_int_equal(finish_tag(&tag_state, &chunk, tag, &none), -1);
	assert_int_equal(none.status, EXIT_FILE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tag_is_poly1305_of_bytes_and_place),
		cmocka_unit_test(tag_of_a_segment_covers_its_bytes_alone),
		cmocka_unit_test(tags_that_differ_in_a_bit_are_not_equal),
		cmocka_unit_test(tag_that_libcrypto_failed_to_compute_is_a_failure),
	};

	return init_digests() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
