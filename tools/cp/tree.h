/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_TREE_H
#define PIER_TOOLS_CP_TREE_H

#include <limits.h>
#include <pthread.h>

#include "list.h"
#include "message.h"
#include "unfinished.h"

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
	bool partial;		      /* it stays if the copy fails: unfinished.h */
	uint64_t present;	      /* bytes that it then has on the disk already */
	char top[NAME_MAX + 1]; /* "": names as they are; else that of the only top */
	char path[PATH_MAX];	/* of base, for error messages */
	struct file_list list;
	struct same_files *same; /* borrowed; NULL: all files are copied */
	void *placed;		 /* what is at the places of the list: see path.h */
	pthread_mutex_t making;	 /* the first part of a file makes it */
	bool preserve, times, dry_run;
	bool sync_each; /* file and directory, by itself: syncfs(2) does not suffice */
	mode_t mask;
	const uint8_t *secret; /* of the copy; borrowed */
	_Atomic enum copy_fate fate;
	const struct observer *observer; /* borrowed */
	struct failure *failure;	 /* of open, adopt or commit, while it runs */
};

/* Functions that return int return 0, or -1 with the failure set. */

/*
 * Find or create the destination, and make the directories of the stage. tree->list has
 * been received. With --skip-same, drops the files from it that are there already.
 *
 * root  as in path.h
 */
int open_tree(struct tree *tree, int root, const char *path,
	      const struct source_message *source, const struct cp_settings *settings,
	      struct failure *failure);

/*
 * Complete the stage, sync it, and move everything from it to its place: directories that
 * do not exist yet as a whole, others file by file. Reports each file that cannot be
 * moved. Nothing that this copy has placed is replaced, not even under another name.
 */
int commit_tree(struct tree *tree, struct failure *failure);

/* What was not committed disappears, unless it is partial. */
void close_tree(struct tree *tree);

/* What is in the stage. */

enum part_kind {
	PART_DATA,
	PART_HOLE,
	PART_KEPT, /* as an earlier copy wrote it */
};

/*
 * Prepare the stage of an earlier copy for this one: afterwards it has only files and
 * directories of the list, none longer than there, and all can be written.
 */
int adopt_stage(struct tree *tree, struct failure *failure);

/* The first byte of the sequence at or after `offset` that may be data in the stage. */
uint64_t find_staged_data(const struct tree *tree, uint64_t offset);

/* Returns whether all of these bytes are there. */
bool read_staged(const struct tree *tree, uint64_t offset, void *ret_data, size_t length);

/*
 * Store bytes of the sequence. Any thread may call it.
 *
 * data  only of PART_DATA
 */
int store_in_tree(struct tree *tree, enum part_kind kind, uint64_t offset,
		  const void *data, uint64_t length, struct failure *failure);

/* With partial, remove it only if it has no file, only directories of the list. */
void remove_stage(const struct tree *tree);

#endif
