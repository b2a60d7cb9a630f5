/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <pier/version.h>

#include "commands.h"
#include "failure.h"

static int command_help(int argc, char **argv);

static const struct command {
	const char *name, *arguments, *help;
	int (*run)(int argc, char **argv);
	const struct option_table *options;
} commands[] = {
	{ "cp", " SRC... DST", "copy files over RDMA; SRC or DST may be HOST:PATH",
	  command_cp, &cp_option_table },
	{ "doctor", "", "check NICs, GPUs and the paths between them, with remedies",
	  command_doctor, &doctor_option_table },
	{ "info", "", "list devices, ports, GIDs and the kinds of memory that work",
	  command_info, &info_option_table },
	{ "perf", " TEST", "measure bandwidth and latency between memory, NICs and hosts",
	  command_perf, &perf_option_table },
	{ "run", " PROGRAM", "run a program of verbs on soft0, the software NIC",
	  command_run, &run_option_table },
	{ "help", " [COMMAND]", "print the help of pier or of a command", command_help,
	  NULL },
};

static const struct command *find_command(const char *name)
{
	struct guess guess = { .typed = name, .length = strlen(name) };

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
		consider_name(&guess, commands[i].name);
	}
	if (guess.name)
		print_error("pier: unknown command '%s'; did you mean '%s'?", name,
			    guess.name);
	else
		print_error("pier: unknown command '%s'; 'pier help' lists the commands",
			    name);
	return NULL;
}

static int print_help(const struct given_option *given, void *member)
{
	char label[64];

	(void)member;
	puts("usage: pier COMMAND [OPTION...] [ARGUMENT...]\n"
	     "\n"
	     "Moves data directly between memory and RDMA NICs.\n"
	     "\n"
	     "commands:");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		snprintf(label, sizeof(label), "  %s%s", commands[i].name,
			 commands[i].arguments);
		print_help_line(18, label, commands[i].help);
	}
	print_options_help(given->table);
	return 1;
}

static int print_version(const struct given_option *given, void *member)
{
	(void)given;
	(void)member;
	printf("pier %s\n", pier_version());
	return 1;
}

/* For tools/completion/generate.py. */
static int print_tables(const struct given_option *given, void *member)
{
	struct json json = { .file = stdout };

	(void)member;
	json_open(&json, NULL, '{');
	print_options_json(&json, given->table);
	json_open(&json, "commands", '[');
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		const struct option_table *options = commands[i].options;

		json_open(&json, NULL, '{');
		json_string(&json, "name", commands[i].name);
		json_string(&json, "help", commands[i].help);
		json_bool(&json, "runs_program", options && options->runs_program);
		json_string(&json, "first", options ? options->first : NULL);
		print_options_json(&json, options);
		json_close(&json, '}');
	}
	json_close(&json, ']');
	json_close(&json, '}');
	return 1;
}

static const struct option_row rows[] = {
	{ 0, "version", NULL, "print the version", print_version },
	{ 'h', "help", NULL, "print this help", print_help },
	{ 0, "option-tables", NULL, NULL, print_tables },
};

static const struct option_table program_option_table = {
	.command = "pier",
	.before = "",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.after =
		"exit status:\n"
		"  0  success\n"
		"  1  a file could not be read or written\n"
		"  2  usage error\n"
		"  3  a device or memory is unavailable or rejected the request\n"
		"  4  the other side, or the connection to it, failed\n"
		"  5  verification failed: the bytes that arrived differ from those "
		"sent\n"
		"  6  pier doctor has warnings\n"
		"  7  pier doctor has errors\n"
		"  128 + N  signal N ended either side (130: Ctrl-C, 143: SIGTERM)\n"
		"\n"
		"See pier(1), pier-cp(1), pier-doctor(1), pier-info(1), pier-perf(1) and "
		"pier-run(1).\n",
	.runs_program = true,
};

static int command_help(int argc, char **argv)
{
	const struct command *command = argc > 1 ? find_command(argv[1]) : NULL;
	struct given_option given = { .table = &program_option_table };

	if (argc > 1 && !command)
		return EXIT_USAGE;
	if (command && command->options)
		print_options_help(command->options);
	else
		print_help(&given, NULL);
	return EXIT_OK;
}

/* If 0, 1 or 2 is closed, a file opened later would get that number. */
static void open_standard_descriptors(void)
{
	int fd;

	/* Reading a closed standard input still fails: it is not an empty file. */
	if (fcntl(STDIN_FILENO, F_GETFD) < 0)
		open("/dev/null", O_WRONLY);
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

static int run_command(int argc, char **argv)
{
	const struct command *command;
	int status, count;

	count = parse_options(&program_option_table, argc, argv, NULL, &status);
	if (count < 0)
		return status;
	if (count == 0) {
		print_error("pier: no command given; 'pier help' lists the commands");
		return EXIT_USAGE;
	}
	command = find_command(argv[1]);
	return command ? command->run(count, argv + 1) : EXIT_USAGE;
}

int main(int argc, char **argv)
{
	int status;

	open_standard_descriptors();
	status = run_command(argc, argv);
	if ((fflush(stdout) != 0 || ferror(stdout)) &&
	    (status == EXIT_OK || status == EXIT_WARNINGS || status == EXIT_ERRORS)) {
		print_error("pier: cannot write to standard output");
		return EXIT_FILE;
	}
	return status;
}
