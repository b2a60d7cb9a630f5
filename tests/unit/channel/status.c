/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "channel/status.h"

enum {
	STATUSES = IBV_WC_TM_RNDV_INCOMPLETE + 1, /* of the newest rdma-core */
	OPCODES = PIER_OP_KEEPALIVE + 1,
};

/* The meaning of each status for a write: the whole table, by hand. */
static const struct {
	enum ibv_wc_status status;
	const char *name;
	int error;
	enum pier_error_class error_class;
} expected[] = {
	{ IBV_WC_SUCCESS, "IBV_WC_SUCCESS", 0, PIER_CLASS_SUCCESS },
	{ IBV_WC_LOC_LEN_ERR, "IBV_WC_LOC_LEN_ERR", -EMSGSIZE, PIER_CLASS_LOCAL },
	{ IBV_WC_LOC_QP_OP_ERR, "IBV_WC_LOC_QP_OP_ERR", -EIO, PIER_CLASS_LOCAL },
	{ IBV_WC_LOC_EEC_OP_ERR, "IBV_WC_LOC_EEC_OP_ERR", -EIO, PIER_CLASS_DEVICE },
	{ IBV_WC_LOC_PROT_ERR, "IBV_WC_LOC_PROT_ERR", -EFAULT, PIER_CLASS_LOCAL },
	{ IBV_WC_WR_FLUSH_ERR, "IBV_WC_WR_FLUSH_ERR", -ECANCELED, PIER_CLASS_FLUSHED },
	{ IBV_WC_MW_BIND_ERR, "IBV_WC_MW_BIND_ERR", -EIO, PIER_CLASS_LOCAL },
	{ IBV_WC_BAD_RESP_ERR, "IBV_WC_BAD_RESP_ERR", -EREMOTEIO, PIER_CLASS_REMOTE },
	{ IBV_WC_LOC_ACCESS_ERR, "IBV_WC_LOC_ACCESS_ERR", -EFAULT, PIER_CLASS_LOCAL },
	{ IBV_WC_REM_INV_REQ_ERR, "IBV_WC_REM_INV_REQ_ERR", -EACCES, PIER_CLASS_REFUSED },
	{ IBV_WC_REM_ACCESS_ERR, "IBV_WC_REM_ACCESS_ERR", -EACCES, PIER_CLASS_REFUSED },
	{ IBV_WC_REM_OP_ERR, "IBV_WC_REM_OP_ERR", -EREMOTEIO, PIER_CLASS_REMOTE },
	{ IBV_WC_RETRY_EXC_ERR, "IBV_WC_RETRY_EXC_ERR", -EHOSTUNREACH,
	  PIER_CLASS_UNREACHABLE },
	{ IBV_WC_RNR_RETRY_EXC_ERR, "IBV_WC_RNR_RETRY_EXC_ERR", -EAGAIN,
	  PIER_CLASS_NOT_READY },
	{ IBV_WC_LOC_RDD_VIOL_ERR, "IBV_WC_LOC_RDD_VIOL_ERR", -EIO, PIER_CLASS_DEVICE },
	{ IBV_WC_REM_INV_RD_REQ_ERR, "IBV_WC_REM_INV_RD_REQ_ERR", -EREMOTEIO,
	  PIER_CLASS_REMOTE },
	{ IBV_WC_REM_ABORT_ERR, "IBV_WC_REM_ABORT_ERR", -EREMOTEIO, PIER_CLASS_REMOTE },
	{ IBV_WC_INV_EECN_ERR, "IBV_WC_INV_EECN_ERR", -EIO, PIER_CLASS_DEVICE },
	{ IBV_WC_INV_EEC_STATE_ERR, "IBV_WC_INV_EEC_STATE_ERR", -EIO, PIER_CLASS_DEVICE },
	{ IBV_WC_FATAL_ERR, "IBV_WC_FATAL_ERR", -EIO, PIER_CLASS_DEVICE },
	{ IBV_WC_RESP_TIMEOUT_ERR, "IBV_WC_RESP_TIMEOUT_ERR", -EHOSTUNREACH,
	  PIER_CLASS_UNREACHABLE },
	{ IBV_WC_GENERAL_ERR, "IBV_WC_GENERAL_ERR", -EIO, PIER_CLASS_DEVICE },
	{ IBV_WC_TM_ERR, "IBV_WC_TM_ERR", -EIO, PIER_CLASS_DEVICE },
	{ IBV_WC_TM_RNDV_INCOMPLETE, "IBV_WC_TM_RNDV_INCOMPLETE", -EIO,
	  PIER_CLASS_DEVICE },
};

