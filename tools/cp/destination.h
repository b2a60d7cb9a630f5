/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_DESTINATION_H
#define PIER_TOOLS_CP_DESTINATION_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "message.h"
#include "temporary.h"
#include "write_queue.h"

/* commit_destination() and abandon_destination() race: the first one decides. */
enum destination_fate {
	DESTINATION_UNDECIDED,
	DESTINATION_NAMING, /* it gets its name now, unless that fails */
	DESTINATION_ABANDONED,
};

/*
 * The file that is written. Until all of it is on disk it has no name, or a temporary
 * one if the file system has no O_TMPFILE. Set both descriptors to -1 first.
 */
struct destination {
	int fd, directory;	      /* -1: not open */
	bool partial;		      /* it stays if the copy fails: partial.h */
	uint64_t present;	      /* bytes that the partial file may have */
	struct write_queue *queue;    /* NULL: all writes go through the page cache */
	char path[PATH_MAX];	      /* for error messages */
	char name[NAME_MAX + 1];      /* in the directory */
	char temporary[NAME_MAX + 1]; /* "": it has no temporary name */
	struct source_message source;
	mode_t mode;
	bool preserve;
	_Atomic enum destination_fate fate;
	/* Called in the middle of long work. Returns 0, or -1 with the failure set. */
	int (*alive)(void *context);
	void *context;
};

/* Report the errno of a step, such as "write". Returns -1. */
int fail_destination(const struct destination *destination, const char *what,
		     struct failure *failure);
/* root is as in path.h. */
int open_destination(struct destination *destination, int root, const char *path,
		     const struct source_message *source,
		     const struct cp_settings *settings, struct failure *failure);
/* Returns whether this decision is the first one. */
bool decide_fate(_Atomic enum destination_fate *fate, enum destination_fate decision);
/* pwrite(2) of all bytes: 0, or -1 with errno. */
int write_at(int fd, uint64_t offset, const void *data, size_t length);
/* Write, and start writeback to the disk. Any thread may call it. */
int write_destination(const struct destination *destination, uint64_t offset,
		      const void *data, size_t length, struct failure *failure);
/* These bytes are a hole. */
int skip_destination(const struct destination *destination, uint64_t offset,
		     uint64_t length, struct failure *failure);
/* Wait for the writes of the queue, sync the file, give it its name, sync the directory.
 * Any thread may call it. */
int commit_destination(struct destination *destination, struct failure *failure);
/*
 * Keep a commit that runs on another thread from naming the file. Returns false if it
 * is too late; the result of the commit then decides.
 */
bool abandon_destination(struct destination *destination);
/* Close the file; it disappears unless it was committed, or is partial. */
void close_destination(struct destination *destination);

#endif
