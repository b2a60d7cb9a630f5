/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_TRANSFER_H
#define PIER_TOOLS_CP_TRANSFER_H

#include "control.h"
#include "digest.h"
#include "link.h"
#include "workers.h"
#include "progress.h"

/* What sending and receiving have in common. */
struct transfer {
	enum cp_role role;
	const struct cp_settings *settings;
	const struct cp_side *side;
	bool local;	       /* both sides are on this host */
	int root;	       /* where its path begins: see path.h */
	const char *requested; /* the path that we asked a server for, or NULL */
	struct control *control;
	struct failure *failure; /* the control's too */
	struct progress *progress;
	struct link link;
	struct workers *workers;
	struct cp_report report; /* what this side uses */
	bool substitute;	 /* of the link */
	struct setup_message peer;
	uint64_t size;		    /* of the file */
	struct digest_state digest; /* of the chunks that were posted or announced */
	bool peer_ended;	    /* FRAME_END came */
	uint8_t peer_digest[CP_DIGEST_SIZE]; /* in it */
	bool peer_done;			     /* FRAME_DONE came */
	bool channel_idle; /* all was moved: the channel no longer matters */
	uint64_t deadline_ns, alive_ns;
	uint64_t started_ns; /* when both were connected */
};

/* All return 0, or -1 with the failure noted. */

/* Device, memory, channel and threads of this side. */
int prepare_transfer(struct transfer *transfer, uint64_t size);
/* Exchange endpoints, connect, and wait until both are connected. */
int connect_transfer(struct transfer *transfer);
void close_transfer(struct transfer *transfer);

/* Something moved: the other side has all of its time again. */
void note_progress(struct transfer *transfer);

/*
 * Sleep until something happens, or until `wake_ns` (0: no such time). `working`
 * says that this side is what everything waits for, which the other is told.
 */
int transfer_wait(struct transfer *transfer, bool working, uint64_t wake_ns);

/* A call on the channel failed, or a request did, and the library has said why. */
int fail_channel(struct transfer *transfer, const char *step);

/* 1: the request is done, without error; 0: not yet; -1: it or the channel failed. */
int poll_request(struct transfer *transfer, struct pier_work work,
		 struct pier_result *ret_result);

/* The two roles; see send.c and receive.c. */
int run_sender(struct transfer *transfer);
int run_receiver(struct transfer *transfer);

#endif
