/* SPDX-License-Identifier: BSD-3-Clause */

/* The lines that PIER_LOG writes to standard error. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/cmocka.h"
#include "core/log.h"

/* Log `name` with standard error redirected to a file, and return its contents. */
static void log_name(const char *name, char *ret_text, size_t size)
{
	FILE *file = tmpfile();
	int stderr_fd = dup(STDERR_FILENO);
	size_t length;

	assert_non_null(file);
	assert_true(stderr_fd >= 0);
	assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
	pier_info("found %s", name);
	assert_true(dup2(stderr_fd, STDERR_FILENO) >= 0);
	close(stderr_fd);
	rewind(file);
	length = fread(ret_text, 1, size - 1, file);
	ret_text[length] = '\0';
	fclose(file);
}

static void expect_line(const char *name, const char *expected)
{
	char text[8192], line[8192];

	log_name(name, text, sizeof(text));
	snprintf(line, sizeof(line), "pier: info: found %s\n", expected);
	assert_string_equal(text, line);
}

static void printable_text_is_unchanged(void **state)
{
	(void)state;
	expect_line("\xc3\xa9\xf0\x9f\x9a\xa2", "\xc3\xa9\xf0\x9f\x9a\xa2");
	expect_line("", "");
	expect_line(" soft0 ~ \"\\", " soft0 ~ \"\\");
}

static void other_bytes_are_escaped(void **state)
{
	(void)state;
	expect_line("\033]0;owned\a", "\\x1b]0;owned\\x07");
	expect_line("a\npier: error: b\r\t", "a\\x0apier: error: b\\x0d\\x09");
	/* DEL, and C1 as a byte and as UTF-8. */
	expect_line("\x7f\x9b"
		    "2J\xc2\x9b",
		    "\\x7f\\x9b2J\\xc2\\x9b");
}

static void long_messages_are_cut(void **state)
{
	char name[4096], text[8192];
	size_t length;

	(void)state;
	memset(name, '\033', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	log_name(name, text, sizeof(text));
	length = strlen(text);
	/* 1023 bytes including "found ", each other byte as four characters. */
	assert_int_equal(length, strlen("pier: info: found \n") + (1023 - 6) * 4);
	assert_string_equal(text + length - 5, "\\x1b\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(printable_text_is_unchanged),
		cmocka_unit_test(other_bytes_are_escaped),
		cmocka_unit_test(long_messages_are_cut),
	};

	/* Set before the first message: the library reads it once. */
	setenv("PIER_LOG", "info", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
