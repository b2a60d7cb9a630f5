/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SCOPE_H
#define PIER_CHANNEL_SCOPE_H

#include <pier/scope.h>

#include "channel/channel.h"

/*
 * Scopes, as the rest of the channel sees them. A scope remembers the positions at
 * which it began, so a request that succeeds costs nothing more.
 */

/*
 * The channel is destroyed, and its queue pair is gone: complete the reports of its
 * scopes.
 */
void pier_end_scopes(struct pier_channel *channel);

/*
 * The send queue has too little room. Wait for room if the scope has a window. Returns
 * 0, also without a window, or an error of waiting.
 */
int pier_wait_in_window(struct pier_channel *channel, uint32_t count);

#endif
