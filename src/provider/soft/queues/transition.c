/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transition.h"
#include "core/error.h"
#include "provider/soft/limits.h"

struct masks {
	int required, optional;
};

/*
 * The RC and UD rows of qp_state_table in ib_core of the kernel, which follow IBTA
 * 11.2.5.2, without path migration. An alternate path is kept, and never used.
 */
static const struct transition {
	enum ibv_qp_state from, to;
	struct masks rc, ud;
} transitions[] = {
	{ IBV_QPS_RESET, IBV_QPS_RESET, { 0, 0 }, { 0, 0 } },
	{ IBV_QPS_RESET,
	  IBV_QPS_INIT,
	  { IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0 },
	  { IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0 } },
	{ IBV_QPS_INIT, IBV_QPS_RESET, { 0, 0 }, { 0, 0 } },
	{ IBV_QPS_INIT, IBV_QPS_ERR, { 0, 0 }, { 0, 0 } },
	{ IBV_QPS_INIT,
	  IBV_QPS_INIT,
	  { 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS },
	  { 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY } },
	{ IBV_QPS_INIT,
	  IBV_QPS_RTR,
	  { IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	    IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_ALT_PATH },
	  { 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY } },
	{ IBV_QPS_RTR, IBV_QPS_RESET, { 0, 0 }, { 0, 0 } },
	{ IBV_QPS_RTR, IBV_QPS_ERR, { 0, 0 }, { 0, 0 } },
	{ IBV_QPS_RTR,
	  IBV_QPS_RTS,
	  { IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		    IBV_QP_MAX_QP_RD_ATOMIC,
	    IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
		    IBV_QP_ALT_PATH },
	  { IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY } },
	{ IBV_QPS_RTS, IBV_QPS_RESET, { 0, 0 }, { 0, 0 } },
	{ IBV_QPS_RTS, IBV_QPS_ERR, { 0, 0 }, { 0, 0 } },
	{ IBV_QPS_RTS,
	  IBV_QPS_RTS,
	  { 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
		       IBV_QP_ALT_PATH },
	  { 0, IBV_QP_CUR_STATE | IBV_QP_QKEY } },
	{ IBV_QPS_ERR, IBV_QPS_RESET, { 0, 0 }, { 0, 0 } },
	{ IBV_QPS_ERR, IBV_QPS_ERR, { 0, 0 }, { 0, 0 } },
};

static const char *state_name(enum ibv_qp_state state)
{
	static const char *const names[] = {
		[IBV_QPS_RESET] = "RESET", [IBV_QPS_INIT] = "INIT", [IBV_QPS_RTR] = "RTR",
		[IBV_QPS_RTS] = "RTS",	   [IBV_QPS_SQD] = "SQD",   [IBV_QPS_SQE] = "SQE",
		[IBV_QPS_ERR] = "ERR",
	};

	return (unsigned int)state < sizeof(names) / sizeof(names[0]) ? names[state]
								      : "unknown";
}

