/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_VM_COURT_H
#define TESTS_VM_COURT_H

#include "../support/cmocka.h"
#include "../support/random.h"

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "fds.h"
#include "region/check.h"

/*
 * Where pier's validation of a registration and the kernel's are compared. A
 * request is put to both; they must agree on the errno, 0 included. Whatever the
 * kernel registers is deregistered at once.
 */

struct request {
	bool host;	 /* host memory, not a dma-buf */
	uint64_t offset; /* the address, if it is host memory */
	uint64_t length;
	uint64_t iova;
	int fd; /* unused if it is host memory */
	int access;
};

enum {
	MAX_EXEMPTIONS = 8,
};

struct tally {
	size_t rows; /* the sum of the following */
	size_t accepted, refused, disagreements;
	size_t exempt[MAX_EXEMPTIONS];
};

struct court {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct pier_check_limits limits;

	/* Host memory that may be registered, between pages that may not. */
	uint64_t memory, memory_length;

	size_t dmabufs;	    /* that the kernel registered */
	struct tally tally; /* since the last court_report() */
	bool exemption_used[MAX_EXEMPTIONS];
};

/* False, with the reason to skip, if that cannot be judged here. */
bool court_open(struct court *court, const char *device, char *ret_reason, size_t size);
void court_close(struct court *court);

/*
 * A program's whole run: opens both, runs the cases, which return how many failed,
 * and closes them. Returns the exit status; skips, and says why, where that cannot
 * be judged.
 */
int court_hold(struct court *court, struct targets *targets, const char *device,
	       int (*run_cases)(void *argument), void *argument);

/* Put one request to both, and count; a disagreement is printed by this name. */
void court_judge(struct court *court, const struct request *request, const char *name);

/*
 * End of a case: print what was counted and start anew. Fails on disagreements,
 * and if there were fewer rows, or fewer accepted, than this.
 */
void court_report(struct court *court, const char *what, size_t rows, size_t accepted);

/* Fails if an exemption was never needed: then it has to go. */
void court_check_exemptions(const struct court *court);

/* Values for one member of a request, each with a name. */
struct named {
	const char *name;
	uint64_t value;
};

/* The iovas that are of interest for a region that begins at `offset`. */
enum {
	IOVAS = 13,
};
void court_iovas(const struct court *court, uint64_t offset, uint64_t length,
		 struct named ret_iovas[IOVAS]);

#endif
