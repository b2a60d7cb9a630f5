/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_IDENTITY_H
#define PIER_TOOLS_CP_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/*
 * The identity of a file is a keyed hash of the kernel's boot id, the device number and
 * the inode number. A receiver compares identities to refuse to overwrite the source:
 * within one copy, equal identities mean the same file. The peer knows the key but not
 * the boot id of another host (122 random bits), so it learns none of the three.
 */
enum {
	CP_IDENTITY_SIZE = 16
};

/* `secret` is the copy's. Returns false and zeroes if the boot id cannot be read. */
bool identify_file(const struct stat *stat, const uint8_t *secret, uint8_t *ret_identity);

/* Returns whether `identity`, received from the peer of this copy, is this file. */
bool is_identity_of(const uint8_t *identity, const struct stat *stat,
		    const uint8_t *secret);

#endif
