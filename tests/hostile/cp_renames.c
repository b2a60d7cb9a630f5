/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What `pier cp --server --under DIR` does with any operand while somebody renames files
 * below DIR between any two of its system calls: nothing outside DIR is changed or read.
 * And what it does with its own directories when another user of DIR puts something else
 * in their place.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cp/path.h"
#include "cp/source.h"
#include "cp/target.h"
#include "cp/list.h"

/* After failure.h, which has a function with the name of a macro. */
#include "../support/cmocka.h"
#include "../support/random.h"

enum {
	ROUNDS = 3000,
	/* More than a copy has system calls that are wrapped. */
	MOMENTS = 60,
	SECRET_MODE = 0640,
	/* Not one that a copy sets. */
	OUTSIDE_MODE = 0750,
};

static const char secret[] = "secret";
static struct test_random dice;
static char top[PATH_MAX];
static int inside = -1; /* the directory that is served */
/* Called before each system call of a copy; NULL: nothing interferes. */
static void (*act)(void);
/* Of what is done once: so many system calls before it. */
static int moment;
static int thesis = -1; /* a directory of the user that runs the copy */

/* Below DIR. */
static const char *const folders[] = { ".", ".", ".", "d" };
static const char *const names[] = { "d", "d", "l", "new", ".new.pier-partial" };
static const char *const targets[] = { "..", "d/..", "d/../..", "../outside", "/" };

static const char *choose(const char *const *all, size_t count)
{
	return all[test_random_below(&dice, count)];
}

#define CHOOSE(all) choose(all, sizeof(all) / sizeof((all)[0]))

long __real_syscall(long number, ...);

static int open_folder(void)
{
	const struct open_how how = {
		.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
	};

	return (int)__real_syscall(SYS_openat2, inside, CHOOSE(folders), &how,
				   sizeof(how));
}

/* By system calls that are not wrapped. */
static void change_something(void)
{
	int from = open_folder(), to = open_folder();
	const char *name = CHOOSE(names), *other = CHOOSE(names);

	switch (test_random_below(&dice, 8)) {
	case 0:
	case 1:
	case 2:
		__real_syscall(SYS_mkdirat, from, name, 0755);
		break;
	case 3:
		__real_syscall(SYS_unlinkat, from, name, AT_REMOVEDIR);
		break;
	case 4:
		__real_syscall(SYS_unlinkat, from, name, 0);
		break;
	case 5:
		__real_syscall(SYS_symlinkat, CHOOSE(targets), from, name);
		break;
	case 6:
		__real_syscall(SYS_renameat2, from, name, to, other, RENAME_EXCHANGE);
		break;
	default:
		__real_syscall(SYS_renameat2, from, name, to, other, 0);
		break;
	}
	close(from);
	close(to);
}

static void change_at_random(void)
{
	while (test_random_below(&dice, 2))
		change_something();
}

static void make_directories_once(void)
{
	if (moment-- != 0)
		return;
	__real_syscall(SYS_mkdirat, inside, "d", 0755);
	__real_syscall(SYS_mkdirat, inside, "d/d", 0755);
}

static const char *below_top(const char *name, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%.3000s/%s", top, name);
	return path;
}

/* Returns whether there is one. */
static bool find_stage(char ret_name[NAME_MAX + 1])
{
	char path[PATH_MAX];
	DIR *entries = opendir(below_top("above/inside", path));
	struct dirent *entry;

	assert_non_null(entries);
	while ((entry = readdir(entries)) && strncmp(entry->d_name, ".payload.pier-", 14))
		continue;
	if (entry)
		strcpy(ret_name, entry->d_name);
	closedir(entries);
	return entry;
}

/* As soon as there is a stage. */
static void exchange_stage_once(void)
{
	char stage[NAME_MAX + 1];

	if (moment-- > 0)
		return;
	moment = find_stage(stage) ? INT_MAX : 0;
	if (moment == 0)
		return;
	__real_syscall(SYS_renameat2, inside, stage, inside, "away", 0);
	__real_syscall(SYS_renameat2, inside, "thesis", inside, stage, 0);
}

