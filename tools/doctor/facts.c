/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fact.h"
#include "facts.h"

enum {
	CONTENT_MAX = 64 << 10,
};

void facts_init(struct facts *facts, bool live)
{
	*facts = (struct facts){ .live = live };
}

void facts_free(struct facts *facts)
{
	for (size_t i = 0; i < facts->count; i++) {
		free(facts->list[i].path);
		free(facts->list[i].text);
	}
	free(facts->list);
	*facts = (struct facts){ 0 };
}

void *require_memory(void *memory)
{
	if (!memory) {
		fputs("pier doctor: no memory\n", stderr);
		abort();
	}
	return memory;
}

/* FNV-1a: most comparisons then need not read the path. */
static uint32_t hash_path(const char *path)
{
	uint32_t hash = 2166136261;

	for (; *path; path++)
		hash = (hash ^ (uint8_t)*path) * 16777619;
	return hash;
}

struct fact *fact_find(const struct facts *facts, const char *path)
{
	uint32_t hash = hash_path(path);

	for (size_t i = 0; i < facts->count; i++)
		if (facts->list[i].hash == hash && strcmp(facts->list[i].path, path) == 0)
			return &facts->list[i];
	return NULL;
}

struct fact *fact_add(struct facts *facts, const char *path, enum fact_kind kind,
		      const char *text)
{
	struct fact *fact = fact_find(facts, path);
	char *copy = require_memory(strdup(text));

	if (fact) {
		free(fact->text);
	} else {
		if (facts->count == facts->room) {
			facts->room = facts->room ? 2 * facts->room : 256;
			facts->list = require_memory(
				realloc(facts->list, facts->room * sizeof(*fact)));
		}
		fact = &facts->list[facts->count++];
		fact->path = require_memory(strdup(path));
		fact->hash = hash_path(path);
	}
	fact->text = copy;
	fact->kind = kind;
	return fact;
}

/* Content of sysfs and procfs may be longer than st_size says, so read to its end. */
static ssize_t read_content(const char *path, char *ret_content, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	size_t length = 0;
	ssize_t count;

	if (fd < 0)
		return -1;
	do {
		count = read(fd, ret_content + length, size - 1 - length);
		length += count > 0 ? (size_t)count : 0;
	} while ((count > 0 && length < size - 1) || (count < 0 && errno == EINTR));
	close(fd);
	ret_content[length] = '\0';
	return count < 0 ? -1 : (ssize_t)length;
}

static bool is_binary(const char *path)
{
	const char *name = strrchr(path, '/');

	return strncmp(path, "/sys/", 5) == 0 && name && strcmp(name, "/config") == 0;
}

static void write_hex(char *content, size_t length, size_t size)
{
	static const char digits[] = "0123456789abcdef";

	if (2 * length >= size)
		length = (size - 1) / 2;
	content[2 * length] = '\0';
	for (size_t i = length; i-- > 0;) {
		unsigned char byte = (unsigned char)content[i];

		content[2 * i] = digits[byte >> 4];
		content[2 * i + 1] = digits[byte & 15];
	}
}

static struct fact *read_file(struct facts *facts, const char *path)
{
	static char content[CONTENT_MAX];
	ssize_t length = read_content(path, content, sizeof(content));

	if (length < 0) {
		if (errno == ENOENT || errno == ENOTDIR || errno == EISDIR)
			return NULL;
		return fact_add(facts, path, FACT_ERROR, strerror(errno));
	}
	if (is_binary(path))
		write_hex(content, (size_t)length, sizeof(content));
	for (length = (ssize_t)strlen(content);
	     length > 0 && strchr(" \t\r\n", content[length - 1]); length--)
		content[length - 1] = '\0';
	return fact_add(facts, path, FACT_CONTENT, content);
}

static struct fact *read_link(struct facts *facts, const char *path)
{
	char target[FACT_PATH_MAX];
	ssize_t length = readlink(path, target, sizeof(target) - 1);

	if (length < 0)
		return NULL;
	target[length] = '\0';
	return fact_add(facts, path, FACT_LINK, target);
}

/* Only paths of the machine can be read. */
static bool is_readable(const struct facts *facts, const char *path)
{
	return facts->live && path[0] == '/';
}

#define FORMAT_PATH(format, path)                                 \
	do {                                                      \
		va_list arguments;                                \
		va_start(arguments, format);                      \
		vsnprintf(path, sizeof(path), format, arguments); \
		va_end(arguments);                                \
	} while (0)

void make_fact_name(const char *text, char ret_name[FACT_NAME_MAX])
{
	snprintf(ret_name, FACT_NAME_MAX, "%s", text);
	for (; *ret_name; ret_name++)
		if (*ret_name == '/')
			*ret_name = '_';
}

void facts_set(struct facts *facts, const char *value, const char *format, ...)
{
	char path[FACT_PATH_MAX];

	FORMAT_PATH(format, path);
	fact_add(facts, path, FACT_CONTENT, value);
}

void facts_set_number(struct facts *facts, long long number, const char *format, ...)
{
	char path[FACT_PATH_MAX], text[32];

	FORMAT_PATH(format, path);
	snprintf(text, sizeof(text), "%lld", number);
	fact_add(facts, path, FACT_CONTENT, text);
}

