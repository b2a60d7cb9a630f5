/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"
#include "../../tools/units.h"

static void bytes_have_binary_units(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {
		{ 0, "0 bytes" },
		{ 1, "1 byte" },
		{ 1023, "1023 bytes" },
		{ 1024, "1.00 KiB" },
		/* Rounded up to the next unit. */
		{ (1 << 20) - 1, "1.00 MiB" },
		{ 5ull << 30, "5.00 GiB" },
		{ UINT64_MAX, "16.00 EiB" },
	};
	char text[32];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		format_bytes(cases[i].bytes, text, sizeof(text));
		assert_string_equal(text, cases[i].text);
	}
}

static void rates_have_decimal_units(void **state)
{
	static const struct {
		double rate;
		const char *text;
	} cases[] = {
		{ 0, "0 B/s" },		  { 999.4, "999 B/s" },
		{ 999.6, "1.00 KB/s" },	  { 1500, "1.50 KB/s" },
		{ 999999, "1.00 MB/s" },  { 12.5e9, "12.50 GB/s" },
		{ 1.2e13, "12.00 TB/s" }, { 5e16, "50000.00 TB/s" },
	};
	char text[32];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		format_rate(cases[i].rate, text, sizeof(text));
		assert_string_equal(text, cases[i].text);
	}
}

static void durations_have_two_units(void **state)
{
	static const struct {
		double seconds;
		const char *text;
	} cases[] = {
		{ 0.4, "0 s" },
		{ 59.4, "59 s" },
		{ 59.6, "1 min 0 s" },
		{ 3599.6, "1 h 0 min" },
		{ 7384, "2 h 3 min" },
		{ 86400 * 4 + 3600 * 7, "4 d 7 h" },
		{ 1e300, "11574074074 d 1 h" },
	};
	char text[64];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		format_duration(cases[i].seconds, text, sizeof(text));
		assert_string_equal(text, cases[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_have_binary_units),
		cmocka_unit_test(rates_have_decimal_units),
		cmocka_unit_test(durations_have_two_units),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
