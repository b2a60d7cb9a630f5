/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_VM_CASES_H
#define TESTS_VM_CASES_H

#include "court.h"
#include "../support/census.h"

/* A case's prestate. */
struct judge {
	struct court court;
	struct targets targets;

	/* At the start of the case. */
	struct test_census before;
	size_t dmabufs_before, driver_before;
};

void judge_dmabuf_ranges(void **state);
void judge_dmabuf_access(void **state);
void judge_dmabuf_mistakes(void **state);
void judge_dmabuf_random(void **state);

void judge_host_ranges(void **state);
void judge_host_access(void **state);
void judge_host_mistakes(void **state);
void judge_host_random(void **state);

#endif
