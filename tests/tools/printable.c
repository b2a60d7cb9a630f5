/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../support/cmocka.h"
#include "core/printable.h"
#include "printable.h"

static void check_printed(const char *text, const char *expected)
{
	char *shown = NULL;
	size_t size;
	FILE *file = open_memstream(&shown, &size);

	assert_non_null(file);
	print_safely(file, text);
	assert_int_equal(fclose(file), 0);
	assert_string_equal(shown, expected);
	free(shown);
}

static void printable_text_is_unchanged(void **state)
{
	(void)state;
	check_printed("", "");
	check_printed(" plain ~ \"\\", " plain ~ \"\\");
	/* The first and the last character of every length. */
	check_printed("\xc2\xa0\xdf\xbf", "\xc2\xa0\xdf\xbf");
	check_printed("\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbd",
		      "\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbd");
	check_printed("\xf0\x90\x80\x80\xf0\x9f\x9a\xa2\xf4\x8f\xbf\xbd",
		      "\xf0\x90\x80\x80\xf0\x9f\x9a\xa2\xf4\x8f\xbf\xbd");
}

static void c0_and_del_are_escaped(void **state)
{
	char text[2] = "", expected[8];
	int c;

	(void)state;
	for (c = 1; c < 0x80; c = c == 0x1f ? 0x7f : c + 1) {
		text[0] = (char)c;
		snprintf(expected, sizeof(expected), "\\x%02x", c);
		check_printed(text, expected);
	}
	check_printed("a\033[2Jb\r\n\tc", "a\\x1b[2Jb\\x0d\\x0a\\x09c");
}

static void c1_is_escaped_as_a_byte_and_as_utf8(void **state)
{
	char byte[2] = "", utf8[3] = "\xc2", expected[16];
	int c;

	(void)state;
	for (c = 0x80; c < 0xa0; c++) {
		byte[0] = utf8[1] = (char)c;
		snprintf(expected, sizeof(expected), "\\x%02x", c);
		check_printed(byte, expected);
		snprintf(expected, sizeof(expected), "\\xc2\\x%02x", c);
		check_printed(utf8, expected);
	}
}

static void bytes_that_are_not_utf8_are_escaped(void **state)
{
	(void)state;
	check_printed("\xa0\xff\xfe", "\\xa0\\xff\\xfe");
	/* Truncated, at the end and before another character. */
	check_printed("\xe2\x82", "\\xe2\\x82");
	check_printed("\xe2\x82z\xc3", "\\xe2\\x82z\\xc3");
	check_printed("\xf0\x9f\x9a\xc3\xa9", "\\xf0\\x9f\\x9a\xc3\xa9");
	/* Overlong: '/', ESC, U+07FF, U+FFFF. */
	check_printed("\xc0\xaf\xc1\xbf", "\\xc0\\xaf\\xc1\\xbf");
	check_printed("\xe0\x80\x9b\xe0\x9f\xbf", "\\xe0\\x80\\x9b\\xe0\\x9f\\xbf");
	check_printed("\xf0\x8f\xbf\xbf", "\\xf0\\x8f\\xbf\\xbf");
	/* Surrogates, and beyond U+10FFFF. */
	check_printed("\xed\xa0\x80\xed\xbf\xbf", "\\xed\\xa0\\x80\\xed\\xbf\\xbf");
	check_printed("\xf4\x90\x80\x80\xf5\x80\x80\x80",
		      "\\xf4\\x90\\x80\\x80\\xf5\\x80\\x80\\x80");
}

static void format_characters_are_escaped(void **state)
{
	static const char *const last[] = {
		"\x8b", "\x8e", "\x8f", "\xa8", "\xa9",
		"\xaa", "\xab", "\xac", "\xad", "\xae",
	};
	char text[4], expected[16];
	size_t i;
	int c;

	(void)state;
	/* U+200B, marks of direction, separators, U+202A to U+202E. */
	for (i = 0; i < sizeof(last) / sizeof(last[0]); i++) {
		snprintf(text, sizeof(text), "\xe2\x80%s", last[i]);
		snprintf(expected, sizeof(expected), "\\xe2\\x80\\x%02x",
			 (unsigned char)last[i][0]);
		check_printed(text, expected);
	}
	/* U+2066 to U+2069. */
	for (c = 0xa6; c <= 0xa9; c++) {
		snprintf(text, sizeof(text), "\xe2\x81%c", c);
		snprintf(expected, sizeof(expected), "\\xe2\\x81\\x%02x", c);
		check_printed(text, expected);
	}
	/* U+061C, U+FEFF, U+FFFF, a tag, U+10FFFF. */
	check_printed("\xd8\x9c", "\\xd8\\x9c");
	check_printed("\xef\xbb\xbf\xef\xbf\xbf", "\\xef\\xbb\\xbf\\xef\\xbf\\xbf");
	check_printed("\xf3\xa0\x81\x81", "\\xf3\\xa0\\x81\\x81");
	check_printed("\xf4\x8f\xbf\xbf", "\\xf4\\x8f\\xbf\\xbf");
}

