/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAULTS_MATRIX_H
#define TESTS_FAULTS_MATRIX_H

#include <stdint.h>
#include <sys/types.h>

#include "../conformance/world.h"

/*
 * Each operation with each fault is a case, and outcomes.c defines how it must end.
 * docs/testing.md describes how to add an operation, a fault or an outcome.
 */

enum {
	SOURCE = 1001,	   /* offset of the moved bytes in their source area */
	RECEIVER = 70007,  /* and in their target area */
	FREE = 150001,	   /* offset that nothing else uses */
	LENGTH = 5003,	   /* bytes */
	NUMBER = 0xabcd12, /* immediate data */
	/* The times of the plans in faults.c. */
	LATE_MS = 30,
	IMPATIENT_MS = 40,
};

/* Traits of an operation, as bits. */
enum trait {
	SENDS = 1 << 0,		/* its request uses the send queue */
	RECEIVES = 1 << 1,	/* or the receive queue */
	REMOTE = 1 << 2,	/* it has a remote region */
	NEEDS_RECEIVE = 1 << 3, /* of the peer */
	INTO_PEER = 1 << 4,	/* bytes go to the peer */
	INTO_US = 1 << 5,	/* or come from the peer */
	WAITS = 1 << 6,		/* for completion, with test_work_finish() */
	POLLS = 1 << 7,		/* repeatedly, with pier_work_poll() */
	REGISTERS = 1 << 8,
	CONNECTS = 1 << 9,
	PREPARES = 1 << 10,
	WATCHES = 1 << 11, /* it waits for something other than its own request */
	BINDS_COUNTER = 1 << 12,
	SEVERAL = 1 << 13, /* several requests */
	LAST = 1 << 14,	   /* whose handle is that of the last */
	ONCE = 1 << 15,	   /* with one completion */
	POSTS = SENDS | RECEIVES,
};

/* Means of a fault other than its plan. */
enum means {
	FORGE_LKEY = 1 << 0,   /* elements have a key of no region */
	FORGE_RKEY = 1 << 1,   /* the remote region has a wrong key */
	NO_RECEIVE = 1 << 2,   /* the peer posts no receive */
	BREAK_BEFORE = 1 << 3, /* an earlier request fails */
	KILL_PEER = 1 << 4,    /* the peer is another process, which is killed */
	IMPATIENT = 1 << 5,    /* timeouts are IMPATIENT_MS */
	SLOW = 1 << 6,	       /* nothing ends before LATE_MS */
	HITS_SENDS = 1 << 7,   /* it hits the first send, so none is posted before */
	HITS_RECEIVES = 1 << 8,
	HITS_COMPLETIONS =
		1 << 9,	     /* it hits the first completion, or polls or events for it */
	LOSES_ALL = 1 << 10, /* and all behind it */
	HITS_SECOND_SEND = 1 << 11,
	AT_CONNECTING = 1 << 12, /* so the channel never connects */
};

struct scene;

struct operation {
	const char *name;
	unsigned int traits;
	/* Returns its result or that of its request; -EINPROGRESS: not complete. */
	int (*run)(struct scene *scene);
};

struct fault {
	const char *name;
	const char *plan; /* for the device of the first end; "": none */
	unsigned int means;
	const char *how; /* for docs/testing.md */
};

/* State of the channel afterwards. */
enum aftermath {
	WORKS,	/* as before */
	BROKEN, /* all outstanding requests are flushed, and posting fails */
	DEAF,	/* polling fails; the next wait breaks it */
	USELESS /* it can only be destroyed */
};

enum {
	OR_SUCCESS = 1, /* for or_error */
};

struct outcome {
	const char *fault;
	/* Applies to operations with all traits in `with` and none in `without`. */
	unsigned int with, without;
	int error;
	int or_error; /* a second possible error if timing decides, or 0 */
	enum aftermath aftermath;
	/* Part of the error sentence, and of the channel's later ones. */
	const char *sentence;
};

/* A running case. */
struct scene {
	struct world *world;
	const struct operation *operation;
	const struct fault *fault;
	int timeout_ms;
	struct pier_remote target; /* at RECEIVER of the peer's area, or SOURCE to read */
	/* The request's handle has been used. */
	bool used_up;
	/* The wait failed, and the channel was cancelled to get the memory back. */
	bool cancelled;
	struct pier_work work;
	bool has_bystander;
	/*
	 * A request in the other queue that cannot complete: it has no message, or no
	 * receive.
	 */
	struct pier_work bystander;
	pid_t peer; /* the peer's process; 0: this one */
	int stream; /* to the peer's process */
};

extern const struct operation operations[];
extern const size_t operation_count;
extern const struct fault faults[];
extern const size_t fault_count;

/* If outcomes.c has no line, the outcome is success without side effects. */
const struct outcome *find_outcome(const struct operation *operation,
				   const struct fault *fault);

/* Prints the table that docs/testing.md must contain. */
void print_outcomes(FILE *file);

/* The elements of an operation, with forged keys if the fault forges them. */
struct pier_gather scene_source(const struct scene *scene);
struct pier_scatter scene_receiver(const struct scene *scene);

/* stage.c: before and after an operation */
void stage_open(struct scene *scene, void **state);
void stage_kill_peer(struct scene *scene);
/* error: the operation's result, which may be 0 with OR_SUCCESS. */
void stage_expect(struct scene *scene, const struct outcome *outcome, int error);

#endif
