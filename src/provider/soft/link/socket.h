/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SOCKET_H
#define PIER_SOFT_SOCKET_H

#include <stdbool.h>
#include <sys/types.h>

/* Sockets that carry a link. */

/* Sets socket options. Best effort: a stream works without them. */
void pier_soft_tune_stream(int fd);

/* Closes the connection also in processes that have a copy of the fd. Takes -1. */
void pier_soft_hang_up(int fd);

/* Whether the peer has hung up, or died. */
bool pier_soft_has_hung_up(int fd);

/* The process at the other end of a Unix socket, and fds that it sends. */

/*
 * Whether the link must be encrypted: always, except on a Unix socket to a process of the
 * user `uid`.
 */
bool pier_soft_must_seal(int fd, uid_t uid);

/* The pid of the process that connected or listened; 0: not in our pid namespace. */
pid_t pier_soft_peer_pid(int fd);

/* Whether it is of our user, or either of the two is root. */
bool pier_soft_may_connect(int fd);

/* Whether it could take our fds out of /proc anyway, so that sending one adds nothing. */
bool pier_soft_may_have_fds(int fd);

/* Where the kernel supports it, lets the peer fail to send fds, or allows it again. */
void pier_soft_accept_fds(int fd, bool accepted);

/* Closes an fd of unknown kind that a peer sent. Returns -1, as pier_close_fd(). */
int pier_soft_close_foreign(int fd);

#endif
