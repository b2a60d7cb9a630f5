/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_CHECKED_H
#define PIER_CORE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* Arithmetic on addresses and lengths that come from outside. */

/* *ret_sum = a + b; false, and nothing written, when that is past 2^64 - 1. */
static inline bool pier_add_u64(uint64_t a, uint64_t b, uint64_t *ret_sum)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*ret_sum = sum;
	return true;
}

/* *ret_product = a * b, likewise. */
static inline bool pier_mul_u64(uint64_t a, uint64_t b, uint64_t *ret_product)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*ret_product = product;
	return true;
}

/* *ret_rounded = value up to the next multiple of a power of two, likewise. */
static inline bool pier_round_up_u64(uint64_t value, uint64_t power,
				     uint64_t *ret_rounded)
{
	uint64_t sum;

	if (!pier_add_u64(value, power - 1, &sum))
		return false;
	*ret_rounded = sum & ~(power - 1);
	return true;
}

/* Whether [offset, offset + length) lies in [0, size), without overflow. */
static inline bool pier_range_fits(uint64_t offset, uint64_t length, uint64_t size)
{
	return offset <= size && length <= size - offset;
}

#endif
