/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifdef PIER_HAS_URING
#include <liburing.h>
#endif
#include <openssl/crypto.h>

#include "core/wire.h"
#include "file.h"
#include "digest.h"
#include "path.h"

enum {
	PAGE_MIN = 4096,
	BLOCKS_MAX = 16,
	ZEROES = 65536,
	ACL_SIZE_MAX = 65536,	/* XATTR_SIZE_MAX of the kernel */
	NAMES_SIZE_MAX = 65536, /* XATTR_LIST_MAX */
	PATH_SIZE = NAME_MAX + 64,
	ALL = 7,
};

ssize_t read_at(int fd, uint64_t offset, void *ret_data, size_t length)
{
	ssize_t count;

	do
		count = pread(fd, ret_data, length, (off_t)offset);
	while (count < 0 && errno == EINTR);
	return count;
}

int write_at(int fd, uint64_t offset, const void *data, size_t length)
{
	const char *from = data;

	while (length > 0) {
		ssize_t count = pwrite(fd, from, length, (off_t)offset);

		if (count < 0 && errno == EINTR)
			continue;
		if (count == 0)
			errno = EIO;
		if (count <= 0)
			return -1;
		from += count;
		offset += (uint64_t)count;
		length -= (size_t)count;
	}
	return 0;
}

uint64_t seek_extent(int fd, uint64_t size, uint64_t offset, int whence)
{
	off_t found = lseek(fd, (off_t)offset, whence);

	if (found < 0 && !(whence == SEEK_DATA && errno == ENXIO))
		/* Holes are not supported: everything is data. */
		return whence == SEEK_DATA ? offset : size;
	if (found < 0 || (uint64_t)found > size)
		return size;
	return (uint64_t)found;
}

/* Some file systems cannot make holes, but have them. */
int clear_range(int fd, uint64_t offset, uint64_t length)
{
	static const uint8_t zeroes[ZEROES];
	uint64_t end = offset + length, hole;
	struct stat stat;

	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
		      (off_t)length) == 0)
		return 0;
	if ((errno != EOPNOTSUPP && errno != ENOSYS) || fstat(fd, &stat) < 0)
		return -1;
	if (end > (uint64_t)stat.st_size)
		end = (uint64_t)stat.st_size;
	while ((offset = seek_extent(fd, end, offset, SEEK_DATA)) < end)
		for (hole = seek_extent(fd, end, offset, SEEK_HOLE); offset < hole;
		     offset += length) {
			length = hole - offset < ZEROES ? hole - offset : ZEROES;
			if (write_at(fd, offset, zeroes, (size_t)length) < 0)
				return -1;
		}
	return 0;
}

/* WAIT_BEFORE: a page that is being written already may have become dirty again. */
void flush_pages(int fd, uint64_t offset, uint64_t length)
{
	sync_file_range(fd, (off_t)offset, (off_t)length,
			SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE);
}

bool is_in_memory(int fd)
{
	struct statfs statfs;

	return fstatfs(fd, &statfs) == 0 &&
	       (statfs.f_type == TMPFS_MAGIC || statfs.f_type == RAMFS_MAGIC ||
		statfs.f_type == HUGETLBFS_MAGIC);
}

/* stat(3type): st_blocks counts units of 512 bytes. */
bool has_holes(const struct stat *stat)
{
	return (uint64_t)stat->st_blocks < (uint64_t)stat->st_size / 512;
}

int set_mtime(int fd, const char *name, uint64_t seconds, uint32_t nanoseconds)
{
	const struct timespec times[2] = {
		{ .tv_nsec = UTIME_OMIT },
		{ .tv_sec = (time_t)seconds, .tv_nsec = (long)nanoseconds },
	};

	return name ? utimensat(fd, name, times, AT_SYMLINK_NOFOLLOW)
		    : futimens(fd, times);
}

mode_t get_umask(void)
{
	mode_t mask = umask(0);

	umask(mask);
	return mask;
}

struct direct_reader {
	int fd;
	uint64_t unit;
	uint8_t *mapping; /* of the whole file, for mincore(2); never accessed */
	size_t size;
	size_t page;
	atomic_bool refused; /* by the kernel: no more direct reads */
};

/*
 * The unit of offsets and lengths of direct reads and writes. 0: the file system has
 * none. At least a page and a block of the file system: a buffered write makes whole ones
 * of them dirty, whose other bytes may be older than a direct write beside it.
 */
