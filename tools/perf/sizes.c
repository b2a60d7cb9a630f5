/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <string.h>

#include "failure.h"
#include "sizes.h"
#include "units.h"

enum {
	BANDWIDTH_SIZE = 65536, /* these two as perftest's */
	LATENCY_SIZE = 2,
	BANDWIDTH_DEPTH = 128,
	BANDWIDTH_RX_DEPTH = 512,
	LATENCY_DEPTH = 16,
	STAGED_BYTES = 64 << 20, /* for the staging slots of one channel */
};

static const struct perf_test {
	const char *name;
	enum pier_opcode opcode;
	bool latency;
} perf_tests[] = {
	{ "write_bw", PIER_OP_WRITE, false },
	{ "write_lat", PIER_OP_WRITE, true },
	{ "read_bw", PIER_OP_READ, false },
	{ "read_lat", PIER_OP_READ, true },
	{ "send_bw", PIER_OP_SEND, false },
	{ "send_lat", PIER_OP_SEND, true },
	{ "atomic_bw", PIER_OP_FETCH_ADD, false },
	{ "atomic_lat", PIER_OP_FETCH_ADD, true },
};

static int refuse_sizes(const char *text)
{
	print_error(
		"pier perf: invalid value '%s' for --size: must be sizes from 1 to 1G, "
		"such as 64K, 4K,1M or 4K-1M",
		text);
	return -1;
}

static int add_size(uint64_t size, uint64_t *sizes, uint32_t *count)
{
	if (size < 1 || size > PERF_SIZE_MAX || *count == PERF_SIZES_MAX)
		return -1;
	sizes[(*count)++] = size;
	return 0;
}

/* One size, or the powers of two of a range, which begins and ends as it was given. */
static int add_range(char *text, uint64_t *sizes, uint32_t *count)
{
	char *last_text = strchr(text, '-');
	uint64_t size, last;

	if (last_text)
		*last_text++ = '\0';
	if (parse_bytes(text, &size) < 0 || add_size(size, sizes, count) < 0)
		return -1;
	if (!last_text)
		return 0;
	if (parse_bytes(last_text, &last) < 0 || last < size || last > PERF_SIZE_MAX)
		return -1;
	for (uint64_t power = 1; power <= last; power *= 2)
		if (power > size && add_size(power, sizes, count) < 0)
			return -1;
	return sizes[*count - 1] < last ? add_size(last, sizes, count) : 0;
}

int parse_sizes(const char *text, uint64_t *ret_sizes, uint32_t *ret_count)
{
	char copy[1024], *rest = copy, *one;

	*ret_count = 0;
	if (strlen(text) >= sizeof(copy))
		return refuse_sizes(text);
	strcpy(copy, text);
	while ((one = strsep(&rest, ",")))
		if (add_range(one, ret_sizes, ret_count) < 0)
			return refuse_sizes(text);
	return 0;
}

static int refuse_combination(const char *complaint)
{
	print_error("pier perf: %s", complaint);
	return -1;
}

static int take_test(const char *name, struct perf_options *options)
{
	for (size_t i = 0; i < sizeof(perf_tests) / sizeof(perf_tests[0]); i++) {
		const struct perf_test *test = &perf_tests[i];

		if (strcmp(name, test->name) != 0)
			continue;
		if (options->settings.opcode && !is_atomic(test->opcode))
			return refuse_combination(
				"--atomic_type is for atomic_bw and atomic_lat");
		options->test = test->name;
		if (!options->settings.opcode)
			options->settings.opcode = test->opcode;
		options->settings.latency = test->latency;
		return 0;
	}
	print_error("pier perf: unknown test '%s'; 'pier perf --help' lists the tests",
		    name);
	return -1;
}

static int take_operands(int argc, char **argv, struct perf_options *options)
{
	if (argc - optind < 1 || argc - optind > 2)
		return refuse_combination(
			argc - optind < 1
				? "TEST is required, such as write_bw; usage: pier perf "
				  "[OPTION...] TEST [HOST]"
				: "too many arguments: one TEST and one HOST, no more");
	if (take_test(argv[optind], options) < 0)
		return -1;
	options->host = argv[optind + 1];
	if (options->host && (!options->host[0] || options->host[0] == '-'))
		return refuse_combination("the name of HOST is empty or begins with '-'");
	return 0;
}

static void choose_sizes(struct perf_options *options)
{
	struct perf_settings *settings = &options->settings;

	if (options->size_count == 0) {
		options->sizes[0] = is_atomic(settings->opcode) ? PERF_ATOMIC_SIZE
				    : settings->latency		? LATENCY_SIZE
								: BANDWIDTH_SIZE;
		options->size_count = 1;
	}
	for (uint32_t i = 0; i < options->size_count; i++)
		if (options->sizes[i] > settings->slot)
			settings->slot = options->sizes[i];
}

static void choose_depths(struct perf_settings *settings)
{
	uint64_t most = STAGED_BYTES / settings->slot;

	if (!settings->depth)
		settings->depth = settings->latency ? LATENCY_DEPTH : BANDWIDTH_DEPTH;
	if (!settings->rx_depth)
		settings->rx_depth = settings->latency ? LATENCY_DEPTH
						       : BANDWIDTH_RX_DEPTH;
	if (settings->staged) {
		/* Sends are the way of the bytes; nothing is written by the other side.
		 */
		settings->opcode = PIER_OP_SEND;
		most = most < 2 ? 2 : most;
		if (settings->depth > most)
			settings->depth = (uint32_t)most;
		if (settings->rx_depth > settings->depth)
			settings->rx_depth = settings->depth;
		settings->batch = 1;
	}
	if (!settings->batch)
		settings->batch = settings->depth / 2 < PERF_BATCH_MAX
					  ? settings->depth / 2
					  : PERF_BATCH_MAX;
	if (!settings->batch || settings->batch > settings->depth)
		settings->batch = settings->batch ? settings->depth : 1;
}

static int check_latency(const struct perf_settings *settings)
{
	if (!settings->latency)
		return 0;
	if (settings->both)
		return refuse_combination("--bidirectional is for bandwidth tests: a "
					  "latency test goes both ways");
	if (settings->channels > 1 || settings->threads > 1 || settings->rails > 1)
		return refuse_combination(
			"--qp, --threads and --rails are for bandwidth tests");
	return 0;
}

static int check_memory(const struct perf_settings *settings)
{
	uint64_t lanes = (uint64_t)settings->rails * settings->channels;

	if (lanes > PERF_LANES_MAX)
		return refuse_combination("--rails times --qp is more than 128");
	if (perf_lane_size(settings) > PERF_MEMORY_MAX / lanes)
		return refuse_combination(
			"more than 4G of memory: use smaller messages or "
			"fewer channels");
	return 0;
}

int complete_perf_options(int argc, char **argv, struct perf_options *options)
{
	struct perf_settings *settings = &options->settings;

	if (take_operands(argc, argv, options) < 0)
		return -1;
	if (settings->staged && settings->opcode != PIER_OP_WRITE &&
	    settings->opcode != PIER_OP_SEND)
		return refuse_combination(
			"--path staged is for writes and sends: the other "
			"side's CPU takes part in each message");
	choose_sizes(options);
	if (is_atomic(settings->opcode) &&
	    (options->size_count > 1 || settings->slot != PERF_ATOMIC_SIZE))
		return refuse_combination("atomics always have 8 bytes: omit --size");
	if (check_latency(settings) < 0)
		return -1;
	choose_depths(settings);
	return check_memory(settings);
}
