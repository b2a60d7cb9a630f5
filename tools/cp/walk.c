/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "list.h"
#include "message.h"
#include "path.h"

/* The length of the bracket expression that begins here, or 0 if it has no end. */
static size_t bracket_length(const char *pattern)
{
	const char *at = pattern + 1;

	at += *at == '!' || *at == '^';
	at += *at == ']';
	for (; *at && *at != ']'; at++) {
		const char *end = NULL;

		if (*at == '\\' && at[1])
			at++;
		else if (*at == '[' && strchr(":.=", at[1]) && at[1])
			end = strstr(at + 2, (const char[]){ at[1], ']', '\0' });
		if (end)
			at = end + 1;
	}
	return *at ? (size_t)(at - pattern) + 1 : 0;
}

/* Whether what the pattern begins with, which is not '*', matches the character. */
static bool matches_one(const char *pattern, char character, size_t *ret_length)
{
	char bracket[PATH_MAX];
	size_t length;

	*ret_length = 1;
	if (*pattern == '?')
		return character != '/';
	if (*pattern == '\\' && pattern[1]) {
		*ret_length = 2;
		return pattern[1] == character;
	}
	if (*pattern != '[')
		return *pattern == character;
	/* Without an end, it matches nothing. */
	length = bracket_length(pattern);
	if (!length || character == '/')
		return false;
	*ret_length = length;
	memcpy(bracket, pattern, length);
	bracket[length] = '\0';
	return fnmatch(bracket, (const char[]){ character, '\0' }, 0) == 0;
}

/*
 * Whether all of the text matches; names: or the text behind one of its slashes.
 *
 * A restricted server matches the patterns of its client. To go back to each '*', as
 * fnmatch(3) does, can take exponential time; to follow all places of the pattern that
 * can have been reached takes the product of both lengths.
 */
static bool matches_text(const char *pattern, const char *text, bool names)
{
	size_t length = strlen(pattern), passed;
	bool reached[PATH_MAX] = { true };

	for (;; text++) {
		for (size_t i = 0; i < length; i++)
			if (reached[i] && pattern[i] == '*')
				reached[i + strspn(pattern + i, "*")] = true;
		if (!*text)
			return reached[length];
		reached[length] = false;
		/* Backwards, so that a place is left before it is reached again. */
		for (size_t i = length; i-- > 0;) {
			if (!reached[i])
				continue;
			reached[i] = pattern[i] == '*' &&
				     (pattern[i + 1] == '*' || *text != '/');
			if (pattern[i] != '*' && matches_one(pattern + i, *text, &passed))
				reached[i + passed] = true;
		}
		reached[0] |= names && *text == '/';
	}
}

/* Whether the text is the path; names: or what follows one of its slashes. */
static bool is_end(const char *text, const char *path, bool names)
{
	size_t length = strlen(text), all = strlen(path);

	if (length > all || strcmp(path + all - length, text) != 0)
		return false;
	return length == all || (names && path[all - length - 1] == '/');
}

/* As rsync does, in its exclude.c. */
bool is_excluded(const char *pattern, const char *path, bool directory)
{
	char plain[PATH_MAX], text[PATH_MAX + 2];
	size_t length = strlen(pattern);
	const char *slash = strrchr(path, '/');
	bool anchored = pattern[0] == '/', begins, ends;

	if (length >= sizeof(plain) || length == 0)
		return false;
	memcpy(plain, pattern, length + 1);
	if (length > 1 && plain[length - 1] == '/') {
		if (!directory)
			return false;
		plain[--length] = '\0';
	}
	if (!strpbrk(plain, "*?["))
		return is_end(plain + anchored, path, !anchored);
	if (slash && !strchr(plain, '/') && !strstr(plain, "**"))
		path = slash + 1;
	/* "**" with a slash behind it matches at the top, too, and one before a last
	 * "***" the directory itself. */
	begins = strncmp(plain, "**", 2) == 0;
	ends = directory && length >= 3 && strcmp(plain + length - 3, "***") == 0;
	snprintf(text, sizeof(text), "%s%s%s", begins ? "/" : "", path, ends ? "/" : "");
	return matches_text(plain + anchored, text, !anchored && !begins);
}

enum {
	SPARSE_MIN = 65536, /* a smaller hole is not worth a search */
	/* Between two calls of alive(); about a millisecond. */
	WORK_MAX = 1 << 20,
	WORK_NAME = 1 << 12,
	/* Components of a path with wildcards; each needs stack and descriptors. */
	WILD_MAX = 16,
};

