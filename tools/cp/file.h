/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_FILE_H
#define PIER_TOOLS_CP_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* The bytes and the metadata of an open file. */

/* pread(2), repeated when a signal interrupts it. */
ssize_t read_at(int fd, uint64_t offset, void *ret_data, size_t length);
/* pwrite(2) of all bytes: 0, or -1 with errno. */
int write_at(int fd, uint64_t offset, const void *data, size_t length);
/* The start of the next data or hole at or after `offset`, or the size: lseek(2). */
uint64_t seek_extent(int fd, uint64_t size, uint64_t offset, int whence);
/* Make these bytes of the file read as zeroes: 0, or -1 with errno. Any thread. */
int clear_range(int fd, uint64_t offset, uint64_t length);
/*
 * Begin to write dirty pages to the disk. A write through a mapping changes the times of
 * the file only when it makes a clean page dirty (the operation page_mkwrite of its file
 * system), and the kernel protects a page when it begins to write it. So a change after
 * this call shows in the times.
 */
void flush_pages(int fd, uint64_t offset, uint64_t length);
/* Whether the file system has no disk: its pages always stay dirty, and are never
 * protected. */
bool is_in_memory(int fd);

/*
 * Direct reads and writes of one file (O_DIRECT): the disk accesses private memory of
 * this process, and the page cache has no copy of the bytes.
 */

enum {
	/* Disks reach their speed with requests of this size. */
	DIRECT_SIZE = 1 << 20,
};

struct direct_reader;

/*
 * fd    borrowed, until open_direct_reader() returns
 * size  of the file; a small one needs no reader
 *
 * Returns NULL if the file system does not allow direct reads.
 */
struct direct_reader *open_direct_reader(int fd, uint64_t size);
/* NULL is allowed. */
void close_direct_reader(struct direct_reader *reader);

/*
 * Read exactly `length` bytes of fd, past the page cache where the reader, which may be
 * NULL, can. Returns 1; 0 if the file ends before; or -1 with errno. Any thread may call
 * it.
 */
int read_exactly(struct direct_reader *reader, int fd, uint64_t offset, void *ret_data,
		 size_t length);

/*
 * Direct writes in flight while the threads prepare the next ones: io_uring(7). The disk
 * reads the bytes from memory of the queue. Any thread may call these functions.
 */
struct write_queue;

/*
 * fd    borrowed; it also takes the rest of a write that was cut short
 * size  of the file; a small one needs no queue
 *
 * Returns NULL if the file system, the kernel or the container does not allow it.
 */
struct write_queue *open_write_queue(int fd, uint64_t size);

/*
 * The length of the next write at `offset` of at most `left` bytes, and whether it is a
 * direct one: both kinds keep away from the pages of the other. NULL: there is no queue.
 */
size_t next_write_length(const struct write_queue *queue, uint64_t offset, uint64_t left,
			 bool *ret_direct);

/* Wait for a free block of DIRECT_SIZE bytes. Returns NULL with errno. */
void *take_write_block(struct write_queue *queue);
/* Write the block, or nothing, and free it. Errors come from finish_writes(). */
void write_block(struct write_queue *queue, void *block, uint64_t offset, size_t length);
/* Wait for all writes. Returns 0, or -1 with the errno of the first that failed. */
int finish_writes(struct write_queue *queue);
/* Wait for all writes. NULL is allowed. */
void close_write_queue(struct write_queue *queue);

/* Whether the file has fewer blocks than bytes. */
bool has_holes(const struct stat *stat);

/* name: a link in the directory fd; NULL: the file itself. Returns 0, or -1 with errno.
 */
int set_mtime(int fd, const char *name, uint64_t seconds, uint32_t nanoseconds);
/* umask(2), unchanged. */
mode_t get_umask(void);

/*
 * A copy has no ACL, only the permission bits of the source. Of a file with an ACL, those
 * of the group are the mask for all that the ACL names (acl(5)): without the ACL, the
 * group would get what only some users had. Take from the mode of `stat` what the ACL
 * denies to anyone.
 *
 * name  in the directory, where a symbolic link is not followed;
 *       NULL: the file of the descriptor, which may be an O_PATH one
 */
void apply_acl(int directory, const char *name, struct stat *stat);

/*
 * The mode of a copy that replaces a file of the same owner: as with cp(1), that of the
 * old file, and no more than its ACL allows. If another user may have renamed or linked
 * the old file to the name, the copy gets no right that the source does not give.
 *
 * mode  of the source
 */
mode_t keep_mode(int directory, const char *name, const struct stat *old, mode_t mode);

enum {
	CP_MODE_BITS = 01777, /* of a file's mode that are copied: no set-id bits */
};

/* Metadata that copies do not have. */
enum cp_loss {
	LOSS_OWNER, /* or group */
	LOSS_SET_ID,
	LOSS_ACL,
	LOSS_XATTR,
	LOSS_HARD_LINK, /* to another file of the copy */
	LOSSES,
};

/* How many files and directories had it. */
struct cp_losses {
	uint32_t files[LOSSES];
};

/* Metadata of a file that a copy never has. */
struct attributes {
	bool acl;
	bool extended; /* of a user; most others are made by the host's policy */
};

/*
 * To be called before stat(2), because in sysfs the first call for a file sets its times:
 * listxattr(2) makes the attributes in which the kernel keeps them (kernfs).
 *
 * name  as above
 */
struct attributes list_attributes(int directory, const char *name);

/*
 * Count what a copy of the file or directory will not have. Its owner and group are those
 * of the receiving process, which stands for the same person as this one: so a file that
 * belongs to this process keeps them, whatever the numbers are on the other host.
 */
void count_losses(const struct stat *stat, const struct attributes *attributes,
		  struct cp_losses *losses);

/*
 * The identity of a file is a keyed hash of the kernel's boot id, the device number and
 * the inode number. A receiver compares identities to refuse to overwrite the source:
 * within one copy, equal identities mean the same file. The peer knows the key but not
 * the boot id of another host (122 random bits), so it learns none of the three.
 */
enum {
	CP_IDENTITY_SIZE = 16
};

/* `secret` is the copy's. Returns false and zeroes if there is no boot id to hash. */
bool identify_file(const struct stat *stat, const uint8_t *secret, uint8_t *ret_identity);

/* Returns whether `identity`, received from the peer of this copy, is this file. */
bool is_identity_of(const uint8_t *identity, const struct stat *stat,
		    const uint8_t *secret);

#endif
