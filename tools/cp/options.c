/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/error.h>

#include "next_option.h"
#include "options.h"
#include "units.h"
#include "walk.h"

static const char cp_help[] =
	"usage: pier cp [OPTION...] SRC... DST\n"
	"       pier cp [OPTION...] SRC... HOST:DST HOST:DST...\n"
	"\n"
	"Copies files over RDMA. Either SRC or DST may be HOST:PATH. DST appears\n"
	"complete or not at all. Several SRC must be on one host. SRC is read once for\n"
	"several DST, which pass the copy on to each other.\n"
	"\n"
	"  -r, --recursive      copy directories with everything in them\n"
	"  --exclude PATTERN    leave out what matches, such as '*.tmp' or 'build/'\n"
	"  -n, --dry-run        only list what would be copied\n"
	"  --continue           keep what has arrived if the copy is interrupted, and "
	"use\n"
	"                       what an earlier one kept\n"
	"\n"
	"  --src-mem SPEC       memory on the side of SRC, such as host, memfd, udmabuf\n"
	"  --dst-mem SPEC       memory on the side of DST ('pier info' lists them)\n"
	"  --device NAMES       NICs on this side; on both sides if both are on this\n"
	"                       host: names with \",\" between them\n"
	"  --remote-device NAMES\n"
	"                       NICs on the other side\n"
	"  --direct             fail rather than use a path with copies to the memory\n"
	"  --no-verify          do not verify the bytes\n"
	"  -p, --preserve       preserve the mode and the modification time\n"
	"\n"
	"  --chunk SIZE         bytes per RDMA write, such as 512K or 4MiB (default 1M)\n"
	"  --depth N            chunks in flight (default 8); lowered to keep them\n"
	"                       within 1G of memory\n"
	"  --threads N          threads on each side that read, or verify and write\n"
	"  --bwlimit RATE       maximum bytes per second, such as 100M\n"
	"  --timeout SECONDS    fail after this long without progress (default 30)\n"
	"  --channel LIST       attributes of the connection on both sides, such as\n"
	"                       tc=106,gid=3 (as PIER_CHANNEL; see pier(1))\n"
	"\n"
	"  -e, --rsh COMMAND    remote shell (default PIER_RSH, or ssh); %h: the host\n"
	"  --remote-pier PATH   path of pier on HOST (default pier)\n"
	"\n"
	"  --progress           show progress even if standard error is no terminal\n"
	"  --json               print the result as a line of JSON on standard output;\n"
	"                       with --progress, also the start and the progress\n"
	"  -q, --quiet          print errors only\n"
	"  -v, --verbose        print the library's log messages\n"
	"  -h, --help           print this help\n"
	"\n"
	"exit status:\n"
	"  0 success, 1 a file could not be read or written, 2 usage error, 3 a device\n"
	"  or memory is unavailable, 4 the other side or the connection failed,\n"
	"  5 verification failed, 128 + N signal N ended either side\n";

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
	OPTION_CHANNEL,
	OPTION_REMOTE_PIER,
	OPTION_PROGRESS,
	OPTION_JSON,
	OPTION_EXCLUDE,
	OPTION_CONTINUE,
};

static const struct option cp_option_names[] = {
	{ "src-mem", required_argument, NULL, OPTION_SRC_MEM },
	{ "dst-mem", required_argument, NULL, OPTION_DST_MEM },
	{ "device", required_argument, NULL, OPTION_DEVICE },
	{ "remote-device", required_argument, NULL, OPTION_REMOTE_DEVICE },
	{ "direct", no_argument, NULL, OPTION_DIRECT },
	{ "no-verify", no_argument, NULL, OPTION_NO_VERIFY },
	{ "preserve", no_argument, NULL, 'p' },
	{ "recursive", no_argument, NULL, 'r' },
	{ "exclude", required_argument, NULL, OPTION_EXCLUDE },
	{ "dry-run", no_argument, NULL, 'n' },
	{ "continue", no_argument, NULL, OPTION_CONTINUE },
	{ "chunk", required_argument, NULL, OPTION_CHUNK },
	{ "depth", required_argument, NULL, OPTION_DEPTH },
	{ "threads", required_argument, NULL, OPTION_THREADS },
	{ "bwlimit", required_argument, NULL, OPTION_BWLIMIT },
	{ "timeout", required_argument, NULL, OPTION_TIMEOUT },
	{ "channel", required_argument, NULL, OPTION_CHANNEL },
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
	print_error("pier cp: invalid value '%s' for %s: must be %s", value, option,
		    rule);
	return -1;
}

