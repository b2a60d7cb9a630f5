/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_HISTOGRAM_H
#define PIER_TOOLS_PERF_HISTOGRAM_H

#include <stdint.h>

/*
 * Times in nanoseconds, in buckets: one for each number below 128, then 128 for each
 * power of two, so a value is known to 0.8 %.
 */
enum {
	HISTOGRAM_STEPS = 128,
	HISTOGRAM_BUCKETS = 58 * HISTOGRAM_STEPS
};

struct histogram {
	uint64_t total, sum;
	uint64_t least, most; /* valid if total is not 0 */
	uint64_t counts[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *histogram, uint64_t ns);
void histogram_merge(struct histogram *histogram, const struct histogram *other);
/* The time that a part of all times, from 0 to 1, does not exceed; 0 if there are none.
 */
uint64_t histogram_quantile(const struct histogram *histogram, double part);
/* 0 if there are none. */
double histogram_mean(const struct histogram *histogram);
/* The shortest time in a bucket. */
uint64_t histogram_bucket_start(uint32_t bucket);

#endif
