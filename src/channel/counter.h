/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_COUNTER_H
#define PIER_CHANNEL_COUNTER_H

#include <pier/counter.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>

#include "core/list.h"
#include "region/mr.h"

struct pier_channel;

struct pier_counter {
	struct pier_object object;
	struct pier_provider_counter
		count; /* the value, counted by the device or by a channel */
	struct pier_pd *pd;

	/*
	 * Protects the bindings. Held while the device is told of them, so notify must
	 * not take it.
	 */
	pthread_mutex_t lock;
	/* All are native, or none is. The bindings of one channel are adjacent. */
	struct pier_list bindings;
	uint32_t binding_count;
	struct pollfd *fds; /* room for the channels of all bindings */

	/*
	 * For waiting threads only. A counter that grows by thousands must not wake
	 * them thousands of times: nobody is woken below the lowest value that a thread
	 * waits for.
	 */
	pthread_mutex_t sleeping;
	pthread_cond_t grown;
	uint64_t wake_at; /* UINT64_MAX: no thread waits */
};

/* A counter bound to a region. */
struct pier_counter_binding {
	struct pier_list link; /* of the counter */
	struct pier_counter *counter;
	struct pier_mr *mr;
	struct pier_channel *channel; /* NULL: the device counts */
	uint32_t immediate;	      /* on the channel */
};

/*
 * Count the writes with this immediate for the binding, whose address the channel
 * keeps. Errors: -EBUSY, -ENOMEM.
 */
int pier_expect_arrivals(struct pier_counter_binding *binding);

/* Stop counting the writes with this immediate. */
void pier_forget_arrivals(struct pier_channel *channel, uint32_t immediate);

/* The channel is destroyed: end the bindings on it. */
void pier_end_arrivals(struct pier_channel *channel);

/* A write with immediate data has arrived. */
void pier_count_arrival(const struct pier_channel *channel, uint32_t immediate);

#endif