/* The file is left out; the others are copied. */
static int leave_out(const struct walk *walk, const char *path, const char *reason)
{
	walk->observer->report(walk->observer->context, path, reason);
	return 0;
}

/* Returns 0, or -1 if the walk is to end. */
static int spend_work(struct walk *walk, size_t work)
{
	walk->work += work;
	if (walk->work < WORK_MAX)
		return 0;
	walk->work = 0;
	return walk->observer->alive(walk->observer->context);
}

/* Returns 1, 0, or -1. A client of a restricted server chooses the patterns. */
static int is_wanted(struct walk *walk, const char *path, bool directory)
{
	for (uint32_t i = 0; walk->patterns && i < walk->patterns->count; i++) {
		const char *pattern = walk->patterns->all[i];

		if (spend_work(walk, strlen(pattern) * strlen(path)) < 0)
			return -1;
		if (is_excluded(pattern, path, directory))
			return 0;
	}
	return 1;
}

bool is_pattern(const char *operand)
{
	return strpbrk(operand, "*?[") != NULL;
}

bool matches_name(const char *pattern, const char *name)
{
	const char *first = pattern + (pattern[0] == '\\');

	return (name[0] != '.' || *first == '.') && matches_text(pattern, name, false);
}

/* Below a root, a match may turn out to lead out of it: see add_operand(). */
static int add_match(struct walk *walk, const char *path, struct words *matches)
{
	walk->matched = true;
	/* Patterns may overlap. */
	for (uint32_t i = 0; i < matches->count; i++)
		if (strcmp(matches->all[i], path) == 0)
			return 0;
	if (refuse_open_file(walk->root, path, true, walk->failure) < 0)
		return -1;
	return add_word(matches, path, CP_OPERANDS_MAX) < 0
		       ? fail(walk->failure, EXIT_FILE, "more than %d files match",
			      CP_OPERANDS_MAX)
		       : 0;
}

/*
 * As glob(3), which cannot be kept below a root and can take exponential time.
 *
 * path  `done` bytes of it are the path of a directory; the rest may have wildcards
 */
static int expand_path(struct walk *walk, const char *path, size_t done, int depth,
		       struct words *matches)
{
	size_t start = done + strcspn(path + done, "*?[\\"), end;
	char pattern[PATH_MAX], next[PATH_MAX];
	int directory, result = 0;
	struct dirent *entry;
	DIR *entries;

	if (!path[start]) {
		directory = open_path(walk->root, path, O_PATH);
		close_fd(directory);
		return directory < 0 ? 0 : add_match(walk, path, matches);
	}
	if (depth == WILD_MAX)
		return fail(walk->failure, EXIT_FILE,
			    "a pattern may have wildcards in %d names at most", WILD_MAX);
	while (start > done && path[start - 1] != '/')
		start--;
	end = start + strcspn(path + start, "/");
	snprintf(pattern, sizeof(pattern), "%.*s", (int)(end - start), path + start);
	snprintf(next, sizeof(next), "%.*s", start ? (int)start : 1, start ? path : ".");
	directory = open_path(walk->root, next, O_RDONLY | O_DIRECTORY);
	if (directory < 0 && depth == 0)
		return fail(walk->failure, EXIT_FILE, "cannot read %s: %s", next,
			    path_error(errno));
	entries = directory < 0 ? NULL : fdopendir(directory);
	if (!entries)
		close_fd(directory);
	while (entries && result == 0 && (entry = readdir(entries))) {
		const char *name = entry->d_name;
		int length = snprintf(next, sizeof(next), "%.*s%s%s", (int)start, path,
				      name, path + end);

		if (spend_work(walk, WORK_NAME + strlen(pattern) * strlen(name)) < 0)
			result = -1;
		else if (!has_no_name(name) && length < (int)sizeof(next) &&
			 matches_name(pattern, name))
			result = path[end] ? expand_path(walk, next, start + strlen(name),
							 depth + 1, matches)
					   : add_match(walk, next, matches);
	}
	if (entries)
		closedir(entries);
	return result;
}

int expand_operands(struct walk *walk, struct words *ret_matches, struct failure *failure)
{
	const struct words *operands = walk->operands;

	walk->failure = failure;
	for (uint32_t i = 0; i < operands->count; i++) {
		const char *path = operands->all[i];
		int found = open_path(walk->root, path, O_PATH);

		close_fd(found);
		if (found < 0 && !is_pattern(path))
			return fail(failure, EXIT_FILE, "cannot read %s: %s", path,
				    path_error(errno));
		/* A file of this very name comes first. */
		if (found >= 0) {
			if (add_match(walk, path, ret_matches) < 0)
				return -1;
			continue;
		}
		walk->matched = false;
		if (expand_path(walk, path, 0, 0, ret_matches) < 0)
			return -1;
		if (!walk->matched)
			return fail(failure, EXIT_FILE, "no file matches %s", path);
		walk->expanded = true;
	}
	if (walk->expanded)
		walk->operands = ret_matches;
	return 0;
}

