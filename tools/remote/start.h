/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_REMOTE_START_H
#define PIER_TOOLS_REMOTE_START_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "control.h"
#include "failure.h"

enum {
	SHELL_WORDS_MAX = 63,
	SHELL_BYTES_MAX = 4096,
	SHELL_COMMAND_MAX = 2 * SHELL_BYTES_MAX,
	/* The words, options for ssh, the host, the command of the other side, and NULL.
	 */
	SHELL_ARGV_MAX = SHELL_WORDS_MAX + 16,
};

/* The command line of a remote shell, in words. It points into itself: do not copy it. */
struct shell {
	char bytes[SHELL_BYTES_MAX];
	char *words[SHELL_WORDS_MAX + 1]; /* NULL after the last */
	size_t count;			  /* at least 1 */
};

/* Split rsh at blanks; quotes, as in 'a b' or "a b", keep a word together. */
int split_shell(const char *rsh, struct shell *ret_shell, struct failure *failure);

/* Returns whether the file name of the first word is "ssh". */
bool shell_is_ssh(const struct shell *shell);

/*
 * Ask ssh(1) which name or address it connects to for host, which may be an alias from
 * ssh_config(5). Takes up to 5 s. Returns false if ssh does not answer.
 */
bool ask_ssh_for_host(const struct shell *shell, const char *host, char *ret_name,
		      size_t size);

/* The server process that the client started. Zero the struct first. */
struct remote {
	pid_t pid;
	char command[64]; /* the remote shell, or "pier"; for error messages */
	bool local;
};

/*
 * Start `pier COMMAND --server` on a host through a remote shell, or on this host if host
 * is NULL. COMMAND is that of control->protocol. Sets the descriptors of the connection.
 *
 * shell        the remote shell; unused if host is NULL. ssh(1) also gets options that
 *              disable forwarding of the agent, credentials, X11 and ports
 * remote_pier  the path of pier on that host
 */
int start_remote(struct remote *remote, const char *host, const struct shell *shell,
		 const char *remote_pier, struct control *control);

/*
 * Close the connection and its signals, and wait for the server to exit; kill it if it
 * does not. If it closed the connection without a reason, its exit status becomes a part
 * of the failure.
 */
void end_remote(struct remote *remote, struct control *control);
/* Whether the server's process, or the remote shell, ends within this time. */
bool remote_ends_within(const struct remote *remote, int ms);

/*
 * The server's part: take its standard input and output for the protocol alone, and
 * redirect standard output to standard error for everything else.
 */
int take_descriptors(struct control *control);

#endif