/* The directories in the stage become links that lead out. */
static void exchange_directories_once(void)
{
	char stage[NAME_MAX + 1], from[PATH_MAX], to[PATH_MAX];

	if (moment-- != 0 || !find_stage(stage))
		return;
	for (char name = 'a'; name <= 'b'; name++) {
		snprintf(from, sizeof(from), "%s/payload/%c", stage, name);
		snprintf(to, sizeof(to), "%s/payload/%c%c", stage, name, name);
		__real_syscall(SYS_renameat2, inside, from, inside, to, 0);
		__real_syscall(SYS_symlinkat, "../../../outside", inside, from);
	}
}

static void interfere(void)
{
	int error = errno;

	if (act)
		act();
	errno = error;
}

int __real_openat64(int directory, const char *path, int flags, mode_t mode);
int __real_fstatat64(int directory, const char *path, struct stat *stat, int flags);
int __real_mkdirat(int directory, const char *path, mode_t mode);
int __real_renameat(int from, const char *old, int to, const char *new);
int __real_renameat2(int from, const char *old, int to, const char *new,
		     unsigned int flags);
int __real_unlinkat(int directory, const char *path, int flags);

long __wrap_syscall(long number, long a, long b, long c, long d);
int __wrap_openat64(int directory, const char *path, int flags, mode_t mode);
int __wrap_fstatat64(int directory, const char *path, struct stat *stat, int flags);
int __wrap_mkdirat(int directory, const char *path, mode_t mode);
int __wrap_renameat(int from, const char *old, int to, const char *new);
int __wrap_renameat2(int from, const char *old, int to, const char *new,
		     unsigned int flags);
int __wrap_unlinkat(int directory, const char *path, int flags);
int __wrap_fsync(int fd);
int __wrap_syncfs(int fd);

/* openat2(2) */
long __wrap_syscall(long number, long a, long b, long c, long d)
{
	if (number == SYS_openat2)
		interfere();
	return __real_syscall(number, a, b, c, d);
}

int __wrap_openat64(int directory, const char *path, int flags, mode_t mode)
{
	interfere();
	return __real_openat64(directory, path, flags, mode);
}

int __wrap_fstatat64(int directory, const char *path, struct stat *stat, int flags)
{
	interfere();
	return __real_fstatat64(directory, path, stat, flags);
}

int __wrap_mkdirat(int directory, const char *path, mode_t mode)
{
	interfere();
	return __real_mkdirat(directory, path, mode);
}

int __wrap_renameat(int from, const char *old, int to, const char *new)
{
	interfere();
	return __real_renameat(from, old, to, new);
}

int __wrap_renameat2(int from, const char *old, int to, const char *new,
		     unsigned int flags)
{
	interfere();
	return __real_renameat2(from, old, to, new, flags);
}

int __wrap_unlinkat(int directory, const char *path, int flags)
{
	interfere();
	return __real_unlinkat(directory, path, flags);
}

/* No disk is asked. */
int __wrap_fsync(int fd)
{
	(void)fd;
	return 0;
}

int __wrap_syncfs(int fd)
{
	(void)fd;
	return 0;
}

static int remove_one(const char *path, const struct stat *stat, int type,
		      struct FTW *place)
{
	(void)stat;
	(void)type;
	(void)place;
	return remove(path);
}

static void remove_everything(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* DIR is top/above/inside. */
static int open_world(void **state)
{
	const char *folder = getenv("TMPDIR"), *memory = "/dev/shm";
	char path[PATH_MAX];
	int fd;

	(void)state;
	dice = test_random_start();
	umask(022);
	if (!folder)
		folder = access(memory, W_OK) == 0 ? memory : "/tmp";
	snprintf(top, sizeof(top), "%s/renames-XXXXXX", folder);
	assert_non_null(mkdtemp(top));
	assert_int_equal(mkdir(below_top("above", path), 0700), 0);
	assert_int_equal(mkdir(below_top("above/outside", path), OUTSIDE_MODE), 0);
	fd = open(below_top("above/outside/secret", path), O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, secret, strlen(secret)), strlen(secret));
	assert_int_equal(fchmod(fd, SECRET_MODE), 0);
	close(fd);
	return 0;
}

static int close_world(void **state)
{
	(void)state;
	remove_everything(top);
	return 0;
}

