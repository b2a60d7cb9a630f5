/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_PRELOAD_REFUSE_H
#define TESTS_PRELOAD_REFUSE_H

/*
 * A library between libpier-dmabuf and libibverbs whose functions fail with these
 * errnos; 0: as the next library's.
 */
struct refusals {
	int reg_mr;
	int reg_dmabuf_mr;
	int dereg_mr;
	int calls; /* of the three, counted */
};

struct refusals *refusals(void);

#endif
