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
	bool first; /* the innermost object or array is still empty */
	bool line;  /* on one line, for a stream of values */
};

/* The name is NULL inside an array and for the outermost value. */
void json_open(struct json *json, const char *name, char bracket);
void json_close(struct json *json, char bracket);
/* Each byte that is not UTF-8 becomes U+FFFD; NULL becomes null. */
void json_string(struct json *json, const char *name, const char *value);
void json_uint(struct json *json, const char *name, uint64_t value);
void json_double(struct json *json, const char *name, double value);
void json_bool(struct json *json, const char *name, bool value);

#endif