static uint64_t find_direct_unit(int fd)
{
#ifdef STATX_DIOALIGN
	uint64_t unit = (uint64_t)sysconf(_SC_PAGESIZE);
	struct statx stat;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stat) < 0 ||
	    !(stat.stx_mask & STATX_DIOALIGN) || stat.stx_dio_offset_align == 0 ||
	    stat.stx_dio_mem_align > unit)
		return 0;
	if (unit < stat.stx_dio_offset_align)
		unit = stat.stx_dio_offset_align;
	if (unit < stat.stx_blksize)
		unit = stat.stx_blksize;
	return unit;
#else
	(void)fd;
	return 0;
#endif
}

struct direct_reader *open_direct_reader(int fd, uint64_t size)
{
	struct direct_reader *reader;
	void *mapping = MAP_FAILED;

	if (size < DIRECT_SIZE || size > SIZE_MAX)
		return NULL;
	reader = calloc(1, sizeof(*reader));
	if (!reader)
		return NULL;
	reader->size = (size_t)size;
	reader->page = (size_t)sysconf(_SC_PAGESIZE);
	reader->unit = find_direct_unit(fd);
	reader->fd = reader->unit ? reopen_file(fd, O_RDONLY | O_DIRECT) : -1;
	/* Without access, so that no page is ever mapped and a shorter file is no SIGBUS.
	 */
	if (reader->fd >= 0)
		mapping = mmap(NULL, reader->size, PROT_NONE, MAP_SHARED, fd, 0);
	if (mapping == MAP_FAILED) {
		close_direct_reader(reader);
		return NULL;
	}
	reader->mapping = mapping;
	return reader;
}

/*
 * cachestat(2) is not in Linux 6.1, and preadv2(2) with RWF_NOWAIT starts to fill the
 * cache. All of the range counts as cached if the caller neither owns the file nor may
 * write it: mincore(2) says nothing else about such a file since Linux 5.2.
 */
static bool is_cached(const struct direct_reader *reader, uint64_t offset, size_t length)
{
	unsigned char pages[DIRECT_SIZE / PAGE_MIN];
	size_t count = (length + reader->page - 1) / reader->page;

	if (mincore(reader->mapping + offset, length, pages) < 0)
		return true;
	for (size_t i = 0; i < count; i++)
		if (!(pages[i] & 1))
			return false;
	return true;
}

/*
 * Returns the number of bytes read, or 0 if the next ones must be read through the page
 * cache: they are cached, their offset, length or memory is not aligned, or the kernel
 * refused. A buffered read then finds the reason of a failure.
 */
static size_t read_directly(struct direct_reader *reader, uint64_t offset, void *ret_data,
			    size_t length)
{
	ssize_t count;

	if (!reader || reader->refused || offset % reader->unit != 0 ||
	    (uintptr_t)ret_data % reader->page != 0)
		return 0;
	if (length > DIRECT_SIZE)
		length = DIRECT_SIZE;
	length -= length % reader->unit;
	if (length == 0 || is_cached(reader, offset, length))
		return 0;
	count = read_at(reader->fd, offset, ret_data, length);
	/* EINVAL or EFAULT: not of this file or memory, although statx(2) says so. */
	if (count < 0)
		reader->refused = true;
	return count > 0 ? (size_t)count : 0;
}

void close_direct_reader(struct direct_reader *reader)
{
	if (!reader)
		return;
	if (reader->mapping)
		munmap(reader->mapping, reader->size);
	close_fd(reader->fd);
	free(reader);
}

int read_exactly(struct direct_reader *reader, int fd, uint64_t offset, void *ret_data,
		 size_t length)
{
	uint8_t *data = ret_data;

	while (length > 0) {
		ssize_t count = (ssize_t)read_directly(reader, offset, data, length);

		if (count == 0)
			count = read_at(fd, offset, data, length);
		if (count <= 0)
			return (int)count;
		data += count;
		offset += (uint64_t)count;
		length -= (size_t)count;
	}
	return 1;
}

#ifdef PIER_HAS_URING

struct block {
	uint8_t *data;
	uint64_t offset; /* of the write in flight */
	size_t length;
};

