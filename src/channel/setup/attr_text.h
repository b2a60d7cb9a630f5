/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_ATTR_TEXT_H
#define PIER_CHANNEL_SETUP_ATTR_TEXT_H

#include <pier/channel.h>

/*
 * Set the members that have their default values to those that PIER_CHANNEL gives them.
 *
 * Errors: -EINVAL, as for pier_channel_attr_parse().
 */
int pier_apply_environment(struct pier_channel_attr *attr);

/* Set all members that PIER_CHANNEL gives a value, whatever they are. */
int pier_read_environment(struct pier_channel_attr *attr);

#endif
