/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/error.h>

#include "failure.h"
#include "next_option.h"
#include "options.h"
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

/* Parse "64K", "4K,1M" or "4K-1M". */
static int parse_sizes(const char *text, uint64_t *ret_sizes, uint32_t *ret_count)
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

/*
 * After all options: take the test and the host, choose what the user left open, and
 * refuse what does not fit together.
 */
static int complete_perf_options(int argc, char **argv, struct perf_options *options)
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

static const char perf_help[] =
	"usage: pier perf [OPTION...] TEST [HOST]\n"
	"\n"
	"Measures RDMA between this host and HOST, or between two processes of this\n"
	"host, and verifies the bytes. TEST is one of\n"
	"\n"
	"  write_bw, read_bw, send_bw, atomic_bw      bandwidth and message rate\n"
	"  write_lat, read_lat, send_lat, atomic_lat  latency: half of a round trip; "
	"the\n"
	"                       whole for reads and atomics\n"
	"\n"
	"  -s, --size SIZES     message sizes: 64K, a list 4K,1M, or a range 4K-1M of\n"
	"                       powers of two (default 64K; 2 for latency)\n"
	"  -a, --all            sizes from 2 to 8M\n"
	"  -D, --duration S     seconds for each size (default 1)\n"
	"  -n, --iters N        messages of each channel and size, instead of a time\n"
	"  --warm-up S          seconds before each measurement (default 0.1)\n"
	"  -b, --bidirectional  measure both directions at once\n"
	"\n"
	"  --src-mem SPEC       memory that the bytes come from, such as host, udmabuf "
	"or\n"
	"                       cuda:0 ('pier info' lists them)\n"
	"  --dst-mem SPEC       memory that the bytes go to\n"
	"  --path KIND          direct (default): the NICs access the memory; staged:\n"
	"                       both sides copy through host memory\n"
	"  -d, --device NAMES   NICs on this side; on both sides if both are on this\n"
	"                       host: names with \",\" between them\n"
	"  --remote-device NAMES\n"
	"                       NICs on the other side\n"
	"  --rails N            pairs of NICs to use at once, at most (default 1)\n"
	"  -q, --qp N           channels for each pair of NICs (default 1)\n"
	"  --threads N          threads on each side (default 1)\n"
	"\n"
	"  -t, --tx-depth N     requests of a channel in flight (default 128)\n"
	"  -r, --rx-depth N     receives of a channel (default 512)\n"
	"  -l, --post_list N    requests that are posted at once (default: half of the\n"
	"                       depth, at most 32)\n"
	"  -I, --inline_size N  copy messages up to this size into the request\n"
	"                       (default 64)\n"
	"  -A, --atomic_type T  FETCH_AND_ADD (default) or CMP_AND_SWAP\n"
	"  -e, --events         sleep instead of polling\n"
	"  -m, --mtu N          MTU of the path in bytes\n"
	"  -x, --gid-index N    index of the GID, on both sides\n"
	"  -S, --sl N           service level\n"
	"  --tclass N           traffic class\n"
	"  -o, --outs N         reads and atomics in flight\n"
	"  -u, --qp-timeout N   local ack timeout: 4.096 us * 2^N\n"
	"  --channel LIST       attributes of the channels on both sides, such as\n"
	"                       tc=106,retry=2 (as PIER_CHANNEL; see pier(1))\n"
	"\n"
	"  --csv                print comma-separated values instead of a table\n"
	"  --json               print JSON, with the settings, devices, drivers and\n"
	"                       kernels\n"
	"  --histogram          also print the distribution of the times\n"
	"  --plot FILE          draw the result, as FILE.svg or FILE.png, with gnuplot "
	"or\n"
	"                       matplotlib\n"
	"  --against FILE       compare with an earlier result, of --json\n"
	"\n"
	"  --rsh COMMAND        remote shell (default PIER_RSH, or ssh); %h: the host\n"
	"  --remote-pier PATH   path of pier on HOST (default pier)\n"
	"  --timeout SECONDS    fail after this long without an answer (default 30)\n"
	"  --quiet              print no notes\n"
	"  -v, --verbose        print the library's log messages\n"
	"  -h, --help           print this help\n"
	"\n"
	"exit status:\n"
	"  0 success, 1 a file could not be read or written, 2 usage error, 3 a device\n"
	"  or memory is unavailable, 4 the other side or the connection failed,\n"
	"  5 verification failed, 128 + N signal N ended either side\n";

