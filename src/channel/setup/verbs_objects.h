/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_VERBS_OBJECTS_H
#define PIER_CHANNEL_SETUP_VERBS_OBJECTS_H

#include "channel/channel.h"

/* The verbs objects of a channel, in the order of creation. */

int pier_open_channel_completions(struct pier_channel *channel);
int pier_create_qp(struct pier_channel *channel);

/*
 * The channel has another queue pair: take over its number, also in a shared completion
 * queue. Errors: -ENOMEM, only for the channel's first.
 */
int pier_name_qp(struct pier_channel *channel);

/* Bring the queue pair from RESET to INIT. */
int pier_modify_to_init(struct pier_channel *channel);

/*
 * Deallocate the memory windows that are bound to the queue pair: it leaves its peer,
 * which must not keep keys that the next peer could use.
 */
int pier_end_windows(struct pier_channel *channel);

/* Destroy those that exist. After a failure it can be called again and continues. */
int pier_destroy_verbs(struct pier_channel *channel);

#endif
