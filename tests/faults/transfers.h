/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAULTS_TRANSFERS_H
#define TESTS_FAULTS_TRANSFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/*
 * Each kind of transfer of memory that the NIC does not reach meets each fault: that is
 * a case, and transfers_outcomes.c says how it must end at both ends, and how both go on.
 * "Here" is the end that has the transfer, "there" its peer, with a receiver or without.
 */

/* What a kind of transfer is, as bits. */
enum kind_trait {
	READS = 1 << 0,
	LANDS = 1 << 1,	       /* its chunks are announced to a receiver */
	BOUNCED_HERE = 1 << 2, /* so they are copied before they are posted, or as read */
	BOUNCED_THERE = 1 << 3, /* the receiver copies them; else it flushes at the end */
};

/* How a fault is brought about, but for its plans. */
enum transfer_means {
	FORGE_LKEY = 1 << 0,   /* the region here has a key that is no region's */
	FORGE_RKEY = 1 << 1,   /* what is named of the peer, from PARTED chunks on */
	LANDS_LATER = 1 << 2,  /* the receiver is driven when the transfer has ended */
	FEW_RECEIVES = 1 << 3, /* the receiver has RECEIVES of them */
	GIVES_UP_RNR = 1 << 4, /* the channel here tries again once */
	STALLS_HERE = 1 << 5,  /* STALL_MS is the transfer's patience */
	STALLS_THERE = 1 << 6, /* or the receiver's */
	BREAK_HERE = 1 << 7,   /* another request fails after HIT chunks */
	BREAK_THERE = 1 << 8,  /* likewise, on the receiver's channel */
	KILL_THERE = 1 << 9,   /* it is another process, which is killed after HIT */
	KILL_HERE = 1 << 10,   /* likewise */
	LOSE_DEVICE_HERE = 1 << 11, /* the STRUCKth copy fails, and all behind it */
	LOSE_DEVICE_THERE = 1 << 12,
	NO_FLUSH_THERE = 1 << 13,
	OVER_IN_TIME = 1 << 14,	      /* timeout_ms of the transfer is over */
	OVER_IN_TIME_THERE = 1 << 15, /* or of the receiver */
};

enum {
	PARTED = 8,   /* chunks in the first part of the peer's memory */
	HIT = 5,      /* chunks that have arrived when something else happens */
	STRUCK = 4,   /* the number in the plans: three chunks were before it */
	RECEIVES = 6, /* few */
	STALL_MS = 800,
};

/* What is not known beforehand, of chunks. */
#define ANY (-1)

struct kind {
	const char *name;
	unsigned int traits;
};

struct transfer_fault {
	const char *name;
	const char *here, *there; /* plans of the devices; "": none */
	unsigned int means;
	const char *how; /* for docs/testing.md, where it is no plan */
};

/* How both go on when they have ended. */
enum sequel {
	NOTHING,     /* all is there */
	RESUMED,     /* both as they are: their channels work */
	AFTER_RESET, /* both, when both ends of the channel were reset */
	LACKING,     /* both begin anew: the receiver may lack what the transfer counts */
	LOST,	     /* both begin anew: it knows that bytes are lost */
	GONE,	     /* the other process is */
};

struct transfer_outcome {
	const char *fault;
	/* Of the kinds with all of `with`, and none of `without`. */
	unsigned int with, without;
	int error, or_error;	   /* the transfer's; or_error: where time decides */
	int receiver, or_receiver; /* the receiver's; 0 where it has none */
	int chunks, landed;	   /* whole ones that each has counted, or ANY */
	enum sequel sequel;
	/* What the sentences say. */
	const char *sentence, *receiver_sentence;
};

extern const struct kind kinds[];
extern const size_t kind_count;
extern const struct transfer_fault transfer_faults[];
extern const size_t transfer_fault_count;

/* Success at both ends, where there is no line. */
const struct transfer_outcome *find_transfer_outcome(const struct kind *kind,
						     const struct transfer_fault *fault);

/* Whether the fault can be brought about. */
bool can_meet(const struct kind *kind, const struct transfer_fault *fault);

/* The table of docs/testing.md, as it must be there. */
void print_transfer_outcomes(FILE *file);

/* transfers_play.c: a case */
void play_transfer(const struct kind *kind, const struct transfer_fault *fault);
/* Of no transfer: its region is refused. */
void refuse_registrations(void **state);
/* Before and behind each. */
int transfers_begin(void **state);
int transfers_end(void **state);
int transfer_setup(void **state);
int transfer_teardown(void **state);

#endif