void print_perf_help(void)
{
	fputs(perf_help, stdout);
}

enum {
	OPTION_WARM_UP = 256,
	OPTION_SRC_MEM,
	OPTION_DST_MEM,
	OPTION_PATH,
	OPTION_REMOTE_DEVICE,
	OPTION_RAILS,
	OPTION_THREADS,
	OPTION_TCLASS,
	OPTION_CHANNEL,
	OPTION_CSV,
	OPTION_JSON,
	OPTION_HISTOGRAM,
	OPTION_PLOT,
	OPTION_AGAINST,
	OPTION_RSH,
	OPTION_REMOTE_PIER,
	OPTION_TIMEOUT,
	OPTION_QUIET,
};

static const struct option perf_option_names[] = {
	{ "size", required_argument, NULL, 's' },
	{ "all", no_argument, NULL, 'a' },
	{ "duration", required_argument, NULL, 'D' },
	{ "iters", required_argument, NULL, 'n' },
	{ "warm-up", required_argument, NULL, OPTION_WARM_UP },
	{ "bidirectional", no_argument, NULL, 'b' },
	{ "src-mem", required_argument, NULL, OPTION_SRC_MEM },
	{ "dst-mem", required_argument, NULL, OPTION_DST_MEM },
	{ "path", required_argument, NULL, OPTION_PATH },
	{ "device", required_argument, NULL, 'd' },
	{ "remote-device", required_argument, NULL, OPTION_REMOTE_DEVICE },
	{ "rails", required_argument, NULL, OPTION_RAILS },
	{ "qp", required_argument, NULL, 'q' },
	{ "threads", required_argument, NULL, OPTION_THREADS },
	{ "tx-depth", required_argument, NULL, 't' },
	{ "rx-depth", required_argument, NULL, 'r' },
	{ "post_list", required_argument, NULL, 'l' },
	{ "inline_size", required_argument, NULL, 'I' },
	{ "atomic_type", required_argument, NULL, 'A' },
	{ "events", no_argument, NULL, 'e' },
	{ "mtu", required_argument, NULL, 'm' },
	{ "gid-index", required_argument, NULL, 'x' },
	{ "sl", required_argument, NULL, 'S' },
	{ "tclass", required_argument, NULL, OPTION_TCLASS },
	{ "outs", required_argument, NULL, 'o' },
	{ "qp-timeout", required_argument, NULL, 'u' },
	{ "channel", required_argument, NULL, OPTION_CHANNEL },
	{ "csv", no_argument, NULL, OPTION_CSV },
	{ "json", no_argument, NULL, OPTION_JSON },
	{ "histogram", no_argument, NULL, OPTION_HISTOGRAM },
	{ "plot", required_argument, NULL, OPTION_PLOT },
	{ "against", required_argument, NULL, OPTION_AGAINST },
	{ "rsh", required_argument, NULL, OPTION_RSH },
	{ "remote-pier", required_argument, NULL, OPTION_REMOTE_PIER },
	{ "timeout", required_argument, NULL, OPTION_TIMEOUT },
	{ "quiet", no_argument, NULL, OPTION_QUIET },
	{ "verbose", no_argument, NULL, 'v' },
	{ "help", no_argument, NULL, 'h' },
	{ NULL, 0, NULL, 0 },
};

