/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_PARTY_H
#define PIER_TOOLS_CP_PARTY_H

#include <pthread.h>

#include "chunk.h"
#include "connection.h"
#include "digest.h"
#include "list.h"
#include "progress.h"
#include "standard.h"
#include "tree.h"

/* The number of a file that is not in the list, or not known to the other side. */
#define NOTICE_OF_NO_FILE UINT32_MAX

/* That of a destination that is left out. */
#define NOTICE_OF_DESTINATION (UINT32_MAX - 1)

/* Sentences about single files that are not copied, while the copy goes on. */
struct notice {
	struct notice *next;
	uint32_t number; /* of the file in the list */
	char sentence[];
};

/* Any thread may add; the main thread takes. */
struct notices {
	pthread_mutex_t lock;
	struct notice *first, **last;
	struct budget *budget; /* borrowed */
	bool lost;	       /* there was no memory for one */
};

void open_notices(struct notices *notices, struct budget *budget);
void add_notice(struct notices *notices, uint32_t number, const char *sentence);
void close_notices(struct notices *notices);

/* The files that a client with --verbose names while they are copied. */
struct naming {
	bool wanted;
	const struct file_list *list; /* NULL: a single file of this name */
	char name[NAME_MAX + 1];
	uint32_t next; /* the first that has not been named */
};

/* One side of a copy: what sender and receiver share, above the connection. */
struct party {
	union {
		struct connection; /* its members are also the party's: -fms-extensions
				    */
		struct connection connection;
	};
	int root;	       /* as in path.h */
	const char *requested; /* the path requested from a server, or NULL */
	bool client, quiet;
	bool may_pass_on; /* of a server: to a next one, with several destinations */
	const struct words *operands, *patterns; /* of a tree; borrowed */
	struct tree *tree;	   /* that a receiver writes; NULL: a file */
	struct standard *standard; /* of a client, in place of its file; NULL: none */
	struct budget budget;	   /* of memory, for the list and the notices */
	struct notices notices;	   /* of files that are left out */
	struct observer observer;  /* of work on files */
	uint32_t files, left_out;  /* of a tree, at the client */
	struct progress *progress;
	struct naming naming;
	struct cp_report report; /* of this side */
	uint64_t size;		 /* of the file; CP_SIZE_UNKNOWN up to its end */
	bool in_memory;		 /* the source: see file.h */
	struct cp_losses losses; /* of the source */
	struct kept kept;	 /* of it, from an earlier copy */
	struct same_files same;	 /* with --skip-same */
	struct mac_state digest; /* of the chunks posted or announced so far */
};

/* Functions that return int return 0, or -1 with the failure set. */

/* Call when the settings are known. */
void begin_party(struct party *party);
/* Open device, memory, channel and threads of this side. */
int prepare_party(struct party *party);
void close_party(struct party *party);

/* Read the source and send it (send.c). */
int run_sender(struct party *party);
/* Receive the file and write the destination (receive.c). */
int run_receiver(struct party *party);

/*
 * Name the files that end within the first bytes of the sequence.
 *
 * wait  for a reader of standard output that is behind; otherwise the names come later
 */
void name_files(struct party *party, uint64_t bytes, bool wait);

/*
 * Files of a tree that are not copied: each side has notices of its own, and the client
 * prints those of both. Functions that return int return 0, or -1 with the failure set.
 */

/* Add a notice of a file that is left out. Any thread. */
void leave_file_out(struct party *party, uint32_t number, const char *path,
		    const char *reason);
/* Print the notices of a client's own side. */
void show_notices(struct party *party);
/* Print the notices of this side, or send them, or both. Returns how many; or -1. */
int pass_notices(struct party *party);
/* All files are left out. Returns -1 with the failure set. */
int fail_empty(struct party *party);
/* Fails if the memory did not suffice for all notices. */
int check_notices(const struct party *party);

#endif
