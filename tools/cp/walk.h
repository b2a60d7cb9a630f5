/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_WALK_H
#define PIER_TOOLS_CP_WALK_H

#include <stdbool.h>

#include "list.h"

/*
 * The patterns of --exclude, as in rsync(1): "*", "?" and "[...]" do not match a slash,
 * "**" does. A pattern with a slash at its end matches directories only, and one that
 * ends in a slash and "***" a directory and all that is in it. One with a slash at its
 * start is compared with the whole path, which begins with the name of the operand. One
 * with another slash, or with "**", is compared with the end of the path, others with its
 * last name. A backslash makes the next character a plain one, if there is a "*", "?" or
 * "[".
 */
bool is_excluded(const char *pattern, const char *path, bool directory);

/* The files that the user named, and what is below them. */
struct walk {
	int root;		     /* as in path.h */
	const uint8_t *secret;	     /* of the copy, for the identities */
	const char *const *operands; /* borrowed, like the patterns */
	uint32_t operand_count;
	const char *const *patterns; /* of --exclude */
	uint32_t pattern_count;
	int *bases;	/* of each operand: the directory, or that of the file; O_PATH */
	bool contents;	/* the operand's name is "." or "..": its files have no top */
	bool in_memory; /* some of the files are: see source.h */
	struct cp_losses losses; /* of what is in the list */
	void *linked; /* during the walk: files that have other names; tsearch(3) */
	/* Called now and then; a negative value ends the walk. */
	int (*alive)(void *context);
	/* Called with a sentence for each file that is left out. */
	void (*report)(void *context, const char *sentence);
	void *context;
};

/* Zero the struct and set the first members. close_walk() frees what it has. */
int run_walk(struct walk *walk, struct file_list *ret_list, struct failure *failure);

void close_walk(struct walk *walk);

#endif
