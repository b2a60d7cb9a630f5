/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_BINDING_H
#define PIER_CHANNEL_BINDING_H

#include "counter.h"

/* The channel is destroyed: end the bindings on it. */
void pier_end_arrivals(struct pier_channel *channel);

#endif
