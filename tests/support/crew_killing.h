/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_CREW_KILLING_H
#define TESTS_SUPPORT_CREW_KILLING_H

#include "crew.h"

/*
 * Members in processes of their own, one of which is killed while it is in a barrier
 * that cannot end, because another one has not come yet. That one then comes. Whoever
 * gets through that barrier (all had come, after all) is sent into another one.
 */

/* Of one member that was not killed. */
struct crew_report {
	int first_error;    /* of the barrier in which the victim died */
	int error;	    /* of the one behind it */
	int culprit;	    /* then */
	int64_t took_ms;    /* the longer one */
	char sentence[512]; /* of the first error */
};

struct crew_killing {
	uint32_t size, victim, late;
	enum pier_barrier_algorithm algorithm;
	int timeout_ms;
	const char *device, *odd_device;
	struct crew_report reports[CREW_MAX];
};

/* 0, or -errno with a sentence when it could not be done. Before devices are opened. */
int crew_kill(struct crew_killing *killing);

#endif
