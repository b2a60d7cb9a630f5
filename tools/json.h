/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_JSON_H
#define PIER_TOOLS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Writes one JSON value, member by member. */
struct json {
	FILE *file;
	unsigned int depth;
	bool first; /* nothing stands in the innermost object or array yet */
};

/* The name is NULL in an array and for the outermost value. */
void json_open(struct json *json, const char *name, char bracket);
void json_close(struct json *json, char bracket);
/* Bytes that are not UTF-8 become U+FFFD; NULL becomes null. */
void json_string(struct json *json, const char *name, const char *value);
void json_uint(struct json *json, const char *name, uint64_t value);
void json_double(struct json *json, const char *name, double value);
void json_bool(struct json *json, const char *name, bool value);

#endif
