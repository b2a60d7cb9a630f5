/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "provider/soft/connect/meeting.h"
#include "provider/soft/link/crypto.h"
#include "tests/support/cmocka.h"

/*
 * Another user makes the folder of a meeting first, or swaps something into it, or key
 * files are not what they should be. Whoever has the key can pose as every process that
 * meets, so nobody else's file may become the key.
 */

enum {
	OTHER_USER = 65534
};

static char parent[64], folder[96], key[112];

static int make_parent(void **state)
{
	const char *where = getenv("TMPDIR");

	(void)state;
	snprintf(parent, sizeof(parent), "%s/meeting-XXXXXX", where ? where : "/tmp");
	assert_non_null(mkdtemp(parent));
	snprintf(folder, sizeof(folder), "%s/pier-soft0", parent);
	snprintf(key, sizeof(key), "%s/key", folder);
	assert_int_equal(pier_soft_open_crypto(), 0);
	return setenv("XDG_RUNTIME_DIR", parent, 1);
}

static int remove_parent(void **state)
{
	char command[96];

	(void)state;
	unsetenv("PIER_SOFT_KEY");
	snprintf(command, sizeof(command), "rm -rf '%s'", parent);
	return system(command);
}

static void make_folder(void)
{
	assert_int_equal(mkdir(folder, 0700), 0);
}

static void write_file(const char *path, size_t length, mode_t mode)
{
	char bytes[64] = "0123456789abcdef0123456789abcdef0123456789abcdef";
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, length), (ssize_t)length);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static void expect_refusal(int error, const char *sentence)
{
	struct soft_meeting meeting = { 0 };

	assert_int_equal(pier_soft_join_meeting(&meeting, true), -error);
	assert_false(meeting.joined);
	test_assert_sentence(sentence);
}

static void expect_entry(struct soft_meeting *ret_meeting)
{
	memset(ret_meeting, 0, sizeof(*ret_meeting));
	assert_int_equal(pier_soft_join_meeting(ret_meeting, true), 0);
	assert_true(ret_meeting->joined);
}

static void skip_without_root(void)
{
	if (geteuid() == 0)
		return;
	print_message("skip: only root can make files of another user\n");
	skip();
}

static void the_first_makes_folder_and_key(void **state)
{
	struct soft_meeting first, second;
	struct stat facts;

	(void)state;
	umask(0);
	expect_entry(&first);
	expect_entry(&second);
	umask(022);
	assert_memory_equal(first.key, second.key, SOFT_KEY_SIZE);
	assert_string_equal(first.folder, folder);
	assert_int_equal(stat(folder, &facts), 0);
	assert_int_equal(facts.st_mode & 07777, 0700);
	assert_int_equal(stat(key, &facts), 0);
	assert_int_equal(facts.st_mode & 07777, 0600);
	assert_int_equal(facts.st_size, SOFT_KEY_SIZE);
}

static void a_folder_of_another_user_is_refused(void **state)
{
	(void)state;
	skip_without_root();
	make_folder();
	assert_int_equal(chown(folder, OTHER_USER, OTHER_USER), 0);
	expect_refusal(EACCES, "is of user 65534");
}

static void a_folder_that_others_may_enter_is_refused(void **state)
{
	(void)state;
	make_folder();
	assert_int_equal(chmod(folder, 0701), 0);
	expect_refusal(EACCES, "mode 0701");
	assert_int_equal(chmod(folder, 0770), 0);
	expect_refusal(EACCES, "mode 0770");
}

/* As mkdir(2) makes it in a folder that has the bit. */
static void a_folder_may_have_s_isgid(void **state)
{
	struct soft_meeting meeting;

	(void)state;
	make_folder();
	assert_int_equal(chmod(folder, 02700), 0);
	expect_entry(&meeting);
}

static void a_link_in_place_of_the_folder_is_refused(void **state)
{
	char elsewhere[96];

	(void)state;
	snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", parent);
	assert_int_equal(mkdir(elsewhere, 0700), 0);
	assert_int_equal(symlink(elsewhere, folder), 0);
	expect_refusal(ENOTDIR, "cannot open the folder");
	assert_int_equal(rmdir(elsewhere), 0); /* nothing was put there */
}

