/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_METADATA_H
#define PIER_TOOLS_CP_METADATA_H

#include <stdbool.h>
#include <sys/stat.h>

#include "cp.h"

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

#endif
