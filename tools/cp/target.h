/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_TARGET_H
#define PIER_TOOLS_CP_TARGET_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"
#include "file.h"
#include "party.h"
#include "tree.h"

/*
 * The file that is written. Until all of it is on disk it has no name, or a temporary
 * one if the file system has no O_TMPFILE. Set both descriptors to -1 first.
 */
struct destination {
	int fd, directory;	      /* -1: not open */
	bool partial;		      /* it stays if the copy fails: unfinished.h */
	uint64_t present;	      /* bytes that the partial file may have */
	struct write_queue *queue;    /* NULL: all writes go through the page cache */
	char path[PATH_MAX];	      /* for error messages */
	char name[NAME_MAX + 1];      /* in the directory */
	char temporary[NAME_MAX + 1]; /* "": it has no temporary name */
	struct source_message source;
	mode_t mode;
	bool preserve, times;
	struct same_files *same; /* borrowed; NULL: it is copied in any case */
	_Atomic enum copy_fate fate;
	const struct observer *observer; /* borrowed */
};

/*
 * The file or the tree that a receiver writes. Set the party, and the descriptors of both
 * to -1, first.
 */
struct target {
	struct party *party;
	struct destination file;
	struct tree tree; /* instead, if party->tree is set */
	bool sparse;
};

/* Functions that return int return 0, or -1 with the failure set. */

/* root is as in path.h. With --skip-same, opens nothing if the file is there already. */
int open_destination(struct destination *file, int root, const char *path,
		     const struct source_message *source,
		     const struct cp_settings *settings, struct failure *failure);
/* Write, and start writeback to the disk. Any thread may call it. */
int write_destination(const struct destination *file, uint64_t offset, const void *data,
		      size_t length, struct failure *failure);
/* Wait for the writes of the queue, sync the file, give it its name, sync the directory.
 * Any thread may call it. */
int commit_destination(struct destination *file, struct failure *failure);
/* Close the file; it disappears unless it was committed, or is partial. */
void close_destination(struct destination *file);

/*
 * Receive the list of a tree, check what was sent, and open the destination. With
 * settings->dry_run only print what would be copied, at the client.
 */
int open_target(struct target *target, const struct source_message *source);
/*
 * With settings->partial: the first byte at or after `offset` that may be data of an
 * earlier copy, or the size.
 */
uint64_t find_target_data(const struct target *target, uint64_t offset);
/* Read what an earlier copy wrote. Returns whether all of it is there. */
bool read_target(const struct target *target, uint64_t offset, void *ret_data,
		 size_t length);
/* With --continue, after open_target(): agree on what is kept. See segments.c. */
int offer_segments(struct party *party, struct target *target);
/*
 * Copy the chunk out of its slot, check its tag, and write it to the file, or to the
 * file's queue. A failure is the slot's. Runs on a worker.
 *
 * piece  private memory of PIECE_SIZE bytes; for standard output, of a whole chunk, too
 */
void store_chunk(struct target *target, struct slot *slot, void *piece);
int commit_target(struct target *target, struct failure *failure);
/*
 * Keep a commit that runs on another thread from naming what it wrote. Returns false if
 * it is too late; the result of the commit then decides.
 */
bool abandon_target(struct target *target);
void close_target(struct target *target);

#endif
