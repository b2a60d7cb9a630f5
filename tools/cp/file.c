/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/wire.h"
#include "file.h"
#include "path.h"

enum {
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

bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
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

/* Returns the length, 0 if there is no ACL, or -1. */
static ssize_t read_acl(int directory, const char *name, uint8_t *ret_bytes)
{
	char path[PATH_SIZE];
	ssize_t length;

	path_of(directory, name, path);
	length = name ? lgetxattr(path, acl_name, ret_bytes, ACL_SIZE_MAX)
		      : getxattr(path, acl_name, ret_bytes, ACL_SIZE_MAX);
	return length < 0 && (errno == ENODATA || errno == EOPNOTSUPP || errno == ENOENT)
		       ? 0
		       : length;
}

void apply_acl(int directory, const char *name, struct stat *stat)
{
	uint8_t bytes[ACL_SIZE_MAX];
	ssize_t length = read_acl(directory, name, bytes);
	struct permissions found;

	if (length == 0)
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

/* security.selinux, for instance, is not. */
static bool is_of_a_user(const char *attribute)
{
	return begins_with(attribute, "user.") || begins_with(attribute, "trusted.") ||
	       strcmp(attribute, "security.capability") == 0;
}

struct attributes list_attributes(int directory, const char *name)
{
	char path[PATH_SIZE], names[NAMES_SIZE_MAX];
	struct attributes found = { false, false };
	ssize_t length;

	path_of(directory, name, path);
	length = name ? llistxattr(path, names, sizeof(names))
		      : listxattr(path, names, sizeof(names));
	for (ssize_t at = 0; at < length; at += (ssize_t)strlen(names + at) + 1) {
		found.acl = found.acl || begins_with(names + at, "system.posix_acl_");
		found.extended = found.extended || is_of_a_user(names + at);
	}
	return found;
}

void count_losses(const struct stat *stat, const struct attributes *attributes,
		  struct cp_losses *losses)
{
	losses->owners += stat->st_uid != geteuid() || stat->st_gid != getegid();
	losses->set_ids += (stat->st_mode & (S_ISUID | S_ISGID)) != 0;
	losses->acls += attributes->acl;
	losses->attributes += attributes->extended;
}

/* As the contexts in digest.c. */
static const char identity_context[crypto_kdf_CONTEXTBYTES] = "cp-ident";

enum {
	BOOT_ID_SIZE = 36 /* a UUID as text: random(4) */
};

/* Identifies the running kernel, because inode numbers of two hosts may be equal. */
static bool read_boot_id(uint8_t *ret_id)
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd >= 0 ? read(fd, ret_id, BOOT_ID_SIZE) : -1;

	if (fd >= 0)
		close(fd);
	return length == BOOT_ID_SIZE;
}

bool identify_file(const struct stat *stat, const uint8_t *secret, uint8_t *ret_identity)
{
	uint8_t key[crypto_generichash_KEYBYTES], facts[BOOT_ID_SIZE + 16];

	memset(ret_identity, 0, CP_IDENTITY_SIZE);
	if (!read_boot_id(facts))
		return false;
	pier_put_le64(facts + BOOT_ID_SIZE, stat->st_dev);
	pier_put_le64(facts + BOOT_ID_SIZE + 8, stat->st_ino);
	crypto_kdf_derive_from_key(key, sizeof(key), 0, identity_context, secret);
	crypto_generichash(ret_identity, CP_IDENTITY_SIZE, facts, sizeof(facts), key,
			   sizeof(key));
	sodium_memzero(key, sizeof(key));
	return true;
}

bool is_identity_of(const uint8_t *identity, const struct stat *stat,
		    const uint8_t *secret)
{
	uint8_t here[CP_IDENTITY_SIZE];

	return identify_file(stat, secret, here) &&
	       sodium_memcmp(identity, here, sizeof(here)) == 0;
}
