/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PROVIDER_COMP_COUNTER_H
#define PIER_PROVIDER_COMP_COUNTER_H

#include <stddef.h>
#include <stdint.h>

/*
 * Completion counters: ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3) and
 * ibv_query_comp_cntr_caps(3), of libibverbs 65 (IBVERBS_1.18). The <infiniband/verbs.h>
 * of older versions lacks the types, so they are declared here, under other names and
 * with the layout of libibverbs/verbs.h.
 */

struct ibv_context;
struct ibv_qp;

/* enum ibv_qp_attach_comp_cntr_op */
enum {
	PIER_COUNTS_SEND = 1 << 0,
	PIER_COUNTS_RECV = 1 << 1,
	PIER_COUNTS_READ = 1 << 2,
	PIER_COUNTS_REMOTE_READ = 1 << 3,
	PIER_COUNTS_WRITE = 1 << 4,
	PIER_COUNTS_REMOTE_WRITE = 1 << 5,
	PIER_COUNTED_KINDS = 6
};

/* enum ibv_comp_cntr_type */
enum {
	PIER_COUNTS_REQUESTS,
	PIER_COUNTS_BYTES
};

/* struct ibv_comp_cntr_caps */
struct pier_comp_counter_caps {
	uint64_t max_value; /* the next one is 0 */
	uint32_t max_counters;
	uint32_t kinds; /* of operations that can be counted */
};

/* struct ibv_comp_cntr */
struct pier_comp_counter {
	struct ibv_context *context;
	uint32_t handle;
};

/* struct ibv_comp_cntr_init_attr */
struct pier_comp_counter_init_attr {
	uint32_t comp_mask, type, flags;
};

/* struct ibv_qp_attach_comp_cntr_attr */
struct pier_comp_counter_attach_attr {
	uint32_t comp_mask, kinds;
};

/* The functions, each with the return value and the errno of libibverbs' own. */
struct pier_comp_counter_functions {
	int (*query_caps)(struct ibv_context *context,
			  struct pier_comp_counter_caps *ret_caps, size_t size);
	struct pier_comp_counter *(*create)(
		struct ibv_context *context,
		const struct pier_comp_counter_init_attr *attr);
	int (*destroy)(struct pier_comp_counter *counter);
	int (*attach)(struct ibv_qp *qp, struct pier_comp_counter *counter,
		      const struct pier_comp_counter_attach_attr *attr);
	int (*set)(struct pier_comp_counter *counter, uint64_t value);
	int (*set_errors)(struct pier_comp_counter *counter, uint64_t value);
	int (*add)(struct pier_comp_counter *counter, uint64_t amount);
	int (*add_errors)(struct pier_comp_counter *counter, uint64_t amount);
	int (*read)(struct pier_comp_counter *counter, uint64_t *ret_value);
	int (*read_errors)(struct pier_comp_counter *counter, uint64_t *ret_value);
};

/* Member and symbol. */
#define PIER_COMP_COUNTER_VERSION "IBVERBS_1.18"
#define PIER_COMP_COUNTER_SYMBOLS(F)             \
	F(query_caps, _ibv_query_comp_cntr_caps) \
	F(create, ibv_create_comp_cntr)          \
	F(destroy, ibv_destroy_comp_cntr)        \
	F(attach, ibv_qp_attach_comp_cntr)       \
	F(set, ibv_set_comp_cntr)                \
	F(set_errors, ibv_set_err_comp_cntr)     \
	F(add, ibv_inc_comp_cntr)                \
	F(add_errors, ibv_inc_err_comp_cntr)     \
	F(read, ibv_read_comp_cntr)              \
	F(read_errors, ibv_read_err_comp_cntr)

extern const struct pier_comp_counter_functions pier_soft_comp_counters;

#endif
