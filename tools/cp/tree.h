/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_TREE_H
#define PIER_TOOLS_CP_TREE_H

#include <limits.h>
#include <pthread.h>

#include "destination.h"
#include "list.h"

/*
 * The tree that is written. All of it is in the stage until it is complete and on disk.
 * Zero the struct and set the descriptors to -1 first.
 */
struct tree {
	int base;		 /* the directory that the top names of the list are in */
	int above;		 /* the directory that base was made in, or -1 */
	char made[NAME_MAX + 1]; /* the name of base there */
	int stage;		 /* a directory in base, with a copy of the tree */
	char temporary[NAME_MAX + 1]; /* the stage's name */
	bool partial;		      /* it stays if the copy fails: partial.h */
	char top[NAME_MAX + 1]; /* "": names as they are; else that of the only top */
	char path[PATH_MAX];	/* of base, for error messages */
	struct file_list list;
	pthread_mutex_t making; /* the first part of a file makes it */
	bool preserve, dry_run;
	bool sync_each; /* file and directory, by itself: syncfs(2) does not suffice */
	mode_t mask;
	const uint8_t *secret; /* of the copy; borrowed */
	_Atomic enum destination_fate fate;
	/* Called with a sentence for each file that is left out. Any thread. */
	void (*report)(void *context, const char *sentence);
	/* Called in the middle of long work. Returns 0, or -1 with the failure set. */
	int (*alive)(void *context);
	void *context;
};

/* Functions that return int return 0, or -1 with the failure set. */

/*
 * Find or create the destination, and make the directories of the stage. tree->list has
 * been received.
 *
 * root  as in path.h
 */
int open_tree(struct tree *tree, int root, const char *path,
	      const struct source_message *source, const struct cp_settings *settings,
	      struct failure *failure);
/* Write bytes of the sequence. Any thread may call these. */
int write_tree(struct tree *tree, uint64_t offset, const void *data, size_t length,
	       struct failure *failure);
/* These bytes are a hole. */
int skip_tree(struct tree *tree, uint64_t offset, uint64_t length,
	      struct failure *failure);
/* These bytes are kept as an earlier copy wrote them. */
int keep_in_tree(struct tree *tree, uint64_t offset, uint64_t length,
		 struct failure *failure);
/* The sender could not read the file: it is not part of the copy. */
void leave_out_entry(struct tree *tree, uint32_t number);
/* As for one file: see destination.h. */
int commit_tree(struct tree *tree, struct failure *failure);
bool abandon_tree(struct tree *tree);
void close_tree(struct tree *tree);

#endif