static int take_chunk(const char *value, struct cp_settings *settings)
{
	uint64_t bytes;

	if (parse_bytes(value, &bytes) < 0 || bytes < CP_CHUNK_MIN ||
	    bytes > CP_CHUNK_MAX || bytes % CP_CHUNK_MIN != 0)
		return refuse_value(
			"--chunk", value,
			"a multiple of 4K from 4K to 1G; the suffixes are K, M and G");
	settings->chunk = bytes;
	return 0;
}

static int take_bwlimit(const char *value, struct cp_settings *settings)
{
	uint64_t bytes;

	if (parse_bytes(value, &bytes) < 0 || bytes < CP_RATE_MIN)
		return refuse_value(
			"--bwlimit", value,
			"1K or more bytes per second; the suffixes are K, M and G");
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
		return refuse_value("--timeout", value,
				    "a number of seconds from 0.1 to 86400");
	settings->timeout_ms = (uint32_t)(seconds * 1000);
	return 0;
}

static int take_channel(const char *value, struct cp_settings *settings)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	if (strlen(value) >= sizeof(settings->channel))
		return refuse_value("--channel", value, "a list of at most 255 bytes");
	if (pier_channel_attr_parse(&attr, value) < 0) {
		print_error("pier cp: --channel: %s", pier_error_message());
		return -1;
	}
	strcpy(settings->channel, value);
	return 0;
}

static int take_name(const char *option, const char *value, const char **ret_name)
{
	if (!value[0] || strlen(value) >= CP_NAME_MAX)
		return refuse_value(option, value, "a name of 1 to 63 bytes");
	*ret_name = value;
	return 0;
}

static int take_devices(const char *option, const char *value, const char **ret_names)
{
	if (!value[0] || strlen(value) >= CP_DEVICES_MAX)
		return refuse_value(option, value,
				    "names with \",\" between them, of 1 to 255 bytes");
	*ret_names = value;
	return 0;
}

static int take_pattern(const char *value, struct cp_options *options)
{
	if (!value[0] || strlen(value) >= PATH_MAX)
		return refuse_value("--exclude", value, "a pattern of 1 to 4095 bytes");
	if (add_word(&options->patterns, value, WALK_PATTERNS_MAX) == 0)
		return 0;
	print_error("pier cp: too many --exclude");
	return -1;
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
	case 'r':
		options->recursive = true;
		return 0;
	case 'n':
		options->settings.dry_run = true;
		return 0;
	case OPTION_CONTINUE:
		options->settings.partial = true;
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
		return take_devices("--device", optarg, &options->device);
	case OPTION_REMOTE_DEVICE:
		return take_devices("--remote-device", optarg, &options->remote_device);
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
	case OPTION_CHANNEL:
		return take_channel(optarg, settings);
	case 'e':
		options->rsh = optarg;
		return 0;
	case OPTION_REMOTE_PIER:
		options->remote_pier = optarg;
		return 0;
	case OPTION_EXCLUDE:
		return take_pattern(optarg, options);
	default:
		return take_switch(option, options);
	}
}

static int refuse_operands(const char *complaint)
{
	print_error("pier cp: %s", complaint);
	return -1;
}

static int take_source(const char *text, struct cp_options *options,
		       struct failure *failure)
{
	struct operand source;

	if (parse_operand(text, &source, failure) < 0)
		return -1;
	if (options->sources.count == 0)
		options->source = source;
	if (strcmp(source.host, options->source.host) != 0)
		return fail(failure, EXIT_USAGE,
			    "'%s' is on another host than the sources before it", text);
	return add_word(&options->sources, source.path, WALK_OPERANDS_MAX) < 0
		       ? fail(failure, EXIT_USAGE, "too many sources")
		       : 0;
}

static bool is_elsewhere(const char *text)
{
	struct failure ignored = { 0 };
	struct operand operand;

	return parse_operand(text, &operand, &ignored) == 0 && operand.host[0];
}

/* The last operand; behind local sources, all that are on other hosts. */
static int find_destinations(int argc, char **argv)
{
	int first = argc - 1;

	while (first > optind + 1 && is_elsewhere(argv[first]) &&
	       is_elsewhere(argv[first - 1]) && !is_elsewhere(argv[optind]))
		first--;
	return first;
}

