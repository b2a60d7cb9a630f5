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
#include "message.h"
#include "path.h"
#include "walk.h"

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

/* The places of a pattern that can have been reached in a text. */
struct places {
	bool reached[PATH_MAX];
	size_t end; /* of those that were reached */
};

static void reach_place(struct places *places, size_t place)
{
	places->reached[place] = true;
	if (places->end <= place)
		places->end = place + 1;
}

static void pass_stars(struct places *places, const char *pattern)
{
	for (size_t i = 0; i < places->end; i++)
		if (places->reached[i] && pattern[i] == '*')
			reach_place(places, i + strspn(pattern + i, "*"));
}

/* Backwards, so that a place is left before it is reached again. */
static void pass_character(struct places *places, const char *pattern, char character)
{
	size_t i = places->end, length;

	places->end = 0;
	while (i-- > 0) {
		if (!places->reached[i])
			continue;
		places->reached[i] = false;
		if (pattern[i] == '*') {
			if (pattern[i + 1] == '*' || character != '/')
				reach_place(places, i);
		} else if (pattern[i] && matches_one(pattern + i, character, &length)) {
			reach_place(places, i + length);
		}
	}
}

/*
 * Whether all of the text matches; names: or the text behind one of its slashes.
 *
 * A restricted server matches the patterns of its client. To go back to each '*', as
 * fnmatch(3) does, can take exponential time; to follow all places of the pattern at once
 * takes the product of both lengths.
 */
static bool matches_text(const char *pattern, const char *text, bool names)
{
	struct places places;

	memset(places.reached, 0, strlen(pattern) + 1);
	places.end = 0;
	reach_place(&places, 0);
	for (; *text && (names || places.end); text++) {
		pass_stars(&places, pattern);
		pass_character(&places, pattern, *text);
		if (names && *text == '/')
			reach_place(&places, 0);
	}
	pass_stars(&places, pattern);
	return !*text && places.end > strlen(pattern);
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
};

struct walking {
	struct walk *walk;
	struct file_list *list;
	struct failure *failure;
	uint32_t operand;
	size_t work; /* since the last call of alive() */
};

/* The file is left out; the others are copied. */
static int leave_out(const struct walking *walking, const char *path, const char *reason)
{
	struct walk *walk = walking->walk;
	char sentence[sizeof(walking->failure->text)];

	snprintf(sentence, sizeof(sentence), "%.*s: %s", PATH_MAX / 8, path, reason);
	walk->report(walk->context, sentence);
	return 0;
}

static void describe_entry(const struct walking *walking, const struct stat *stat,
			   struct list_entry *ret_entry)
{
	memset(ret_entry, 0, sizeof(*ret_entry));
	ret_entry->kind = S_ISDIR(stat->st_mode)   ? LIST_DIRECTORY
			  : S_ISREG(stat->st_mode) ? LIST_FILE
						   : LIST_LINK;
	ret_entry->mode = stat->st_mode & CP_MODE_BITS;
	ret_entry->operand = walking->operand;
	ret_entry->size = ret_entry->kind == LIST_FILE ? (uint64_t)stat->st_size : 0;
	/* stat(3type): st_blocks counts units of 512 bytes. */
	ret_entry->sparse = ret_entry->size >= SPARSE_MIN &&
			    (uint64_t)stat->st_blocks < ret_entry->size / 512;
	ret_entry->mtime_seconds = (uint64_t)stat->st_mtim.tv_sec;
	ret_entry->mtime_nanoseconds = (uint32_t)stat->st_mtim.tv_nsec;
	ret_entry->device = stat->st_dev;
	ret_entry->inode = stat->st_ino;
	ret_entry->ctime = stat->st_ctim;
}

/* Returns 0, or -1 if the walk is to end. */
static int spend_work(struct walking *walking, size_t work)
{
	walking->work += work;
	if (walking->work < WORK_MAX)
		return 0;
	walking->work = 0;
	return walking->walk->alive(walking->walk->context);
}

/* Returns 1, 0, or -1. A client of a restricted server chooses the patterns. */
static int is_wanted(struct walking *walking, const char *path, bool directory)
{
	const struct walk *walk = walking->walk;

	for (uint32_t i = 0; i < walk->pattern_count; i++) {
		if (spend_work(walking, strlen(walk->patterns[i]) * strlen(path)) < 0)
			return -1;
		if (is_excluded(walk->patterns[i], path, directory))
			return 0;
	}
	return 1;
}

struct linked {
	dev_t device;
	ino_t inode;
};

static int compare_linked(const void *a, const void *b)
{
	const struct linked *one = a, *other = b;

	if (one->device != other->device)
		return one->device < other->device ? -1 : 1;
	return (one->inode > other->inode) - (one->inode < other->inode);
}

