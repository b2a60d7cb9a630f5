/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAULTS_MATRIX_H
#define TESTS_FAULTS_MATRIX_H

#include <stdint.h>
#include <sys/types.h>

#include "../conformance/world.h"

/*
 * Each operation meets each fault: that is a case, and outcomes.c says how it must
 * end. docs/testing.md says how an operation, a fault or an outcome is added.
 */

enum {
	SOURCE = 1001,	   /* offset of what is moved, in the area it comes from */
	RECEIVER = 70007,  /* and where it goes */
	FREE = 150001,	   /* where nothing else happens */
	LENGTH = 5003,	   /* bytes */
	NUMBER = 0xabcd12, /* immediate data */
	/* The times of the plans in faults.c. */
	LATE_MS = 30,
	IMPATIENT_MS = 40,
};

/* What an operation is, as bits. */
enum trait {
	SENDS = 1 << 0,		/* its request goes to the send queue */
	RECEIVES = 1 << 1,	/* or to the receive queue */
	REMOTE = 1 << 2,	/* it names memory of the peer */
	NEEDS_RECEIVE = 1 << 3, /* of the peer */
	INTO_PEER = 1 << 4,	/* bytes go to the peer */
	INTO_US = 1 << 5,	/* or come from it */
	WAITS = 1 << 6,		/* until it is complete, by pier_work_wait() */
	POLLS = 1 << 7,		/* it is asked for again and again: pier_work_poll() */
	REGISTERS = 1 << 8,
	CONNECTS = 1 << 9,
	PREPARES = 1 << 10,
	WATCHES = 1 << 11, /* it waits for something else than a request of its own */
	BINDS_COUNTER = 1 << 12,
	SEVERAL = 1 << 13, /* requests */
	LAST = 1 << 14,	   /* of which the handle is that of the last */
	ONCE = 1 << 15,	   /* and which complete once */
	POSTS = SENDS | RECEIVES,
};

/* How a fault is brought about, but for its plan. */
enum means {
	FORGE_LKEY = 1 << 0,   /* elements have a key that is no region's */
	FORGE_RKEY = 1 << 1,   /* what is named of the peer has another key */
	NO_RECEIVE = 1 << 2,   /* the peer posts none */
	BREAK_BEFORE = 1 << 3, /* a request fails that was posted before */
	KILL_PEER = 1 << 4,    /* it is another process, and killed */
	IMPATIENT = 1 << 5,    /* the time is up after IMPATIENT_MS */
	SLOW = 1 << 6,	       /* and nothing ends before LATE_MS */
	HITS_SENDS = 1 << 7,   /* the first one, so there is no other one before */
	HITS_RECEIVES = 1 << 8,
	HITS_COMPLETIONS = 1 << 9, /* the first, or polls or events for it */
	LOSES_ALL = 1 << 10,	   /* that is, also all behind it */
	HITS_SECOND_SEND = 1 << 11,
	AT_CONNECTING = 1 << 12, /* so that there is no channel for anything else */
};

struct scene;

struct operation {
	const char *name;
	unsigned int traits;
	/* What it returned, or how its request ended; -EINPROGRESS: not. */
	int (*run)(struct scene *scene);
};

struct fault {
	const char *name;
	const char *plan; /* of the device of the first end; "": none */
	unsigned int means;
	const char *how; /* for docs/testing.md */
};

/* What becomes of the channel. */
enum aftermath {
	WORKS,	/* as before */
	BROKEN, /* everything outstanding is flushed, and nothing can be posted */
	DEAF,	/* polling fails; the next wait breaks it */
	USELESS /* it can only be destroyed */
};

enum {
	OR_SUCCESS = 1, /* for or_error */
};

struct outcome {
	const char *fault;
	/* Of the operations with all of `with`, and none of `without`. */
	unsigned int with, without;
	int error;
	int or_error; /* where time or chance decides; 0: they do not */
	enum aftermath aftermath;
	/* What the sentence says, and what is said of the channel behind it. */
	const char *sentence;
};

/* A case while it runs. */
struct scene {
	struct world *world;
	const struct operation *operation;
	const struct fault *fault;
	int timeout_ms;
	struct pier_remote target; /* at RECEIVER of the peer's area, or SOURCE to read */
	/* Of the request, once it was handed out. */
	bool used_up;
	struct pier_work work;
	bool has_bystander;
	/* In the other queue, and never complete: no message, or no receive, for it. */
	struct pier_work bystander;
	pid_t peer; /* its process; 0: this one */
	int stream; /* to it */
};

extern const struct operation operations[];
extern const size_t operation_count;
extern const struct fault faults[];
extern const size_t fault_count;

/* Success that leaves all as it is, where outcomes.c says nothing. */
const struct outcome *find_outcome(const struct operation *operation,
				   const struct fault *fault);

/* The table of docs/testing.md, as it must be there. */
void print_outcomes(FILE *file);

/* The elements of an operation, with what the fault forges. */
struct pier_gather scene_source(const struct scene *scene);
struct pier_scatter scene_receiver(const struct scene *scene);

/* stage.c: before and behind an operation */
void stage_open(struct scene *scene, void **state);
void stage_kill_peer(struct scene *scene);
/* error: what the operation returned, which may be 0 with OR_SUCCESS. */
void stage_expect(struct scene *scene, const struct outcome *outcome, int error);

#endif
