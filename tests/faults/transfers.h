/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAULTS_TRANSFERS_H
#define TESTS_FAULTS_TRANSFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/*
 * Each kind of transfer of memory that the NIC cannot reach, with each fault, is a case.
 * transfers_outcomes.c defines how it must end at both ends, and how both continue.
 * "Here" is the end that has the transfer, "there" its peer, with a receiver or without.
 */

/* Traits of a kind of transfer, as bits. */
enum kind_trait {
	READS = 1 << 0,
	LANDS = 1 << 1,	       /* its chunks are announced to a receiver */
	BOUNCED_HERE = 1 << 2, /* so they are copied before they are posted, or as read */
	BOUNCED_THERE = 1 << 3, /* the receiver copies them; else it flushes at the end */
};

/* Means of a fault other than its plans. */
enum transfer_means {
	FORGE_LKEY = 1 << 0, /* the region here has a key of no region */
	FORGE_RKEY = 1 << 1, /* the remote region has a wrong key from chunk PARTED on */
	LANDS_LATER =
		1 << 2, /* the receiver is not driven before the transfer has ended */
	FEW_RECEIVES = 1 << 3, /* the receiver has only RECEIVES receives */
	GIVES_UP_RNR = 1 << 4, /* the channel here retries once */
	STALLS_HERE = 1 << 5,  /* the transfer's stall timeout is STALL_MS */
	STALLS_THERE = 1 << 6, /* or the receiver's is */
	BREAK_HERE = 1 << 7,   /* another request fails after HIT chunks */
	BREAK_THERE = 1 << 8,  /* the same on the receiver's channel */
	KILL_THERE = 1 << 9,   /* the peer is another process, killed after HIT chunks */
	KILL_HERE = 1 << 10,   /* the same here */
	LOSE_DEVICE_HERE = 1 << 11, /* copy STRUCK and all later ones fail */
	LOSE_DEVICE_THERE = 1 << 12,
	NO_FLUSH_THERE = 1 << 13,
	OVER_IN_TIME = 1 << 14, /* a wait of STALL_MS times out: cancel the transfer */
	OVER_IN_TIME_THERE = 1 << 15, /* or the receiver */
};

enum {
	PARTED = 8,   /* chunks in the first part of the peer's memory */
	HIT = 5,      /* chunks that have arrived when another failure happens */
	STRUCK = 4,   /* the number in the plans: three chunks precede it */
	RECEIVES = 6, /* a small number */
	STALL_MS = 800,
};

/* The number of chunks is not known beforehand. */
#define ANY (-1)

struct kind {
	const char *name;
	unsigned int traits;
};

struct transfer_fault {
	const char *name;
	const char *here, *there; /* plans of the devices; "": none */
	unsigned int means;
	const char *how; /* for docs/testing.md, if there is no plan */
};

/* How both continue after they have ended. */
enum sequel {
	NOTHING,     /* all bytes have arrived */
	RESUMED,     /* both resume, because their channels work */
	AFTER_RESET, /* both resume after both ends of the channel were reset */
	LACKING, /* both restart: the receiver may lack bytes that the transfer counts */
	LOST,	 /* both restart: the receiver reports that bytes are lost */
	GONE,	 /* the other process is gone */
};

struct transfer_outcome {
	const char *fault;
	/* Applies to kinds with all traits in `with` and none in `without`. */
	unsigned int with, without;
	int error,
		or_error; /* the transfer's; or_error: a second one if timing decides */
	int receiver, or_receiver; /* the receiver's, or 0 */
	int chunks, landed;	   /* whole chunks that each has counted, or ANY */
	enum sequel sequel;
	/* Parts of the error sentences. */
	const char *sentence, *receiver_sentence;
};

extern const struct kind kinds[];
extern const size_t kind_count;
extern const struct transfer_fault transfer_faults[];
extern const size_t transfer_fault_count;

/* If there is no line, the outcome is success at both ends. */
const struct transfer_outcome *find_transfer_outcome(const struct kind *kind,
						     const struct transfer_fault *fault);

/* True if the fault applies to this kind. */
bool can_meet(const struct kind *kind, const struct transfer_fault *fault);

/* Prints the table that docs/testing.md must contain. */
void print_transfer_outcomes(FILE *file);

/* transfers_play.c: runs a case */
void play_transfer(const struct kind *kind, const struct transfer_fault *fault);
/* Without a transfer: the registration of the region is refused. */
void refuse_registrations(void **state);
/* Before and after each case. */
int transfers_begin(void **state);
int transfers_end(void **state);
int transfer_setup(void **state);
int transfer_teardown(void **state);

#endif