static void check_only(const char *folder, const char *const *expected, int count,
		       unsigned long long round)
{
	char path[PATH_MAX];
	DIR *entries = opendir(below_top(folder, path));
	struct dirent *entry;

	assert_non_null(entries);
	while ((entry = readdir(entries))) {
		bool known = has_no_name(entry->d_name);

		for (int i = 0; i < count; i++)
			known = known || strcmp(entry->d_name, expected[i]) == 0;
		if (!known)
			fail_msg("round %llu left %s in %s", round, entry->d_name,
				 folder);
	}
	closedir(entries);
}

static void check_mode(const char *name, mode_t mode, unsigned long long round)
{
	char path[PATH_MAX];
	struct stat stat;

	assert_int_equal(lstat(below_top(name, path), &stat), 0);
	if ((stat.st_mode & 07777) != mode)
		fail_msg("round %llu changed the mode of %s", round, name);
}

static void check_outside(unsigned long long round)
{
	const char *above[] = { "inside", "outside" };
	const char *const top_names[] = { "above" }, *const secrets[] = { secret };

	check_only("", top_names, 1, round);
	check_only("above", above, 2, round);
	check_only("above/outside", secrets, 1, round);
	check_mode("", 0700, round);
	check_mode("above", 0700, round);
	check_mode("above/outside", OUTSIDE_MODE, round);
	check_mode("above/outside/secret", SECRET_MODE, round);
}

static void make_operand(char operand[PATH_MAX])
{
	static const char *const parts[] = { "d", "d", "l", "..", "..", "..", "new" };
	uint64_t count = 1 + test_random_below(&dice, 4);

	operand[0] = '\0';
	for (uint64_t i = 0; i < count; i++) {
		strcat(operand, i ? "/" : "");
		strcat(operand, CHOOSE(parts));
	}
	if (!operand[0])
		strcpy(operand, ".");
}

static void ignore_report(void *context, const char *path, const char *reason)
{
	(void)context;
	(void)path;
	(void)reason;
}

static int stay_alive(void *context)
{
	(void)context;
	return 0;
}

static const struct observer observer = { .alive = stay_alive, .report = ignore_report };

static void add_file(struct tree *tree, enum list_kind kind, const char *path,
		     uint32_t parent, uint64_t size)
{
	struct list_entry entry = {
		.kind = kind, .mode = 0777, .size = size, .parent = parent
	};
	struct failure failure = { 0 };

	assert_int_equal(add_to_list(&tree->list, &entry, path, NULL, &failure), 0);
}

struct copied_tree {
	struct budget budget;
	struct tree tree;
	struct cp_settings settings;
	struct source_message source;
	struct failure failure;
};

static void begin_tree(struct copied_tree *copied, bool contents)
{
	*copied = (struct copied_tree){
		.budget = { UINT32_MAX },
		.tree = { .list.budget = &copied->budget,
			  .base = -1,
			  .above = -1,
			  .stage = -1,
			  .observer = &observer },
		.settings = { .tree = true, .timeout_ms = 2 },
		.source = { .tree = true,
			    .contents = contents,
			    .size = 6,
			    .name = "payload" },
	};
	if (!contents)
		add_file(&copied->tree, LIST_DIRECTORY, "payload", LIST_TOP, 0);
	add_file(&copied->tree, LIST_DIRECTORY, contents ? "a" : "payload/a",
		 contents ? LIST_TOP : 0, 0);
	add_file(&copied->tree, LIST_DIRECTORY, contents ? "b" : "payload/b",
		 contents ? LIST_TOP : 0, 0);
	add_file(&copied->tree, LIST_FILE, contents ? "a/secret" : "payload/a/secret",
		 !contents, 3);
	add_file(&copied->tree, LIST_FILE, contents ? "b/secret" : "payload/b/secret",
		 1 + !contents, 3);
}

static int open_copied(struct copied_tree *copied, int root, const char *operand)
{
	return open_tree(&copied->tree, root, operand, &copied->source, &copied->settings,
			 &copied->failure) < 0
		       ? -1
		       : store_in_tree(&copied->tree, PART_DATA, 0, "newnew", 6,
				       &copied->failure);
}

static void write_a_tree(int root, const char *operand, bool contents, bool preserve,
			 bool partial)
{
	struct copied_tree copied;

	begin_tree(&copied, contents);
	copied.settings.preserve = preserve;
	copied.settings.partial = partial;
	if (open_copied(&copied, root, operand) == 0)
		commit_tree(&copied.tree, &copied.failure);
	close_tree(&copied.tree);
}

