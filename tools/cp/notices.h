/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_NOTICES_H
#define PIER_TOOLS_CP_NOTICES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "list.h"

/* The number of a file that is not in the list, or not known to the other side. */
#define NOTICE_OF_NO_FILE UINT32_MAX

/* That of a destination that is left out. */
#define NOTICE_OF_DESTINATION (UINT32_MAX - 1)

/* Sentences about single files that are not copied, while the copy goes on. */
struct notice {
	struct notice *next;
	uint32_t number; /* of the file in the list */
	char sentence[];
};

/* Any thread may add; the main thread takes. */
struct notices {
	pthread_mutex_t lock;
	struct notice *first, **last;
	struct budget *budget; /* borrowed */
	bool lost;	       /* there was no memory for one */
};

void open_notices(struct notices *notices, struct budget *budget);
void add_notice(struct notices *notices, uint32_t number, const char *sentence);
/* The oldest, to be freed; NULL: there is none. */
struct notice *take_notice(struct notices *notices);
void close_notices(struct notices *notices);

#endif
