/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_LIST_H
#define PIER_TOOLS_CP_LIST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "file.h"
#include "path.h"
#include "remote/control.h"

struct words;

/*
 * The memory that a side may still use for a tree: for its list, and sentences about
 * files that are left out. Any thread may call these.
 */
struct budget {
	_Atomic uint64_t left; /* bytes */
};

/* Of each allocation, besides its bytes: what malloc(3) and a pointer to it take. */
enum {
	BUDGET_ALLOCATION = 40
};

/* Returns false, and charges nothing, if less than that is left. */
static inline bool charge_budget(struct budget *budget, uint64_t bytes)
{
	uint64_t left = atomic_load(&budget->left);

	do {
		if (left < bytes)
			return false;
	} while (!atomic_compare_exchange_weak(&budget->left, &left, left - bytes));
	return true;
}

static inline void release_budget(struct budget *budget, uint64_t bytes)
{
	atomic_fetch_add(&budget->left, bytes);
}

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
	_Atomic bool flushed;  /* of the sender: its pages, see file.h */
	/* Of the receiver: bytes that have not been written. */
	_Atomic uint64_t left;
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

/* Valid until the next add_to_list(). */
const char *list_path(const struct file_list *list, const struct list_entry *entry);

/* The file with the byte at `offset` of the sequence, which is less than its size. */
struct list_entry *find_in_list(const struct file_list *list, uint64_t offset);

/* Bytes of the sequence, and the part of them that is in one file. */
struct list_range {
	const struct file_list *list;
	uint64_t offset, left; /* of what begins with the part */
	struct list_entry *entry;
	uint64_t start; /* of the part, in the file */
	uint64_t length;
};

/* Go to the first part, or to the next one. Returns false if there is none. */
bool next_part(struct list_range *range);

/* Print the path of one file; a slash marks a directory. */
void print_entry(const struct file_list *list, const struct list_entry *entry, bool json);

/*
 * Print the paths that would be copied, as the user wants them.
 *
 * list  NULL for a single file with that name; or without one, if it would not be copied
 */
void print_files(const struct file_list *list, const char *name, bool json, bool quiet);

int send_list(struct control *control, const struct file_list *list);

/*
 * Receive a list whose sequence has `size` bytes. The sender is not trusted: afterwards,
 * the list has the order above, so each path comes once and is below a directory that
 * comes before it, or at the top. Between its slashes are only names.
 */
int receive_list(struct control *control, uint64_t size, struct file_list *ret_list);

/*
 * With --skip-same: the files of the list that the destination has already. The receiver
 * finds them, and both sides drop them from the list before the transfer. The answer is a
 * bit for each entry of the list, in as many full frames as it takes. A single file
 * counts as a list of one, and is a copy of no bytes then.
 */
struct same_files {
	uint8_t *bits;	 /* NULL: the option was not given */
	uint32_t listed; /* entries of the list, before any is dropped */
	uint32_t count;	 /* of bits that are set */
};

/* Returns 0, or -1 if there is no memory. */
int open_same(struct same_files *same, uint32_t listed);

/* same->count stays. */
void close_same(struct same_files *same);

/*
 * Whether the destination has the file of the entry already, by the size and time of what
 * is at its place, and with preserve by the mode. In a shared directory it must also be
 * this user's, because others can give theirs any size and time.
 */
bool is_same_file(const struct list_entry *entry, bool preserve, int directory,
		  const struct stat *place);

void mark_same(struct same_files *same, uint32_t number);

int send_same(struct control *control, const struct same_files *same);

/*
 * Receive the answer, which may name files only.
 *
 * list  NULL: a single file
 */
int receive_same(struct control *control, const struct file_list *list,
		 struct same_files *ret_same);

/* Directories stay, with new numbers. */
void drop_same(struct file_list *list, const struct same_files *same);

/* The files that the user named, and what is below them. */
struct walk {
	int root;			 /* as in path.h */
	const uint8_t *secret;		 /* of the copy, for the identities */
	const struct words *operands;	 /* borrowed, like the patterns */
	const struct words *patterns;	 /* of --exclude; NULL: none */
	const struct observer *observer; /* borrowed */
	int *bases;	/* of each operand: the directory, or that of the file; O_PATH */
	bool expanded;	/* the operands are those that expand_operands() found */
	bool contents;	/* the operand's name is "." or "..": its files have no top */
	bool in_memory; /* some of the files are: see file.h */
	struct cp_losses losses; /* of what is in the list */
	/* During the walk: */
	struct file_list *list;
	struct failure *failure;
	bool matched;	  /* the pattern that is being expanded */
	uint32_t operand; /* number */
	size_t work;	  /* since the last call of alive() */
	void *linked;	  /* files that have other names: see path.h */
};

/* Whether it has wildcards. */
bool is_pattern(const char *operand);

/* As glob(3) compares a name with the last component of a pattern. */
bool matches_name(const char *pattern, const char *name);

/*
 * Replace operands with wildcards by the files that match, as glob(3) does, unless there
 * is a file of this very name. Call before run_walk(). A pattern must match something.
 *
 * ret_matches  empty; the operands of the walk point to it until close_walk()
 */
int expand_operands(struct walk *walk, struct words *ret_matches,
		    struct failure *failure);

/* Zero the struct and set the first members. close_walk() frees what it has. */
int run_walk(struct walk *walk, struct file_list *ret_list, struct failure *failure);

void close_walk(struct walk *walk);

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

/*
 * The parts of the sequence that the receiver has from an interrupted copy. Both sides
 * agree on them before the transfer (segments.c), and no chunk has any of their bytes.
 * The sequence consists of segments of the same length, which depends on its size alone;
 * only the last one may be shorter. Zeroes: nothing is kept.
 */
struct kept {
	uint64_t size;	  /* of the sequence */
	uint64_t segment; /* bytes */
	uint64_t count;	  /* of segments that can be kept */
	uint8_t *bits;	  /* one for each of them */
	uint64_t bytes;	  /* that are kept */
};

/* Returns 0, or -1 if there is no memory. */
int open_kept(struct kept *kept, uint64_t size);

/* kept->bytes stays. */
void close_kept(struct kept *kept);

uint64_t segment_length(const struct kept *kept, uint64_t number);

void keep_segment(struct kept *kept, uint64_t number);

bool is_kept(const struct kept *kept, uint64_t number);

/* The first byte at or after `offset` that is not kept, or the size. */
uint64_t skip_kept(const struct kept *kept, uint64_t offset);

/* How many of the `length` bytes from `offset` on come before the next that is kept. */
uint64_t length_before_kept(const struct kept *kept, uint64_t offset, uint64_t length);

#endif