static void write_a_file(int root, const char *operand, bool preserve, bool partial)
{
	struct destination file = { .fd = -1, .directory = -1, .observer = &observer };
	struct cp_settings settings = { .preserve = preserve,
					.partial = partial,
					.timeout_ms = 2 };
	struct source_message source = { .size = 3, .mode = 0777, .name = "secret" };
	struct failure failure = { 0 };

	if (open_destination(&file, root, operand, &source, &settings, &failure) == 0 &&
	    write_destination(&file, 0, "new", 3, &failure) == 0)
		commit_destination(&file, &failure);
	close_destination(&file);
}

static void read_a_file(int root, const char *operand, unsigned long long round)
{
	struct source source = { .fd = -1, .content = -1 };
	struct failure failure = { 0 };
	struct stat stat;

	if (open_source(&source, root, operand, &failure) == 0 &&
	    fstat(source.fd, &stat) == 0 && (stat.st_mode & 07777) == SECRET_MODE)
		fail_msg("round %llu read the secret through %s", round, operand);
	close_source(&source);
}

static void list_a_tree(int root, const char *operand, unsigned long long round)
{
	static const uint8_t key[CP_SECRET_SIZE];
	char *only = (char *)operand;
	const struct words operands = { &only, 1 };
	struct walk walk = {
		.root = root, .secret = key, .operands = &operands, .observer = &observer
	};
	struct budget budget = { UINT32_MAX };
	struct file_list list = { .budget = &budget };
	struct failure failure = { 0 };

	run_walk(&walk, &list, &failure);
	for (uint32_t i = 0; i < list.count; i++)
		if (list.entries[i].mode == SECRET_MODE)
			fail_msg("round %llu listed the secret through %s", round,
				 operand);
	close_walk(&walk);
	free_list(&list);
}

static void use_operand(int root, unsigned long long round)
{
	bool preserve = test_random_below(&dice, 2),
	     partial = test_random_below(&dice, 2);
	char operand[PATH_MAX];

	make_operand(operand);
	switch (test_random_below(&dice, 6)) {
	case 0:
		read_a_file(root, operand, round);
		break;
	case 1:
		list_a_tree(root, operand, round);
		break;
	case 2:
		write_a_file(root, operand, preserve, partial);
		break;
	default:
		write_a_tree(root, operand, test_random_below(&dice, 2), preserve,
			     partial);
		break;
	}
}

/* Returns the root. */
static int open_inside(void)
{
	struct failure failure = { 0 };
	char path[PATH_MAX];
	int root;

	/* What a case that failed has left. */
	act = NULL;
	remove_everything(below_top("above/inside", path));
	assert_int_equal(mkdir(path, 0755), 0);
	root = open_root(path, &failure);
	if (root < 0 && strstr(failure.text, "openat2"))
		skip();
	assert_true(root >= 0);
	inside = open(path, O_RDONLY | O_DIRECTORY);
	return root;
}

static void close_inside(int root, unsigned long long round)
{
	char path[PATH_MAX];

	act = NULL;
	close(inside);
	close(root);
	check_outside(round);
	remove_everything(below_top("above/inside", path));
}

static void nothing_outside_is_changed_or_read(void **state)
{
	(void)state;
	for (unsigned long long round = 0; round < ROUNDS; round++) {
		int root = open_inside();

		for (uint64_t i = test_random_below(&dice, 4); i > 0; i--)
			change_something();
		act = change_at_random;
		use_operand(root, round);
		close_inside(root, round);
	}
}

static void a_directory_that_appears_leads_nowhere(void **state)
{
	static const char *const operands[] = { "d/..", "d/../..", "d/../../",
						"d/d/../../..", "d/." };

	(void)state;
	for (size_t i = 0; i < 4 * sizeof(operands) / sizeof(operands[0]) * MOMENTS;
	     i++) {
		const char *operand = operands[i / MOMENTS / 4];
		int root = open_inside();

		moment = (int)(i % MOMENTS);
		act = make_directories_once;
		if (i / MOMENTS % 4 == 3)
			write_a_file(root, operand, true, false);
		else
			write_a_tree(root, operand, i / MOMENTS % 4 == 1,
				     i / MOMENTS % 4 == 2, false);
		close_inside(root, i);
	}
}

