/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "counter.h"
#include "core/error.h"
#include "provider/soft/limits.h"
#include "provider/soft/soft.h"

int pier_soft_query_counter_caps(struct ibv_context *context,
				 struct pier_comp_counter_caps *ret_caps, size_t size)
{
	const struct pier_comp_counter_caps caps = {
		.max_value = UINT64_MAX,
		.max_counters = SOFT_MAX_COMP_COUNTERS,
		.kinds = SOFT_COUNTED,
	};

	(void)context;
	memset(ret_caps, 0, size);
	memcpy(ret_caps, &caps, size < sizeof(caps) ? size : sizeof(caps));
	return 0;
}

struct pier_comp_counter *pier_soft_create_counter(
	struct ibv_context *context, const struct pier_comp_counter_init_attr *attr)
{
	struct soft_comp_counter *counter;

	if (attr->comp_mask || attr->flags || attr->type > PIER_COUNTS_BYTES)
		return pier_null_with(pier_fail(
			EINVAL, "soft0: a counter with mask %#x, type %u and flags %#x",
			attr->comp_mask, attr->type, attr->flags));
	if (attr->type == PIER_COUNTS_BYTES)
		return pier_null_with(pier_fail(
			EOPNOTSUPP, "soft0: counters count requests, not bytes"));
	counter = calloc(1, sizeof(*counter));
	if (!counter)
		return NULL;
	counter->base.context = context;
	pier_soft_use_handle(context);
	return &counter->base;
}

int pier_soft_destroy_counter(struct pier_comp_counter *base)
{
	struct soft_comp_counter *counter = soft_counter(base);

	if (atomic_load(&counter->users) > 0)
		return -pier_fail(EBUSY, "soft0: the counter is attached to queue pairs");
	pier_soft_leave_handle(base->context);
	free(counter);
	return 0;
}

int pier_soft_set_successes(struct pier_comp_counter *base, uint64_t value)
{
	atomic_store(&soft_counter(base)->successes, value);
	return 0;
}

int pier_soft_set_errors(struct pier_comp_counter *base, uint64_t value)
{
	atomic_store(&soft_counter(base)->errors, value);
	return 0;
}

int pier_soft_add_successes(struct pier_comp_counter *base, uint64_t amount)
{
	atomic_fetch_add(&soft_counter(base)->successes, amount);
	return 0;
}

int pier_soft_add_errors(struct pier_comp_counter *base, uint64_t amount)
{
	atomic_fetch_add(&soft_counter(base)->errors, amount);
	return 0;
}

int pier_soft_read_successes(struct pier_comp_counter *base, uint64_t *ret_value)
{
	*ret_value = atomic_load(&soft_counter(base)->successes);
	return 0;
}

int pier_soft_read_errors(struct pier_comp_counter *base, uint64_t *ret_value)
{
	*ret_value = atomic_load(&soft_counter(base)->errors);
	return 0;
}
