/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_BLOCKING_H
#define PIER_SOFT_BLOCKING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/*
 * Socket calls that block until a deadline, in nanoseconds of CLOCK_MONOTONIC. 0, or
 * -errno: -ETIMEDOUT: the deadline is over; -ECONNREFUSED: the peer hung up.
 */

int pier_soft_connect_before(int fd, const void *name, socklen_t length,
			     uint64_t deadline);
int pier_soft_receive_all(int fd, uint8_t *bytes, size_t length, uint64_t deadline);
/* Does not block, since a fresh connection always has room for so few bytes. */
int pier_soft_send_all(int fd, const uint8_t *bytes, size_t length);

#endif
