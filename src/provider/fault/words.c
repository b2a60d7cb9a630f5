/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "words.h"
#include "provider/event_name.h"

#define BIT(occasion) (UINT64_C(1) << (occasion))
#define CALL(name, occasion)                                 \
	{                                                    \
		name, BIT(occasion), FAULT_FAIL, FAULT_ERRNO \
	}
#define ON_COMPLETION BIT(FAULT_COMPLETION)
#define REGISTRATIONS \
	(BIT(FAULT_REG_MR) | BIT(FAULT_REG_DMABUF_MR) | BIT(FAULT_REG_PARTS))
/* Without the calls whose number depends on time, and each call only once. */
#define ALL_CALLS (BIT(FAULT_POLL_CQ) - 1)

static const struct pier_fault_word words[] = {
	{ "call", ALL_CALLS, FAULT_FAIL, FAULT_ERRNO },
	{ "reg", REGISTRATIONS, FAULT_FAIL, FAULT_ERRNO },
	CALL("open_device", FAULT_OPEN_DEVICE),
	CALL("close_device", FAULT_CLOSE_DEVICE),
	CALL("query_device", FAULT_QUERY_DEVICE),
	CALL("query_port", FAULT_QUERY_PORT),
	CALL("query_gid", FAULT_QUERY_GID),
	CALL("query_on_demand", FAULT_QUERY_ON_DEMAND),
	CALL("alloc_pd", FAULT_ALLOC_PD),
	CALL("dealloc_pd", FAULT_DEALLOC_PD),
	CALL("reg_mr", FAULT_REG_MR),
	CALL("reg_dmabuf_mr", FAULT_REG_DMABUF_MR),
	CALL("reg_parts", FAULT_REG_PARTS),
	CALL("dereg_mr", FAULT_DEREG_MR),
	CALL("alloc_mw", FAULT_ALLOC_MW),
	CALL("dealloc_mw", FAULT_DEALLOC_MW),
	CALL("bind_counter", FAULT_BIND_COUNTER),
	CALL("create_comp_channel", FAULT_CREATE_COMP_CHANNEL),
	CALL("destroy_comp_channel", FAULT_DESTROY_COMP_CHANNEL),
	CALL("create_cq", FAULT_CREATE_CQ),
	CALL("destroy_cq", FAULT_DESTROY_CQ),
	CALL("create_srq", FAULT_CREATE_SRQ),
	CALL("destroy_srq", FAULT_DESTROY_SRQ),
	CALL("create_qp", FAULT_CREATE_QP),
	CALL("modify_qp", FAULT_MODIFY_QP),
	CALL("query_qp", FAULT_QUERY_QP),
	CALL("destroy_qp", FAULT_DESTROY_QP),
	CALL("get_qp_address", FAULT_GET_QP_ADDRESS),
	CALL("set_qp_address", FAULT_SET_QP_ADDRESS),
	CALL("post_send", FAULT_POST_SEND),
	CALL("post_recv", FAULT_POST_RECV),
	CALL("poll_cq", FAULT_POLL_CQ),
	CALL("req_notify_cq", FAULT_REQ_NOTIFY_CQ),
	CALL("get_cq_event", FAULT_GET_CQ_EVENT),
	{ "wc", ON_COMPLETION, FAULT_STATUS, FAULT_WC_STATUS },
	{ "late", ON_COMPLETION, FAULT_LATE, FAULT_TIME_OR_POLLS },
	{ "lost", ON_COMPLETION, FAULT_LOST, FAULT_NO_VALUE },
	{ "overrun", ON_COMPLETION, FAULT_OVERRUN, FAULT_NO_VALUE },
	{ "dead", BIT(FAULT_POST_SEND), FAULT_DEAD, FAULT_TIME_OR_NONE },
	{ "async", BIT(FAULT_POST_SEND), FAULT_ASYNC, FAULT_EVENT_NAME },
	{ "event", BIT(FAULT_REQ_NOTIFY_CQ), FAULT_NOTIFY_LATE, FAULT_TIME },
};

static bool is_name(const char *word, const char *name, size_t length)
{
	return strlen(word) == length && memcmp(word, name, length) == 0;
}

const struct pier_fault_word *pier_fault_find_word(const char *name, size_t length)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (is_name(words[i].name, name, length))
			return &words[i];
	}
	return NULL;
}

const char *pier_fault_name_occasion(enum pier_fault_occasion occasion)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (words[i].occasions == BIT(occasion) && words[i].effect == FAULT_FAIL)
			return words[i].name;
	}
	return "a completion";
}

/* glibc has it from 2.32 on. With an older one, plans cannot name an errno. */
const char *strerrorname_np(int error) __attribute__((weak));

int pier_fault_find_errno(const char *name, size_t length)
{
	/* The highest errno of the kernel (MAX_ERRNO). */
	for (int number = 1; number <= 4095; number++) {
		const char *known = strerrorname_np ? strerrorname_np(number) : NULL;

		if (known && is_name(known, name, length))
			return number;
	}
	return 0;
}

int pier_fault_find_event(const char *name, size_t length)
{
	for (int event = 0; event <= IBV_EVENT_GID_CHANGE; event++) {
		if (is_name(pier_event_name((enum ibv_event_type)event), name, length))
			return event;
	}
	return -1;
}

enum ibv_wc_status pier_fault_find_status(const char *name, size_t length)
{
#define STATUS(name) [IBV_WC_##name] = #name
	static const char *const names[] = {
		STATUS(LOC_LEN_ERR),	    STATUS(LOC_QP_OP_ERR),
		STATUS(LOC_EEC_OP_ERR),	    STATUS(LOC_PROT_ERR),
		STATUS(WR_FLUSH_ERR),	    STATUS(MW_BIND_ERR),
		STATUS(BAD_RESP_ERR),	    STATUS(LOC_ACCESS_ERR),
		STATUS(REM_INV_REQ_ERR),    STATUS(REM_ACCESS_ERR),
		STATUS(REM_OP_ERR),	    STATUS(RETRY_EXC_ERR),
		STATUS(RNR_RETRY_EXC_ERR),  STATUS(LOC_RDD_VIOL_ERR),
		STATUS(REM_INV_RD_REQ_ERR), STATUS(REM_ABORT_ERR),
		STATUS(INV_EECN_ERR),	    STATUS(INV_EEC_STATE_ERR),
		STATUS(FATAL_ERR),	    STATUS(RESP_TIMEOUT_ERR),
		STATUS(GENERAL_ERR),
	};
#undef STATUS

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (names[i] && is_name(names[i], name, length))
			return (enum ibv_wc_status)i;
	}
	return IBV_WC_SUCCESS;
}