/* A second name of a file in the list becomes another file. */
static int count_link(struct walking *walking, const struct stat *stat)
{
	struct linked *linked, **found;

	if (!S_ISREG(stat->st_mode) || stat->st_nlink == 1)
		return 0;
	linked = malloc(sizeof(*linked));
	if (!linked)
		return fail(walking->failure, EXIT_FILE, "out of memory");
	*linked = (struct linked){ stat->st_dev, stat->st_ino };
	found = tsearch(linked, &walking->walk->linked, compare_linked);
	if (found && *found == linked)
		return 0;
	free(linked);
	if (!found)
		return fail(walking->failure, EXIT_FILE, "out of memory");
	walking->walk->losses.hard_links++;
	return 0;
}

/* Of a file or a directory. */
static int note_losses(struct walking *walking, const struct stat *stat,
		       const struct attributes *attributes)
{
	count_losses(stat, attributes, &walking->walk->losses);
	return count_link(walking, stat);
}

static int add_entry(struct walking *walking, const char *path, size_t below,
		     const struct stat *stat, const char *target)
{
	struct list_entry entry;

	describe_entry(walking, stat, &entry);
	entry.below = (uint32_t)below;
	if (!strchr(path, '/'))
		identify_file(stat, walking->walk->secret, entry.identity);
	return add_to_list(walking->list, &entry, path, target, walking->failure);
}