static const char *bit_name(int bit)
{
	static const struct {
		int bit;
		const char *name;
	} names[] = {
		{ IBV_QP_CUR_STATE, "IBV_QP_CUR_STATE" },
		{ IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS" },
		{ IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX" },
		{ IBV_QP_PORT, "IBV_QP_PORT" },
		{ IBV_QP_AV, "IBV_QP_AV" },
		{ IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU" },
		{ IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT" },
		{ IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT" },
		{ IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY" },
		{ IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN" },
		{ IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC" },
		{ IBV_QP_ALT_PATH, "IBV_QP_ALT_PATH" },
		{ IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER" },
		{ IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN" },
		{ IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC" },
		{ IBV_QP_PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE" },
		{ IBV_QP_CAP, "IBV_QP_CAP" },
		{ IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN" },
		{ IBV_QP_QKEY, "IBV_QP_QKEY" },
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (names[i].bit & bit)
			return names[i].name;
	}
	return "an unknown bit";
}

static const struct transition *find_transition(enum ibv_qp_state from,
						enum ibv_qp_state to)
{
	for (size_t i = 0; i < sizeof(transitions) / sizeof(transitions[0]); i++) {
		if (transitions[i].from == from && transitions[i].to == to)
			return &transitions[i];
	}
	return NULL;
}

static int check_mask(const struct transition *transition, const struct masks *masks,
		      int mask)
{
	int missing = masks->required & ~mask;
	int extra = mask & ~(masks->required | masks->optional | IBV_QP_STATE);

	if (missing)
		return pier_fail(EINVAL, "soft0: %s to %s needs %s (mask %#x)",
				 state_name(transition->from), state_name(transition->to),
				 bit_name(missing), mask);
	if (extra)
		return pier_fail(EINVAL, "soft0: %s to %s does not take %s (mask %#x)",
				 state_name(transition->from), state_name(transition->to),
				 bit_name(extra), mask);
	return 0;
}

static int check_range(const char *name, unsigned int value, unsigned int least,
		       unsigned int most)
{
	if (value >= least && value <= most)
		return 0;
	return pier_fail(EINVAL, "soft0: %s %u: must be %u to %u", name, value, least,
			 most);
}

int pier_soft_check_path(const struct ibv_ah_attr *path)
{
	if (!path->is_global)
		return pier_fail(EINVAL, "soft0: the path needs a GID: is_global and "
					 "grh.dgid (the link layer is Ethernet)");
	if (path->grh.sgid_index != 0)
		return pier_fail(EINVAL, "soft0: sgid_index %u: there is only GID 0",
				 path->grh.sgid_index);
	return path->port_num == 0 ? 0 : check_range("port", path->port_num, 1, 1);
}

static int check_values(const struct ibv_qp_attr *attr, int mask)
{
	/* Those of regions too, as with rxe (RXE_ACCESS_SUPPORTED_QP), without effect. */
	const unsigned int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
				    IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND |
				    IBV_ACCESS_OPTIONAL_RANGE;
	const struct {
		int bit;
		const char *name;
		unsigned int value, least, most;
	} ranges[] = {
		{ IBV_QP_PORT, "port", attr->port_num, 1, 1 },
		{ IBV_QP_PKEY_INDEX, "pkey_index", attr->pkey_index, 0, 0 },
		{ IBV_QP_PATH_MTU, "path_mtu", attr->path_mtu, IBV_MTU_256,
		  IBV_MTU_4096 },
		{ IBV_QP_TIMEOUT, "timeout", attr->timeout, 0, 31 },
		{ IBV_QP_RETRY_CNT, "retry_cnt", attr->retry_cnt, 0, 7 },
		{ IBV_QP_RNR_RETRY, "rnr_retry", attr->rnr_retry, 0, 7 },
		{ IBV_QP_MIN_RNR_TIMER, "min_rnr_timer", attr->min_rnr_timer, 0, 31 },
		{ IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", attr->max_rd_atomic, 0,
		  SOFT_MAX_RD_ATOMIC },
		{ IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic",
		  attr->max_dest_rd_atomic, 0, SOFT_MAX_RD_ATOMIC },
		{ IBV_QP_DEST_QPN, "dest_qp_num", attr->dest_qp_num, 0, 0xffffff },
	};
	int error = 0;

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]) && !error; i++) {
		if (mask & ranges[i].bit)
			error = check_range(ranges[i].name, ranges[i].value,
					    ranges[i].least, ranges[i].most);
	}
	if (!error && (mask & IBV_QP_AV))
		error = pier_soft_check_path(&attr->ah_attr);
	if (!error && (mask & IBV_QP_ACCESS_FLAGS) && (attr->qp_access_flags & ~access))
		error = pier_fail(EINVAL, "soft0: qp_access_flags %#x are not known here",
				  attr->qp_access_flags);
	return error;
}

int pier_soft_check_transition(enum ibv_qp_type type, enum ibv_qp_state from,
			       const struct ibv_qp_attr *attr, int mask,
			       enum ibv_qp_state *ret_to)
{
	enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : from;
	const struct transition *transition = find_transition(from, to);
	int error;

	if (!transition)
		return pier_fail(EINVAL, "soft0: a queue pair in %s cannot go to %s",
				 state_name(from), state_name(to));
	if ((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != from)
		return pier_fail(EINVAL,
				 "soft0: cur_qp_state is %s, but the queue pair "
				 "is in %s",
				 state_name(attr->cur_qp_state), state_name(from));
	error = check_mask(transition,
			   type == IBV_QPT_UD ? &transition->ud : &transition->rc, mask);
	if (!error)
		error = check_values(attr, mask);
	if (!error)
		*ret_to = to;
	return error;
}
