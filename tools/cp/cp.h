/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CP_H
#define PIER_TOOLS_CP_CP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "failure.h"

/*
 * `pier cp` runs as two processes: a sender that reads the source and a receiver that
 * writes the destination. The user starts one of them, the client. The client starts
 * the other, the server, on this host or through a remote shell. They exchange control
 * messages over the server's standard input and output.
 */

enum cp_role {
	CP_SENDER = 1,
	CP_RECEIVER = 2,
};

/* Sizes of strings, with the terminating NUL. */
enum {
	CP_NAME_MAX = 64,
	CP_DEVICES_MAX = 256, /* names, with "," between them */
	CP_REASON_MAX = 1024,
	CP_CHANNEL_MAX = 256,
	CP_ADDRESSES_MAX = 1024,
};

enum {
	CP_SECRET_SIZE = 32,
	CP_MODE_BITS = 01777, /* of a file's mode that are copied: no set-id bits */
};

/* The client's options that apply to both sides. */
struct cp_settings {
	uint64_t chunk;	     /* bytes per RDMA write */
	uint64_t rate;	     /* maximum bytes per second; 0: no limit */
	uint32_t depth;	     /* chunks in flight */
	uint32_t threads;    /* that read, or verify and write; 0: choose */
	uint32_t timeout_ms; /* without progress or a keepalive */
	bool verify;
	bool direct;   /* PIER_POLICY_PEERMEM: zero copy */
	bool preserve; /* mode and modification time */
	bool tree;     /* directories, or several sources */
	bool dry_run;  /* only list the files */
	bool partial;  /* --continue: keep a part, and use that of an earlier copy */
	bool chain;    /* one of several destinations, which pass the copy on */
	bool ipc; /* inside one host, and no NIC was asked for: without one, if possible
		   */
	char channel[CP_CHANNEL_MAX];	/* for pier_channel_attr_parse(); "": defaults */
	uint8_t secret[CP_SECRET_SIZE]; /* of this copy; see digest.h */
};

/* The file, memory and NIC requested for one side; "": choose. */
struct cp_side {
	char path[PATH_MAX];
	char memory[CP_NAME_MAX];
	char device[CP_DEVICES_MAX];
};

/* Metadata that copies do not have. */
enum cp_loss {
	LOSS_OWNER, /* or group */
	LOSS_SET_ID,
	LOSS_ACL,
	LOSS_XATTR,
	LOSS_HARD_LINK, /* to another file of the copy */
	LOSSES,
};

/* How many files and directories had it. */
struct cp_losses {
	uint32_t files[LOSSES];
};

/* The devices ("": none), memory and path that a side uses. */
struct cp_report {
	char device[CP_DEVICES_MAX];
	char memory[CP_NAME_MAX];
	char path[CP_NAME_MAX];	    /* pier_path_name(), or "ipc" */
	char reason[CP_REASON_MAX]; /* pier_mr_reason() */
};

enum {
	CP_RATE_MIN = 1024,
	CP_CHUNK_MIN = 4096,
	CP_CHUNK_MAX = 1 << 30,
	CP_DEPTH_MAX = 4096,
	/* Of chunk * depth, because a server allocates what its client requests, and of
	 * that and the list of a tree: see list.h. */
	CP_MEMORY_MAX = CP_CHUNK_MAX,
	CP_THREADS_MAX = 64,
	CP_RAILS_MAX = 4, /* NICs of each side */
	CP_DESTINATIONS_MAX = 256,
	CP_OPERANDS_MAX = 4096,
	CP_PATTERNS_MAX = 1024, /* of --exclude */
};

#endif