/* attributes: NULL for a link, which has a target. */
static int add_entry(struct walk *walk, const char *path, size_t below,
		     const struct stat *stat, const struct attributes *attributes,
		     const char *target)
{
	struct list_entry entry = {
		.kind = S_ISDIR(stat->st_mode)	 ? LIST_DIRECTORY
			: S_ISREG(stat->st_mode) ? LIST_FILE
						 : LIST_LINK,
		.mode = stat->st_mode & CP_MODE_BITS,
		.operand = walk->operand,
		.below = (uint32_t)below,
		.size = S_ISREG(stat->st_mode) ? (uint64_t)stat->st_size : 0,
		.mtime_seconds = (uint64_t)stat->st_mtim.tv_sec,
		.mtime_nanoseconds = (uint32_t)stat->st_mtim.tv_nsec,
		.device = stat->st_dev,
		.inode = stat->st_ino,
		.ctime = stat->st_ctim,
	};
	int added;

	if (attributes)
		count_losses(stat, attributes, &walk->losses);
	/* A second name of a file in the list becomes another file. */
	if (S_ISREG(stat->st_mode) && stat->st_nlink > 1) {
		added = add_inode(&walk->linked, stat);
		if (added < 0)
			return fail(walk->failure, EXIT_FILE, "out of memory");
		walk->losses.files[LOSS_HARD_LINK] += !added;
	}
	entry.sparse = entry.size >= SPARSE_MIN && has_holes(stat);
	if (!strchr(path, '/'))
		identify_file(stat, walk->secret, entry.identity);
	return add_to_list(walk->list, &entry, path, target, walk->failure);
}

