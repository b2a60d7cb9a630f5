/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef VM_STRANGER_END_H
#define VM_STRANGER_END_H

#include <pier/pier.h>

#include "words.h"

enum {
	WORKS_MAX = 1024,
};

/* pier's end: a buffer, a region of a part of it, and a channel. */
struct end {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_channel *channel;
	struct pier_remote remote; /* the peer's region */
	struct pier_work works[WORKS_MAX];
	int work_count;
	uint32_t status; /* enum ibv_wc_status of the last request that was asked for */
	uint8_t *bytes;	 /* as long as the buffer: on the way from or to a line */
};

/*
 * device=, memory= (a spec), length= of the buffer, region_offset= and
 * region_length= in it; optional: gid_index=, mtu=, psn=, max_rd_atomic=.
 *
 * 0 or -errno; the end is to be closed also after an error. *ret_skip is set
 * when this memory, or this memory on this device, is what is not here.
 */
int end_open(struct end *end, const struct words *options, bool *ret_skip);

/* 0, or the first error of an object that could not be given back. */
int end_close(struct end *end);

#endif
