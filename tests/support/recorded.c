/* SPDX-License-Identifier: BSD-3-Clause */
#include "cmocka.h"
#include "recorded.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void make_folders(char *path)
{
	for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
		*slash = '\0';
		assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
		*slash = '/';
	}
}

static void make_file(const char *path, const char *content)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fprintf(file, "%s\n", content) > 0);
	assert_int_equal(fclose(file), 0);
}

/* If the path is an entry of the folder, records it. */
static void remember(const char *path, const char *folder, char *ret_entry, size_t size,
		     size_t *count)
{
	const char *entry;

	if (strncmp(path, folder, strlen(folder)) != 0)
		return;
	entry = path + strlen(folder);
	if (strchr(entry, '/'))
		return;
	assert_true(*count < RECORDED_MAX);
	assert_true(strlen(entry) < size);
	memcpy(ret_entry, entry, strlen(entry) + 1);
	++*count;
}

static void remember_link(struct recorded *tree, const char *path)
{
	remember(path, "class/infiniband/", tree->nics[tree->nic_count],
		 sizeof(tree->nics[0]), &tree->nic_count);
	remember(path, "bus/pci/devices/", tree->devices[tree->device_count],
		 sizeof(tree->devices[0]), &tree->device_count);
}

void recorded_add(struct recorded *tree, const char *line)
{
	const char *arrow = strstr(line, " -> "), *equals = strstr(line, " = ");
	const char *end = arrow ? arrow : equals;
	char path[PATH_MAX], name[PATH_MAX];

	if (line[0] == '#')
		return;
	if (!end)
		fail_msg("neither a file nor a link: %s", line);
	snprintf(name, sizeof(name), "%.*s", (int)(end - line), line);
	assert_true(snprintf(path, sizeof(path), "%s/%s", tree->root, name) < PATH_MAX);
	make_folders(path);
	if (arrow) {
		assert_int_equal(symlink(arrow + 4, path), 0);
		remember_link(tree, name);
	} else {
		make_file(path, equals + 3);
	}
}

struct recorded recorded_start(void)
{
	struct recorded tree = { .root = "/tmp/pier-unit-XXXXXX" };

	assert_non_null(mkdtemp(tree.root));
	return tree;
}

struct recorded recorded_open(const char *file)
{
	const char *folder = getenv("PIER_TEST_TREES");
	struct recorded tree = recorded_start();
	char line[2 * PATH_MAX];
	FILE *stream;

	if (!folder)
		fail_msg("PIER_TEST_TREES is not set: run this by meson test");
	snprintf(line, sizeof(line), "%s/%s", folder, file);
	stream = fopen(line, "r");
	assert_non_null(stream);
	while (fgets(line, sizeof(line), stream)) {
		line[strcspn(line, "\n")] = '\0';
		recorded_add(&tree, line);
	}
	fclose(stream);
	return tree;
}

static int remove_entry(const char *path, const struct stat *status, int kind,
			struct FTW *walk)
{
	(void)status, (void)kind, (void)walk;
	return remove(path);
}

void recorded_close(const struct recorded *tree)
{
	assert_int_equal(nftw(tree->root, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}
