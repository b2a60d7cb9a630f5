/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "list.h"
#include "options.h"
#include "remote/start.h"
#include "units.h"

int refuse_usage(const char *complaint)
{
	print_error("pier cp: %s", complaint);
	return -1;
}

static int take_chunk(const struct given_option *given, void *member)
{
	uint64_t bytes;

	if (parse_bytes(given->value, &bytes) < 0 || bytes < CP_CHUNK_MIN ||
	    bytes > CP_CHUNK_MAX || bytes % CP_CHUNK_MIN != 0)
		return refuse_value(given, "a multiple of 4K from 4K to 1G; the suffixes "
					   "are K, M and G");
	*(uint64_t *)member = bytes;
	return 0;
}

static int take_bwlimit(const struct given_option *given, void *member)
{
	uint64_t bytes;

	if (parse_bytes(given->value, &bytes) < 0 || bytes < CP_RATE_MIN)
		return refuse_value(given, "1K or more bytes per second; the suffixes "
					   "are K, M and G");
	*(uint64_t *)member = bytes;
	return 0;
}

static int take_pattern(const struct given_option *given, void *member)
{
	if (!given->value[0] || strlen(given->value) >= PATH_MAX)
		return refuse_value(given, "a pattern of 1 to 4095 bytes");
	return add_word(member, given->value, CP_PATTERNS_MAX) < 0
		       ? refuse_usage("too many --exclude")
		       : 0;
}

#define AT(member) offsetof(struct cp_options, member)
#define NAME	   1, CP_NAME_MAX - 1
#define DEVICES	   1, CP_DEVICES_MAX - 1

static const struct option_row rows[] = {
	{ 'r', "recursive", NULL, "copy directories with everything in them", option_on,
	  AT(recursive) },
	{ 0, "exclude", "PATTERN", "leave out what matches, such as '*.tmp' or 'build/'",
	  take_pattern, AT(patterns) },
	{ 'n', "dry-run", NULL, "only list what would be copied", option_on,
	  AT(settings.dry_run) },
	{ 0, "continue", NULL,
	  "keep what has arrived if the copy is interrupted, and use what an earlier one "
	  "kept",
	  option_on, AT(settings.partial) },
	{ 0, "skip-same", NULL,
	  "skip files that DST has with the same size and modification time; set the "
	  "times of all others",
	  option_on, AT(settings.skip_same) },
	{ 0 },
	{ 0, "src-mem", "SPEC", "memory on the side of SRC, such as host, memfd, udmabuf",
	  option_text, AT(source_memory), NAME },
	{ 0, "dst-mem", "SPEC", "memory on the side of DST ('pier info' lists them)",
	  option_text, AT(destination_memory), NAME },
	{ 0, "device", "NAMES",
	  "NICs on this side; on both sides if both are on this host: names with \",\" "
	  "between them",
	  option_text, AT(device), DEVICES },
	{ 0, "remote-device", "NAMES", "NICs on the other side", option_text,
	  AT(remote_device), DEVICES },
	{ 0, "direct", NULL, "fail rather than use a path with copies to the memory",
	  option_on, AT(settings.direct) },
	{ 0, "no-verify", NULL, "do not verify the bytes", option_off,
	  AT(settings.verify) },
	{ 'p', "preserve", NULL, "preserve the mode and the modification time", option_on,
	  AT(settings.preserve) },
	{ 0 },
	{ 0, "chunk", "SIZE", "bytes per RDMA write, such as 512K or 4MiB (default 1M)",
	  take_chunk, AT(settings.chunk) },
	{ 0, "depth", "N",
	  "chunks in flight (default 8); lowered to keep them within 1G of memory",
	  option_number, AT(settings.depth), 1, CP_DEPTH_MAX },
	{ 0, "threads", "N", "threads on each side that read, or verify and write",
	  option_number, AT(settings.threads), 1, CP_THREADS_MAX },
	{ 0, "bwlimit", "RATE", "maximum bytes per second, such as 100M", take_bwlimit,
	  AT(settings.rate) },
	{ 0, "timeout", "SECONDS", "fail after this long without progress (default 30)",
	  option_seconds, AT(settings.timeout_ms), 0.1, 86400 },
	{ 0, "channel", "LIST",
	  "attributes of the connection on both sides, such as tc=106,gid=3 (as "
	  "PIER_CHANNEL; see pier(1))",
	  option_channel, AT(settings.channel), 0, CP_CHANNEL_MAX - 1 },
	{ 0 },
	{ 'e', "rsh", "COMMAND", "remote shell (default PIER_RSH, or ssh); %h: the host",
	  option_text, AT(rsh) },
	{ 0, "port", "N", "port of ssh on HOST", option_number, AT(port), 1, UINT16_MAX },
	{ 0, "remote-pier", "PATH",
	  "path of pier on HOST (default PIER_REMOTE_PIER, or pier)", option_text,
	  AT(remote_pier) },
	{ 0 },
	{ 0, "progress", NULL, "show progress even if standard error is no terminal",
	  option_on, AT(progress) },
	{ 0, "json", NULL,
	  "print the result as a line of JSON on standard output; with --progress, also "
	  "the start and the progress",
	  option_on, AT(json) },
	{ 'q', "quiet", NULL, "print errors only", option_on, AT(quiet) },
	{ 'v', "verbose", NULL,
	  "name the files as they are copied, and print the library's log messages",
	  option_on, AT(verbose) },
	OPTION_HELP,
};

