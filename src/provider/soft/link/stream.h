/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_STREAM_H
#define PIER_SOFT_STREAM_H

#include <stdbool.h>

/* Sockets that carry a link. */

/* Not a Unix socket, so its bytes may cross a network. */
bool pier_soft_is_remote(int fd);
/* Sets socket options. Best effort: a stream works without them. */
void pier_soft_tune_stream(int fd);
/* Closes the connection also in processes that have a copy of the fd. Takes -1. */
void pier_soft_hang_up(int fd);
/* Whether the peer has hung up, or died. */
bool pier_soft_has_hung_up(int fd);

#endif
