/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_MEETING_H
#define PIER_SOFT_MEETING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <infiniband/verbs.h>

#include "provider/soft/limits.h"

/*
 * How programs that know only verbs find each other. Plain verbs carries a GID and a QPN,
 * but no secret. Processes that meet share a key instead, and derive the secret of each
 * queue pair from it. The key is a file in a folder of mode 0700, which also holds the
 * Unix sockets of these processes, or the file named by PIER_SOFT_KEY.
 */

enum {
	SOFT_FOLDER_SIZE = 80, /* a Unix socket's path has 108 bytes */
};

struct soft_meeting {
	bool joined;
	char folder[SOFT_FOLDER_SIZE]; /* "": no sockets in it */
	uint8_t key[SOFT_KEY_SIZE];
};

/*
 * Reads the key; the first process makes it and the folder. `uses_folder`: for sockets,
 * too.
 *
 * Errors, with a sentence: -EACCES folder or key belong to another user, or others can
 * read them; -EINVAL the key file does not have SOFT_KEY_SIZE bytes; -ENAMETOOLONG
 * XDG_RUNTIME_DIR is too long for a socket; else the errno of a system call.
 */
int pier_soft_join_meeting(struct soft_meeting *meeting, bool uses_folder);

/*
 * The name of a Unix socket in the folder: `kind` has 2 letters, and the GID is that of
 * the context that owns it. Returns the length of the name.
 */
socklen_t pier_soft_name_in_folder(const struct soft_meeting *meeting, const char *kind,
				   const union ibv_gid *gid,
				   struct sockaddr_un *ret_name);

/* Bytes 8 to 15 of a GID as 16 hexadecimal digits, and a NUL. */
void pier_soft_print_gid(const union ibv_gid *gid, char *ret_text);

/* The secret of a queue pair: SOFT_SECRET_SIZE bytes. */
void pier_soft_derive_secret(const struct soft_meeting *meeting, const union ibv_gid *gid,
			     uint32_t qpn, uint8_t *ret_secret);

struct soft_meeting;

/*
 * Removes what processes that were killed left in the folder: sockets that nobody has
 * open, and half-written keys. Best effort.
 */
void pier_soft_sweep_folder(const struct soft_meeting *meeting);

#endif
