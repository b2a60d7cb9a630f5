/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_MESSAGE_H
#define PIER_TOOLS_CP_MESSAGE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include <pier/endpoint.h>
#include <pier/ipc.h>
#include <pier/remote.h>

#include "digest.h"
#include "file.h"
#include "remote/control.h"

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

/* Of standard input: an empty chunk ends it. No file can be that large. */
#define CP_SIZE_UNKNOWN (UINT64_C(1) << 63)

/* The client's options that apply to both sides. */
struct cp_settings {
	uint64_t chunk;	     /* bytes per RDMA write */
	uint64_t rate;	     /* maximum bytes per second; 0: no limit */
	uint32_t depth;	     /* chunks in flight */
	uint32_t threads;    /* that read, or verify and write; 0: choose */
	uint32_t timeout_ms; /* without progress or a keepalive */
	bool verify;
	bool direct;	/* PIER_POLICY_PEERMEM: zero copy */
	bool preserve;	/* mode and modification time */
	bool tree;	/* directories, or several sources */
	bool dry_run;	/* only list the files */
	bool partial;	/* --continue: keep a part, and use that of an earlier copy */
	bool chain;	/* one of several destinations, which pass the copy on */
	bool skip_same; /* leave out files of the same size and time; set times */
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

/* The devices ("": none), memory and path that a side uses. */
struct cp_report {
	char device[CP_DEVICES_MAX];
	char memory[CP_NAME_MAX];
	char path[CP_NAME_MAX];	    /* pier_path_name(), or "ipc" */
	char reason[CP_REASON_MAX]; /* pier_mr_reason() */
};

enum {
	CP_PROTOCOL_VERSION = 13
};

extern const struct control_protocol cp_protocol;

/* A control connection of this protocol, without descriptors. */
struct control cp_control(uint32_t timeout_ms, struct failure *failure);

enum cp_frame {
	FRAME_REQUEST = 1, /* client: settings, and the server's role and side */
	FRAME_SOURCE = 2,  /* sender: name, size and attributes of the file */
	FRAME_SETUP = 3,   /* both: endpoint and memory region of each rail, position,
			      report */
	FRAME_END = 5,	   /* sender: all is sent and the file did not change; digest.
			      sending server in a dry run: no further FRAME_FILE; empty */
	FRAME_IPC = 10,	   /* receiver, then sender: whether without a NIC */
	FRAME_WORDS =
		11, /* client: the sources and patterns of a tree; the last is empty */
	FRAME_LIST = 12,     /* sender: the files of a tree; the last is empty */
	FRAME_FILE = 13,     /* both: a file that is left out, and why */
	FRAME_SEGMENTS = 14, /* receiver: segments that it has; the last is empty */
	FRAME_KEPT = 15,     /* sender: which of these are kept */
	FRAME_SAME = 18,     /* receiver: files that it has; see struct same_files */
	/* With several destinations; see hub.h. */
	FRAME_OPENED = 19,     /* receiver: it can write the destination */
	FRAME_CHAIN = 20,      /* client: whether to pass the copy on, and where to */
	FRAME_RELINK = 21,     /* client: connect to another neighbour; echoed */
	FRAME_HOP_FAILED = 22, /* both: the connection to the neighbour, and why */
};

/* The contents of the frames. Receiving fails on any value out of its range. */

struct request {
	enum cp_role role; /* of the server */
	struct cp_settings settings;
	struct cp_side side; /* of the server */
};

struct source_message {
	uint64_t size;	/* or CP_SIZE_UNKNOWN */
	bool sparse;	/* it has holes, which take no disk space */
	bool tree;	/* it is the sequence of a list of files, which follows */
	bool several;	/* of a tree: the user named several files */
	bool contents;	/* of a tree: its files have no directory in common */
	bool in_memory; /* it can change without a trace: see file.h */
	uint32_t mode;	/* permission bits */
	uint64_t mtime_seconds;
	uint32_t mtime_nanoseconds;
	char name[NAME_MAX + 1];
	uint8_t identity[CP_IDENTITY_SIZE]; /* of the file, or of the contents' directory
					     */
	struct cp_losses losses;
};

/* The operands or the patterns of a command line. */
struct words {
	char **all; /* owned */
	uint32_t count;
};

/* Of the receiver: a handle of its memory; of the sender: it opened that. */
struct ipc_message {
	bool ready;
	char reason[CP_REASON_MAX]; /* why not; "": none is needed */
	uint8_t handle[PIER_IPC_HANDLE_SIZE];
};

struct setup_message {
	uint32_t rail_count;
	struct pier_endpoint endpoints[CP_RAILS_MAX];
	struct pier_remote
		remotes[CP_RAILS_MAX]; /* the receiver's memory, for each rail */
	uint64_t next; /* position in the stream that the receiver has released */
	struct cp_report report;
};

/* About a file that is left out. */
struct file_notice {
	uint32_t number; /* in the list */
	char sentence[CP_REASON_MAX];
};

/* For a receiver in a chain. */
struct chain_message {
	bool passes_on;
	char addresses[CP_ADDRESSES_MAX]; /* that it may connect to: PIER_SOFT_PEERS */
};

/* Send one of these structs as the contents of a frame of this type. */
int send_message(struct control *control, enum cp_frame type, const void *message);
/* Receive one; or read it from a frame. */
int expect_message(struct control *control, enum cp_frame type, void *ret_message);
int parse_message(struct control *control, const struct frame *frame, void *ret_message);

int send_words(struct control *control, const struct words *operands,
	       const struct words *patterns);
int receive_words(struct control *control, struct words *ret_operands,
		  struct words *ret_patterns);
/* Returns 0, or -1 if there are `most` words already, or no memory. */
int add_word(struct words *words, const char *word, uint32_t most);
void free_words(struct words *words);

#endif