static void a_file_in_place_of_the_folder_is_refused(void **state)
{
	(void)state;
	write_file(folder, 1, 0700);
	expect_refusal(ENOTDIR, "cannot open the folder");
}

static void a_link_in_place_of_the_key_is_refused(void **state)
{
	char elsewhere[96];

	(void)state;
	make_folder();
	snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", parent);
	write_file(elsewhere, SOFT_KEY_SIZE, 0600);
	assert_int_equal(symlink(elsewhere, key), 0);
	expect_refusal(ELOOP, "cannot open the key file");
}

/* open(2) of a FIFO would wait for a writer. */
static void a_fifo_in_place_of_the_key_is_refused(void **state)
{
	(void)state;
	make_folder();
	assert_int_equal(mkfifo(key, 0600), 0);
	expect_refusal(EACCES, "regular file");
}

static void a_key_that_others_may_read_is_refused(void **state)
{
	(void)state;
	make_folder();
	write_file(key, SOFT_KEY_SIZE, 0640);
	expect_refusal(EACCES, "nobody else can read");
}

static void a_key_of_another_user_is_refused(void **state)
{
	(void)state;
	skip_without_root();
	make_folder();
	write_file(key, SOFT_KEY_SIZE, 0600);
	assert_int_equal(chown(key, OTHER_USER, OTHER_USER), 0);
	expect_refusal(EACCES, "is of user 65534");
}

static void a_key_of_another_length_is_refused(void **state)
{
	(void)state;
	make_folder();
	write_file(key, SOFT_KEY_SIZE - 1, 0600);
	expect_refusal(EINVAL, "has 31 bytes");
	assert_int_equal(unlink(key), 0);
	write_file(key, SOFT_KEY_SIZE + 1, 0600);
	expect_refusal(EINVAL, "has 33 bytes");
}

static void a_full_disk_leaves_no_half_key(void **state)
{
	struct rlimit limit, small;
	struct soft_meeting meeting;

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	small = limit;
	small.rlim_cur = SOFT_KEY_SIZE / 2;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	expect_refusal(ENOSPC, "cannot write the key file");
	small.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	expect_refusal(EFBIG, "cannot write the key file");
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_int_equal(rmdir(folder), 0); /* empty */
	expect_entry(&meeting);
}

static void a_long_runtime_folder_is_refused(void **state)
{
	char path[128];

	(void)state;
	snprintf(path, sizeof(path), "%s/%060d", parent, 0);
	assert_int_equal(mkdir(path, 0700), 0);
	setenv("XDG_RUNTIME_DIR", path, 1);
	expect_refusal(ENAMETOOLONG, "too long");
}

/* As after su(1). */
static void a_runtime_folder_of_another_user_is_not_used(void **state)
{
	struct soft_meeting meeting;
	char path[112], expected[64];

	(void)state;
	skip_without_root();
	snprintf(path, sizeof(path), "%s/mine", parent);
	write_file(path, SOFT_KEY_SIZE, 0400);
	setenv("PIER_SOFT_KEY", path, 1);
	assert_int_equal(chown(parent, OTHER_USER, OTHER_USER), 0);
	expect_entry(&meeting);
	snprintf(expected, sizeof(expected), "/tmp/pier-soft0-%u", geteuid());
	assert_string_equal(meeting.folder, expected);
	setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
	expect_entry(&meeting);
	assert_string_equal(meeting.folder, expected);
	rmdir(expected); /* unless somebody uses it */
}

static void join_and_tell(int fd)
{
	struct soft_meeting meeting = { 0 };
	char go;

	if (read(fd, &go, 1) != 1 || pier_soft_join_meeting(&meeting, true) != 0 ||
	    write(fd, meeting.key, SOFT_KEY_SIZE) != SOFT_KEY_SIZE)
		_exit(1);
	_exit(0);
}

