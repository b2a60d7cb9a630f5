/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_LIST_H
#define PIER_TOOLS_CP_LIST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "budget.h"
#include "identity.h"
#include "remote/control.h"

/*
 * The files of a tree. The copy moves their bytes as one sequence, in the order of the
 * list, so a chunk can have many small files in it.
 *
 * The files at the top come first, then those of each directory, in the order that the
 * directories have in the list. Files of one directory are ordered by name (strcmp(3)).
 */

enum list_kind {
	LIST_DIRECTORY = 1,
	LIST_FILE = 2,
	LIST_LINK = 3, /* symbolic */
};

/* Of `below`: the file is the operand itself. */
#define LIST_OPERAND UINT32_MAX
/* Of `parent`: the file is at the top. */
#define LIST_TOP     UINT32_MAX

struct list_entry {
	enum list_kind kind;
	bool sparse;	  /* a file that may have holes */
	uint32_t mode;	  /* permission bits */
	uint32_t operand; /* of the sender: the operand that it is below */
	uint32_t name;	  /* offset in names: its path, see list_path() */
	uint32_t below;	  /* of the sender: where the path below the operand begins */
	uint32_t target;  /* of a link: offset in names */
	uint64_t offset;  /* in the sequence */
	uint64_t size;	  /* of a file, in bytes */
	uint64_t mtime_seconds;
	uint32_t mtime_nanoseconds;
	uint8_t identity[CP_IDENTITY_SIZE]; /* at the top only */
	/* Of the sender: what the file was when the list was made. Of the receiver: what
	 * is at its place, or zeroes. */
	dev_t device;
	ino_t inode;
	struct timespec ctime; /* of the sender */
	_Atomic bool flushed;  /* of the sender: its pages, see source.h */
	/* Of the receiver: bytes that have not been written. */
	_Atomic uint64_t left;
	_Atomic bool has_hole;
	_Atomic bool failed; /* it is reported, and will not be part of the copy */
	_Atomic bool made;   /* its file or directory is in the stage */
	uint32_t parent;     /* number of its directory, or LIST_TOP */
	bool moved;	     /* the directory went to its place with all in it */
};

/* Set the budget, and zero the rest, first; free_list() frees what it has. */
struct file_list {
	struct budget *budget; /* borrowed; what is charged to it stays charged */
	struct list_entry *entries;
	uint32_t count, room;
	char *names;
	uint32_t names_size, names_room;
	uint64_t size; /* of the sequence, in bytes */
	bool sparse;   /* one of the files is */
};

/* Functions that return int return 0, or -1 with the failure set. */

/*
 * Append an entry, whose path and target are copied, and whose offset is set. Fails if
 * the budget has no room.
 *
 * target  of a link; otherwise NULL
 */
int add_to_list(struct file_list *list, const struct list_entry *entry, const char *path,
		const char *target, struct failure *failure);
void free_list(struct file_list *list);
/* Report that the budget has no room for more files. Returns -1. */
int fail_too_many(struct failure *failure);

/* Valid until the next add_to_list(). */
const char *list_path(const struct file_list *list, const struct list_entry *entry);
const char *list_target(const struct file_list *list, const struct list_entry *entry);

/* The file with the byte at `offset` of the sequence, which is less than its size. */
struct list_entry *find_in_list(const struct file_list *list, uint64_t offset);

int send_list(struct control *control, const struct file_list *list);
/*
 * Receive a list whose sequence has `size` bytes. The sender is not trusted: afterwards,
 * the list has the order above, so each path comes once and is below a directory that
 * comes before it, or at the top. Between its slashes are only names.
 */
int receive_list(struct control *control, uint64_t size, struct file_list *ret_list);

#endif
