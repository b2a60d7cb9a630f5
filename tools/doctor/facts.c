/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/printable.h"
#include "facts.h"
#include "failure.h"

enum {
	CONTENT_MAX = 64 << 10,
};

enum fact_kind {
	FACT_CONTENT,
	FACT_LINK,
	FACT_ERROR, /* it exists, but cannot be read */
};

struct fact {
	char *path;
	char *text;
	uint32_t hash; /* of the path */
	enum fact_kind kind;
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

static struct fact *find_fact(const struct facts *facts, const char *path)
{
	uint32_t hash = hash_path(path);

	for (size_t i = 0; i < facts->count; i++)
		if (facts->list[i].hash == hash && strcmp(facts->list[i].path, path) == 0)
			return &facts->list[i];
	return NULL;
}

/* Replaces one of the same path. */
static struct fact *add_fact(struct facts *facts, const char *path, enum fact_kind kind,
			     const char *text)
{
	struct fact *fact = find_fact(facts, path);
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
		return add_fact(facts, path, FACT_ERROR, strerror(errno));
	}
	if (is_binary(path))
		write_hex(content, (size_t)length, sizeof(content));
	for (length = (ssize_t)strlen(content);
	     length > 0 && strchr(" \t\r\n", content[length - 1]); length--)
		content[length - 1] = '\0';
	return add_fact(facts, path, FACT_CONTENT, content);
}

static struct fact *read_link(struct facts *facts, const char *path)
{
	char target[FACT_PATH_MAX];
	ssize_t length = readlink(path, target, sizeof(target) - 1);

	if (length < 0)
		return NULL;
	target[length] = '\0';
	return add_fact(facts, path, FACT_LINK, target);
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
	add_fact(facts, path, FACT_CONTENT, value);
}

void facts_set_number(struct facts *facts, long long number, const char *format, ...)
{
	char path[FACT_PATH_MAX], text[32];

	FORMAT_PATH(format, path);
	snprintf(text, sizeof(text), "%lld", number);
	add_fact(facts, path, FACT_CONTENT, text);
}

void facts_set_error(struct facts *facts, const char *reason, const char *format, ...)
{
	char path[FACT_PATH_MAX];

	FORMAT_PATH(format, path);
	add_fact(facts, path, FACT_ERROR, reason);
}

static const struct fact *get_fact(struct facts *facts, const char *path)
{
	const struct fact *fact = find_fact(facts, path);

	if (!fact && is_readable(facts, path))
		fact = read_file(facts, path);
	return fact;
}

static const char *text_of(const struct fact *fact, enum fact_kind kind)
{
	return fact && fact->kind == kind ? fact->text : NULL;
}

const char *facts_get(struct facts *facts, const char *format, ...)
{
	char path[FACT_PATH_MAX];

	FORMAT_PATH(format, path);
	return text_of(get_fact(facts, path), FACT_CONTENT);
}

long long facts_number(struct facts *facts, const char *format, ...)
{
	char path[FACT_PATH_MAX], *end;
	const char *text;
	long long number;

	FORMAT_PATH(format, path);
	text = text_of(get_fact(facts, path), FACT_CONTENT);
	if (!text)
		return -1;
	number = strtoll(text, &end, 0);
	return end == text ? -1 : number;
}

const char *facts_error(struct facts *facts, const char *format, ...)
{
	char path[FACT_PATH_MAX];

	FORMAT_PATH(format, path);
	return text_of(get_fact(facts, path), FACT_ERROR);
}

const char *facts_link(struct facts *facts, const char *format, ...)
{
	const struct fact *fact;
	char path[FACT_PATH_MAX];

	FORMAT_PATH(format, path);
	fact = find_fact(facts, path);
	if (!fact && is_readable(facts, path))
		fact = read_link(facts, path);
	return text_of(fact, FACT_LINK);
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
	return add_fact(facts, key, FACT_CONTENT, names);
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
	if (find_fact(facts, path))
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
	add_fact(facts, path, FACT_CONTENT, "");
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
	folder = find_fact(facts, key);
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

static const char first_line[] = "# pier doctor facts 1";
static const char last_line[] = "end";

/* A machine with many devices has a tenth of this. */
enum {
	LINES_MAX = 20000,
	LINE_MAX_BYTES = 256 << 10
};

static const struct {
	const char *sign;
	enum fact_kind kind;
} signs[] = {
	{ " = ", FACT_CONTENT },
	{ " -> ", FACT_LINK },
	{ " ! ", FACT_ERROR },
};

/* blanks: whether they are kept; a path must not contain the signs. */
static void write_text(FILE *file, const char *text, bool blanks)
{
	char piece[PIER_PIECE_MAX];

	while (*text) {
		if (*text == '\\' || (*text == ' ' && !blanks))
			fprintf(file, "\\x%02x", (unsigned char)*text++);
		else
			fwrite(piece, 1, pier_escape_next(&text, piece), file);
	}
}

static void write_fact(FILE *file, const struct fact *fact)
{
	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
		if (signs[i].kind != fact->kind)
			continue;
		write_text(file, fact->path, false);
		if (fact->text[0])
			fputs(signs[i].sign, file);
		else
			fputs(" =", file);
		write_text(file, fact->text, true);
		fputc('\n', file);
	}
}

