/* SPDX-License-Identifier: BSD-3-Clause */
#include "histogram.h"

enum {
	STEP_BITS = 7
};

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t exponent;

	if (ns < HISTOGRAM_STEPS)
		return (uint32_t)ns;
	exponent = 63 - (uint32_t)__builtin_clzll(ns) - STEP_BITS;
	return (exponent + 1) * HISTOGRAM_STEPS +
	       (uint32_t)((ns >> exponent) - HISTOGRAM_STEPS);
}

uint64_t histogram_bucket_start(uint32_t bucket)
{
	uint32_t exponent = bucket / HISTOGRAM_STEPS, step = bucket % HISTOGRAM_STEPS;

	return exponent ? (uint64_t)(HISTOGRAM_STEPS + step) << (exponent - 1) : step;
}

void histogram_add(struct histogram *histogram, uint64_t ns)
{
	if (!histogram->total || ns < histogram->least)
		histogram->least = ns;
	if (!histogram->total || ns > histogram->most)
		histogram->most = ns;
	histogram->total++;
	histogram->sum += ns;
	histogram->counts[bucket_of(ns)]++;
}

void histogram_merge(struct histogram *histogram, const struct histogram *other)
{
	if (!other->total)
		return;
	if (!histogram->total || other->least < histogram->least)
		histogram->least = other->least;
	if (!histogram->total || other->most > histogram->most)
		histogram->most = other->most;
	histogram->total += other->total;
	histogram->sum += other->sum;
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		histogram->counts[i] += other->counts[i];
}

/* The middle of the bucket, but no time that did not occur. */
static uint64_t time_in_bucket(const struct histogram *histogram, uint32_t bucket)
{
	uint64_t start = histogram_bucket_start(bucket);
	uint64_t middle = start + (histogram_bucket_start(bucket + 1) - start) / 2;

	if (middle < histogram->least)
		return histogram->least;
	return middle > histogram->most ? histogram->most : middle;
}

double histogram_mean(const struct histogram *histogram)
{
	return histogram->total ? (double)histogram->sum / (double)histogram->total : 0;
}

uint64_t histogram_quantile(const struct histogram *histogram, double part)
{
	uint64_t rank = (uint64_t)(part * (double)histogram->total), seen = 0;

	if (!histogram->total)
		return 0;
	if (rank >= histogram->total)
		rank = histogram->total - 1;
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		seen += histogram->counts[i];
		if (seen > rank)
			return time_in_bucket(histogram, i);
	}
	return histogram->most;
}