/* Those of cp, scp and rsync. */
static const struct option_habit habits[] = {
	{ "-a --archive",
	  "-rp copies trees with links, modes and times, but not owners, ACLs, extended "
	  "attributes and hard links" },
	{ "-R", "-r copies directories" },
	{ "-P", "--port is scp's -P; --continue and --progress are rsync's" },
	{ "--partial --append --inplace",
	  "--continue keeps what has arrived and copies the rest" },
	{ "-u --update",
	  "--skip-same skips files of the same size and time; newer ones of DST are "
	  "replaced" },
	{ "-t --times --perms", "-p preserves the mode and the modification time" },
	{ "-z -C --compress", "the bytes are not compressed; omit it" },
	{ "--delete --del --delete-after",
	  "files that only DST has are kept; remove them before the copy" },
	{ "--include --include-from --exclude-from --files-from --filter",
	  "--exclude PATTERN, also several times, is the only filter" },
	{ "-i",
	  "scp's -i is a part of --rsh 'ssh -i FILE'; cp's: a file of DST is replaced "
	  "without a question; rsync's: -n lists the names" },
	{ "-f --force", "omit it; files of DST are always replaced" },
	{ "-o -F -J", "options of ssh are a part of --rsh, such as --rsh 'ssh -J JUMP'" },
	{ "-l -L --copy-links --links --dereference",
	  "symbolic links of a tree are copied as links" },
	{ "-c --checksum --verify",
	  "omit it; the bytes are verified unless --no-verify is given" },
};

const struct option_table cp_option_table = {
	.command = "pier cp",
	.before = "usage: pier cp [OPTION...] SRC... DST\n"
		  "       pier cp [OPTION...] SRC... HOST:DST HOST:DST...\n"
		  "\n"
		  "Copies files over RDMA. Either SRC or DST may be HOST:PATH, and SRC "
		  "a pattern, such as HOST:'*.bin'. DST appears complete or not at "
		  "all. Several SRC must be on one host. \"-\" as SRC is standard input, "
		  "as DST standard output. "
		  "SRC is read once for several DST, which pass the copy on to each "
		  "other.\n",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.habits = habits,
	.habit_count = sizeof(habits) / sizeof(habits[0]),
	.after = EXIT_STATUSES,
};

static const char *skip_user(const char *text)
{
	size_t user = strcspn(text, "@:/[");

	return text[user] == '@' ? text + user + 1 : text;
}

/* The colon that ends a host, or NULL. */
static const char *find_colon(const char *text)
{
	const char *host = skip_user(text), *colon;

	if (host[0] == '[') {
		colon = strchr(host, ']');
		return colon && colon[1] == ':' ? colon + 1 : NULL;
	}
	colon = strpbrk(text, ":/");
	return colon && *colon == ':' ? colon : NULL;
}

/* "user@[fe80::1]" is "user@fe80::1" to ssh(1). */
static int copy_host(const char *text, size_t length, struct operand *ret_operand)
{
	char *out = ret_operand->host;
	size_t i;

	if (length >= sizeof(ret_operand->host))
		return -1;
	for (i = 0; i < length; i++)
		if (text[i] != '[' && text[i] != ']')
			*out++ = text[i];
	*out = '\0';
	return 0;
}

