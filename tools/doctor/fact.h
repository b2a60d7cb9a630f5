/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_FACT_H
#define PIER_TOOLS_DOCTOR_FACT_H

#include <stdint.h>

#include "facts.h"

/* One fact, for the files that keep, load and save them. */

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

/* Ends the program if an allocation has failed: without memory nothing is judged. */
void *require_memory(void *memory);
struct fact *fact_find(const struct facts *facts, const char *path);
/* Replaces one of the same path. */
struct fact *fact_add(struct facts *facts, const char *path, enum fact_kind kind,
		      const char *text);

#endif
