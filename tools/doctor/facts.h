/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_FACTS_H
#define PIER_TOOLS_DOCTOR_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/*
 * The facts that the checks of `pier doctor` judge: files and links of this machine, and
 * the library's answers, which have paths that begin with "pier/". Facts of a live
 * machine are read when a check asks for them, and kept, so that they can be saved. Facts
 * of a saved file are all there is: a path that it lacks does not exist.
 *
 * The file: a line "# pier doctor facts 1", lines of "PATH = CONTENT", "PATH -> TARGET"
 * and "PATH ! REASON" (why it cannot be read), other comments, and a last line "end".
 * Bytes that belong to no printable character are \xNN, and so are \ and the blanks of
 * PATH; a reader also takes \\ for \.
 */

enum {
	FACT_PATH_MAX = 512,
	FACT_NAME_MAX = 128,
};

struct failure;

struct facts {
	struct fact *list;
	size_t count, room;
	bool live;
};

/* Begin with no facts. live: read those that are asked for from this machine. */
void facts_init(struct facts *facts, bool live);
void facts_free(struct facts *facts);
/* Returns 0, or -1 after a failure. */
int facts_load(struct facts *facts, const char *name, struct failure *failure);
int facts_save(const struct facts *facts, const char *name, struct failure *failure);

/* Ends the program if an allocation has failed: without memory nothing is judged. */
void *require_memory(void *memory);

/* A name of one part of a path: with '_' for each '/'. */
void make_fact_name(const char *text, char ret_name[FACT_NAME_MAX]);
/* Keep an answer of the library. */
void facts_set(struct facts *facts, const char *value, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void facts_set_number(struct facts *facts, long long number, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Keep the reason why there is none. */
void facts_set_error(struct facts *facts, const char *reason, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * Return the content of a file, without white space at its end, or NULL. Of a file
 * named "config" below /sys: in hexadecimal.
 */
const char *facts_get(struct facts *facts, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The same as a number, or -1. */
long long facts_number(struct facts *facts, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Return why facts_get() returned NULL; NULL: it does not exist. */
const char *facts_error(struct facts *facts, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Return the target of a symbolic link, or NULL. */
const char *facts_link(struct facts *facts, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Whether a file, link or folder of this name exists. */
bool facts_has(struct facts *facts, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Names in a folder, in order; free it with facts_free_names(). */
struct names {
	char (*list)[FACT_NAME_MAX];
	size_t count;
};
struct names facts_names(struct facts *facts, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void facts_free_names(struct names *names);

#endif
