/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_COUNTER_H
#define PIER_SOFT_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "core/list.h"
#include "provider/comp_counter.h"

/*
 * Completion counters: ibv_create_comp_cntr(3). The queue pairs that they are attached to
 * count.
 */

enum {
	/*
	 * Not the READs of a peer: on the same host it copies without this end taking
	 * part (link/grant.h).
	 */
	SOFT_COUNTED = PIER_COUNTS_SEND | PIER_COUNTS_RECV | PIER_COUNTS_READ |
		       PIER_COUNTS_WRITE | PIER_COUNTS_REMOTE_WRITE
};

struct soft_comp_counter {
	struct pier_comp_counter base;
	atomic_uint_fast64_t successes, errors;
	atomic_uint users; /* queue pairs, once for each kind */
};

static inline struct soft_comp_counter *soft_counter(struct pier_comp_counter *base)
{
	return pier_container_of(base, struct soft_comp_counter, base);
}

/* Before the completion can be polled. */
static inline void pier_soft_count(struct soft_comp_counter *counter,
				   enum ibv_wc_status status)
{
	if (counter)
		atomic_fetch_add(status == IBV_WC_SUCCESS ? &counter->successes
							  : &counter->errors,
				 1);
}

/* As the functions of libibverbs that comp_counter.h lists. */
int pier_soft_query_counter_caps(struct ibv_context *context,
				 struct pier_comp_counter_caps *ret_caps, size_t size);
struct pier_comp_counter *pier_soft_create_counter(
	struct ibv_context *context, const struct pier_comp_counter_init_attr *attr);
int pier_soft_destroy_counter(struct pier_comp_counter *base);
int pier_soft_set_successes(struct pier_comp_counter *base, uint64_t value);
int pier_soft_set_errors(struct pier_comp_counter *base, uint64_t value);
int pier_soft_add_successes(struct pier_comp_counter *base, uint64_t amount);
int pier_soft_add_errors(struct pier_comp_counter *base, uint64_t amount);
int pier_soft_read_successes(struct pier_comp_counter *base, uint64_t *ret_value);
int pier_soft_read_errors(struct pier_comp_counter *base, uint64_t *ret_value);

#endif
