/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CP_H
#define PIER_TOOLS_CP_CP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "failure.h"

/*
 * `pier cp` is two processes: a sender that reads the source and a receiver
 * that writes the destination. One of them is what the user started (the
 * client); it starts the other (the server), here or through a remote shell,
 * and the two speak over the server's standard input and output.
 */

enum cp_role {
	CP_SENDER = 1,
	CP_RECEIVER = 2,
};

/* Longest names of memory and devices, with their NUL. */
enum {
	CP_NAME_MAX = 64,
	CP_WHY_MAX = 1024,
};

enum {
	CP_SECRET_SIZE = 32
};

/* What both sides must agree on: the client's options. */
struct cp_settings {
	uint64_t chunk;	     /* bytes in one write */
	uint64_t rate;	     /* bytes a second at most; 0: no limit */
	uint32_t depth;	     /* chunks under way at once */
	uint32_t threads;    /* that read, or verify and write; 0: chosen */
	uint32_t timeout_ms; /* without a sign of life */
	bool verify;
	bool direct;			/* PIER_POLICY_DIRECT */
	bool preserve;			/* mode and modification time */
	uint8_t secret[CP_SECRET_SIZE]; /* of this copy; see digest.h */
};

/* One side's file, memory and NIC, as asked for; "" is: choose. */
struct cp_side {
	char path[PATH_MAX];
	char memory[CP_NAME_MAX];
	char device[CP_NAME_MAX];
};

/* What was really used. */
struct cp_report {
	char device[CP_NAME_MAX];
	char memory[CP_NAME_MAX];
	char path[CP_NAME_MAX]; /* pier_path_name() */
	char why[CP_WHY_MAX];	/* pier_mr_reason() */
};

enum {
	CP_RATE_MIN = 1024,
	CP_CHUNK_MIN = 4096,
	CP_CHUNK_MAX = 1 << 30,
	CP_DEPTH_MAX = 4096,
	/* Chunk times depth at most: a server allocates what its client asks for. */
	CP_SLOTS_MAX = CP_CHUNK_MAX,
	CP_THREADS_MAX = 64,
};

#endif
