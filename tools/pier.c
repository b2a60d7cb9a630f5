/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <pier/version.h>

#include "cp/cmd.h"
#include "doctor/cmd.h"
#include "failure.h"
#include "info/cmd.h"
#include "perf/cmd.h"
#include "run/cmd.h"

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "cp", command_cp },	  { "doctor", command_doctor }, { "info", command_info },
	{ "perf", command_perf }, { "run", command_run },
};

static const char program_help[] =
	"usage: pier COMMAND [OPTION...] [ARGUMENT...]\n"
	"\n"
	"Moves data directly between memory and RDMA NICs.\n"
	"\n"
	"commands:\n"
	"  cp SRC... DST   copy files over RDMA; SRC or DST may be HOST:PATH\n"
	"  doctor          check NICs, GPUs and the paths between them, with remedies\n"
	"  info            list devices, ports, GIDs and the kinds of memory that work\n"
	"  perf TEST       measure bandwidth and latency between memory, NICs and hosts\n"
	"  run PROGRAM     run a program of verbs on soft0, the software NIC\n"
	"  help [COMMAND]  print the help of pier or of a command\n"
	"\n"
	"  --version       print the version\n"
	"  -h, --help      print this help\n"
	"\n"
	"exit status:\n"
	"  0  success\n"
	"  1  a file could not be read or written\n"
	"  2  usage error\n"
	"  3  a device or memory is unavailable or rejected the request\n"
	"  4  the other side, or the connection to it, failed\n"
	"  5  verification failed: the bytes that arrived differ from those sent\n"
	"  6  pier doctor has warnings\n"
	"  7  pier doctor has errors\n"
	"  128 + N  signal N ended either side (130: Ctrl-C, 143: SIGTERM)\n"
	"\n"
	"See pier(1), pier-cp(1), pier-doctor(1), pier-info(1), pier-perf(1) and\n"
	"pier-run(1).\n";

static const struct command *find_command(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	print_error("pier: unknown command '%s'; 'pier help' lists the commands", name);
	return NULL;
}

static int print_help(int argc, char **argv)
{
	const struct command *command;
	char option[] = "--help";
	char *arguments[] = { NULL, option, NULL };

	if (argc < 2 || strcmp(argv[1], "help") == 0) {
		fputs(program_help, stdout);
		return EXIT_OK;
	}
	command = find_command(argv[1]);
	if (!command)
		return EXIT_USAGE;
	arguments[0] = argv[1];
	return command->run(2, arguments);
}

/* If 0, 1 or 2 is closed, a file opened later would get that number. */
static void open_standard_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

static int run_command(int argc, char **argv)
{
	const struct command *command;

	if (argc < 2) {
		print_error("pier: no command given; 'pier help' lists the commands");
		return EXIT_USAGE;
	}
	if (strcmp(argv[1], "help") == 0)
		return print_help(argc - 1, argv + 1);
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return print_help(1, argv);
	if (strcmp(argv[1], "--version") == 0) {
		printf("pier %s\n", pier_version());
		return EXIT_OK;
	}
	if (argv[1][0] == '-') {
		print_error("pier: unknown option '%s'; 'pier help' lists the options",
			    argv[1]);
		return EXIT_USAGE;
	}
	command = find_command(argv[1]);
	return command ? command->run(argc - 1, argv + 1) : EXIT_USAGE;
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