void facts_set_error(struct facts *facts, const char *reason, const char *format, ...)
{
	char path[FACT_PATH_MAX];

	FORMAT_PATH(format, path);
	fact_add(facts, path, FACT_ERROR, reason);
}

static const struct fact *get_fact(struct facts *facts, const char *path)
{
	const struct fact *fact = fact_find(facts, path);

	if (!fact && is_readable(facts, path))
		fact = read_file(facts, path);
	return fact;
}

const char *facts_get(struct facts *facts, const char *format, ...)
{
	const struct fact *fact;
	char path[FACT_PATH_MAX];

	FORMAT_PATH(format, path);
	fact = get_fact(facts, path);
	return fact && fact->kind == FACT_CONTENT ? fact->text : NULL;
}

long long facts_number(struct facts *facts, const char *format, ...)
{
	const struct fact *fact;
	char path[FACT_PATH_MAX], *end;
	long long number;

	FORMAT_PATH(format, path);
	fact = get_fact(facts, path);
	if (!fact || fact->kind != FACT_CONTENT)
		return -1;
	number = strtoll(fact->text, &end, 0);
	return end == fact->text ? -1 : number;
}

const char *facts_error(struct facts *facts, const char *format, ...)
{
	const struct fact *fact;
	char path[FACT_PATH_MAX];

	FORMAT_PATH(format, path);
	fact = get_fact(facts, path);
	return fact && fact->kind == FACT_ERROR ? fact->text : NULL;
}

const char *facts_link(struct facts *facts, const char *format, ...)
{
	const struct fact *fact;
	char path[FACT_PATH_MAX];

	FORMAT_PATH(format, path);
	fact = fact_find(facts, path);
	if (!fact && is_readable(facts, path))
		fact = read_link(facts, path);
	return fact && fact->kind == FACT_LINK ? fact->text : NULL;
}

/* "PATH/ = NAMES" keeps that a folder exists, and its names. */
static const struct fact *read_folder(struct facts *facts, const char *path)
{
	char key[FACT_PATH_MAX + 1], names[CONTENT_MAX] = "";
	struct dirent **entries;
	size_t used = 0;
	int count = scandir(path, &entries, NULL, alphasort);

	if (count < 0)
		return NULL;
	for (int i = 0; i < count; i++) {
		const char *name = entries[i]->d_name;
		size_t length = strlen(name);

		if (name[0] != '.' && used + length + 2 < sizeof(names)) {
			memcpy(names + used, name, length);
			names[used + length] = ' ';
			used += length + 1;
		}
		free(entries[i]);
	}
	free(entries);
	names[used ? used - 1 : 0] = '\0';
	snprintf(key, sizeof(key), "%s/", path);
	return fact_add(facts, key, FACT_CONTENT, names);
}

static bool is_below(const char *path, const char *folder)
{
	size_t length = strlen(folder);

	return strncmp(path, folder, length) == 0 && path[length] == '/';
}

bool facts_has(struct facts *facts, const char *format, ...)
{
	char path[FACT_PATH_MAX];
	struct stat status;

	FORMAT_PATH(format, path);
	if (fact_find(facts, path))
		return true;
	for (size_t i = 0; i < facts->count; i++)
		if (is_below(facts->list[i].path, path))
			return true;
	if (!is_readable(facts, path) || stat(path, &status) < 0)
		return false;
	if (S_ISDIR(status.st_mode))
		return read_folder(facts, path) != NULL;
	if (S_ISREG(status.st_mode) && get_fact(facts, path))
		return true;
	/* A device is not read. */
	fact_add(facts, path, FACT_CONTENT, "");
	return true;
}

static void add_name(struct names *names, const char *name, size_t length)
{
	if (length == 0 || length >= FACT_NAME_MAX)
		return;
	for (size_t i = 0; i < names->count; i++)
		if (strncmp(names->list[i], name, length) == 0 &&
		    names->list[i][length] == '\0')
			return;
	names->list = require_memory(
		realloc(names->list, (names->count + 1) * sizeof(*names->list)));
	snprintf(names->list[names->count++], FACT_NAME_MAX, "%.*s", (int)length, name);
}

static void add_listed_names(struct names *names, const char *text)
{
	while (*text) {
		size_t length = strcspn(text, " ");

		add_name(names, text, length);
		text += length + (text[length] == ' ');
	}
}

struct names facts_names(struct facts *facts, const char *format, ...)
{
	char path[FACT_PATH_MAX], key[FACT_PATH_MAX + 1];
	struct names names = { 0 };
	const struct fact *folder;

	FORMAT_PATH(format, path);
	snprintf(key, sizeof(key), "%s/", path);
	folder = fact_find(facts, key);
	if (!folder && is_readable(facts, path))
		folder = read_folder(facts, path);
	if (folder) {
		add_listed_names(&names, folder->text);
		return names;
	}
	for (size_t i = 0; i < facts->count; i++) {
		const char *name = facts->list[i].path + strlen(key);

		if (is_below(facts->list[i].path, path))
			add_name(&names, name, strcspn(name, "/"));
	}
	return names;
}

void facts_free_names(struct names *names)
{
	free(names->list);
	*names = (struct names){ 0 };
}