/* The sources are argv[optind] and those before the first destination. */
static int check_destinations(int first, char **argv, struct failure *failure)
{
	for (int i = optind + 1; i < first; i++) {
		int local = i + 1;

		if (is_elsewhere(argv[optind]) || !is_elsewhere(argv[i]))
			continue;
		while (is_elsewhere(argv[local]))
			local++;
		return fail(failure, EXIT_USAGE,
			    "'%s' is a local path: behind '%s', each DST is HOST:DST",
			    argv[local], argv[i]);
	}
	return 0;
}

static int take_destination(const char *text, struct cp_options *options,
			    struct failure *failure)
{
	struct operand *destination = &options->destinations[options->destination_count];

	if (parse_operand(text, destination, failure) < 0)
		return -1;
	for (uint32_t i = 0; i < options->destination_count; i++)
		if (strcmp(options->destinations[i].host, destination->host) == 0 &&
		    strcmp(options->destinations[i].path, destination->path) == 0)
			return fail(failure, EXIT_USAGE, "'%s' is given twice", text);
	options->destination_count++;
	return 0;
}

static int take_places(int argc, char **argv, struct cp_options *options,
		       struct failure *failure)
{
	int first = find_destinations(argc, argv);

	if (check_destinations(first, argv, failure) < 0)
		return -1;
	if (argc - first > CP_DESTINATIONS_MAX)
		return fail(failure, EXIT_USAGE, "more than %d destinations",
			    CP_DESTINATIONS_MAX);
	options->destinations = calloc((size_t)(argc - first), sizeof(struct operand));
	if (!options->destinations)
		return fail(failure, EXIT_FILE, "out of memory");
	for (int i = optind; i < argc; i++)
		if ((i < first ? take_source(argv[i], options, failure)
			       : take_destination(argv[i], options, failure)) < 0)
			return -1;
	return 0;
}

static int take_operands(int argc, char **argv, struct cp_options *options)
{
	struct failure failure = { 0 };

	if (argc - optind < 2)
		return refuse_operands("SRC and DST are required; usage: pier cp "
				       "[OPTION...] SRC... DST...");
	if (take_places(argc, argv, options, &failure) < 0) {
		print_failure(&failure);
		return -1;
	}
	if (options->source.host[0] && options->destinations[0].host[0])
		return refuse_operands("SRC and DST are both on other hosts: run pier cp "
				       "on one of them");
	options->settings.chain = options->destination_count > 1;
	if (options->settings.chain && options->settings.partial)
		return refuse_operands("--continue is for one DST");
	if (options->patterns.count && !options->recursive)
		return refuse_operands("--exclude is for -r");
	options->settings.tree = options->recursive || options->sources.count > 1;
	return 0;
}

/* At a low rate, a large chunk would take seconds and the copy would stutter. */
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

/* The server rejects requests that need more memory. The list of a tree has half of it.
 */
static void limit_memory(struct cp_settings *settings)
{
	uint32_t memory = settings->tree ? CP_MEMORY_MAX / 2 : CP_MEMORY_MAX, most;

	if (settings->chunk > memory)
		settings->chunk = memory;
	most = (uint32_t)(memory / settings->chunk);
	if (settings->depth > most)
		settings->depth = most;
}

int parse_cp_options(int argc, char **argv, struct cp_options *ret_options)
{
	const char *rsh = secure_getenv("PIER_RSH");
	struct cp_options *options = ret_options;
	int option;

	*options = (struct cp_options){
		.settings = { .chunk = 1 << 20,
			      .depth = 8,
			      .timeout_ms = 30000,
			      .verify = true },
		.source_memory = "",
		.destination_memory = "",
		.rsh = rsh && rsh[0] ? rsh : "ssh",
		.remote_pier = "pier",
	};
	while ((option = next_option(argc, argv, ":e:hnpqrv", cp_option_names)) != -1)
		if (option == '?' || take_option(option, options) < 0)
			return -1;
	if (!options->help && take_operands(argc, argv, options) < 0)
		return -1;
	fit_chunk_to_rate(&options->settings);
	limit_memory(&options->settings);
	return 0;
}

void free_cp_options(struct cp_options *options)
{
	free_words(&options->sources);
	free_words(&options->patterns);
	free(options->destinations);
	options->destinations = NULL;
}
