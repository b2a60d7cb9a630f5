/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_ARRIVAL_H
#define PIER_CHANNEL_ARRIVAL_H

#include <stdint.h>

struct pier_channel;

struct pier_counter_binding;

/*
 * Count the writes with this immediate for the binding, whose address the channel
 * keeps. Errors: -EBUSY, -ENOMEM.
 */
int pier_expect_arrivals(struct pier_counter_binding *binding);

/* Stop counting the writes with this immediate. */
void pier_forget_arrivals(struct pier_channel *channel, uint32_t immediate);

/* A write with immediate data has arrived. */
void pier_count_arrival(const struct pier_channel *channel, uint32_t immediate);

#endif
