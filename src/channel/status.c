/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "status.h"

/* What ibv_poll_cq(3) and the IBTA specification (10.7.1.3) mean by each status. */
struct meaning {
	const char *name;
	int error;
	const char *cause;
};

#define STATUS(name, error, cause) [name] = { #name, error, cause }
static const struct meaning meanings[] = {
	STATUS(IBV_WC_SUCCESS, 0, ""),
	STATUS(IBV_WC_LOC_LEN_ERR, -EMSGSIZE,
	       "the message is longer than the receive, or than the port allows"),
	STATUS(IBV_WC_LOC_QP_OP_ERR, -EIO,
	       "this end's queue pair cannot do what it was asked"),
	STATUS(IBV_WC_LOC_EEC_OP_ERR, -EIO, "an internal error of this end"),
	STATUS(IBV_WC_LOC_PROT_ERR, -EFAULT,
	       "an element is outside its region, or the region is gone, of another "
	       "protection domain or without the access right"),
	STATUS(IBV_WC_WR_FLUSH_ERR, -ECANCELED,
	       "the queue pair had left its working state: the peer disconnected, or "
	       "this end stopped it"),
	STATUS(IBV_WC_MW_BIND_ERR, -EIO,
	       "the device refused to bind the memory window: the region is gone, of "
	       "another "
	       "protection domain or without MW_BIND"),
	STATUS(IBV_WC_BAD_RESP_ERR, -EREMOTEIO, "the peer answered nonsense"),
	STATUS(IBV_WC_LOC_ACCESS_ERR, -EFAULT,
	       "the peer's data ran into memory of this end that refused it"),
	STATUS(IBV_WC_REM_INV_REQ_ERR, -EACCES,
	       "the peer refused the request: its channel allows no such access, or its "
	       "end of it has another MTU"),
	STATUS(IBV_WC_REM_ACCESS_ERR, -EACCES,
	       "the peer refused the access: wrong rkey, outside the region, region gone "
	       "or without that right"),
	STATUS(IBV_WC_REM_OP_ERR, -EREMOTEIO,
	       "the peer's device failed at the request, for example at the memory of "
	       "its receive"),
	STATUS(IBV_WC_RETRY_EXC_ERR, -ETIMEDOUT,
	       "the peer did not answer: it is gone, not connected, or the network loses "
	       "packets (MTU, firewall, wrong GID)"),
	STATUS(IBV_WC_RNR_RETRY_EXC_ERR, -EAGAIN,
	       "the peer had posted no receive, and still had not after all retries"),
	STATUS(IBV_WC_LOC_RDD_VIOL_ERR, -EIO, "a mismatch of reliable datagrams"),
	STATUS(IBV_WC_REM_INV_RD_REQ_ERR, -EREMOTEIO, "a mismatch of reliable datagrams"),
	STATUS(IBV_WC_REM_ABORT_ERR, -EREMOTEIO, "the peer aborted the request"),
	STATUS(IBV_WC_INV_EECN_ERR, -EIO, "a mismatch of reliable datagrams"),
	STATUS(IBV_WC_INV_EEC_STATE_ERR, -EIO, "a mismatch of reliable datagrams"),
	STATUS(IBV_WC_FATAL_ERR, -EIO, "the device failed: see the kernel's log"),
	STATUS(IBV_WC_RESP_TIMEOUT_ERR, -ETIMEDOUT, "the peer did not answer in time"),
	STATUS(IBV_WC_GENERAL_ERR, -EIO, "the device says no more"),
};

/*
 * "Invalid request" is said by a responder whose receive is too short, and also
 * by one whose queue pair was not given the access (IBTA 9.9.3.1.1).
 */
static const struct meaning send_too_long = {
	"IBV_WC_REM_INV_REQ_ERR", -EMSGSIZE,
	"the message is longer than the peer's receive"
};

/*
 * rxe ends the receive that a refused request would have used up with the status
 * that the peer gets (do_class_ac_error() in rxe_resp.c): then it was this end that
 * refused.
 */
static const struct meaning receives[] = {
	STATUS(IBV_WC_REM_INV_REQ_ERR, -EMSGSIZE,
	       "this end refused the peer's request, which does not fit the receive"),
	STATUS(IBV_WC_REM_ACCESS_ERR, -EFAULT,
	       "this end refused the peer's write: wrong rkey, outside the region, "
	       "region gone or without that right"),
};
#undef STATUS

static const struct meaning *meaning_of(enum ibv_wc_status status,
					enum pier_opcode opcode)
{
	static const struct meaning unknown = { "unknown status", -EIO,
						"this library does not know the status" };
	size_t index = (size_t)status;

	if (status == IBV_WC_REM_INV_REQ_ERR && opcode == PIER_OP_SEND)
		return &send_too_long;
	if (opcode == PIER_OP_RECV && index < sizeof(receives) / sizeof(receives[0]) &&
	    receives[index].name)
		return &receives[index];
	if (index < sizeof(meanings) / sizeof(meanings[0]))
		return &meanings[index];
	return &unknown;
}

const char *pier_opcode_name(enum pier_opcode opcode)
{
	static const char *const names[] = {
		[PIER_OP_SEND] = "send",
		[PIER_OP_WRITE] = "write",
		[PIER_OP_READ] = "read",
		[PIER_OP_RECV] = "receive",
		[PIER_OP_RECV_WRITE_IMM] = "receive",
		[PIER_OP_BIND] = "bind",
		[PIER_OP_COMPARE_SWAP] = "compare and swap",
		[PIER_OP_FETCH_ADD] = "fetch and add",
	};

	return names[opcode];
}

int pier_status_error(enum ibv_wc_status status, enum pier_opcode opcode)
{
	return meaning_of(status, opcode)->error;
}

void pier_describe_status(enum ibv_wc_status status, uint32_t vendor_error,
			  enum pier_opcode opcode, char *ret_sentence, size_t size)
{
	const struct meaning *meaning = meaning_of(status, opcode);

	snprintf(ret_sentence, size, "%s failed: %s (status %u, vendor code %#x): %s",
		 pier_opcode_name(opcode), meaning->name, (unsigned int)status,
		 vendor_error, meaning->cause);
}