/* Options whose value is a number of the settings, and those set a channel attribute. */
static const struct number_option {
	int option;
	const char *name;
	size_t offset; /* in struct perf_settings */
	uint32_t least, most;
	const char *key; /* of pier_channel_attr_parse(), instead */
} number_options[] = {
#define SETTING(option, name, member, least, most)                                      \
	{                                                                               \
		option, name, offsetof(struct perf_settings, member), least, most, NULL \
	}
	SETTING(OPTION_RAILS, "--rails", rails, 1, PERF_RAILS_MAX),
	SETTING('q', "--qp", channels, 1, PERF_LANES_MAX),
	SETTING(OPTION_THREADS, "--threads", threads, 1, PERF_THREADS_MAX),
	SETTING('t', "--tx-depth", depth, 1, PERF_DEPTH_MAX),
	SETTING('r', "--rx-depth", rx_depth, 1, PERF_DEPTH_MAX),
	SETTING('l', "--post_list", batch, 1, PERF_BATCH_MAX),
	SETTING('I', "--inline_size", inline_size, 0, PERF_INLINE_MAX),
#undef SETTING
	{ 'm', "--mtu", 0, 256, 4096, "mtu" },
	{ 'x', "--gid-index", 0, 0, UINT16_MAX, "gid" },
	{ 'S', "--sl", 0, 0, 15, "sl" },
	{ OPTION_TCLASS, "--tclass", 0, 0, 254, "tc" },
	{ 'o', "--outs", 0, 1, 255, "rd_atomic" },
	{ 'u', "--qp-timeout", 0, 0, 31, "timeout" },
};

static int refuse_value(const char *option, const char *value, const char *rule)
{
	print_error("pier perf: invalid value '%s' for %s: must be %s", value, option,
		    rule);
	return -1;
}

static int add_channel(const char *option, const char *text,
		       struct perf_settings *settings)
{
	size_t used = strlen(settings->channel);
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	if (used + strlen(text) + 2 > sizeof(settings->channel))
		return refuse_value(option, text, "shorter: 255 bytes in all");
	if (pier_channel_attr_parse(&attr, text) < 0) {
		print_error("pier perf: %s: %s", option, pier_error_message());
		return -1;
	}
	snprintf(settings->channel + used, sizeof(settings->channel) - used, "%s%s",
		 used ? "," : "", text);
	return 0;
}

static const struct number_option *find_number_option(int option)
{
	for (size_t i = 0; i < sizeof(number_options) / sizeof(number_options[0]); i++)
		if (number_options[i].option == option)
			return &number_options[i];
	return NULL;
}

static int take_number(const struct number_option *option, const char *value,
		       struct perf_settings *settings)
{
	char text[96];
	uint64_t number;

	if (parse_number(value, &number) < 0 || number < option->least ||
	    number > option->most) {
		snprintf(text, sizeof(text), "a whole number from %u to %u",
			 option->least, option->most);
		return refuse_value(option->name, value, text);
	}
	if (!option->key) {
		*(uint32_t *)((char *)settings + option->offset) = (uint32_t)number;
		return 0;
	}
	snprintf(text, sizeof(text), "%s=%u", option->key, (uint32_t)number);
	return add_channel(option->name, text, settings);
}

static int take_seconds(const char *option, const char *value, double least,
			uint32_t *ret_ms)
{
	char *end, rule[64];
	double seconds = strtod(value, &end);

	if (end == value || *end || !(seconds >= least && seconds <= 86400)) {
		snprintf(rule, sizeof(rule), "a number of seconds from %g to 86400",
			 least);
		return refuse_value(option, value, rule);
	}
	*ret_ms = (uint32_t)(seconds * 1000);
	return 0;
}

static int take_iterations(const char *value, struct perf_settings *settings)
{
	if (parse_number(value, &settings->iterations) < 0 || settings->iterations < 1)
		return refuse_value("--iters", value, "a whole number from 1");
	return 0;
}

static int take_path(const char *value, struct perf_settings *settings)
{
	settings->staged = strcmp(value, "staged") == 0;
	if (!settings->staged && strcmp(value, "direct") != 0)
		return refuse_value("--path", value, "direct or staged");
	return 0;
}

/* `opcode` is 0 until the test is known; see take_test(). */
static int take_atomic_type(const char *value, struct perf_settings *settings)
{
	if (strcmp(value, "CMP_AND_SWAP") == 0)
		settings->opcode = PIER_OP_COMPARE_SWAP;
	else if (strcmp(value, "FETCH_AND_ADD") != 0)
		return refuse_value("--atomic_type", value,
				    "FETCH_AND_ADD or CMP_AND_SWAP");
	return 0;
}