static void classifies_every_status(void **state)
{
	(void)state;
	assert_int_equal(sizeof(expected) / sizeof(expected[0]), STATUSES);
	for (uint32_t i = 0; i < STATUSES; i++) {
		assert_int_equal(expected[i].status, i);
		assert_string_equal(pier_status_name(i), expected[i].name);
		assert_int_equal(pier_status_error((enum ibv_wc_status)i, PIER_OP_WRITE),
				 expected[i].error);
		assert_int_equal(pier_status_class(i, PIER_OP_WRITE),
				 expected[i].error_class);
	}
}

/* Each opcode yields a class, and one line that fits with the event and what to check. */
static void explains_every_status(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < STATUSES; i++) {
		for (int op = PIER_OP_SEND; op < OPCODES; op++) {
			enum pier_opcode opcode = (enum pier_opcode)op;
			const char *text = pier_status_explain(i, opcode);
			char sentence[512];

			assert_true(strlen(text) > 20);
			assert_null(strchr(text, '\n'));
			assert_int_equal(pier_status_class(i, opcode) ==
						 PIER_CLASS_SUCCESS,
					 i == IBV_WC_SUCCESS);
			assert_int_not_equal(pier_status_class(i, opcode),
					     PIER_CLASS_UNKNOWN);
			assert_int_equal(
				pier_status_error((enum ibv_wc_status)i, opcode) == 0,
				i == IBV_WC_SUCCESS);
			assert_int_equal(strstr(text, "; check ") == NULL,
					 i == IBV_WC_SUCCESS);
			pier_describe_status((enum ibv_wc_status)i, 0xabc, opcode,
					     sentence, sizeof(sentence));
			assert_true(strlen(sentence) < sizeof(sentence) - 60);
			assert_int_equal(strstr(sentence, text) == NULL,
					 i == IBV_WC_WR_FLUSH_ERR);
			assert_non_null(strstr(sentence, expected[i].name));
			assert_non_null(strstr(sentence, "0xabc"));
			assert_non_null(strstr(sentence, pier_opcode_name(opcode)));
		}
	}
}

static void reports_an_unknown_status(void **state)
{
	const uint32_t others[] = { STATUSES, STATUSES + 1, 255, 1000, UINT32_MAX };

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		for (int op = PIER_OP_SEND; op < OPCODES; op++) {
			enum pier_opcode opcode = (enum pier_opcode)op;

			assert_int_equal(pier_status_class(others[i], opcode),
					 PIER_CLASS_UNKNOWN);
			assert_non_null(strstr(pier_status_explain(others[i], opcode),
					       "; check "));
			assert_int_equal(
				pier_status_error((enum ibv_wc_status)others[i], opcode),
				-EIO);
		}
		assert_string_equal(pier_status_name(others[i]), "unknown status");
	}
}

static void explains_by_kind_of_request(void **state)
{
	(void)state;
	assert_int_equal(pier_status_class(IBV_WC_REM_INV_REQ_ERR, PIER_OP_RECV),
			 PIER_CLASS_LOCAL);
	assert_int_equal(pier_status_class(IBV_WC_REM_ACCESS_ERR, PIER_OP_RECV),
			 PIER_CLASS_LOCAL);
	assert_int_equal(pier_status_error(IBV_WC_REM_INV_REQ_ERR, PIER_OP_SEND),
			 -EMSGSIZE);
	assert_non_null(
		strstr(pier_status_explain(IBV_WC_REM_INV_REQ_ERR, PIER_OP_KEEPALIVE),
		       "REMOTE_WRITE"));
	assert_non_null(
		strstr(pier_status_explain(IBV_WC_REM_ACCESS_ERR, PIER_OP_KEEPALIVE),
		       "REMOTE_WRITE"));
	assert_int_equal(pier_status_class(IBV_WC_RETRY_EXC_ERR, PIER_OP_KEEPALIVE),
			 PIER_CLASS_UNREACHABLE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(classifies_every_status),
		cmocka_unit_test(explains_every_status),
		cmocka_unit_test(reports_an_unknown_status),
		cmocka_unit_test(explains_by_kind_of_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
