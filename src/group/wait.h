/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_GROUP_WAIT_H
#define PIER_GROUP_WAIT_H

#include "group.h"

/* Waits on several channels. */

/*
 * Returns 1 when the wait is over, 0 before that, or an error. It collects completions
 * as pier_work_poll() does, and watches each channel that it still needs.
 */
typedef int pier_group_look(struct pier_group *group, void *subject);

/*
 * Call it within a look, for at most one channel per member, and only for channels that
 * the look before watched.
 */
void pier_group_watch(struct pier_group *group, struct pier_channel *channel);

/*
 * Look until the wait is over. Returns 0; -ETIMEDOUT without a sentence; or the error
 * of a look or of waiting.
 */
int pier_group_wait_until(struct pier_group *group, pier_group_look *look, void *subject,
			  int64_t deadline);

#endif
