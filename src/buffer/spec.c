/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/buffer.h>

#include "backends/backend.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/text.h"
#include "spec.h"

static void describe_backend(const struct pier_backend *backend,
			     struct pier_backend_info *info)
{
	snprintf(info->name, sizeof(info->name), "%s", backend->name);
	snprintf(info->description, sizeof(info->description), "%s",
		 backend->description);
	info->dmabuf = backend->dmabuf;
	info->available = backend->probe(info->detail, sizeof(info->detail)) == 0;
	info->detail[sizeof(info->detail) - 1] = '\0';
}

/* A backend that could not be loaded has the name of its file. */
static void describe_problem(const struct pier_backend_entry *entry,
			     struct pier_backend_info *info)
{
	const char *slash = strrchr(entry->origin, '/');
	const char *file = slash && slash[1] ? slash + 1 : entry->origin;
	size_t stem = strlen(file);

	if (stem > 3 && strcmp(file + stem - 3, ".so") == 0)
		stem -= 3;
	snprintf(info->name, sizeof(info->name), "%.*s", (int)stem, file);
	snprintf(info->description, sizeof(info->description), "could not be loaded");
	snprintf(info->detail, sizeof(info->detail), "%s", entry->problem);
}

int pier_backend_list(struct pier_backend_info **ret_list, uint32_t *ret_count,
		      size_t size)
{
	PIER_REFUSE_NULL(ret_list, ret_count);
	const struct pier_backend_entry *entries;
	size_t count = pier_backend_entries(&entries);
	struct pier_backend_info *list = calloc(count, sizeof(*list));

	if (!list)
		return pier_fail(ENOMEM, "no memory for a list of %zu backends", count);
	for (size_t i = 0; i < count; i++) {
		if (entries[i].backend)
			describe_backend(entries[i].backend, &list[i]);
		else
			describe_problem(&entries[i], &list[i]);
		snprintf(list[i].origin, sizeof(list[i].origin), "%s", entries[i].origin);
	}
	return pier_write_list(list, sizeof(*list), (uint32_t)count, ret_list, ret_count,
			       size);
}

enum {
	NAME_LONGEST = 31,
	UNIT_LONGEST = 127,
};

/* Not isalnum(3): the answer must not depend on the locale. */
static bool is_name_character(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       (c >= '0' && c <= '9') || c == '_';
}

static bool is_unit_character(char c)
{
	return c > ' ' && c <= '~';
}

static size_t accepted_length(const char *text, bool (*accepts)(char))
{
	size_t length = 0;

	while (accepts(text[length]))
		length++;
	return length;
}

static int parse_unit(const char *unit)
{
	size_t length = accepted_length(unit, is_unit_character);

	if (unit[length])
		return pier_fail(EINVAL,
				 "memory spec: character %zu of the unit is 0x%02x, not "
				 "printable",
				 length + 1, (unsigned char)unit[length]);
	if (length == 0 || length > UNIT_LONGEST)
		return pier_fail(EINVAL,
				 "memory spec: the unit after the colon has %zu "
				 "characters, not 1 to %d",
				 length, UNIT_LONGEST);
	return 0;
}

int pier_parse_spec(const char *spec, struct pier_spec *ret_spec)
{
	const char *unit = NULL;
	size_t length;

	if (!spec)
		return pier_fail(EINVAL, "memory spec: NULL, not NAME or NAME:UNIT");
	length = accepted_length(spec, is_name_character);
	if (spec[length] && spec[length] != ':')
		return pier_fail(
			EINVAL,
			"memory spec: character %zu of the name is 0x%02x, not a "
			"letter, digit or _",
			length + 1, (unsigned char)spec[length]);
	if (length == 0 || length > NAME_LONGEST)
		return pier_fail(EINVAL,
				 "memory spec: the name has %zu characters, not 1 to %d",
				 length, NAME_LONGEST);
	if (spec[length] == ':') {
		unit = spec + length + 1;
		if (parse_unit(unit) != 0)
			return -EINVAL;
	}
	*ret_spec = (struct pier_spec){
		.name = spec,
		.name_length = length,
		.unit = unit,
	};
	return 0;
}

static int fail_unknown(const struct pier_spec *spec)
{
	const struct pier_backend_entry *entries;
	size_t count = pier_backend_entries(&entries), broken = 0;
	char names[320] = "", note[128] = "";

	for (size_t i = 0; i < count; i++) {
		if (!entries[i].backend)
			broken++;
		else
			pier_append_text(names, sizeof(names), "%s%s",
					 names[0] ? ", " : "", entries[i].backend->name);
	}
	if (broken)
		snprintf(note, sizeof(note),
			 "; %zu more in PIER_BACKEND_PATH could not be loaded; "
			 "pier_backend_list() reports why",
			 broken);
	return pier_fail(ENOENT, "no memory backend \"%.*s\"; there are: %s%s",
			 (int)spec->name_length, spec->name, names, note);
}

int pier_find_by_spec(const char *spec, struct pier_spec *ret_spec,
		      const struct pier_backend **ret_backend)
{
	int result = pier_parse_spec(spec, ret_spec);

	if (result != 0)
		return result;
	*ret_backend = pier_find_backend(ret_spec->name, ret_spec->name_length);
	return *ret_backend ? 0 : fail_unknown(ret_spec);
}