static int fail_file(struct failure *failure, const char *verb, const char *name)
{
	return fail(failure, EXIT_FILE, "cannot %s '%s': %s", verb, name,
		    strerror(errno));
}

int facts_save(const struct facts *facts, const char *name, struct failure *failure)
{
	FILE *file = fopen(name, "we");
	bool failed;

	if (!file)
		return fail_file(failure, "write", name);
	fprintf(file, "%s\n", first_line);
	for (size_t i = 0; i < facts->count; i++)
		write_fact(file, &facts->list[i]);
	fprintf(file, "%s\n", last_line);
	failed = ferror(file);
	if (fclose(file) != 0 || failed)
		return fail_file(failure, "write", name);
	return 0;
}

/* In place. False: there is a \ that begins neither \\ nor \xNN. */
static bool read_text(char *text)
{
	char *to = text, digits[3] = "";

	for (; *text; text++) {
		if (*text != '\\') {
			*to++ = *text;
		} else if (text[1] == '\\') {
			*to++ = *++text;
		} else if (text[1] == 'x' && isxdigit((unsigned char)text[2]) &&
			   isxdigit((unsigned char)text[3])) {
			memcpy(digits, text + 2, 2);
			*to++ = (char)strtol(digits, NULL, 16);
			text += 3;
		} else {
			return false;
		}
	}
	*to = '\0';
	return true;
}

/* The sign that comes first: a content may contain another one. */
static bool split_line(char *line, char **ret_text, enum fact_kind *ret_kind)
{
	char *first = NULL;

	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
		char *at = strstr(line, signs[i].sign);

		if (!at || (first && at > first))
			continue;
		first = at;
		*ret_text = at + strlen(signs[i].sign);
		*ret_kind = signs[i].kind;
	}
	if (first)
		*first = '\0';
	return first != NULL;
}

static bool take_line(struct facts *facts, char *line)
{
	size_t length = strlen(line);
	enum fact_kind kind;
	char *text;

	if (line[0] == '\0' || line[0] == '#')
		return true;
	/* Of an empty content, editors remove the space. */
	if (length >= 2 && strcmp(line + length - 2, " =") == 0) {
		line[length - 2] = '\0';
		text = line + length - 1;
		*text = '\0';
		kind = FACT_CONTENT;
	} else if (!split_line(line, &text, &kind)) {
		return false;
	}
	if (!read_text(line) || !read_text(text) || strlen(line) >= FACT_PATH_MAX)
		return false;
	add_fact(facts, line, kind, text);
	return true;
}

/* A line of the file, without its end. False: it is too long, or contains a NUL. */
static bool end_line(FILE *file, char *line)
{
	size_t length = strlen(line);

	if (length > 0 && line[length - 1] == '\n')
		line[length - 1] = '\0';
	else
		return feof(file);
	return true;
}

static int read_lines(struct facts *facts, FILE *file, const char *name,
		      struct failure *failure)
{
	char *line = require_memory(malloc(LINE_MAX_BYTES));
	size_t number = 0;
	bool ended = false;
	int result = 0;

	while (result == 0 && fgets(line, LINE_MAX_BYTES, file)) {
		bool whole = end_line(file, line);

		number++;
		if (number == 1 && strcmp(line, first_line) != 0)
			result = fail(failure, EXIT_FILE,
				      "'%s' has no facts of pier doctor: its first line "
				      "is not '%s'",
				      name, first_line);
		else if (number > LINES_MAX || !whole)
			result = fail(failure, EXIT_FILE,
				      "'%s' has more than %d lines, or line %zu is too "
				      "long or contains a NUL",
				      name, LINES_MAX, number);
		else if ((ended && line[0]) ||
			 (!(ended |= strcmp(line, last_line) == 0) &&
			  !take_line(facts, line)))
			result = fail(failure, EXIT_FILE,
				      "'%s', line %zu, is not 'PATH = CONTENT', 'PATH -> "
				      "TARGET' or 'PATH ! REASON'",
				      name, number);
	}
	if (result == 0 && ferror(file))
		result = fail_file(failure, "read", name);
	if (result == 0 && !ended)
		result = fail(failure, EXIT_FILE,
			      "'%s' is incomplete: its last line is not '%s'", name,
			      last_line);
	free(line);
	return result;
}

int facts_load(struct facts *facts, const char *name, struct failure *failure)
{
	FILE *file = fopen(name, "re");
	int result;

	if (!file)
		return fail_file(failure, "read", name);
	result = read_lines(facts, file, name, failure);
	fclose(file);
	return result;
}
