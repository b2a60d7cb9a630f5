/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_GPU_BARE_H
#define TESTS_GPU_BARE_H

#include <sys/types.h>

#include "driver.h"

/* What the bare driver exports, to be compared with what pier does. */

/* The kernel's name of an fd's file, and its size. */
struct bare_file {
	char name[64];
	off_t size;
};

struct bare_answer {
	unsigned int error;
	struct bare_file file;
};

/* For the range's pages, and for the whole allocation around its first byte. */
struct bare_answers {
	struct bare_answer range;
	struct bare_answer whole;
};

struct bare_file bare_look_at(int fd);
struct bare_answers bare_ask(uint64_t address, size_t length, enum pier_mapping mapping);
bool bare_is_willing(const struct bare_answers *answers);

/*
 * pier has refused an export with the sentence of pier_error_message(). Fails if the
 * driver is willing: then the reason is wrong.
 */
void bare_assert_unwilling(const struct bare_answers *answers);

#endif
