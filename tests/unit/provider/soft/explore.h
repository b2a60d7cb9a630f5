/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_EXPLORE_H
#define TESTS_UNIT_EXPLORE_H

/* Include after cmocka.h. */

#include <stdbool.h>

/*
 * All orders in which something can happen, one run after the other: a run makes choices,
 * and is repeated with the last of them made differently until there is none left. What a
 * run does depends on its choices alone.
 *
 *	struct explorer explorer = { 0 };
 *
 *	do
 *		run();
 *	while (explore_next(&explorer));
 */

enum {
	EXPLORE_DEPTH = 256,
};

struct explorer {
	unsigned int chosen[EXPLORE_DEPTH], options[EXPLORE_DEPTH];
	unsigned int length, at;
	bool pruned;
	unsigned long runs;
};

/* From 0 to options - 1. */
static inline unsigned int explore_choose(struct explorer *explorer, unsigned int options)
{
	unsigned int at = explorer->at;

	if (explorer->pruned)
		return 0;
	if (at == explorer->length) {
		assert_true(at < EXPLORE_DEPTH);
		explorer->chosen[at] = 0;
		explorer->options[at] = options;
		explorer->length++;
	}
	/* Otherwise the run did not depend on its choices alone. */
	assert_int_equal(explorer->options[at], options);
	explorer->at++;
	return explorer->chosen[at];
}

/*
 * The last choice has no effect, so this order equals one that is tried without it: the
 * run goes on with default choices, and none of them is varied.
 */
static inline void explore_prune(struct explorer *explorer)
{
	explorer->pruned = true;
}

/* Returns false if no other order is left. */
static inline bool explore_next(struct explorer *explorer)
{
	assert_int_equal(explorer->at, explorer->length);
	explorer->runs++;
	explorer->at = 0;
	explorer->pruned = false;
	while (explorer->length > 0) {
		unsigned int last = explorer->length - 1;

		if (++explorer->chosen[last] < explorer->options[last])
			return true;
		explorer->length--;
	}
	return false;
}

#endif
