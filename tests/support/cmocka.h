/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_CMOCKA_H
#define TESTS_SUPPORT_CMOCKA_H

/* cmocka.h needs these headers first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <pier/error.h>

/* The last error's sentence must contain this. */
#define test_assert_sentence(part)                                                      \
	do {                                                                            \
		if (!strstr(pier_error_message(), (part)))                              \
			fail_msg("\"%s\" is not in: %s", (part), pier_error_message()); \
	} while (0)

#endif