static void all_that_come_at_once_have_one_key(void **state)
{
	enum {
		PROCESSES = 16
	};
	uint8_t keys[PROCESSES][SOFT_KEY_SIZE];
	int fds[PROCESSES][2], status;

	(void)state;
	for (int i = 0; i < PROCESSES; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds[i]), 0);
		if (fork() == 0)
			join_and_tell(fds[i][1]);
		close(fds[i][1]);
	}
	for (int i = 0; i < PROCESSES; i++)
		assert_int_equal(write(fds[i][0], "g", 1), 1);
	for (int i = 0; i < PROCESSES; i++) {
		assert_int_equal(read(fds[i][0], keys[i], SOFT_KEY_SIZE), SOFT_KEY_SIZE);
		close(fds[i][0]);
		assert_memory_equal(keys[i], keys[0], SOFT_KEY_SIZE);
	}
	while (wait(&status) > 0)
		assert_int_equal(status, 0);
}

static void a_key_of_the_users_own_is_checked_too(void **state)
{
	struct soft_meeting meeting;
	char path[112];

	(void)state;
	snprintf(path, sizeof(path), "%s/mine", parent);
	setenv("PIER_SOFT_KEY", path, 1);
	expect_refusal(ENOENT, "does not exist");
	write_file(path, SOFT_KEY_SIZE, 0604);
	expect_refusal(EACCES, "nobody else can read");
	assert_int_equal(chmod(path, 0400), 0);
	expect_entry(&meeting);
	assert_int_equal(access(key, F_OK), -1); /* the folder has no key then */
	assert_memory_equal(meeting.key, "0123456789abcdef0123456789abcdef",
			    SOFT_KEY_SIZE);
	setenv("PIER_SOFT_KEY", parent, 1);
	expect_refusal(EACCES, "regular file");
}

static void secrets_differ_by_gid_and_number(void **state)
{
	struct soft_meeting meeting, other = { 0 };
	uint8_t secrets[5][SOFT_SECRET_SIZE];
	union ibv_gid gid = { .raw = { 1 } }, another = { .raw = { 2 } };

	(void)state;
	expect_entry(&meeting);
	pier_soft_derive_secret(&meeting, &gid, 1, secrets[0]);
	pier_soft_derive_secret(&meeting, &gid, 2, secrets[1]);
	pier_soft_derive_secret(&meeting, &another, 1, secrets[2]);
	pier_soft_derive_secret(&other, &gid, 1, secrets[3]);
	for (int i = 0; i < 4; i++) {
		for (int j = 0; j < i; j++)
			assert_memory_not_equal(secrets[i], secrets[j], SOFT_SECRET_SIZE);
	}
	pier_soft_derive_secret(&meeting, &gid, 1, secrets[4]);
	assert_memory_equal(secrets[0], secrets[4], SOFT_SECRET_SIZE);
}

#define case_of(name) cmocka_unit_test_setup_teardown(name, make_parent, remove_parent)

int main(void)
{
	const struct CMUnitTest tests[] = {
		case_of(the_first_makes_folder_and_key),
		case_of(a_folder_of_another_user_is_refused),
		case_of(a_folder_that_others_may_enter_is_refused),
		case_of(a_folder_may_have_s_isgid),
		case_of(a_link_in_place_of_the_folder_is_refused),
		case_of(a_file_in_place_of_the_folder_is_refused),
		case_of(a_link_in_place_of_the_key_is_refused),
		case_of(a_fifo_in_place_of_the_key_is_refused),
		case_of(a_key_that_others_may_read_is_refused),
		case_of(a_key_of_another_user_is_refused),
		case_of(a_key_of_another_length_is_refused),
		case_of(a_full_disk_leaves_no_half_key),
		case_of(a_runtime_folder_of_another_user_is_not_used),
		case_of(a_long_runtime_folder_is_refused),
		case_of(all_that_come_at_once_have_one_key),
		case_of(a_key_of_the_users_own_is_checked_too),
		case_of(secrets_differ_by_gid_and_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
