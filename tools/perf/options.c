/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "failure.h"
#include "options.h"
#include "remote/start.h"
#include "units.h"

enum {
	BANDWIDTH_SIZE = 65536, /* these two as perftest's */
	LATENCY_SIZE = 2,
	BANDWIDTH_DEPTH = 128,
	BANDWIDTH_RX_DEPTH = 512,
	LATENCY_DEPTH = 16,
	STAGED_BYTES = 64 << 20, /* for the staging slots of one channel */
	TIMEOUT_MS = 30000,
	CLIENT_WAIT_MS = 600000,
};

/* 0 and NULL: chosen after the options are parsed. */
static const struct perf_options perf_defaults = {
	.settings = { .duration_ms = 1000,
		      .warm_up_ms = 100,
		      .inline_size = 64,
		      .rails = 1,
		      .channels = 1,
		      .threads = 1 },
	.source_memory = "",
	.destination_memory = "",
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

/* Parse "64K", "4K,1M" or "4K-1M". */
static int parse_sizes(const char *text, struct perf_options *options)
{
	char copy[1024], *rest = copy, *one;

	options->size_count = 0;
	if (strlen(text) >= sizeof(copy))
		return -1;
	strcpy(copy, text);
	while ((one = strsep(&rest, ",")))
		if (add_range(one, options->sizes, &options->size_count) < 0)
			return -1;
	return 0;
}

static int refuse_combination(const char *complaint)
{
	print_error("pier perf: %s", complaint);
	return -1;
}

static int take_test(const char *name, struct perf_options *options)
{
	/* perftest has a program ib_write_bw. */
	const char *own = strncmp(name, "ib_", 3) == 0 ? name + 3 : name;
	struct guess guess = { .typed = own, .length = strlen(own) };

	for (size_t i = 0; i < sizeof(perf_tests) / sizeof(perf_tests[0]); i++) {
		const struct perf_test *test = &perf_tests[i];

		consider_name(&guess, test->name);
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
	if (guess.name)
		print_error("pier perf: unknown test '%s'; did you mean '%s'?", name,
			    guess.name);
	else
		print_error("pier perf: unknown test '%s'; 'pier perf --help' lists the "
			    "tests",
			    name);
	return -1;
}

static int take_operands(int count, char **argv, struct perf_options *options)
{
	if (count < 1 || count > 2)
		return refuse_combination(
			count < 1
				? "TEST is required, such as write_bw; usage: pier perf "
				  "[OPTION...] TEST [HOST]"
				: "too many arguments: one TEST and one HOST, no more");
	if (take_test(argv[1], options) < 0)
		return -1;
	options->host = argv[2];
	if (options->connect && !options->host)
		return refuse_combination("--connect needs HOST");
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

/*
 * After all options: take the test and the host, choose what the user left open, and
 * refuse what does not fit together.
 */
static int complete_perf_options(int count, char **argv, struct perf_options *options)
{
	struct perf_settings *settings = &options->settings;

	if (take_operands(count, argv, options) < 0)
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

/* Others would have no effect. */
static int check_listen(int operands, const struct perf_options *options)
{
	struct perf_options allowed;

	memcpy(&allowed, &perf_defaults, sizeof(allowed));
	allowed.listen = options->listen;
	allowed.settings.timeout_ms = options->settings.timeout_ms;
	allowed.verbose = options->verbose;
	if (operands == 0 && memcmp(options, &allowed, sizeof(allowed)) == 0)
		return 0;
	return refuse_combination("--listen takes no other arguments but --timeout and "
				  "-v: the client sends the test and the settings");
}

/* This and the next ones set several members: theirs is the struct of the options. */
static int take_sizes(const struct given_option *given, void *member)
{
	if (parse_sizes(given->value, member) < 0)
		return refuse_value(given, "sizes from 1 to 1G, such as 64K, 4K,1M or "
					   "4K-1M");
	return 0;
}

static int take_all(const struct given_option *given, void *member)
{
	(void)given;
	return parse_sizes("2-8M", member);
}

static int take_format(const struct given_option *given, void *member)
{
	struct perf_options *options = member;

	options->format = strcmp(given->row->name, "csv") == 0 ? PERF_CSV : PERF_JSON;
	return 0;
}

static int take_iterations(const struct given_option *given, void *member)
{
	uint64_t *iterations = member;

	if (parse_number(given->value, iterations) < 0 || *iterations < 1)
		return refuse_value(given, "a whole number from 1");
	return 0;
}

static int take_path(const struct given_option *given, void *member)
{
	bool *staged = member;

	*staged = strcmp(given->value, "staged") == 0;
	if (!*staged && strcmp(given->value, "direct") != 0)
		return refuse_value(given, "direct or staged");
	return 0;
}

/* `opcode` is 0 until the test is known; see take_test(). */
static int take_atomic_type(const struct given_option *given, void *member)
{
	if (strcmp(given->value, "CMP_AND_SWAP") == 0)
		*(enum pier_opcode *)member = PIER_OP_COMPARE_SWAP;
	else if (strcmp(given->value, "FETCH_AND_ADD") != 0)
		return refuse_value(given, "FETCH_AND_ADD or CMP_AND_SWAP");
	return 0;
}

/* A number that is the attribute `key` of the channels. */
static int take_attribute(const struct given_option *given, void *member)
{
	struct option_row row = { .name = given->row->name,
				  .most = PERF_CHANNEL_MAX - 1 };
	char text[64];
	struct given_option attribute = { given->table, &row, text };
	uint32_t number;

	if (option_number(given, &number) < 0)
		return -1;
	snprintf(text, sizeof(text), "%s=%" PRIu32, given->row->key, number);
	return option_channel(&attribute, member);
}

#define AT(member) offsetof(struct perf_options, member)
#define NAME	   1, PERF_NAME_MAX - 1
#define DEVICES	   1, PERF_DEVICES_MAX - 1

static const struct option_row rows[] = {
	{ 's', "size", "SIZES",
	  "message sizes: 64K, a list 4K,1M, or a range 4K-1M of powers of two (default "
	  "64K; 2 for latency)",
	  take_sizes },
	{ 'a', "all", NULL, "sizes from 2 to 8M", take_all },
	{ 'D', "duration", "S", "seconds for each size (default 1)", option_seconds,
	  AT(settings.duration_ms), 0.001, 86400 },
	{ 'n', "iters", "N", "messages of each channel and size, instead of a time",
	  take_iterations, AT(settings.iterations) },
	{ 0, "warm-up", "S", "seconds before each measurement (default 0.1)",
	  option_seconds, AT(settings.warm_up_ms), 0, 86400 },
	{ 'b', "bidirectional", NULL, "measure both directions at once", option_on,
	  AT(settings.both) },
	{ 0 },
	{ 0, "src-mem", "SPEC",
	  "memory that the bytes come from, such as host, udmabuf or cuda:0 ('pier info' "
	  "lists them)",
	  option_text, AT(source_memory), NAME },
	{ 0, "dst-mem", "SPEC", "memory that the bytes go to", option_text,
	  AT(destination_memory), NAME },
	{ 0, "path", "direct|staged",
	  "direct (default): the NICs access the memory; staged: both sides copy through "
	  "host memory",
	  take_path, AT(settings.staged) },
	{ 'd', "device", "NAMES",
	  "NICs on this side; on both sides if both are on this host: names with \",\" "
	  "between them",
	  option_text, AT(device), DEVICES },
	{ 0, "remote-device", "NAMES", "NICs on the other side", option_text,
	  AT(remote_device), DEVICES },
	{ 0, "rails", "N", "pairs of NICs to use at once, at most (default 1)",
	  option_number, AT(settings.rails), 1, PERF_RAILS_MAX },
	{ 'q', "qp", "N", "channels for each pair of NICs (default 1)", option_number,
	  AT(settings.channels), 1, PERF_LANES_MAX },
	{ 0, "threads", "N", "threads on each side (default 1)", option_number,
	  AT(settings.threads), 1, PERF_THREADS_MAX },
	{ 0 },
	{ 't', "tx-depth", "N", "requests of a channel in flight (default 128)",
	  option_number, AT(settings.depth), 1, PERF_DEPTH_MAX },
	{ 'r', "rx-depth", "N", "receives of a channel (default 512)", option_number,
	  AT(settings.rx_depth), 1, PERF_DEPTH_MAX },
	{ 'l', "post_list", "N",
	  "requests that are posted at once (default: half of the depth, at most 32)",
	  option_number, AT(settings.batch), 1, PERF_BATCH_MAX },
	{ 'I', "inline_size", "N",
	  "copy messages up to this size into the request (default 64)", option_number,
	  AT(settings.inline_size), 0, PERF_INLINE_MAX },
	{ 'A', "atomic_type", "FETCH_AND_ADD|CMP_AND_SWAP",
	  "the kind of atomics (default FETCH_AND_ADD)", take_atomic_type,
	  AT(settings.opcode) },
	{ 'e', "events", NULL, "sleep instead of polling", option_on,
	  AT(settings.events) },
	{ 'm', "mtu", "N", "MTU of the path in bytes", take_attribute,
	  AT(settings.channel), 256, 4096, "mtu" },
	{ 'x', "gid-index", "N", "index of the GID, on both sides", take_attribute,
	  AT(settings.channel), 0, UINT16_MAX, "gid" },
	{ 'S', "sl", "N", "service level", take_attribute, AT(settings.channel), 0, 15,
	  "sl" },
	{ 0, "tclass", "N", "traffic class", take_attribute, AT(settings.channel), 0, 254,
	  "tc" },
	{ 'o', "outs", "N", "reads and atomics in flight", take_attribute,
	  AT(settings.channel), 1, 255, "rd_atomic" },
	{ 'u', "qp-timeout", "N", "local ack timeout: 4.096 us * 2^N", take_attribute,
	  AT(settings.channel), 0, 31, "timeout" },
	{ 0, "channel", "LIST",
	  "attributes of the channels on both sides, such as tc=106,retry=2 (as "
	  "PIER_CHANNEL; see pier(1))",
	  option_channel, AT(settings.channel), 0, PERF_CHANNEL_MAX - 1 },
	{ 0 },
	{ 0, "csv", NULL, "print comma-separated values instead of a table",
	  take_format },
	{ 0, "json", NULL,
	  "print JSON, with the settings, devices, drivers and kernels, for "
	  "pier-perf-compare",
	  take_format },
	{ 0, "histogram", NULL, "also print the distribution of the times", option_on,
	  AT(histogram) },
	{ 0 },
	{ 0, "rsh", "COMMAND", "remote shell (default PIER_RSH, or ssh); %h: the host",
	  option_text, AT(rsh) },
	{ 0, "port", "N", "port of ssh on HOST", option_number, AT(port), 1, UINT16_MAX },
	{ 0, "remote-pier", "PATH",
	  "path of pier on HOST (default PIER_REMOTE_PIER, or pier)", option_text,
	  AT(remote_pier) },
	{ 0, "listen", "PORT",
	  "instead of measuring: wait for one 'pier perf --connect PORT' of another host "
	  "(also ADDRESS:PORT)",
	  option_text, AT(listen) },
	{ 0, "connect", "PORT",
	  "reach 'pier perf --listen PORT' on HOST by TCP, without a remote shell",
	  option_number, AT(connect), 1, UINT16_MAX },
	{ 0, "timeout", "SECONDS",
	  "fail after this long without an answer (default 30); with --listen, without a "
	  "client (600)",
	  option_seconds, AT(settings.timeout_ms), 0.1, 86400 },
	{ 0, "quiet", NULL, "print no notes", option_on, AT(quiet) },
	{ 'v', "verbose", NULL, "print the library's log messages", option_on,
	  AT(verbose) },
	OPTION_HELP,
};

/* Those of perftest. */
static const struct option_habit habits[] = {
	{ "-F --CPU-freq", "omit it; the frequency of the CPU is not checked" },
	{ "-R --rdma_cm -z --comm_rdma_cm",
	  "omit it; the sides meet over the remote shell, without rdma_cm" },
	{ "-p", "omit it; HOST is reached through ssh, whose port --port sets. Without "
		"ssh: --listen PORT there, and --connect PORT here" },
	{ "-i --ib-port", "--channel port=N chooses the port of the NICs" },
	{ "--ib-dev", "-d or --device names the NICs" },
	{ "--report_gbits", "omit it; the table has GB/s and Gbit/s" },
	{ "--cpu_util", "omit it; the table has the CPU time of both sides" },
	{ "-H --report-histogram", "--histogram prints the distribution of the times" },
	{ "--out_json", "--json prints JSON on standard output" },
	{ "-T --tos", "--tclass sets the traffic class" },
	{ "--run_infinitely", "-D SECONDS sets the time, for example -D 86400" },
	{ "-c --connection", "omit it; channels are reliable connections (RC)" },
	{ "--use_cuda --use_cuda_dmabuf",
	  "--src-mem cuda:0 and --dst-mem cuda:0 choose the memory of each side" },
	{ "--use_rocm --use_rocm_dmabuf",
	  "--src-mem hip:0 and --dst-mem hip:0 choose the memory of each side" },
	{ "--perform_warm_up", "omit it; --warm-up sets the time, by default 0.1 s" },
};

const struct option_table perf_option_table = {
	.command = "pier perf",
	.before = "usage: pier perf [OPTION...] TEST [HOST]\n"
		  "\n"
		  "Measures RDMA between this host and HOST, or between two processes "
		  "of this host, and verifies the bytes. TEST is one of\n"
		  "\n"
		  "  write_bw, read_bw, send_bw, atomic_bw      bandwidth and message "
		  "rate\n"
		  "  write_lat, read_lat, send_lat, atomic_lat  latency: half of a round "
		  "trip;\n"
		  "                       the whole for reads and atomics\n",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.habits = habits,
	.habit_count = sizeof(habits) / sizeof(habits[0]),
	.first = "write_bw|write_lat|read_bw|read_lat|send_bw|send_lat|atomic_bw|"
		 "atomic_lat",
	.after = EXIT_STATUSES,
};

int parse_perf_options(int argc, char **argv, struct perf_options *ret_options,
		       int *ret_status)
{
	struct perf_options *options = ret_options;
	int count;

	memcpy(options, &perf_defaults, sizeof(*options));
	count = parse_options(&perf_option_table, argc, argv, options, ret_status);
	if (count < 0)
		return -1;
	if (options->listen ? check_listen(count, options) < 0
			    : complete_perf_options(count, argv, options) < 0) {
		*ret_status = EXIT_USAGE;
		return -1;
	}
	if (!options->settings.timeout_ms)
		options->settings.timeout_ms = options->listen ? CLIENT_WAIT_MS
							       : TIMEOUT_MS;
	if (!options->rsh)
		options->rsh = variable_or("PIER_RSH", "ssh");
	if (!options->remote_pier)
		options->remote_pier = variable_or("PIER_REMOTE_PIER", "pier");
	return 0;
}
