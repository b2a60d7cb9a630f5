/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_CREATE_H
#define PIER_CHANNEL_CREATE_H

#include "channel.h"

/*
 * pier_channel_create() and pier_channel_destroy() for an owner other than the caller.
 * Nobody else can destroy or reset a channel whose parent is not its PD.
 *
 * owner  the parent in the table of objects; it can describe itself
 */
int pier_make_channel(struct pier_pd *pd, const struct pier_channel_attr *attr,
		      const struct pier_object *owner, struct pier_channel **ret_channel);
int pier_end_channel(struct pier_channel *channel);

#endif
