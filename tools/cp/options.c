/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "next_option.h"
#include "options.h"
#include "units.h"

static const char cp_help[] =
	"usage: pier cp [OPTION...] SRC DST\n"
	"\n"
	"Copies a file through memory that two NICs share. Either SRC or DST may be\n"
	"HOST:PATH. DST appears complete or not at all.\n"
	"\n"
	"  --src-mem SPEC       memory on the side of SRC, such as host, memfd, udmabuf\n"
	"  --dst-mem SPEC       memory on the side of DST ('pier info' lists what "
	"works)\n"
	"  --device NAME        NIC here, and on both sides if both are here\n"
	"  --remote-device NAME NIC on the other side\n"
	"  --direct             only the path that the memory is made for, or fail\n"
	"  --no-verify          no checksums\n"
	"  -p, --preserve       keep mode and modification time\n"
	"\n"
	"  --chunk SIZE         bytes in one write, such as 512K or 4MiB (1M)\n"
	"  --depth N            chunks under way at once (8); fewer if they need more "
	"than\n"
	"                       1G of memory together\n"
	"  --threads N          that read, or verify and write, on each side\n"
	"  --bwlimit RATE       at most so many bytes a second, such as 100M\n"
	"  --timeout SECONDS    give up without a sign of life (30)\n"
	"\n"
	"  -e, --rsh COMMAND    how to reach HOST (ssh; or PIER_RSH)\n"
	"  --remote-pier PATH   the program there (pier)\n"
	"\n"
	"  --progress           show progress where there is no terminal too\n"
	"  --json               one JSON object on standard output\n"
	"  -q, --quiet          nothing but errors\n"
	"  -v, --verbose        say what the library does\n"
	"  -h, --help           print this\n"
	"\n"
	"exit status:\n"
	"  0 done, 1 a file could not be read or written, 2 wrong usage, 3 device or\n"
	"  memory not available, 4 the other side or the connection failed, 5 "
	"verification\n"
	"  failed, 128 + N ended by signal N on either side\n";

enum {
	OPTION_SRC_MEM = 256,
	OPTION_DST_MEM,
	OPTION_DEVICE,
	OPTION_REMOTE_DEVICE,
	OPTION_DIRECT,
	OPTION_NO_VERIFY,
	OPTION_CHUNK,
	OPTION_DEPTH,
	OPTION_THREADS,
	OPTION_BWLIMIT,
	OPTION_TIMEOUT,
	OPTION_REMOTE_PIER,
	OPTION_PROGRESS,
	OPTION_JSON,
};

static const struct option cp_option_names[] = {
	{ "src-mem", required_argument, NULL, OPTION_SRC_MEM },
	{ "dst-mem", required_argument, NULL, OPTION_DST_MEM },
	{ "device", required_argument, NULL, OPTION_DEVICE },
	{ "remote-device", required_argument, NULL, OPTION_REMOTE_DEVICE },
	{ "direct", no_argument, NULL, OPTION_DIRECT },
	{ "no-verify", no_argument, NULL, OPTION_NO_VERIFY },
	{ "preserve", no_argument, NULL, 'p' },
	{ "chunk", required_argument, NULL, OPTION_CHUNK },
	{ "depth", required_argument, NULL, OPTION_DEPTH },
	{ "threads", required_argument, NULL, OPTION_THREADS },
	{ "bwlimit", required_argument, NULL, OPTION_BWLIMIT },
	{ "timeout", required_argument, NULL, OPTION_TIMEOUT },
	{ "rsh", required_argument, NULL, 'e' },
	{ "remote-pier", required_argument, NULL, OPTION_REMOTE_PIER },
	{ "progress", no_argument, NULL, OPTION_PROGRESS },
	{ "json", no_argument, NULL, OPTION_JSON },
	{ "quiet", no_argument, NULL, 'q' },
	{ "verbose", no_argument, NULL, 'v' },
	{ "help", no_argument, NULL, 'h' },
	{ NULL, 0, NULL, 0 },
};

void print_cp_help(void)
{
	fputs(cp_help, stdout);
}

static int refuse_value(const char *option, const char *value, const char *rule)
{
	print_error("pier cp: '%s' is not valid for %s: %s", value, option, rule);
	return -1;
}

static int take_chunk(const char *value, struct cp_settings *settings)
{
	uint64_t bytes;

	if (parse_bytes(value, &bytes) < 0 || bytes < CP_CHUNK_MIN ||
	    bytes > CP_CHUNK_MAX || bytes % CP_CHUNK_MIN != 0)
		return refuse_value(
			"--chunk", value,
			"a multiple of 4K from 4K to 1G, with K, M or G behind it");
	settings->chunk = bytes;
	return 0;
}

static int take_bwlimit(const char *value, struct cp_settings *settings)
{
	uint64_t bytes;

	if (parse_bytes(value, &bytes) < 0 || bytes < CP_RATE_MIN)
		return refuse_value(
			"--bwlimit", value,
			"bytes a second, 1K or more, with K, M or G behind it");
	settings->rate = bytes;
	return 0;
}