static void dots_are_no_names(void **state)
{
	static const char *const paths[] = {
		"", ".", "..", "d/.", "d/..", "./d", "../d", "d/../d", "d//d", "/d",
	};
	const char *name;
	int root = open_inside();

	(void)state;
	assert_int_equal(mkdirat(inside, "d", 0700), 0);
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		assert_int_equal(open_below(inside, paths[i], O_PATH), -1);
		assert_int_equal(errno, EINVAL);
		assert_int_equal(open_parent_below(inside, paths[i], &name), -1);
		assert_int_equal(errno, EINVAL);
	}
	close_inside(root, 0);
}

static void open_thesis(mode_t mode, bool full)
{
	assert_int_equal(mkdirat(inside, "thesis", 0700), 0);
	thesis = openat(inside, "thesis", O_RDONLY | O_DIRECTORY);
	assert_true(thesis >= 0);
	assert_int_equal(fchmod(thesis, mode), 0);
	if (full)
		assert_int_equal(mkdirat(thesis, "chapter", 0755), 0);
}

static void check_thesis(mode_t mode, bool full, int round)
{
	struct stat stat;

	if (fstat(thesis, &stat) < 0 || (stat.st_mode & 07777) != mode)
		fail_msg("moment %d: the mode was changed", round);
	if (full != (faccessat(thesis, "chapter", F_OK, 0) == 0))
		fail_msg("moment %d: the content was removed", round);
	if (faccessat(thesis, "payload", F_OK, 0) == 0)
		fail_msg("moment %d: the copy was written there", round);
}

/* Another user may rename what the owner alone may delete. */
static void a_copy_with_an_exchanged_stage(mode_t mode, bool full, bool partial,
					   bool commits)
{
	for (int i = 0; i < MOMENTS; i++) {
		struct copied_tree copied;
		int root = open_inside(), opened;

		begin_tree(&copied, false);
		copied.settings.partial = partial;
		open_thesis(mode, full);
		moment = i;
		act = exchange_stage_once;
		opened = open_copied(&copied, root, ".");
		check_thesis(mode, full, i);
		if (opened == 0 && commits)
			assert_int_equal(commit_tree(&copied.tree, &copied.failure), 0);
		close_tree(&copied.tree);
		check_thesis(mode, full, i);
		if (opened == 0 && commits)
			assert_int_equal(faccessat(inside, "payload/a/secret", F_OK, 0),
					 0);
		close(thesis);
		close_inside(root, (unsigned long long)i);
	}
}

static void a_directory_with_the_name_of_the_stage_stays(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++)
		a_copy_with_an_exchanged_stage(0755, true, i & 1, i & 2);
}

static void nobody_else_can_write_to_the_stage(void **state)
{
	(void)state;
	a_copy_with_an_exchanged_stage(0777, false, false, true);
	a_copy_with_an_exchanged_stage(0777, false, false, false);
}

static void no_mode_is_changed_through_a_link(void **state)
{
	(void)state;
	for (int i = 0; i < 4 * MOMENTS; i++) {
		struct copied_tree copied;
		int root = open_inside();

		begin_tree(&copied, false);
		copied.settings.partial = i & 1;
		moment = i / 4;
		act = exchange_directories_once;
		if (open_copied(&copied, root, ".") == 0 && i & 2)
			commit_tree(&copied.tree, &copied.failure);
		close_tree(&copied.tree);
		/* A second copy finds what is left. */
		begin_tree(&copied, false);
		copied.settings.partial = i & 1;
		open_copied(&copied, root, ".");
		close_tree(&copied.tree);
		close_inside(root, (unsigned long long)i);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dots_are_no_names),
		cmocka_unit_test(a_directory_that_appears_leads_nowhere),
		cmocka_unit_test(nothing_outside_is_changed_or_read),
		cmocka_unit_test(a_directory_with_the_name_of_the_stage_stays),
		cmocka_unit_test(nobody_else_can_write_to_the_stage),
		cmocka_unit_test(no_mode_is_changed_through_a_link),
	};

	return cmocka_run_group_tests(tests, open_world, close_world);
}
