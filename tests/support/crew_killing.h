/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_CREW_KILLING_H
#define TESTS_SUPPORT_CREW_KILLING_H

#include "crew.h"

/*
 * Members in their own processes. One is killed inside a barrier that cannot end because
 * another member has not entered. Then that member enters. Members that get through this
 * barrier (since all had entered) enter another one.
 */

/* Results of a surviving member. */
struct crew_report {
	int first_error;    /* of the barrier in which the victim died */
	int error;	    /* of the next barrier */
	int culprit;	    /* the failed rank reported afterwards */
	int64_t took_ms;    /* of the longer of the two barriers */
	char sentence[512]; /* of the first error */
};

struct crew_killing {
	uint32_t size, victim, late;
	enum pier_barrier_algorithm algorithm;
	int timeout_ms;
	const char *device, *odd_device;
	struct crew_report reports[CREW_MAX];
};

/*
 * Call this before opening devices. Returns 0, or -errno with a sentence if the test
 * could not be run.
 */
int crew_kill(struct crew_killing *killing);

#endif