struct write_queue {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a block was returned, or its write is in flight */
	struct io_uring ring;
	int fd, buffered; /* for direct writes; borrowed, for the others */
	uint64_t unit;	  /* of offsets and lengths of direct writes */
	uint8_t *memory;
	struct block blocks[BLOCKS_MAX], *free[BLOCKS_MAX];
	unsigned int count, free_count, in_flight;
	bool registered; /* the kernel has pinned the memory once, for all writes */
	int error;	 /* errno of the first write that failed */
};

static size_t memory_size(const struct write_queue *queue)
{
	return (size_t)queue->count * DIRECT_SIZE;
}

static int alloc_blocks(struct write_queue *queue, uint64_t size)
{
	uint64_t count = size / DIRECT_SIZE;
	void *memory;

	queue->count = count < BLOCKS_MAX ? (unsigned int)count : BLOCKS_MAX;
	memory = mmap(NULL, memory_size(queue), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -1;
	queue->memory = memory;
	for (unsigned int i = 0; i < queue->count; i++) {
		queue->blocks[i].data = queue->memory + (size_t)i * DIRECT_SIZE;
		queue->free[i] = &queue->blocks[i];
	}
	queue->free_count = queue->count;
	return 0;
}

struct write_queue *open_write_queue(int fd, uint64_t size)
{
	struct write_queue *queue;
	struct iovec memory;

	if (size < DIRECT_SIZE)
		return NULL;
	queue = calloc(1, sizeof(*queue));
	if (!queue)
		return NULL;
	queue->buffered = fd;
	queue->unit = find_direct_unit(fd);
	queue->fd = queue->unit && DIRECT_SIZE % queue->unit == 0
			    ? reopen_file(fd, O_WRONLY | O_DIRECT)
			    : -1;
	if (queue->fd < 0 || alloc_blocks(queue, size) < 0)
		goto free_queue;
	/* EPERM and ENOSYS in containers and where kernel.io_uring_disabled is set. */
	if (io_uring_queue_init(queue->count, &queue->ring, 0) < 0)
		goto free_queue;
	/* Linux before 5.12 counts the memory towards RLIMIT_MEMLOCK: do without then. */
	memory = (struct iovec){ queue->memory, memory_size(queue) };
	queue->registered = io_uring_register_buffers(&queue->ring, &memory, 1) == 0;
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->changed, NULL);
	return queue;

free_queue:
	if (queue->memory)
		munmap(queue->memory, memory_size(queue));
	close_fd(queue->fd);
	free(queue);
	return NULL;
}

size_t next_write_length(const struct write_queue *queue, uint64_t offset, uint64_t left,
			 bool *ret_direct)
{
	uint64_t until = queue ? queue->unit - offset % queue->unit : left;

	*ret_direct = queue && offset % queue->unit == 0 && left >= queue->unit;
	if (!*ret_direct)
		return (size_t)(until < left ? until : left);
	if (left > DIRECT_SIZE)
		left = DIRECT_SIZE;
	return (size_t)(left - left % queue->unit);
}

/* The lock is held: every other thread would wait for a completion, too. */
static int await_completion(struct write_queue *queue)
{
	struct io_uring_cqe *cqe;
	struct block *block;
	int error, count;

	do
		error = io_uring_wait_cqe(&queue->ring, &cqe);
	while (error == -EINTR);
	if (error)
		return error;
	block = io_uring_cqe_get_data(cqe);
	count = cqe->res;
	io_uring_cqe_seen(&queue->ring, cqe);
	queue->in_flight--;
	/* EINVAL: the file system takes no direct write of this kind after all. */
	if (count == -EINVAL || count == -EAGAIN || count == -EINTR)
		count = 0;
	/* A short write is rare; the rest takes the way that takes every length. */
	if (count >= 0 && !queue->error &&
	    write_at(queue->buffered, block->offset + (size_t)count, block->data + count,
		     block->length - (size_t)count) < 0)
		queue->error = errno;
	else if (count < 0 && !queue->error)
		queue->error = -count;
	queue->free[queue->free_count++] = block;
	return 0;
}

void *take_write_block(struct write_queue *queue)
{
	void *block = NULL;
	int error = 0;

	pthread_mutex_lock(&queue->lock);
	while (!queue->free_count && !queue->error && !error) {
		if (queue->in_flight)
			error = await_completion(queue);
		else
			/* The other threads may still fill all of the blocks. */
			pthread_cond_wait(&queue->changed, &queue->lock);
	}
	if (queue->error)
		error = -queue->error;
	if (!error)
		block = queue->free[--queue->free_count]->data;
	pthread_mutex_unlock(&queue->lock);
	errno = -error;
	return block;
}

