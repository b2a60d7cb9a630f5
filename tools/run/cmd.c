/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <pier/version.h>

#include "commands.h"
#include "failure.h"

struct options {
	bool dmabuf;
};

static const struct option_row rows[] = {
	{ 0, "dmabuf", NULL,
	  "on the real NICs: register the program's GPU memory as dma-bufs", option_on,
	  offsetof(struct options, dmabuf) },
	OPTION_HELP,
};

const struct option_table run_option_table = {
	.command = "pier run",
	.before = "usage: pier run [--dmabuf] [--] PROGRAM [ARGUMENT...]\n"
		  "\n"
		  "Runs a program of verbs, unchanged, with the software NIC soft0 as "
		  "its only RDMA device: libpier-verbs.so is preloaded and stands in "
		  "for libibverbs.\n",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.after = "exit status: that of the program; 2 wrong usage, "
		 "3 no library to preload,\n"
		 "126 the program cannot be run, 127 there is no such program\n",
	.runs_program = true,
};

enum {
	/* As POSIX has them for env(1), nohup(1) and others that run a program. */
	EXIT_CANNOT_RUN = 126,
	EXIT_NO_PROGRAM = 127
};

static const struct library {
	const char *name, *remedy;
	/* Installed beside libpier.so; a build has it in a folder of its own. */
	const char *places[2];
} verbs_library = { "libpier-verbs.so",
		    "install it, or build it with -Dverbs=enabled",
		    { "", "verbs/" } },
  dmabuf_library = { "libpier-dmabuf.so", "install it", { "", "preload/" } };

static bool find_library(const struct library *library, char *ret_path)
{
	char folder[PATH_MAX], candidate[PATH_MAX];
	Dl_info self;

	if (!dladdr((void *)pier_version, &self) || !realpath(self.dli_fname, folder))
		return false;
	strrchr(folder, '/')[1] = 0;
	for (size_t i = 0; i < 2; i++) {
		int used = snprintf(candidate, sizeof(candidate), "%s%s%s", folder,
				    library->places[i], library->name);

		if (used < PATH_MAX && realpath(candidate, ret_path))
			return true;
	}
	print_error("pier run: there is no %s in %s: %s", library->name, folder,
		    library->remedy);
	return false;
}

/* After what is there already, because a sanitizer's library must be the first. */
static bool preload_library(const char *library)
{
	const char *before = secure_getenv("LD_PRELOAD");
	char *value;
	bool done;

	if (strpbrk(library, " :")) {
		print_error("pier run: %s: LD_PRELOAD separates paths by spaces and "
			    "colons: install pier in a folder without any",
			    library);
		return false;
	}
	if (!before || !*before)
		return setenv("LD_PRELOAD", library, 1) == 0;
	if (asprintf(&value, "%s:%s", before, library) < 0)
		return false;
	done = setenv("LD_PRELOAD", value, 1) == 0;
	free(value);
	return done;
}

/* The file that execvp(3) runs. */
static bool find_program(const char *name, char *ret_path)
{
	const char *path = secure_getenv("PATH"), *end;

	if (strchr(name, '/'))
		return realpath(name, ret_path);
	for (; path && *path; path = *end ? end + 1 : end) {
		char candidate[PATH_MAX];
		int used;

		end = strchrnul(path, ':');
		used = snprintf(candidate, sizeof(candidate), "%.*s/%s",
				(int)(end - path), path, name);
		if (used < PATH_MAX && access(candidate, X_OK) == 0 &&
		    realpath(candidate, ret_path))
			return true;
	}
	errno = ENOENT;
	return false;
}

/* Then the loader ignores LD_PRELOAD (AT_SECURE in getauxval(3)). */
static bool gains_privileges(const char *path)
{
	struct stat file;

	if (stat(path, &file) < 0)
		return false;
	return ((file.st_mode & S_ISUID) && file.st_uid != geteuid()) ||
	       ((file.st_mode & S_ISGID) && file.st_gid != getegid()) ||
	       (geteuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0);
}

static int run_program(const struct library *wanted, char **argv)
{
	char library[PATH_MAX], program[PATH_MAX];
	int error;

	if (!find_library(wanted, library) || !preload_library(library))
		return EXIT_DEVICE;
	if (find_program(argv[0], program) && gains_privileges(program)) {
		print_error("pier run: %s runs with more privileges than yours, so the "
			    "loader preloads nothing: run a copy without them",
			    program);
		return EXIT_CANNOT_RUN;
	}
	/* So that a program that cannot open soft0, or register, shows the reason. */
	setenv("PIER_LOG", "warning", 0);
	execvp(argv[0], argv);
	error = errno;
	print_error("pier run: cannot run %s: %s", argv[0], strerror(error));
	return error == ENOENT ? EXIT_NO_PROGRAM : EXIT_CANNOT_RUN;
}

int command_run(int argc, char **argv)
{
	struct options options = { 0 };
	int status,
		count = parse_options(&run_option_table, argc, argv, &options, &status);

	if (count < 0)
		return status;
	if (count == 0) {
		print_error("pier run: no program given; usage: pier run [--dmabuf] [--] "
			    "PROGRAM [ARGUMENT...]");
		return EXIT_USAGE;
	}
	return run_program(options.dmabuf ? &dmabuf_library : &verbs_library, argv + 1);
}
