/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/device.h>
#include <pier/error.h>

#include "../support/cmocka.h"
#include "backends/backend.h"
#include "core/log.h"

/*
 * The user of a set-uid program chooses its environment. The library must read
 * none of its variables there: secure_getenv(3).
 */

enum {
	OBEYED_DEVICE = 1,
	OBEYED_ADDRESS = 2,
	OBEYED_LOG = 4,
	OBEYED_BACKENDS = 8,
	OBEYED_ALL = 15,
	NOT_RUN = 100,
	NOBODY = 65534
};

static bool opens(const char *name)
{
	struct pier_device *device;

	return pier_device_open(name, &device) == 0 && pier_device_close(device) == 0;
}

/* What the program is after execve(2): returns which variables it obeyed. */
static int look(size_t backends)
{
	const struct pier_backend_entry *entries;
	int obeyed = 0;

	if (pier_log_takes(PIER_LOG_DEBUG))
		obeyed |= OBEYED_LOG;
	/* Without the variable it may fail too: there may be no RDMA device. */
	if (!opens(NULL) && strstr(pier_error_message(), "nosuch"))
		obeyed |= OBEYED_DEVICE;
	if (!opens("soft0"))
		obeyed |= OBEYED_ADDRESS;
	if (pier_backend_entries(&entries) != backends)
		obeyed |= OBEYED_BACKENDS;
	return obeyed;
}

struct fixture {
	char folder[64];
	char program[96];
};

static void copy_program(struct fixture *fixture)
{
	int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int to = open(fixture->program, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	struct stat stat;

	assert_int_equal(fstat(from, &stat), 0);
	while (stat.st_size > 0) {
		ssize_t count = sendfile(to, from, NULL, (size_t)stat.st_size);

		assert_true(count > 0);
		stat.st_size -= count;
	}
	assert_int_equal(fchmod(to, 0755), 0);
	close(to);
	close(from);
}

static int set_up(void **state)
{
	const char *parent = getenv("TMPDIR");
	struct fixture *fixture = calloc(1, sizeof(*fixture));

	snprintf(fixture->folder, sizeof(fixture->folder), "%s/set-uid-XXXXXX",
		 parent && strlen(parent) < 40 ? parent : "/tmp");
	*state = fixture;
	if (!mkdtemp(fixture->folder) || chmod(fixture->folder, 0755) < 0)
		return -1;
	snprintf(fixture->program, sizeof(fixture->program), "%s/program",
		 fixture->folder);
	copy_program(fixture);
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *fixture = *state;

	unlink(fixture->program);
	rmdir(fixture->folder);
	free(fixture);
	return 0;
}

/* Run the copy as another user who chose the environment. */
static int run_as_nobody(const struct fixture *fixture)
{
	static char device[] = "PIER_DEVICE=nosuch", address[] = "PIER_SOFT_ADDRESS=x",
		    log[] = "PIER_LOG=debug", path[] = "PIER_BACKEND_PATH=/missing";
	static char *const environment[] = { device, address, log, path, NULL };
	const struct pier_backend_entry *entries;
	char backends[16];
	char name[] = "program", *const words[] = { name, backends, NULL };
	/* Opened before the rights go: other users may not reach the folder. */
	int status, program = open(fixture->program, O_RDONLY | O_CLOEXEC);
	pid_t pid;

	snprintf(backends, sizeof(backends), "%zu", pier_backend_entries(&entries));
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		if (setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0)
			fexecve(program, words, environment);
		_exit(NOT_RUN);
	}
	close(program);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Skips where another user cannot run the copy. */
static void need_another_user(const struct fixture *fixture)
{
	struct statvfs fs;

	assert_int_equal(statvfs(fixture->folder, &fs), 0);
	if (geteuid() == 0 && !(fs.f_flag & (ST_NOSUID | ST_NOEXEC)) &&
	    run_as_nobody(fixture) != NOT_RUN)
		return;
	print_message("skip: takes root, and a TMPDIR that is mounted without nosuid and "
		      "noexec\n");
	skip();
}

static void plain_program_reads_its_variables(void **state)
{
	need_another_user(*state);
	assert_int_equal(run_as_nobody(*state), OBEYED_ALL);
}

static void set_uid_program_ignores_its_variables(void **state)
{
	const struct fixture *fixture = *state;

	need_another_user(fixture);
	assert_int_equal(chmod(fixture->program, 04755), 0);
	assert_int_equal(run_as_nobody(fixture), 0);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(plain_program_reads_its_variables, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(set_uid_program_ignores_its_variables,
						set_up, tear_down),
	};

	if (argc == 2)
		return look((size_t)atoi(argv[1]));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
