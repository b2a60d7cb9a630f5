/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_BLAME_H
#define PIER_TOOLS_CP_BLAME_H

#include "nodes.h"

/*
 * Which host of a chain is to blame when two of them fail to connect, or one is silent?
 * Either of two neighbours may have caused what the other reports: one that was left out
 * for its neighbour's fault is tried again at the end, alone.
 */

void retry_at_end(struct node *node);
/* Leave out one that did not respond for this time. */
void lose_silent(struct hub *hub, uint32_t index, uint32_t silence_ms);
/*
 * A destination that has said nothing for this time, or has not read; 0: none. One that
 * starts, or opens its destination, need not answer.
 */
uint32_t find_silent(const struct hub *hub, uint32_t silence_ms);
/*
 * The connection to this one from the one before it failed. Both ends wait. The other
 * connections of the guilty one may fail, too: it is judged a tick later.
 */
void note_failed_link(struct hub *hub, uint32_t behind, const char *reason);
/* Leave out the guilty one. */
void judge_failed_link(struct hub *hub, uint32_t behind);
/* The first that is due. */
void judge_failed_links(struct hub *hub);
/*
 * This one has not connected: blame it, or its neighbour, whoever has said less to the
 * other. Returns which.
 */
uint32_t blame_slower(struct hub *hub, uint32_t index);
/* Bytes that do not verify, or that are none of this copy, came from one before it. */
bool may_be_neighbours_fault(const struct hub *hub, uint32_t index);

#endif
