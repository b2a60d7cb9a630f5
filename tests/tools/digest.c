/* SPDX-License-Identifier: BSD-3-Clause */
#include "../../tools/cp/digest.h"
#include "../support/cmocka.h"
#include <stdio.h>
#include <string.h>

static const uint8_t secret[CP_SECRET_SIZE] = { 1, 2, 3 };
static struct failure failure;

static void expect_bytes(const uint8_t *bytes, size_t length, const char *hex)
{
	char printed[2 * CP_DIGEST_SIZE + 1];

	for (size_t i = 0; i < length; i++)
		snprintf(printed + 2 * i, 3, "%02x", bytes[i]);
	assert_string_equal(printed, hex);
}

/* The expected tags were computed by libsodium's crypto_kdf and crypto_onetimeauth. */
static void tag_is_poly1305_of_bytes_and_place(void **state)
{
	static const struct {
		size_t length;
		const char *tag;
	} known[] = {
		{ 0, "8f00b31cc3aa84c2e7603833d6c454eb" },
		{ 1, "c300c36667eee47094dd6013f59cf6cf" },
		{ 15, "8dc11c896749ec1789818c395e122e94" },
		{ 16, "1c7bdd3f5bbbe51a40e54f7ccbb2cf31" },
		{ 17, "a41d728902c8644a5693456a3349a358" },
		{ 4095, "b9f3c5b3859920c510cfcb9bfe45175f" },
		{ 65536, "401b048aff9c31d07af0cc953e7d6218" },
		{ 65551, "6d8b1364dd25b639b1a7555b039194d2" },
	};
	static uint8_t bytes[65551];
	uint8_t tag[CP_TAG_SIZE];

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7);
	for (size_t i = 0; i < 8; i++) {
		size_t length = known[i].length;
		struct chunk chunk = { 7 + i, i << 33, length ? length : 9, !length };
		struct mac_state tag_state;

		begin_tag(&tag_state, secret, chunk.number);
		update_mac(&tag_state, bytes, length / 3);
		update_mac(&tag_state, bytes + length / 3, length - length / 3);
		assert_int_equal(finish_tag(&tag_state, &chunk, tag, &failure), 0);
		drop_mac(&tag_state);
		expect_bytes(tag, sizeof(tag), known[i].tag);
	}
}

static void tag_of_a_segment_covers_its_bytes_alone(void **state)
{
	uint8_t tag[CP_TAG_SIZE];
	struct mac_state tag_state;

	(void)state;
	begin_segment_tag(&tag_state, secret, 5);
	update_mac(&tag_state, secret, sizeof(secret));
	assert_int_equal(finish_mac(&tag_state, tag, CP_TAG_SIZE, &failure), 0);
	expect_bytes(tag, sizeof(tag), "962d0df4941f0570593a4ca571961cf1");
}

static void digest_is_blake2b_of_size_and_tags(void **state)
{
	uint8_t tag[CP_TAG_SIZE], digest[CP_DIGEST_SIZE];
	struct mac_state digest_state;

	(void)state;
	begin_digest(&digest_state, secret, 1000);
	for (int i = 1; i <= 2; i++) {
		memset(tag, i, sizeof(tag));
		update_mac(&digest_state, tag, CP_TAG_SIZE);
	}
	assert_int_equal(finish_mac(&digest_state, digest, CP_DIGEST_SIZE, &failure), 0);
	expect_bytes(digest, sizeof(digest),
		     "85f4b2ec62b69dadc8c12ee9f23ec00f368c392f528926090e17e24f4050f8c1");
	/* The state is used up. */
	assert_int_equal(finish_mac(&digest_state, digest, CP_DIGEST_SIZE, &failure), -1);
}

static void tag_that_libcrypto_failed_to_compute_is_a_failure(void **state)
{
	struct chunk chunk = { .length = sizeof(secret) };
	struct failure none = { .status = 0 };
	uint8_t tag[CP_TAG_SIZE];
	struct mac_state tag_state;

	(void)state;
	begin_tag(&tag_state, secret, 0);
	drop_mac(&tag_state);
	update_mac(&tag_state, secret, sizeof(secret));
	assert_int_equal(finish_tag(&tag_state, &chunk, tag, &none), -1);
	assert_int_equal(none.status, EXIT_FILE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tag_is_poly1305_of_bytes_and_place),
		cmocka_unit_test(tag_of_a_segment_covers_its_bytes_alone),
		cmocka_unit_test(digest_is_blake2b_of_size_and_tags),
		cmocka_unit_test(tag_that_libcrypto_failed_to_compute_is_a_failure),
	};

	return init_digests() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
