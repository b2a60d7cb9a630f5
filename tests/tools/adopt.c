/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cp/path.h"
#include "cp/tree.h"

/* After failure.h, which has a function with the name of a macro. */
#include "../support/cmocka.h"

enum {
	FILES = 200 /* a file system with a journal may take a millisecond for each */
};

/* How often alive() was called, and with which call it ends the work; 0: none. */
static int looks, last_look;

static int look(void *context)
{
	(void)context;
	return ++looks == last_look ? -1 : 0;
}

static const struct observer observer = { .alive = look };

static void add_files(struct file_list *list, enum list_kind kind, char letter)
{
	struct list_entry entry = { .kind = kind, .parent = LIST_TOP };
	struct failure failure = { 0 };
	char path[16];

	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof(path), "%c%04d", letter, i);
		assert_int_equal(add_to_list(list, &entry, path, NULL, &failure), 0);
	}
}

/* Where others may write, each file of an earlier copy is copied to a new one. */
static void a_stage_that_lacks_all_files_takes_no_silent_time(void **state)
{
	char name[] = "/tmp/pier-test-XXXXXX", stage[sizeof(name) + 6];
	struct budget budget = { UINT32_MAX };
	struct tree tree = { .observer = &observer, .list.budget = &budget };
	struct failure failure = { 0 };
	int all;

	(void)state;
	assert_non_null(mkdtemp(name));
	snprintf(stage, sizeof(stage), "%s/stage", name);
	assert_int_equal(mkdir(stage, 0700), 0);
	assert_int_equal(chmod(name, 0777), 0);
	tree.base = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	tree.stage = open(stage, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	add_files(&tree.list, LIST_DIRECTORY, 'd');
	add_files(&tree.list, LIST_FILE, 'f');
	assert_int_equal(adopt_stage(&tree, &failure), 0);
	assert_int_equal(failure.status, 0);
	/* Both when directories are looked for and when files are. */
	all = looks;
	assert_true(all >= 2 * FILES / 100 + 2 * FILES / 100);
	for (last_look = 1; last_look <= all; last_look++) {
		looks = 0;
		assert_int_equal(adopt_stage(&tree, &failure), -1);
		assert_int_equal(looks, last_look);
	}
	close(tree.stage);
	close(tree.base);
	free_list(&tree.list);
	assert_int_equal(rmdir(stage), 0);
	assert_int_equal(rmdir(name), 0);
}

/* A client waits for its server's end for a few seconds only. */
static void a_directory_is_emptied_in_linear_time(void **state)
{
	char name[] = "/tmp/pier-test-XXXXXX", path[sizeof(name) + 16];
	int fd, file;

	(void)state;
	assert_non_null(mkdtemp(name));
	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof(path), "%s/%d", name, i);
		assert_int_equal(mkdir(path, 0700), 0);
		strcat(path, "/in");
		assert_int_equal(mkdir(path, 0700), 0);
		strcat(path, "/file");
		file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		assert_true(file >= 0);
		close(file);
	}
	fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	looks = last_look = 0;
	empty_directory(fd, &observer);
	/* Three names in each of two directories, and the names of these. */
	assert_true(looks < 10 * FILES);
	close(fd);
	assert_int_equal(rmdir(name), 0);
}

static void a_stage_with_a_file_keeps_its_directories(void **state)
{
	char name[] = "/tmp/pier-test-XXXXXX";
	struct budget budget = { UINT32_MAX };
	struct tree tree = { .temporary = "stage",
			     .partial = true,
			     .list.budget = &budget };
	int file;

	(void)state;
	assert_non_null(mkdtemp(name));
	tree.base = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(mkdirat(tree.base, tree.temporary, 0700), 0);
	tree.stage = openat(tree.base, tree.temporary,
			    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	add_files(&tree.list, LIST_FILE, 'f');
	add_files(&tree.list, LIST_DIRECTORY, 'd');
	for (uint32_t i = FILES; i < 2 * FILES; i++)
		assert_int_equal(mkdirat(tree.stage,
					 list_path(&tree.list, &tree.list.entries[i]),
					 0700),
				 0);
	file = openat(tree.stage, "f0000", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(file >= 0);
	close(file);
	atomic_store(&tree.list.entries[0].made, true);
	remove_stage(&tree);
	assert_int_equal(faccessat(tree.stage, "d0199", F_OK, 0), 0);
	assert_int_equal(unlinkat(tree.stage, "f0000", 0), 0);
	atomic_store(&tree.list.entries[0].failed, true);
	remove_stage(&tree);
	close(tree.stage);
	close(tree.base);
	free_list(&tree.list);
	assert_int_equal(rmdir(name), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_stage_that_lacks_all_files_takes_no_silent_time),
		cmocka_unit_test(a_directory_is_emptied_in_linear_time),
		cmocka_unit_test(a_stage_with_a_file_keeps_its_directories),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