/* Links are copied as links; devices, sockets and pipes are not copied. */
static int add_child(struct walk *walk, int directory, const char *name, const char *path,
		     size_t below)
{
	struct attributes attributes = list_attributes(directory, name);
	char target[PATH_MAX];
	struct stat stat;
	ssize_t length;
	int wanted;

	if (fstatat(directory, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return leave_out(walk, path, strerror(errno));
	wanted = is_wanted(walk, path, S_ISDIR(stat.st_mode));
	if (wanted <= 0)
		return wanted;
	if (S_ISDIR(stat.st_mode) || S_ISREG(stat.st_mode)) {
		apply_acl(directory, name, &stat);
		return add_entry(walk, path, below, &stat, &attributes, NULL);
	}
	if (!S_ISLNK(stat.st_mode))
		return leave_out(walk, path,
				 "neither a file, a directory nor a symbolic link");
	length = readlinkat(directory, name, target, sizeof(target));
	if (length <= 0 || length == sizeof(target))
		return leave_out(walk, path, "the link cannot be read");
	target[length] = '\0';
	return add_entry(walk, path, below, &stat, NULL, target);
}

static int compare_entries(const void *a, const void *b, void *list)
{
	return strcmp(list_path(list, a), list_path(list, b));
}

/* By name, from that number on, so that two runs give the same list. */
static void sort_entries(struct file_list *list, uint32_t first)
{
	struct list_entry *entries = list->entries + first;
	uint64_t offset = first < list->count ? entries[0].offset : 0;

	if (first < list->count)
		qsort_r(entries, list->count - first, sizeof(entries[0]), compare_entries,
			list);
	for (uint32_t i = first; i < list->count; i++) {
		list->entries[i].offset = offset;
		offset += list->entries[i].size;
	}
}

static int add_children(struct walk *walk, int directory, const char *path, size_t below)
{
	DIR *entries = open_entries(directory);
	uint32_t first = walk->list->count;
	char child[PATH_MAX];
	struct dirent *entry;
	int result = 0;

	walk->in_memory = walk->in_memory || is_in_memory(directory);
	if (!entries)
		return leave_out(walk, path[0] ? path : ".", strerror(errno));
	for (errno = 0; result == 0 && (entry = readdir(entries)); errno = 0) {
		const char *name = entry->d_name;
		int length = snprintf(child, sizeof(child), "%s%s%s", path,
				      path[0] ? "/" : "", name);

		if (spend_work(walk, WORK_NAME) < 0)
			result = -1;
		else if (!has_no_name(name) && length >= (int)sizeof(child))
			result = leave_out(walk, path, "the path is too long");
		else if (!has_no_name(name))
			result = add_child(walk, directory, name, child, below);
	}
	if (result == 0 && errno)
		result = leave_out(walk, path[0] ? path : ".", strerror(errno));
	closedir(entries);
	sort_entries(walk->list, first);
	return result;
}

/* The children of a directory that is in the list: the operand, or one below it. */
static int walk_entry(struct walk *walk, uint32_t number)
{
	const struct list_entry *entry = &walk->list->entries[number];
	char path[PATH_MAX];
	size_t below = entry->below;
	int base, directory, result;

	if (entry->kind != LIST_DIRECTORY)
		return 0;
	snprintf(path, sizeof(path), "%s", list_path(walk->list, entry));
	base = walk->bases[entry->operand];
	directory = strlen(path) > below
			    ? open_below(base, path + below, O_RDONLY | O_DIRECTORY)
			    : openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		return leave_out(walk, path, strerror(errno));
	result = add_children(walk, directory, path, below);
	close(directory);
	return result;
}

/* A link that the user named is followed, as without -r. */
static int add_operand(struct walk *walk)
{
	const char *path = walk->operands->all[walk->operand];
	int found = open_path(walk->root, path, O_PATH), wanted;
	struct attributes attributes = { false, false };
	char name[NAME_MAX + 1];
	struct stat stat;
	bool directory;

	/* The directory, or the file itself: its path may have been that of a link. */
	walk->bases[walk->operand] = found;
	if (found >= 0)
		attributes = list_attributes(found, NULL);
	/* Such as a link that leads nowhere. */
	if (found < 0 && walk->expanded)
		return leave_out(walk, path, path_error(errno));
	if (found < 0 || fstat(found, &stat) < 0)
		return fail(walk->failure, EXIT_FILE, "cannot read %s: %s", path,
			    path_error(errno));
	base_name(path, name);
	apply_acl(found, NULL, &stat);
	directory = S_ISDIR(stat.st_mode);
	walk->contents = directory && has_no_name(name);
	wanted = walk->contents ? 1 : is_wanted(walk, name, directory);
	if (wanted <= 0)
		return wanted;
	if (walk->contents)
		return walk->operands->count > 1 || walk->expanded
			       ? fail(walk->failure, EXIT_FILE,
				      "%s has no name to be copied under: name it alone, "
				      "or by its path",
				      path)
			       : add_children(walk, found, "", 0);
	if (!directory && !S_ISREG(stat.st_mode))
		return leave_out(walk, path, "not a regular file");
	if (!directory)
		walk->in_memory = walk->in_memory || is_in_memory(found);
	return add_entry(walk, name, directory ? strlen(name) + 1 : LIST_OPERAND, &stat,
			 &attributes, NULL);
}

int run_walk(struct walk *walk, struct file_list *ret_list, struct failure *failure)
{
	uint32_t count = walk->operands->count;

	walk->list = ret_list;
	walk->failure = failure;
	walk->bases = malloc(count * sizeof(walk->bases[0]));
	if (!walk->bases)
		return fail(failure, EXIT_FILE, "out of memory");
	for (uint32_t i = 0; i < count; i++)
		walk->bases[i] = -1;
	for (walk->operand = 0; walk->operand < count; walk->operand++)
		if (add_operand(walk) < 0)
			return -1;
	sort_entries(ret_list, 0);
	/* Two operands of one name would overwrite each other. */
	for (uint32_t i = 1; i < ret_list->count; i++)
		if (compare_entries(&ret_list->entries[i - 1], &ret_list->entries[i],
				    ret_list) == 0)
			return fail(failure, EXIT_FILE, "two of the sources are named %s",
				    list_path(ret_list, &ret_list->entries[i]));
	/* The list grows while it is walked, so parents come before their children. */
	for (uint32_t i = 0; i < ret_list->count; i++) {
		walk->operand = ret_list->entries[i].operand;
		if (spend_work(walk, WORK_NAME) < 0 || walk_entry(walk, i) < 0)
			return -1;
	}
	return 0;
}

void close_walk(struct walk *walk)
{
	for (uint32_t i = 0; walk->bases && i < walk->operands->count; i++)
		close_fd(walk->bases[i]);
	free(walk->bases);
	walk->bases = NULL;
	tdestroy(walk->linked, free);
	walk->linked = NULL;
}
