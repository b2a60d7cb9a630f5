/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_EXTRA_COUNTER_H
#define PIER_CHANNEL_EXTRA_COUNTER_H

#include <poll.h>
#include <pthread.h>

#include <pier/counter.h>

#include "region/mr.h"
#include "core/list.h"

/* What a counter counts for a region. */
struct pier_counter_binding {
	struct pier_list link; /* of the counter */
	struct pier_counter *counter;
	struct pier_mr *mr;
	struct pier_channel *channel; /* NULL: the device counts */
	uint32_t immediate;	      /* on the channel */
};

struct pier_counter {
	struct pier_object object;
	struct pier_provider_counter count; /* whoever counts: its value is ours */
	struct pier_pd *pd;

	/* Of the bindings. Held while the device is told of them, so not by notify. */
	pthread_mutex_t lock;
	/* All of them native or none; those of one channel stand side by side. */
	struct pier_list bindings;
	uint32_t binding_count;
	struct pollfd *fds; /* room for the channels of all bindings */

	/*
	 * Of those who sleep, for nothing else than to begin sleeping and to wake.
	 * So that a counter that grows by thousands does not wake them thousands of
	 * times, nobody is woken below the least value that one of them waits for.
	 */
	pthread_mutex_t sleeping;
	pthread_cond_t grown;
	uint64_t wake_at; /* UINT64_MAX: nobody sleeps */
};

/* With the counter locked, and not empty. */
struct pier_counter_binding *pier_first_binding(const struct pier_counter *counter);

/* The channel is destroyed: end the bindings on it. */
void pier_end_arrivals(struct pier_channel *channel);

#endif
