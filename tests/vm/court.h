/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_VM_COURT_H
#define TESTS_VM_COURT_H

#include "../support/cmocka.h"
#include "../support/random.h"

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "fds.h"
#include "region/plan.h"

/*
 * Compares pier's validation of a registration with the kernel's. Each request is put to
 * both, and they must agree on the errno, including 0. Regions that the kernel registers
 * are deregistered immediately.
 */

struct request {
	bool host;	 /* host memory, not a dma-buf */
	uint64_t offset; /* the address for host memory */
	uint64_t length;
	uint64_t iova;
	int fd; /* unused for host memory */
	int access;
};

enum {
	MAX_EXEMPTIONS = 8,
};

struct tally {
	size_t rows; /* the sum of the members below */
	size_t accepted, refused, disagreements;
	size_t exempt[MAX_EXEMPTIONS];
};

struct court {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct pier_device device; /* as pier_check_host() sees it */
	uint64_t page;

	/* Host memory that may be registered, between pages that must not be. */
	uint64_t memory, memory_length;

	size_t dmabufs;	    /* dma-bufs that the kernel registered */
	struct tally tally; /* since the last court_report() */
	bool exemption_used[MAX_EXEMPTIONS];
};

/* Returns false, with the reason to skip, if the comparison is not possible here. */
bool court_open(struct court *court, const char *device, char *ret_reason, size_t size);
void court_close(struct court *court);

/*
 * Runs a program: opens both, runs the cases, which return the number of failures, and
 * closes both. Returns the exit status. Skips with the reason if the comparison is not
 * possible.
 */
int court_hold(struct court *court, struct targets *targets, const char *device,
	       int (*run_cases)(void *argument), void *argument);

/* Put one request to both, and count it. A disagreement is printed with this name. */
void court_judge(struct court *court, const struct request *request, const char *name);

/*
 * End of a case: print and reset the counts. Fails on disagreements, and if there were
 * fewer rows, or fewer accepted ones, than given.
 */
void court_report(struct court *court, const char *what, size_t rows, size_t accepted);

/* Fails if an exemption was never needed, because it should then be removed. */
void court_check_exemptions(const struct court *court);

/* Named values for one member of a request. */
struct named {
	const char *name;
	uint64_t value;
};

/* Interesting iovas for a region that begins at `offset`. */
enum {
	IOVAS = 13,
};
void court_iovas(const struct court *court, uint64_t offset, uint64_t length,
		 struct named ret_iovas[IOVAS]);

#endif
