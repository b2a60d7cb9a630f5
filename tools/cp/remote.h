/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_REMOTE_H
#define PIER_TOOLS_CP_REMOTE_H

#include <stddef.h>
#include <sys/types.h>

#include "control.h"
#include "shell.h"

/* The server: a process that we started. Begin with pid 0. */
struct remote {
	pid_t pid;
	char command[64]; /* what was run: the remote shell, or "pier" */
	bool local;
};

/*
 * Start `pier cp --server` on a host through a remote shell, or here if host is
 * NULL; fills in the control's descriptors.
 *
 * shell        the remote shell, unused if host is NULL. ssh(1) also gets options
 *              that turn off the forwarding of the agent, credentials, X11 and
 *              ports
 * remote_pier  the program there
 */
int start_remote(struct remote *remote, const char *host, const struct shell *shell,
		 const char *remote_pier, struct control *control);

/*
 * Wait for it to end; it has been told, so if it does not it is made to. Writes
 * how it ended, or "" if that was in order.
 */
void end_remote(struct remote *remote, char *ret_how, size_t size);

#endif