/* Links are copied as links; devices, sockets and pipes are not copied. */
static int add_child(struct walking *walking, int directory, const char *name,
		     const char *path, size_t below)
{
	struct attributes attributes = list_attributes(directory, name);
	char target[PATH_MAX];
	struct stat stat;
	ssize_t length;
	int wanted;

	if (fstatat(directory, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return leave_out(walking, path, strerror(errno));
	wanted = is_wanted(walking, path, S_ISDIR(stat.st_mode));
	if (wanted <= 0)
		return wanted;
	if (S_ISDIR(stat.st_mode) || S_ISREG(stat.st_mode)) {
		apply_acl(directory, name, &stat);
		if (note_losses(walking, &stat, &attributes) < 0)
			return -1;
		return add_entry(walking, path, below, &stat, NULL);
	}
	if (!S_ISLNK(stat.st_mode))
		return leave_out(walking, path,
				 "neither a file, a directory nor a symbolic link");
	length = readlinkat(directory, name, target, sizeof(target));
	if (length <= 0 || length == sizeof(target))
		return leave_out(walking, path, "the link cannot be read");
	target[length] = '\0';
	return add_entry(walking, path, below, &stat, target);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static uint64_t name_size(const char *name)
{
	return strlen(name) + 1 + BUDGET_ALLOCATION;
}

static int add_name(struct walking *walking, const char *name, struct words *names)
{
	struct budget *budget = walking->list->budget;

	if (spend_work(walking, WORK_NAME) < 0)
		return -1;
	if (!charge_budget(budget, name_size(name)))
		return fail_too_many(walking->failure);
	if (add_word(names, name, UINT32_MAX) == 0)
		return 0;
	release_budget(budget, name_size(name));
	return fail(walking->failure, EXIT_FILE, "out of memory");
}

static void free_names(const struct walking *walking, struct words *names)
{
	for (uint32_t i = 0; i < names->count; i++)
		release_budget(walking->list->budget, name_size(names->all[i]));
	free_words(names);
}

/* In the order of the names, so that two runs give the same list. */
static int read_names(struct walking *walking, int directory, struct words *ret_names)
{
	int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;
	int result = 0;

	if (!entries) {
		if (copy >= 0)
			close(copy);
		return -1;
	}
	for (errno = 0; result == 0 && (entry = readdir(entries)); errno = 0)
		if (!has_no_name(entry->d_name))
			result = add_name(walking, entry->d_name, ret_names);
	if (errno)
		result = -1;
	closedir(entries);
	if (ret_names->count)
		qsort(ret_names->all, ret_names->count, sizeof(ret_names->all[0]),
		      compare_names);
	return result;
}

static int add_children(struct walking *walking, int directory, const char *path,
			size_t below)
{
	struct words names = { .count = 0 };
	char child[PATH_MAX];
	int result = 0;

	walking->walk->in_memory = walking->walk->in_memory || is_in_memory(directory);
	if (read_names(walking, directory, &names) < 0)
		result = walking->failure->status
				 ? -1
				 : leave_out(walking, path[0] ? path : ".",
					     strerror(errno));
	for (uint32_t i = 0; result == 0 && i < names.count; i++) {
		int length = snprintf(child, sizeof(child), "%s%s%s", path,
				      path[0] ? "/" : "", names.all[i]);

		if (spend_work(walking, WORK_NAME) < 0)
			result = -1;
		else if (length >= (int)sizeof(child))
			result = leave_out(walking, path, "the path is too long");
		else
			result = add_child(walking, directory, names.all[i], child,
					   below);
	}
	free_names(walking, &names);
	return result;
}

/* Of a directory that is in the list: the operand itself, or one below it. */
static int open_listed(const struct walking *walking, const struct list_entry *entry)
{
	const char *path = list_path(walking->list, entry);
	int base = walking->walk->bases[entry->operand];

	return strlen(path) > entry->below
		       ? open_below(base, path + entry->below, O_RDONLY | O_DIRECTORY)
		       : openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* The children of a directory that is in the list. */
static int walk_entry(struct walking *walking, uint32_t number)
{
	const struct list_entry *entry = &walking->list->entries[number];
	char path[PATH_MAX];
	size_t below = entry->below;
	int directory, result;

	if (entry->kind != LIST_DIRECTORY)
		return 0;
	snprintf(path, sizeof(path), "%s", list_path(walking->list, entry));
	directory = open_listed(walking, entry);
	if (directory < 0)
		return leave_out(walking, path, strerror(errno));
	result = add_children(walking, directory, path, below);
	close(directory);
	return result;
}

static int add_directory(struct walking *walking, int found, const char *name,
			 const struct stat *stat, const struct attributes *attributes)
{
	walking->walk->bases[walking->operand] = found;
	if (walking->walk->contents)
		return add_children(walking, found, "", 0);
	if (note_losses(walking, stat, attributes) < 0)
		return -1;
	return add_entry(walking, name, strlen(name) + 1, stat, NULL);
}

/* The base is the file itself: its path may have been that of a link. */
static int add_file(struct walking *walking, int found, const char *name,
		    const struct stat *stat, const struct attributes *attributes)
{
	walking->walk->bases[walking->operand] = found;
	walking->walk->in_memory = walking->walk->in_memory || is_in_memory(found);
	if (note_losses(walking, stat, attributes) < 0)
		return -1;
	return add_entry(walking, name, LIST_OPERAND, stat, NULL);
}

/* A link that the user named is followed, as without -r. */
static int add_operand(struct walking *walking)
{
	struct walk *walk = walking->walk;
	const char *path = walk->operands[walking->operand];
	int found = open_path(walk->root, path, O_PATH), wanted, result;
	struct attributes attributes = { false, false };
	char name[NAME_MAX + 1];
	struct stat stat;

	if (found >= 0)
		attributes = list_attributes(found, NULL);
	if (found < 0 || fstat(found, &stat) < 0) {
		if (found >= 0)
			close(found);
		return fail(walking->failure, EXIT_FILE, "cannot read %s: %s", path,
			    path_error(errno));
	}
	base_name(path, name);
	apply_acl(found, NULL, &stat);
	walk->contents = S_ISDIR(stat.st_mode) && has_no_name(name);
	wanted = walk->contents ? 1 : is_wanted(walking, name, S_ISDIR(stat.st_mode));
	if (wanted <= 0)
		result = wanted;
	else if (walk->contents && walk->operand_count > 1)
		result = fail(walking->failure, EXIT_FILE,
			      "%s has no name to be copied under: name it alone, or by "
			      "its path",
			      path);
	else if (S_ISDIR(stat.st_mode))
		return add_directory(walking, found, name, &stat, &attributes);
	else if (S_ISREG(stat.st_mode))
		return add_file(walking, found, name, &stat, &attributes);
	else
		result = leave_out(walking, path, "not a regular file");
	close(found);
	return result;
}

static int compare_entries(const void *a, const void *b, void *list)
{
	return strcmp(list_path(list, a), list_path(list, b));
}

/* Two operands of one name would overwrite each other. */
static int sort_tops(const struct walking *walking)
{
	struct file_list *list = walking->list;

	qsort_r(list->entries, list->count, sizeof(list->entries[0]), compare_entries,
		list);
	list->size = 0;
	for (uint32_t i = 0; i < list->count; i++) {
		struct list_entry *entry = &list->entries[i];

		if (i > 0 && compare_entries(entry - 1, entry, list) == 0)
			return fail(walking->failure, EXIT_FILE,
				    "two of the sources are named %s",
				    list_path(list, entry));
		entry->offset = list->size;
		list->size += entry->size;
	}
	return 0;
}

static int list_operands(struct walk *walk, struct file_list *ret_list,
			 struct failure *failure)
{
	struct walking walking = { .walk = walk, .list = ret_list, .failure = failure };

	walk->bases = malloc(walk->operand_count * sizeof(walk->bases[0]));
	if (!walk->bases)
		return fail(failure, EXIT_FILE, "out of memory");
	for (uint32_t i = 0; i < walk->operand_count; i++)
		walk->bases[i] = -1;
	for (; walking.operand < walk->operand_count; walking.operand++)
		if (add_operand(&walking) < 0)
			return -1;
	if (ret_list->count > 1 && !walk->contents && sort_tops(&walking) < 0)
		return -1;
	/* The list grows while it is walked, so parents come before their children. */
	for (uint32_t i = 0; i < ret_list->count; i++) {
		walking.operand = ret_list->entries[i].operand;
		if (spend_work(&walking, WORK_NAME) < 0 || walk_entry(&walking, i) < 0)
			return -1;
	}
	return 0;
}

int run_walk(struct walk *walk, struct file_list *ret_list, struct failure *failure)
{
	int result = list_operands(walk, ret_list, failure);

	tdestroy(walk->linked, free);
	walk->linked = NULL;
	return result;
}

void close_walk(struct walk *walk)
{
	for (uint32_t i = 0; walk->bases && i < walk->operand_count; i++)
		if (walk->bases[i] >= 0)
			close(walk->bases[i]);
	free(walk->bases);
	walk->bases = NULL;
}