static int take_text(const char *option, const char *value, size_t size,
		     const char **ret_text)
{
	char rule[64];

	if (!value[0] || strlen(value) >= size) {
		snprintf(rule, sizeof(rule), "a name of 1 to %zu bytes", size - 1);
		return refuse_value(option, value, rule);
	}
	*ret_text = value;
	return 0;
}

static int take_switch(int option, struct perf_options *options)
{
	switch (option) {
	case 'b':
		options->settings.both = true;
		return 0;
	case 'e':
		options->settings.events = true;
		return 0;
	case OPTION_CSV:
		options->format = PERF_CSV;
		return 0;
	case OPTION_JSON:
		options->format = PERF_JSON;
		return 0;
	case OPTION_HISTOGRAM:
		options->histogram = true;
		return 0;
	case OPTION_QUIET:
		options->quiet = true;
		return 0;
	case 'v':
		options->verbose = true;
		return 0;
	case 'h':
		options->help = true;
		return 0;
	default:
		return -1;
	}
}

static int take_name(int option, struct perf_options *options)
{
	switch (option) {
	case OPTION_SRC_MEM:
		return take_text("--src-mem", optarg, PERF_NAME_MAX,
				 &options->source_memory);
	case OPTION_DST_MEM:
		return take_text("--dst-mem", optarg, PERF_NAME_MAX,
				 &options->destination_memory);
	case 'd':
		return take_text("--device", optarg, PERF_DEVICES_MAX, &options->device);
	case OPTION_REMOTE_DEVICE:
		return take_text("--remote-device", optarg, PERF_DEVICES_MAX,
				 &options->remote_device);
	case OPTION_PLOT:
		options->plot = optarg;
		return 0;
	case OPTION_AGAINST:
		options->against = optarg;
		return 0;
	case OPTION_RSH:
		options->rsh = optarg;
		return 0;
	case OPTION_REMOTE_PIER:
		options->remote_pier = optarg;
		return 0;
	default:
		return take_switch(option, options);
	}
}

static int take_option(int option, struct perf_options *options)
{
	const struct number_option *number = find_number_option(option);
	struct perf_settings *settings = &options->settings;

	if (number)
		return take_number(number, optarg, settings);
	switch (option) {
	case 's':
		return parse_sizes(optarg, options->sizes, &options->size_count);
	case 'a':
		return parse_sizes("2-8M", options->sizes, &options->size_count);
	case 'D':
		return take_seconds("--duration", optarg, 0.001, &settings->duration_ms);
	case OPTION_WARM_UP:
		return take_seconds("--warm-up", optarg, 0, &settings->warm_up_ms);
	case OPTION_TIMEOUT:
		return take_seconds("--timeout", optarg, 0.1, &settings->timeout_ms);
	case 'n':
		return take_iterations(optarg, settings);
	case OPTION_PATH:
		return take_path(optarg, settings);
	case 'A':
		return take_atomic_type(optarg, settings);
	case OPTION_CHANNEL:
		return add_channel("--channel", optarg, settings);
	default:
		return take_name(option, options);
	}
}

int parse_perf_options(int argc, char **argv, struct perf_options *ret_options)
{
	const char *rsh = secure_getenv("PIER_RSH");
	struct perf_options options = {
		.settings = { .duration_ms = 1000,
			      .warm_up_ms = 100,
			      .inline_size = 64,
			      .rails = 1,
			      .channels = 1,
			      .threads = 1,
			      .timeout_ms = 30000 },
		.source_memory = "",
		.destination_memory = "",
		.rsh = rsh && rsh[0] ? rsh : "ssh",
		.remote_pier = "pier",
	};
	int option;

	while ((option = next_option(argc, argv, ":aA:bd:D:ehI:l:m:n:o:q:r:s:S:t:u:vx:",
				     perf_option_names)) != -1)
		if (option == '?' || take_option(option, &options) < 0)
			return -1;
	if (!options.help && complete_perf_options(argc, argv, &options) < 0)
		return -1;
	*ret_options = options;
	return 0;
}