static void codes_are_decoded(void **state)
{
	uint32_t code;

	(void)state;
	assert_int_equal(pier_decode_utf8("", &code), 0);
	assert_int_equal(pier_decode_utf8("a", &code), 1);
	assert_int_equal(code, 'a');
	assert_int_equal(pier_decode_utf8("\xc3\xa9", &code), 2);
	assert_int_equal(code, 0xe9);
	assert_int_equal(pier_decode_utf8("\xe2\x82\xac", &code), 3);
	assert_int_equal(code, 0x20ac);
	assert_int_equal(pier_decode_utf8("\xf4\x8f\xbf\xbf", &code), 4);
	assert_int_equal(code, 0x10ffff);
}

/* So lines of several processes on one terminal do not mix. */
static void a_line_is_one_write(void **state)
{
	char text[64];
	int ends[2];
	FILE *file;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	file = fdopen(ends[1], "w");
	assert_non_null(file);
	assert_int_equal(setvbuf(file, NULL, _IONBF, 0), 0);
	print_line(file, "%s: \033", "name");
	assert_int_equal(recv(ends[0], text, sizeof(text), 0), 11);
	assert_memory_equal(text, "name: \\x1b\n", 11);
	assert_int_equal(fclose(file), 0);
	close(ends[0]);
}

static void check_folded(const char *margin, const char *text, const char *expected)
{
	char *shown = NULL;
	size_t size;
	FILE *file = open_memstream(&shown, &size);

	assert_non_null(file);
	print_folded(file, margin, "%s", text);
	assert_int_equal(fclose(file), 0);
	assert_string_equal(shown, expected);
	free(shown);
}

#define TEN	    "123456789 "
#define SIXTY	    TEN TEN TEN TEN TEN TEN
/* Two bytes, one column. */
#define FIVE_WIDE   "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
#define TWENTY_WIDE FIVE_WIDE FIVE_WIDE FIVE_WIDE FIVE_WIDE

static void lines_are_folded_between_words(void **state)
{
	(void)state;
	check_folded("", "", "\n");
	check_folded("  ", SIXTY TEN "1234567890", SIXTY TEN "1234567890\n");
	check_folded("  ", SIXTY TEN "1234567890 b  c", SIXTY TEN "1234567890\n  b  c\n");
	check_folded("  ", SIXTY TEN "12345678901", SIXTY "123456789\n  12345678901\n");
	check_folded("# ", SIXTY TEN SIXTY TEN SIXTY "b",
		     SIXTY TEN "123456789\n# " SIXTY "123456789\n# " TEN TEN TEN TEN TEN
			       "b\n");
	check_folded("  ", SIXTY "12345678  123456789012",
		     SIXTY "12345678\n  123456789012\n");
	check_folded("  ", SIXTY TEN "\x01 234567890", SIXTY TEN "\\x01\n  234567890\n");
}

static void words_longer_than_a_line_are_broken(void **state)
{
	(void)state;
	/* Behind the label, not before the word. */
	check_folded(
		"     ", "a    " TWENTY_WIDE TWENTY_WIDE TWENTY_WIDE TWENTY_WIDE " b",
		"a    " TWENTY_WIDE TWENTY_WIDE TWENTY_WIDE FIVE_WIDE FIVE_WIDE FIVE_WIDE
		"\n     " FIVE_WIDE " b\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(printable_text_is_unchanged),
		cmocka_unit_test(c0_and_del_are_escaped),
		cmocka_unit_test(c1_is_escaped_as_a_byte_and_as_utf8),
		cmocka_unit_test(bytes_that_are_not_utf8_are_escaped),
		cmocka_unit_test(format_characters_are_escaped),
		cmocka_unit_test(codes_are_decoded),
		cmocka_unit_test(a_line_is_one_write),
		cmocka_unit_test(lines_are_folded_between_words),
		cmocka_unit_test(words_longer_than_a_line_are_broken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
