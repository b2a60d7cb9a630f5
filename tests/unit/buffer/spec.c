/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <errno.h>

#include "buffer/spec.h"

static void check_good(const char *text, const char *name, const char *unit)
{
	struct pier_spec spec;

	assert_int_equal(pier_parse_spec(text, &spec), 0);
	assert_int_equal(spec.name_length, strlen(name));
	assert_memory_equal(spec.name, name, spec.name_length);
	if (unit)
		assert_string_equal(spec.unit, unit);
	else
		assert_null(spec.unit);
}

static void accepts_valid_specs(void **state)
{
	(void)state;
	check_good("host", "host", NULL);
	check_good("host:huge", "host", "huge");
	check_good("dma_heap:linux,cma", "dma_heap", "linux,cma");
	check_good("a:b:c::", "a", "b:c::");
	check_good("X_9:/dev/x", "X_9", "/dev/x");
	check_good("a234567890123456789012345678901", "a234567890123456789012345678901",
		   NULL);
}

static void check_bad(const char *text, const char *sentence)
{
	struct pier_spec spec = { .name = "untouched" };

	assert_int_equal(pier_parse_spec(text, &spec), -EINVAL);
	test_assert_sentence(sentence);
	assert_string_equal(spec.name, "untouched");
}

static void refuses_invalid_specs(void **state)
{
	char longest[131] = "a:";

	(void)state;
	check_bad(NULL, "NULL");
	check_bad("", "0 characters");
	check_bad(":", "0 characters");
	check_bad(":huge", "0 characters");
	check_bad("host:", "0 characters");
	check_bad("a2345678901234567890123456789012", "32 characters");
	check_bad(" host", "character 1 of the name is 0x20");
	check_bad("ho st", "character 3 of the name is 0x20");
	check_bad("host\n", "character 5 of the name is 0x0a");
	check_bad("../host", "character 1 of the name is 0x2e");
	check_bad("h\xc3\xb6st", "character 2 of the name is 0xc3");
	check_bad("%s%n", "0x25");
	check_bad("host:a b", "character 2 of the unit is 0x20");
	check_bad("host:\x1b[2J", "character 1 of the unit is 0x1b");
	check_bad("host:\x7f", "0x7f");
	check_bad("host:\xff", "0xff");
	memset(longest + 2, 'u', 127);
	check_good(longest, "a", longest + 2);
	longest[129] = 'u';
	check_bad(longest, "128 characters");
}

/* Any input gets a verdict and a sentence that can be printed. */
static void survives_random_specs(void **state)
{
	struct test_random random = test_random_start();
	static const char likely[] = "host:dma_heap0%/\n\x1b\xff ";

	(void)state;
	for (int i = 0; i < 20000; i++) {
		size_t length = test_random_below(&random, 200);
		char *text = test_malloc(length +
					 1); /* the exact size finds reads past the end */
		struct pier_spec spec;

		for (size_t j = 0; j < length; j++)
			text[j] = likely[test_random_below(&random, sizeof(likely))];
		text[length] = '\0';
		if (pier_parse_spec(text, &spec) != 0) {
			for (const char *c = pier_error_message(); *c; c++)
				assert_in_range((unsigned char)*c, ' ', '~');
		} else {
			assert_ptr_equal(spec.name, text);
		}
		test_free(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(accepts_valid_specs),
		cmocka_unit_test(refuses_invalid_specs),
		cmocka_unit_test(survives_random_specs),
	};

	return cmocka_run_group_tests_name("spec", tests, NULL, NULL);
}
