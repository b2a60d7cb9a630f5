/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_PLAN_H
#define PIER_FAULT_PLAN_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kinds of values after the '='. */
enum pier_fault_value {
	FAULT_NO_VALUE,
	FAULT_ERRNO,
	FAULT_WC_STATUS,
	FAULT_EVENT_NAME,
	FAULT_TIME,
	FAULT_TIME_OR_NONE,
	FAULT_TIME_OR_POLLS,
};

/* The effect of a rule; FAULT_FAIL: a call fails with an errno. */
enum pier_fault_effect {
	FAULT_FAIL,
	FAULT_STATUS,
	FAULT_LATE,
	FAULT_LOST,
	FAULT_OVERRUN,
	FAULT_DEAD,
	FAULT_NOTIFY_LATE,
	FAULT_ASYNC,
	/* Requests succeed with wrong bytes: see lie.h. */
	FAULT_CORRUPT,
	FAULT_DROP,
	FAULT_STALE,
	FAULT_MISPLACE,
};

/* A word of a plan: its effect, and its occasions as bits. */
struct pier_fault_word {
	const char *name;
	uint64_t occasions;
	enum pier_fault_effect effect;
	enum pier_fault_value value;
};

/*
 * A plan of faults: the text that pier-fault(7) describes, as a list of rules. A rule
 * counts the occasions of its kind and decides which of them it strikes.
 */

enum {
	PIER_FAULT_RULES = 32,
	PIER_FAULT_RULE_TEXT = 48,
};

/*
 * Occasions: calls of struct pier_provider, and of the four functions in
 * ibv_context.ops, with the word of a plan for each.
 */
/* clang-format off */
#define PIER_FAULT_CALLS(F) \
	F(OPEN_DEVICE, "open_device") \
	F(CLOSE_DEVICE, "close_device") \
	F(QUERY_DEVICE, "query_device") \
	F(QUERY_PORT, "query_port") \
	F(QUERY_GID, "query_gid") \
	F(QUERY_ON_DEMAND, "query_on_demand") \
	F(ALLOC_PD, "alloc_pd") \
	F(DEALLOC_PD, "dealloc_pd") \
	F(REG_MR, "reg_mr") \
	F(REG_DMABUF_MR, "reg_dmabuf_mr") \
	F(REG_PARTS, "reg_parts") \
	F(JOIN_MRS, "join_mrs") \
	F(UNJOIN_MRS, "unjoin_mrs") \
	F(DEREG_MR, "dereg_mr") \
	F(ALLOC_DM, "alloc_dm") \
	F(REG_DM_MR, "reg_dm_mr") \
	F(ALLOC_MW, "alloc_mw") \
	F(DEALLOC_MW, "dealloc_mw") \
	F(BIND_COUNTER, "bind_counter") \
	F(CREATE_COMP_CHANNEL, "create_comp_channel") \
	F(DESTROY_COMP_CHANNEL, "destroy_comp_channel") \
	F(CREATE_CQ, "create_cq") \
	F(DESTROY_CQ, "destroy_cq") \
	F(CREATE_SRQ, "create_srq") \
	F(DESTROY_SRQ, "destroy_srq") \
	F(CREATE_QP, "create_qp") \
	F(MODIFY_QP, "modify_qp") \
	F(QUERY_QP, "query_qp") \
	F(DESTROY_QP, "destroy_qp") \
	F(GET_QP_ADDRESS, "get_qp_address") \
	F(SET_QP_ADDRESS, "set_qp_address") \
	/* One for each request of a list; the receives of shared queues count, too. */ \
	F(POST_SEND, "post_send") \
	F(POST_RECV, "post_recv") \
	/* How often these are called depends on time. */ \
	F(POLL_CQ, "poll_cq") \
	F(REQ_NOTIFY_CQ, "req_notify_cq") \
	F(GET_CQ_EVENT, "get_cq_event")
/* clang-format on */

#define PIER_FAULT_OCCASION(occasion, name) FAULT_##occasion,
enum pier_fault_occasion {
	PIER_FAULT_CALLS(PIER_FAULT_OCCASION)
	/* A completion was taken from the device. */
	FAULT_COMPLETION,
};

struct pier_fault_word;
struct pier_persona;

struct pier_fault_rule {
	char text[PIER_FAULT_RULE_TEXT]; /* as in the plan */
	const struct pier_fault_word *word;
	bool by_chance; /* one in `number`; otherwise the one of that number */
	bool onwards;	/* and all later ones */
	uint64_t number;
	/* An errno, a status, an event, nanoseconds, or a number of polls. */
	uint64_t value;
	bool in_polls;
	uint64_t seen;
	uint64_t random;
};

struct pier_fault_plan {
	pthread_mutex_t lock;
	uint64_t seed;
	const struct pier_persona *persona; /* NULL: as the device beneath */
	uint32_t count;
	struct pier_fault_rule rules[PIER_FAULT_RULES];
	/* During pier_device_open(): see pier_fault_strikes(). */
	bool opening;
};

/*
 * Reads a plan, which may be any text.
 *
 * Errors: -EINVAL, with a sentence that names the rule and what is wrong with it; -EIO:
 * no random seed.
 */
int pier_fault_read_plan(const char *text, size_t length,
			 struct pier_fault_plan *ret_plan);
void pier_fault_end_plan(struct pier_fault_plan *plan);

/*
 * Counts the occasion for all rules of that effect, and returns the first rule that
 * strikes, or NULL. While the device is opened, calls that only query the device count
 * for "call" only; calls that release what was taken for a query do not count, since no
 * caller would repeat them.
 */
const struct pier_fault_rule *pier_fault_strikes(struct pier_fault_plan *plan,
						 enum pier_fault_effect effect,
						 enum pier_fault_occasion occasion);

/* Whether a rule of the plan has that effect. */
bool pier_fault_plans(const struct pier_fault_plan *plan, enum pier_fault_effect effect);
/* Whether any request of the plan may lie. */
bool pier_fault_plans_lies(const struct pier_fault_plan *plan);

/*
 * For calls: 0, or the errno with which the call fails. It is also stored in errno, and
 * has a sentence.
 */
int pier_fault_fails(struct pier_fault_plan *plan, enum pier_fault_occasion occasion);

#endif
