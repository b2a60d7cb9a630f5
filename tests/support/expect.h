/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TEST_EXPECT_H
#define TEST_EXPECT_H

#include "cmocka.h"

#include <pier/error.h>

/* The call must return this; otherwise the sentence is printed. */
#define expect_result(call, expected)                                              \
	do {                                                                       \
		int result_ = (call), expected_ = (expected);                      \
                                                                                   \
		if (result_ != expected_)                                          \
			fail_msg("%s:%d: %s = %d, not %d: %s", __FILE__, __LINE__, \
				 #call, result_, expected_, pier_error_message()); \
	} while (0)
#define expect_ok(call) expect_result(call, 0)

#endif
