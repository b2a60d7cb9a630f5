/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_FILE_H
#define PIER_TOOLS_CP_FILE_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>

#include "digest.h"
#include "message.h"
#include "temporary.h"

/* The file that is read. Begin with both descriptors -1. */
struct source {
	int fd, content; /* the file; where its bytes are read from */
	int root;	 /* borrowed, as the path */
	const char *path;
	struct stat stat;  /* when it was opened */
	uint64_t size;	   /* of the content */
	bool sparse;	   /* it may have holes */
	uint64_t data_end; /* where the data that find_chunk() found ends */
};

/* root: see path.h. */
int open_source(struct source *source, int root, const char *path,
		struct failure *failure);
/*
 * Files of /proc and /sys have a size of 0, or of a page, whatever they hold
 * (proc(5)); file systems in user space can say anything. If the file does not
 * end where its size says, read it to its end into memory, which is then the content.
 * Files that really are empty stay so.
 */
int spool_source(struct source *source, struct failure *failure);
/* `secret` is the copy's. */
void describe_source(const struct source *source, const uint8_t *secret,
		     struct source_message *ret_message);
/* What begins at chunk->offset: a hole, or `most` bytes of data, or fewer. */
void find_chunk(struct source *source, size_t most, struct chunk *chunk);
/* pread(2), again when a signal interrupts it. */
ssize_t read_at(int fd, uint64_t offset, void *ret_data, size_t length);
/* Note that the source cannot be read, for the reason in errno. Returns -1. */
int fail_source(const struct source *source, struct failure *failure);
/* Read exactly `length` bytes; any thread. */
int read_source(const struct source *source, uint64_t offset, void *ret_data,
		size_t length, struct failure *failure);
/* 1: reading at `offset` finds the end of the file; 0: it finds data; -1: errno. */
int ends_at(const struct source *source, uint64_t offset);
/*
 * Whether it is still what it was when it was opened, under the same name, and
 * ends where its size says. A change through a mapping may escape: mmap(2) updates the
 * times when it likes.
 */
int check_source(const struct source *source, struct failure *failure);
void close_source(struct source *source);

/* commit_destination() and abandon_destination() race: the first one decides. */
enum destination_fate {
	DESTINATION_UNDECIDED,
	DESTINATION_NAMING, /* it gets its name now, unless that fails */
	DESTINATION_ABANDONED,
};

/*
 * The file that is written: it has no name, or where the file system cannot do
 * that a temporary one, until all of it is on disk. Begin with fd -1.
 */
struct destination {
	int fd, directory;	       /* -1: not open */
	char path[PATH_MAX];	       /* as the user knows it */
	char name[NAME_MAX + 1];       /* in the directory */
	char temporary[TEMPORARY_MAX]; /* "": there is no such name */
	struct source_message source;
	mode_t mode;
	bool preserve;
	_Atomic enum destination_fate fate;
};

int open_destination(struct destination *destination, int root, const char *path,
		     const struct source_message *source,
		     const struct cp_settings *settings, struct failure *failure);
/* Write, and start writing back to disk; any thread. */
int write_destination(const struct destination *destination, uint64_t offset,
		      const void *data, size_t length, struct failure *failure);
/* Make it appear: synchronise, name, synchronise the directory. Any thread. */
int commit_destination(struct destination *destination, struct failure *failure);
/*
 * Keep a commit that runs on another thread from naming the file. Returns false
 * if it is too late: the result of the commit counts then.
 */
bool abandon_destination(struct destination *destination);
/* What was not committed disappears. */
void close_destination(struct destination *destination);

#endif
