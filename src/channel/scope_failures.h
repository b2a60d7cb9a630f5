/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SCOPE_FAILURES_H
#define PIER_CHANNEL_SCOPE_FAILURES_H

#include <stdbool.h>

#include <pier/scope.h>

#include "channel/channel.h"

/* Which requests of a scope failed. */

/* Whether the request was posted since the scope began. */
bool pier_scope_has_posted(const struct pier_scope *scope, uint64_t id);

/* A request of the scope has failed. */
void pier_scope_note_failure(struct pier_scope *scope, uint64_t id,
			     const struct pier_result *result);

/*
 * Likewise for the innermost scope that posted the request. For requests that nobody
 * polls.
 */
void pier_note_in_scope(struct pier_channel *channel, uint64_t id,
			const struct pier_result *result) __attribute__((cold));

#endif