/* There is an entry for every block. One that cannot be submitted is left in the ring. */
static void submit_write(struct write_queue *queue, struct block *block)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);
	unsigned int length = (unsigned int)block->length;
	int submitted;

	assert(sqe);
	if (queue->registered)
		io_uring_prep_write_fixed(sqe, queue->fd, block->data, length,
					  block->offset, 0);
	else
		io_uring_prep_write(sqe, queue->fd, block->data, length, block->offset);
	io_uring_sqe_set_data(sqe, block);
	do
		submitted = io_uring_submit(&queue->ring);
	while (submitted == -EINTR);
	if (submitted < 0)
		queue->error = -submitted;
	else
		queue->in_flight++;
}

void write_block(struct write_queue *queue, void *data, uint64_t offset, size_t length)
{
	size_t distance = (size_t)((uint8_t *)data - queue->memory);
	struct block *block = &queue->blocks[distance / DIRECT_SIZE];

	block->offset = offset;
	block->length = length;
	pthread_mutex_lock(&queue->lock);
	if (!length)
		queue->free[queue->free_count++] = block;
	else if (!queue->error)
		submit_write(queue, block);
	/* All of them: after an error, nobody gets a block. */
	pthread_cond_broadcast(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
}

int finish_writes(struct write_queue *queue)
{
	int error = 0;

	if (!queue)
		return 0;
	pthread_mutex_lock(&queue->lock);
	while (queue->in_flight && !error)
		error = await_completion(queue);
	if (error && !queue->error)
		queue->error = -error;
	pthread_mutex_unlock(&queue->lock);
	errno = queue->error;
	return queue->error ? -1 : 0;
}

void close_write_queue(struct write_queue *queue)
{
	if (!queue)
		return;
	finish_writes(queue);
	io_uring_queue_exit(&queue->ring);
	pthread_cond_destroy(&queue->changed);
	pthread_mutex_destroy(&queue->lock);
	munmap(queue->memory, memory_size(queue));
	close(queue->fd);
	free(queue);
}

#else

/* A build without liburing: there is never a queue. */

struct write_queue *open_write_queue(int fd, uint64_t size)
{
	(void)fd;
	(void)size;
	return NULL;
}

size_t next_write_length(const struct write_queue *queue, uint64_t offset, uint64_t left,
			 bool *ret_direct)
{
	(void)queue;
	(void)offset;
	*ret_direct = false;
	return (size_t)left;
}

void *take_write_block(struct write_queue *queue)
{
	return queue;
}

void write_block(struct write_queue *queue, void *block, uint64_t offset, size_t length)
{
	(void)queue;
	(void)block;
	(void)offset;
	(void)length;
}

int finish_writes(struct write_queue *queue)
{
	return queue ? -1 : 0;
}

void close_write_queue(struct write_queue *queue)
{
	(void)queue;
}

#endif

/* What the entries of an ACL allow, without the mask. */
struct permissions {
	mode_t group, mask;
	mode_t named; /* to every user and group with a name */
	mode_t users; /* to every user with a name */
	bool has_names;
};

static const char acl_name[] = "system.posix_acl_access";

static struct permissions read_entries(const uint8_t *bytes, size_t length)
{
	struct permissions found = { ALL, ALL, ALL, ALL, false };
	struct posix_acl_xattr_entry entry;

	for (size_t at = sizeof(struct posix_acl_xattr_header);
	     at + sizeof(entry) <= length; at += sizeof(entry)) {
		mode_t allowed;

		memcpy(&entry, bytes + at, sizeof(entry));
		allowed = le16toh(entry.e_perm) & ALL;
		switch (le16toh(entry.e_tag)) {
		case ACL_GROUP_OBJ:
			found.group = allowed;
			break;
		case ACL_MASK:
			found.mask = allowed;
			break;
		case ACL_USER:
			found.users &= allowed;
			found.named &= allowed;
			found.has_names = true;
			break;
		case ACL_GROUP:
			found.named &= allowed;
			found.has_names = true;
			break;
		}
	}
	return found;
}

/* The functions for extended attributes refuse descriptors of O_PATH. */
static void path_of(int directory, const char *name, char ret_path[PATH_SIZE])
{
	snprintf(ret_path, PATH_SIZE, "/proc/self/fd/%d%s%s", directory, name ? "/" : "",
		 name ? name : "");
}

void apply_acl(int directory, const char *name, struct stat *stat)
{
	uint8_t bytes[ACL_SIZE_MAX];
	struct permissions found;
	char path[PATH_SIZE];
	ssize_t length;

	path_of(directory, name, path);
	length = name ? lgetxattr(path, acl_name, bytes, sizeof(bytes))
		      : getxattr(path, acl_name, bytes, sizeof(bytes));
	if (length == 0 ||
	    (length < 0 && (errno == ENODATA || errno == EOPNOTSUPP || errno == ENOENT)))
		return;
	if (length < 0) {
		stat->st_mode &= (mode_t)~077;
		return;
	}
	found = read_entries(bytes, (size_t)length);
	/* A user with a name may be in the group. */
	stat->st_mode &= (mode_t)~070 | (found.group & found.mask & found.users) << 3;
	/* In the copy, a user or a group with a name belongs to the others. */
	if (found.has_names)
		stat->st_mode &= (mode_t)~07 | (found.named & found.mask);
}

mode_t keep_mode(int directory, const char *name, const struct stat *old, mode_t mode)
{
	struct stat kept = *old;

	apply_acl(directory, name, &kept);
	if (old->st_nlink > 1 || others_may_rename(directory))
		kept.st_mode &= mode;
	return kept.st_mode & 0777;
}

static bool begins_with(const char *text, const char *start)
{
	return strncmp(text, start, strlen(start)) == 0;
}

struct attributes list_attributes(int directory, const char *name)
{
	char path[PATH_SIZE], names[NAMES_SIZE_MAX];
	struct attributes found = { false, false };
	ssize_t length;

	path_of(directory, name, path);
	length = name ? llistxattr(path, names, sizeof(names))
		      : listxattr(path, names, sizeof(names));
	for (const char *at = names; at - names < length; at += strlen(at) + 1) {
		found.acl |= begins_with(at, "system.posix_acl_");
		/* security.selinux, for instance, is not a user's. */
		found.extended |= begins_with(at, "user.") ||
				  begins_with(at, "trusted.") ||
				  strcmp(at, "security.capability") == 0;
	}
	return found;
}

void count_losses(const struct stat *stat, const struct attributes *attributes,
		  struct cp_losses *losses)
{
	losses->files[LOSS_OWNER] += stat->st_uid != geteuid() ||
				     stat->st_gid != getegid();
	losses->files[LOSS_SET_ID] += (stat->st_mode & (S_ISUID | S_ISGID)) != 0;
	losses->files[LOSS_ACL] += attributes->acl;
	losses->files[LOSS_XATTR] += attributes->extended;
}

enum {
	BOOT_ID_SIZE = 36 /* a UUID as text: random(4) */
};

bool identify_file(const struct stat *stat, const uint8_t *secret, uint8_t *ret_identity)
{
	uint8_t key[CP_SECRET_SIZE], facts[BOOT_ID_SIZE + 16];
	/* Identifies the running kernel, because inode numbers of two hosts may be equal.
	 */
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd >= 0 ? read(fd, facts, BOOT_ID_SIZE) : -1;
	bool hashed;

	close_fd(fd);
	memset(ret_identity, 0, CP_IDENTITY_SIZE);
	if (length != BOOT_ID_SIZE)
		return false;
	pier_put_le64(facts + BOOT_ID_SIZE, stat->st_dev);
	pier_put_le64(facts + BOOT_ID_SIZE + 8, stat->st_ino);
	hashed = derive_key(secret, 0, "cp-ident", key) &&
		 hash_keyed(key, 0, "", facts, sizeof(facts), ret_identity,
			    CP_IDENTITY_SIZE);
	OPENSSL_cleanse(key, sizeof(key));
	return hashed;
}

bool is_identity_of(const uint8_t *identity, const struct stat *stat,
		    const uint8_t *secret)
{
	uint8_t here[CP_IDENTITY_SIZE];

	return identify_file(stat, secret, here) &&
	       CRYPTO_memcmp(identity, here, sizeof(here)) == 0;
}
