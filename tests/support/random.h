/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_RANDOM_H
#define TESTS_SUPPORT_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Reproducible random numbers: the seed is printed, and PIER_SEED sets it. */
struct test_random {
	uint64_t state;
};

static inline struct test_random test_random_start(void)
{
	const char *wanted = getenv("PIER_SEED");
	struct timespec now;
	uint64_t seed;

	clock_gettime(CLOCK_REALTIME, &now);
	seed = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if (wanted)
		seed = strtoull(wanted, NULL, 0);
	if (seed == 0)
		seed = 1; /* xorshift stays at 0 */
	fprintf(stderr, "PIER_SEED=%#llx\n", (unsigned long long)seed);
	return (struct test_random){ seed };
}

/* xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift"). */
static inline uint64_t test_random_next(struct test_random *random)
{
	random->state ^= random->state >> 12;
	random->state ^= random->state << 25;
	random->state ^= random->state >> 27;
	return random->state * 0x2545f4914f6cdd1du;
}

/* From 0 to below - 1. */
static inline uint64_t test_random_below(struct test_random *random, uint64_t below)
{
	return test_random_next(random) % below;
}

#endif
