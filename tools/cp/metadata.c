/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "metadata.h"
#include "path.h"

enum {
	ACL_SIZE_MAX = 65536,	/* XATTR_SIZE_MAX of the kernel */
	NAMES_SIZE_MAX = 65536, /* XATTR_LIST_MAX */
	PATH_SIZE = NAME_MAX + 64,
	ALL = 7,
};

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
static const char *path_of(int directory, const char *name, char path[PATH_SIZE])
{
	snprintf(path, PATH_SIZE, "/proc/self/fd/%d%s%s", directory, name ? "/" : "",
		 name ? name : "");
	return path;
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