/*
 * Parse PATH, HOST:PATH or [IPV6]:PATH, where USER@ may precede HOST. A colon after a
 * slash belongs to the path, as in scp(1) and rsync(1).
 */
static int parse_operand(const char *text, struct operand *ret_operand,
			 struct failure *failure)
{
	const char *colon = find_colon(text), *host = skip_user(text);
	const char *path = colon ? colon + 1 : text, *end = strpbrk(host, ":/");
	const char *name = ret_operand->host;

	memset(ret_operand, 0, sizeof(*ret_operand));
	/* "[::1:path" is more likely a typing error than a file name. */
	if (host[0] == '[' && end && *end == ':' && !colon)
		return fail(failure, EXIT_USAGE,
			    "'%s' has no ']:' after its '['; write [ADDRESS]:PATH for an "
			    "IPv6 address, or ./NAME for a file name with a colon",
			    text);
	if (colon && copy_host(text, (size_t)(colon - text), ret_operand) < 0)
		name = "";
	else if (strrchr(name, '@'))
		name = strrchr(name, '@') + 1;
	/* The shell takes neither the user nor the name for an option. */
	if (colon && (!name[0] || name[0] == '-' || ret_operand->host[0] == '-' ||
		      name == ret_operand->host + 1))
		return fail(failure, EXIT_USAGE,
			    "'%s' does not begin with a host name; write ./NAME for a "
			    "file name with a colon",
			    text);
	/* The server starts in the home directory, and no shell expands the path. */
	if (colon && path[0] == '~' && (path[1] == '/' || !path[1]))
		path += 1 + strspn(path + 1, "/");
	if (colon && !*path)
		path = ".";
	if (!*path)
		return fail(failure, EXIT_USAGE,
			    "empty path: SRC and DST must name files");
	if (strlen(path) >= sizeof(ret_operand->path))
		return fail(failure, EXIT_USAGE,
			    "the path is too long (%zu bytes, at most %zu)", strlen(path),
			    sizeof(ret_operand->path) - 1);
	strcpy(ret_operand->path, path);
	ret_operand->standard = strcmp(text, "-") == 0;
	return 0;
}

/* All of them have been parsed; those of `first` and after it are the destinations. */
static int take_sources(char **argv, int first, struct cp_options *options,
			struct failure *failure)
{
	struct operand *all = options->operands;

	for (int i = 0; i < first; i++) {
		int local = i + 1;

		if (!all[i].path[0])
			return parse_operand(argv[i], &all[i], failure);
		if (strcmp(all[i].host, all[0].host) != 0 && all[0].host[0])
			return fail(failure, EXIT_USAGE,
				    "'%s' is on another host than the sources before it",
				    argv[i]);
		if (all[i].host[0] && !all[0].host[0]) {
			while (all[local].host[0])
				local++;
			return fail(failure, EXIT_USAGE,
				    "'%s' is local: with several destinations, each must "
				    "be HOST:DST",
				    argv[local]);
		}
		if (add_word(&options->sources, all[i].path, CP_OPERANDS_MAX) < 0)
			return fail(failure, EXIT_USAGE, "too many sources");
	}
	options->source = all[0];
	return 0;
}

static int take_destinations(char **argv, int count, struct cp_options *options,
			     struct failure *failure)
{
	struct operand *all = options->destinations;

	if (count > CP_DESTINATIONS_MAX)
		return fail(failure, EXIT_USAGE, "more than %d destinations",
			    CP_DESTINATIONS_MAX);
	for (int i = 0; i < count; i++) {
		if (!all[i].path[0])
			return parse_operand(argv[i], &all[i], failure);
		for (int j = 0; j < i; j++)
			if (strcmp(all[i].host, all[j].host) == 0 &&
			    strcmp(all[i].path, all[j].path) == 0)
				return fail(failure, EXIT_USAGE, "'%s' is given twice",
					    argv[i]);
	}
	options->destination_count = (uint32_t)count;
	return 0;
}

static int take_places(int count, char **argv, struct cp_options *options,
		       struct failure *failure)
{
	struct failure ignored = { 0 };
	struct operand *all;
	int first = count - 1;

