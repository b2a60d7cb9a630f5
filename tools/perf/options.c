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
#include "sizes.h"
#include "units.h"

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
