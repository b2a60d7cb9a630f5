/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The main program of a fuzz target without libFuzzer. Runs the target once for each file
 * of the given folders; each file is a test case.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static int cases;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void run_file(const char *path, const char *name)
{
	FILE *file = fopen(path, "rb");
	struct stat status;
	uint8_t *data;

	if (!file || fstat(fileno(file), &status))
		die(path);
	/* Allocated with the exact size, so ASan detects a read past the end. */
	data = malloc((size_t)status.st_size + !status.st_size);
	if (!data ||
	    fread(data, 1, (size_t)status.st_size, file) != (size_t)status.st_size)
		die(path);
	fclose(file);
	LLVMFuzzerTestOneInput(data, (size_t)status.st_size);
	free(data);
	printf("ok %d - %s\n", ++cases, name);
}

static int is_visible(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void run_folder(const char *folder)
{
	struct dirent **entries;
	int count = scandir(folder, &entries, is_visible, alphasort);

	if (count < 0)
		die(folder);
	for (int i = 0; i < count; i++) {
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
		run_file(path, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i++)
		run_folder(argv[i]);
	printf("1..%d\n", cases);
	return cases ? 0 : 1;
}
