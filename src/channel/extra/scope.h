/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_EXTRA_SCOPE_H
#define PIER_CHANNEL_EXTRA_SCOPE_H

#include <pier/scope.h>

#include "channel/channel.h"

/*
 * What the rest of a channel does for its scopes. A scope knows the positions at which it
 * began; so nothing is done for it when a request is posted, or completes well.
 */

/* A channel goes, with its queue pair gone: so do its scopes, which keep what they saw.
 */
void pier_end_scopes(struct pier_channel *channel);

/*
 * The send queue has too little room. 0: there is room now, or there is no window to wait
 * for; or an error of waiting.
 */
int pier_wait_in_window(struct pier_channel *channel, uint32_t count);

#endif
