/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_WALK_H
#define PIER_TOOLS_CP_WALK_H

#include <stdbool.h>

#include "list.h"
#include "message.h"

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
	int root;		      /* as in path.h */
	const uint8_t *secret;	      /* of the copy, for the identities */
	const struct words *operands; /* borrowed, like the patterns */
	const struct words *patterns; /* of --exclude; NULL: none */
	/* Called now and then; a negative value ends the walk. */
	int (*alive)(void *context);
	/* Called with a sentence for each file that is left out. */
	void (*report)(void *context, const char *sentence);
	void *context;
	int *bases;	/* of each operand: the directory, or that of the file; O_PATH */
	bool contents;	/* the operand's name is "." or "..": its files have no top */
	bool in_memory; /* some of the files are: see file.h */
	struct cp_losses losses; /* of what is in the list */
	/* During the walk: */
	struct file_list *list;
	struct failure *failure;
	uint32_t operand; /* number */
	size_t work;	  /* since the last call of alive() */
	void *linked;	  /* files that have other names: see path.h */
};

/* Zero the struct and set the first members. close_walk() frees what it has. */
int run_walk(struct walk *walk, struct file_list *ret_list, struct failure *failure);

void close_walk(struct walk *walk);

#endif
