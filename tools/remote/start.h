/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_REMOTE_START_H
#define PIER_TOOLS_REMOTE_START_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "control.h"

enum {
	SHELL_WORDS_MAX = 63,
	SHELL_BYTES_MAX = 4096,
	SHELL_COMMAND_MAX = 2 * SHELL_BYTES_MAX,
	/* The words, options for ssh, the host, the command of the other side, and NULL.
	 */
	SHELL_ARGV_MAX = SHELL_WORDS_MAX + 17,
};

/* The command line of a remote shell, in words. It points into itself: do not copy it. */
struct shell {
	char bytes[SHELL_BYTES_MAX];
	char *words[SHELL_WORDS_MAX + 2]; /* NULL after the last */
	size_t count;			  /* at least 1 */
	char port[16];			  /* the option of ssh */
};

/*
 * Split rsh at blanks; quotes, as in 'a b' or "a b", keep a word together.
 *
 * port  that ssh(1) connects to, or 0; fails if the shell is not ssh
 */
int split_shell(const char *rsh, uint32_t port, struct shell *ret_shell,
		struct failure *failure);

/* The value of a variable of the environment, or the default if it is unset or empty. */
const char *variable_or(const char *name, const char *value);

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

/*
 * The following functions restrict soft0's use of the network. pier(1) describes the
 * environment variables; a value that the user has set is kept.
 */

enum {
	PEER_ADDRESSES_MAX = 16, /* of a host */
	PEER_LIST_MAX = 64	 /* as many as soft0 accepts */
};

/* A value of PIER_SOFT_PEERS. */
struct peers {
	char list[PEER_ADDRESSES_MAX * INET6_ADDRSTRLEN];
};

/*
 * Let the server listen on the address by which the client reached this host, and
 * connect to nobody. Call it before a device is opened.
 *
 * own  that address; NULL: as sshd(8) reports it
 */
void listen_for_client(const char *own);

/*
 * Let the devices that a server opens from now on connect to these addresses, and not
 * listen; see struct peers. The devices that are open do not change.
 */
void connect_onward_to(const char *addresses);

/*
 * Find the addresses of the host that the user named: those it resolves to, or else
 * those ssh(1) would connect to, or else none. It may take seconds.
 *
 * host    as given to the remote shell, with or without a user
 * device  the NIC on this side; "": it is chosen later
 */
void find_peer_addresses(const char *host, const struct shell *shell, const char *device,
			 struct peers *ret_peers);

/*
 * Let the client connect to these addresses only, and not listen. Call it before a
 * device is opened, but after the remote shell is started, because that could pass the
 * variable on to the server.
 */
void connect_only_to(const struct peers *peers);

/* Undo that, before other servers are started. */
void forget_peers(void);

#endif
