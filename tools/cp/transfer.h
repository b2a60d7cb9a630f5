/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_TRANSFER_H
#define PIER_TOOLS_CP_TRANSFER_H

#include "chunk.h"
#include "digest.h"
#include "link.h"
#include "list.h"
#include "notices.h"
#include "progress.h"
#include "remote/control.h"
#include "tree.h"

enum {
	CP_RAIL_TEXT_MAX = 256
};

/* The state that sender and receiver share. */
struct transfer {
	enum cp_role role;
	const struct cp_settings *settings;
	const struct cp_side *side;
	bool local;	       /* both sides are on this host */
	int root;	       /* as in path.h */
	const char *requested; /* the path requested from a server, or NULL */
	bool client, quiet;
	bool may_pass_on; /* of a server: to a next one, with several destinations */
	const struct words *operands, *patterns; /* of a tree; borrowed */
	struct tree *tree;	  /* that a receiver writes; NULL: a file */
	struct budget budget;	  /* of memory, for the list and the notices */
	struct notices notices;	  /* of files that are left out */
	uint32_t files, left_out; /* of a tree, at the client */
	struct control *control;
	struct failure *failure; /* the same as control->failure */
	struct progress *progress;
	struct link link;
	struct workers *workers;
	struct cp_report report; /* of this side */
	struct setup_message peer;
	uint64_t size;		    /* of the file */
	bool in_memory;		    /* the source: see source.h */
	struct cp_losses losses;    /* of the source */
	struct kept kept;	    /* of it, from an earlier copy */
	struct digest_state digest; /* of the chunks posted or announced so far */
	bool peer_ended;	    /* FRAME_END has arrived */
	uint8_t peer_digest[CP_DIGEST_SIZE]; /* from FRAME_END */
	bool peer_done;			     /* FRAME_DONE has arrived */
	bool channel_idle;   /* all chunks have been transferred; ignore the channel */
	bool has_moved;	     /* at least one chunk has been transferred */
	bool broken;	     /* the channel; see connect.h */
	bool peer_is_set_up; /* the other side's FRAME_SETUP has arrived */
	bool peer_is_ready;  /* and then its FRAME_READY */
	bool awaits_relink;  /* until then, nothing counts that the old other side says */
	bool relinked;	     /* FRAME_RELINK has arrived: there is another other side */
	bool peer_is_new;    /* and it has not been connected yet */
	unsigned int repairs; /* how often the channel was restored */
	bool repaired;	      /* it was restored, and there was no progress since */
	char cause[1024];     /* why it broke, at first; "": it works */
	char lost[1024]; /* a NIC of this side that the others did without, and why */
	uint64_t deadline_ns, keepalive_ns;
	uint64_t started_ns; /* when both sides were connected */
};

/* Functions that return int return 0, or -1 with the failure set. */

/* Call when the settings are known. */
void set_budget(struct transfer *transfer);
/* Open device, memory, channel and threads of this side. */
int prepare_transfer(struct transfer *transfer, uint64_t size);
void close_transfer(struct transfer *transfer);

/* Call on every progress: the timeout starts again. */
void restart_timeout(struct transfer *transfer);

/* Call in the middle of long work that does not call transfer_wait(). */
int keep_peer_waiting(struct transfer *transfer);

/*
 * Sleep until an event, or until `wake_ns` if it is not 0. Set `working` if the copy is
 * waiting for this side; the other side then gets keepalives.
 */
int transfer_wait(struct transfer *transfer, bool working, uint64_t wake_ns);

/* In a chain: the others wait for this side, whose own timeout goes on. */
int keep_chain_waiting(struct transfer *transfer);

/* Take a frame that may come at any time after both sides were connected. */
int take_frame(struct transfer *transfer, const struct frame *frame);

/* Drive this side's end of the stream. Returns 1 if it has ended now, 0 if not, or -1. */
int drive_link(struct transfer *transfer);

/*
 * Report a failed channel call or request, with the library's error message. If the
 * channel can be restored, sets transfer->broken instead of the failure. Returns -1.
 */
int fail_channel(struct transfer *transfer, const char *step);
/* The same if the rail is known; NULL: it is not. */
int fail_rail(struct transfer *transfer, const struct rail *rail, const char *step);

/*
 * For the sentence of a failure: which of several NICs it was, and how to do without it;
 * "" if there is only one. rail: NULL if it is unknown.
 */
void describe_rail(const struct transfer *transfer, const struct rail *rail,
		   char ret_text[CP_RAIL_TEXT_MAX]);

/*
 * If the network may have failed, and no port of this side is down: report the failure,
 * which the other side replaces if one of its ports is. Returns -1.
 */
int ask_peer_for_cause(struct transfer *transfer);

/* Whether a call failed because the connection broke, and for no other reason. */
bool is_to_be_restored(const struct transfer *transfer);

/* Of a receiver: compare the digest of the chunks with that of the sender. */
int check_digest(struct transfer *transfer);

/*
 * Files of a tree that are not copied: each side has notices of its own, and the client
 * prints those of both. Functions that return int return 0, or -1 with the failure set.
 */

/* Print the notices of a client's own side. */
void show_notices(struct transfer *transfer);
/* Print the notices of this side, or send them, or both. Returns how many; or -1. */
int pass_notices(struct transfer *transfer);
/* Fails if the memory did not suffice for all notices. */
int check_notices(const struct transfer *transfer);

/* In a dry run: take those of the sending server. */
int take_file_notices(struct transfer *transfer);

#endif
