/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef CONFORMANCE_CHILD_H
#define CONFORMANCE_CHILD_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Another process with an end of its own, which is this program again: drivers of GPUs
 * do not work in a child of fork(2) whose parent has used them. It says what goes wrong
 * by its exit status, since cmocka's assertions belong to the parent.
 */

enum {
	CHILD_TARGET = 12345, /* offset in the child's area */
	CHILD_MOVED = 70001,  /* bytes */
};

/* What stands at byte `i` of what is moved. */
static inline uint8_t child_byte(uint64_t pattern, size_t i)
{
	return (uint8_t)((pattern + i) * 37 >> 3);
}

/*
 * Start one that plays a role:
 *
 *	target	meets the peer, tells it of its memory, waits for immediate data, and
 *		looks whether its memory has the bytes of that pattern
 *	victim	meets the peer, tells it of its memory, and waits to be killed
 *	idle	meets the peer, and waits to be killed
 */
pid_t child_start(const char *role, int *ret_stream);

/* Kill one that has not ended. */
void child_kill(pid_t child);

/* In the child: play the role; returns the exit status. */
int child_play(const char *role, int stream);

#endif