	if (count > CP_OPERANDS_MAX + CP_DESTINATIONS_MAX)
		return fail(failure, EXIT_USAGE, "too many sources");
	all = options->operands = calloc((size_t)count, sizeof(*all));
	if (!all)
		return fail(failure, EXIT_FILE, "out of memory");
	/* An invalid one has no path, and is reported when it is taken. */
	for (int i = 0; i < count; i++) {
		if (parse_operand(argv[i], &all[i], &ignored) < 0)
			all[i].host[0] = '\0';
		options->standard |= all[i].standard;
	}
	/* The last operand; after local sources, all that are on other hosts. */
	while (first > 1 && all[first].host[0] && all[first - 1].host[0] &&
	       !all[0].host[0])
		first--;
	options->destinations = all + first;
	return take_sources(argv, first, options, failure) < 0
		       ? -1
		       : take_destinations(argv + first, count - first, options, failure);
}

/* It has no name, no mode and no length, and cannot be read or written again. */
static int check_standard(const struct cp_options *options)
{
	const struct cp_settings *settings = &options->settings;

	if (options->source.standard && options->destinations[0].standard)
		return refuse_usage("SRC and DST are both '-'; cat(1) copies that");
	if (options->standard &&
	    (settings->tree || settings->preserve || settings->dry_run ||
	     settings->partial || settings->skip_same))
		return refuse_usage(
			"'-' is one stream of bytes: without -r, -p, -n, --continue, "
			"--skip-same, patterns and other SRC (a file of that name "
			"is ./-)");
	return 0;
}

static int take_operands(int count, char **argv, struct cp_options *options)
{
	struct failure failure = { 0 };

	if (count < 2)
		return refuse_usage("SRC and DST are required; usage: pier cp "
				    "[OPTION...] SRC... DST...");
	if (take_places(count, argv + 1, options, &failure) < 0) {
		print_failure(&failure);
		return -1;
	}
	if (options->source.host[0] && options->destinations[0].host[0])
		return refuse_usage("SRC and DST are both on other hosts: run pier cp "
				    "on one of them");
	options->settings.chain = options->destination_count > 1;
	if (options->settings.chain && options->settings.partial)
		return refuse_usage("--continue is for one DST");
	if (options->settings.chain && options->settings.skip_same)
		return refuse_usage("--skip-same is for one DST");
	if (options->patterns.count && !options->recursive)
		return refuse_usage("--exclude is for -r");
	/* A pattern may match several files. */
	options->settings.tree = options->recursive || options->sources.count > 1 ||
				 (options->source.host[0] &&
				  is_pattern(options->source.path));
	return check_standard(options);
}

/*
 * At a low rate, a large chunk would take seconds and the copy would stutter. The server
 * rejects requests that need too much memory; half of it is for the list of a tree.
 */
static void limit_chunks(struct cp_settings *settings)
{
	uint64_t most = settings->rate / 4 / CP_CHUNK_MIN * CP_CHUNK_MIN;
	uint32_t memory = settings->tree ? CP_MEMORY_MAX / 2 : CP_MEMORY_MAX;

	if (most < CP_CHUNK_MIN)
		most = CP_CHUNK_MIN;
	if (!settings->rate || most > memory)
		most = memory;
	if (settings->chunk > most)
		settings->chunk = most;
	if (settings->depth > memory / settings->chunk)
		settings->depth = (uint32_t)(memory / settings->chunk);
}

int parse_cp_options(int argc, char **argv, struct cp_options *ret_options,
		     int *ret_status)
{
	struct cp_options *options = ret_options;
	int count;

	*options = (struct cp_options){
		.settings = { .chunk = 1 << 20,
			      .depth = 8,
			      .timeout_ms = 30000,
			      .verify = true },
		.source_memory = "",
		.destination_memory = "",
		.rsh = variable_or("PIER_RSH", "ssh"),
		.remote_pier = variable_or("PIER_REMOTE_PIER", "pier"),
	};
	count = parse_options(&cp_option_table, argc, argv, options, ret_status);
	if (count < 0)
		return -1;
	if (take_operands(count, argv, options) < 0) {
		*ret_status = EXIT_USAGE;
		return -1;
	}
	limit_chunks(&options->settings);
	return 0;
}

void free_cp_options(struct cp_options *options)
{
	free_words(&options->sources);
	free_words(&options->patterns);
	free(options->operands);
	options->operands = NULL;
}
