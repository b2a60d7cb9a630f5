/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef CONFORMANCE_CHILD_H
#define CONFORMANCE_CHILD_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Another process with its own end. It runs this program again, because drivers of GPUs
 * do not work in a child of fork(2) whose parent has used them. It reports failures by
 * its exit status, because cmocka's assertions belong to the parent.
 */

enum {
	CHILD_TARGET = 12345, /* offset in the child's area */
	CHILD_MOVED = 70001,  /* bytes */
};

/* The value of byte `i` of the bytes that are moved. */
static inline uint8_t child_byte(uint64_t pattern, size_t i)
{
	return (uint8_t)((pattern + i) * 37 >> 3);
}

/*
 * Start a child with a role. All of them connect to the peer first.
 *
 *	target	sends its remote region, waits for immediate data, and checks that its
 *		memory has the bytes of that pattern
 *	victim	sends its remote region, and waits to be killed
 *	idle	waits to be killed
 */
pid_t child_start(const char *role, int *ret_stream);

/* Kill a running child. */
void child_kill(pid_t child);

/* In the child: play the role. Returns the exit status. */
int child_play(const char *role, int stream);

#endif