static int take_count(const char *option, const char *value, uint32_t most,
		      uint32_t *ret_count)
{
	char rule[64];
	uint64_t number;

	if (parse_number(value, &number) < 0 || number < 1 || number > most) {
		snprintf(rule, sizeof(rule), "a whole number from 1 to %u", most);
		return refuse_value(option, value, rule);
	}
	*ret_count = (uint32_t)number;
	return 0;
}

static int take_timeout(const char *value, struct cp_settings *settings)
{
	char *end;
	double seconds = strtod(value, &end);

	if (end == value || *end || !(seconds >= 0.1 && seconds <= 86400))
		return refuse_value("--timeout", value, "seconds, from 0.1 to 86400");
	settings->timeout_ms = (uint32_t)(seconds * 1000);
	return 0;
}

static int take_name(const char *option, const char *value, const char **ret_name)
{
	if (!value[0] || strlen(value) >= CP_NAME_MAX)
		return refuse_value(option, value, "a name of 1 to 63 bytes");
	*ret_name = value;
	return 0;
}

static int take_switch(int option, struct cp_options *options)
{
	switch (option) {
	case OPTION_DIRECT:
		options->settings.direct = true;
		return 0;
	case OPTION_NO_VERIFY:
		options->settings.verify = false;
		return 0;
	case 'p':
		options->settings.preserve = true;
		return 0;
	case OPTION_PROGRESS:
		options->progress = true;
		return 0;
	case OPTION_JSON:
		options->json = true;
		return 0;
	case 'q':
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

static int take_option(int option, struct cp_options *options)
{
	struct cp_settings *settings = &options->settings;

	switch (option) {
	case OPTION_SRC_MEM:
		return take_name("--src-mem", optarg, &options->source_memory);
	case OPTION_DST_MEM:
		return take_name("--dst-mem", optarg, &options->destination_memory);
	case OPTION_DEVICE:
		return take_name("--device", optarg, &options->device);
	case OPTION_REMOTE_DEVICE:
		return take_name("--remote-device", optarg, &options->remote_device);
	case OPTION_CHUNK:
		return take_chunk(optarg, settings);
	case OPTION_DEPTH:
		return take_count("--depth", optarg, CP_DEPTH_MAX, &settings->depth);
	case OPTION_THREADS:
		return take_count("--threads", optarg, CP_THREADS_MAX,
				  &settings->threads);
	case OPTION_BWLIMIT:
		return take_bwlimit(optarg, settings);
	case OPTION_TIMEOUT:
		return take_timeout(optarg, settings);
	case 'e':
		options->rsh = optarg;
		return 0;
	case OPTION_REMOTE_PIER:
		options->remote_pier = optarg;
		return 0;
	default:
		return take_switch(option, options);
	}
}

static int take_operands(int argc, char **argv, struct cp_options *options)
{
	struct failure failure = { 0 };

	if (argc - optind != 2) {
		print_error("pier cp: %s; usage: pier cp [OPTION...] SRC DST",
			    argc - optind < 2 ? "SRC and DST are needed"
					      : "one SRC and one DST, no more");
		return -1;
	}
	if (parse_operand(argv[optind], &options->source, &failure) < 0 ||
	    parse_operand(argv[optind + 1], &options->destination, &failure) < 0) {
		print_failure(&failure);
		return -1;
	}
	if (options->source.host[0] && options->destination.host[0]) {
		print_error("pier cp: SRC and DST are both on other hosts: run it on one "
			    "of them");
		return -1;
	}
	return 0;
}

/* A chunk that takes seconds would make a slow copy jerk. */
static void fit_chunk_to_rate(struct cp_settings *settings)
{
	uint64_t most = settings->rate / 4 / CP_CHUNK_MIN * CP_CHUNK_MIN;

	if (!settings->rate)
		return;
	if (most < CP_CHUNK_MIN)
		most = CP_CHUNK_MIN;
	if (settings->chunk > most)
		settings->chunk = most;
}

/* The server refuses to allocate more for the slots of one copy. */
static void limit_depth(struct cp_settings *settings)
{
	uint32_t most = (uint32_t)(CP_SLOTS_MAX / settings->chunk);

	if (settings->depth > most)
		settings->depth = most;
}

int parse_cp_options(int argc, char **argv, struct cp_options *ret_options)
{
	const char *rsh = secure_getenv("PIER_RSH");
	struct cp_options options = {
		.settings = { .chunk = 1 << 20,
			      .depth = 8,
			      .timeout_ms = 30000,
			      .verify = true },
		.source_memory = "",
		.destination_memory = "",
		.rsh = rsh && rsh[0] ? rsh : "ssh",
		.remote_pier = "pier",
	};
	int option;

	while ((option = next_option(argc, argv, ":e:hpqv", cp_option_names)) != -1)
		if (option == '?' || take_option(option, &options) < 0)
			return -1;
	if (!options.help && take_operands(argc, argv, &options) < 0)
		return -1;
	fit_chunk_to_rate(&options.settings);
	limit_depth(&options.settings);
	*ret_options = options;
	return 0;
}
