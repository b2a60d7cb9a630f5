/* SPDX-License-Identifier: BSD-3-Clause */
#include "provider/comp_counter.h"

/*
 * Completion counters. This file does not include <infiniband/verbs.h>, which declares
 * these functions, from libibverbs 65 on, with types that older versions lack.
 */

#define SOFT pier_soft_comp_counters

int _ibv_query_comp_cntr_caps(struct ibv_context *context,
			      struct pier_comp_counter_caps *ret_caps, size_t size);
struct pier_comp_counter *ibv_create_comp_cntr(
	struct ibv_context *context, const struct pier_comp_counter_init_attr *attr);
int ibv_destroy_comp_cntr(struct pier_comp_counter *counter);
int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct pier_comp_counter *counter,
			    const struct pier_comp_counter_attach_attr *attr);

int _ibv_query_comp_cntr_caps(struct ibv_context *context,
			      struct pier_comp_counter_caps *ret_caps, size_t size)
{
	return SOFT.query_caps(context, ret_caps, size);
}

struct pier_comp_counter *ibv_create_comp_cntr(
	struct ibv_context *context, const struct pier_comp_counter_init_attr *attr)
{
	return SOFT.create(context, attr);
}

int ibv_destroy_comp_cntr(struct pier_comp_counter *counter)
{
	return SOFT.destroy(counter);
}

int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct pier_comp_counter *counter,
			    const struct pier_comp_counter_attach_attr *attr)
{
	return SOFT.attach(qp, counter, attr);
}

#define CHANGE(name, member)                                         \
	int name(struct pier_comp_counter *counter, uint64_t value); \
	int name(struct pier_comp_counter *counter, uint64_t value)  \
	{                                                            \
		return SOFT.member(counter, value);                  \
	}
#define READ(name, member)                                                \
	int name(struct pier_comp_counter *counter, uint64_t *ret_value); \
	int name(struct pier_comp_counter *counter, uint64_t *ret_value)  \
	{                                                                 \
		return SOFT.member(counter, ret_value);                   \
	}

CHANGE(ibv_set_comp_cntr, set)
CHANGE(ibv_set_err_comp_cntr, set_errors)
CHANGE(ibv_inc_comp_cntr, add)
CHANGE(ibv_inc_err_comp_cntr, add_errors)
READ(ibv_read_comp_cntr, read)
READ(ibv_read_err_comp_cntr, read_errors)
