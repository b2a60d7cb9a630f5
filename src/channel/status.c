/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "status.h"

/*
 * The meaning of each status according to ibv_poll_cq(3) and the IBTA specification
 * (volume 1, 11.6.2): what probably happened, and what to check.
 */
struct meaning {
	const char *name;
	int error;
	enum pier_error_class error_class;
	const char *explanation;
};

#define STATUS(name, error, error_class, happened, check) \
	[name] = { #name, error, PIER_CLASS_##error_class, happened "; check " check }

#define LEFT_STATE                                                                       \
	"the queue pair had left its working state: the peer disconnected, or this end " \
	"stopped it"
/* Of a flush that is the channel's first error. Others name that error. */
#define FIRST_FLUSH LEFT_STATE "; check the error that the peer's channel reports"
#define DATAGRAMS   "a mismatch of reliable datagrams, which channels do not use"
#define TAGS	    "tag matching, which channels do not use, failed"
#define WHO_ELSE    "who else posts to this queue pair or its completion queue"

static const struct meaning meanings[] = {
	[IBV_WC_SUCCESS] = { "IBV_WC_SUCCESS", 0, PIER_CLASS_SUCCESS,
			     "the request did what it was asked" },
	STATUS(IBV_WC_LOC_LEN_ERR, -EMSGSIZE, LOCAL,
	       "the message is longer than the receive, or than the port allows",
	       "the length that the two ends agreed on, and the port's max_msg_size"),
	STATUS(IBV_WC_LOC_QP_OP_ERR, -EIO, LOCAL,
	       "this end's queue pair cannot do what it was asked",
	       "max_rd_atomic of both ends, the lengths of elements and receives, and "
	       "the kernel's log"),
	STATUS(IBV_WC_LOC_EEC_OP_ERR, -EIO, DEVICE, "an internal error of this end",
	       "the kernel's log"),
	STATUS(IBV_WC_LOC_PROT_ERR, -EFAULT, LOCAL,
	       "an element is outside its region, or the region is gone, of another "
	       "protection domain or without the access right, or the exporter of its "
	       "dma-buf took the memory away",
	       "that the memory is still registered, and the region's access"),
	STATUS(IBV_WC_WR_FLUSH_ERR, -ECANCELED, FLUSHED, LEFT_STATE,
	       "the first error of this channel, and the peer's"),
	STATUS(IBV_WC_MW_BIND_ERR, -EIO, LOCAL,
	       "the device refused to bind the memory window: the region is gone, of "
	       "another protection domain or without MW_BIND",
	       "the region's access"),
	STATUS(IBV_WC_BAD_RESP_ERR, -EREMOTEIO, REMOTE,
	       "the peer sent an invalid response",
	       "that nobody else uses the peer's queue pair number, and both devices' "
	       "firmware"),
	STATUS(IBV_WC_LOC_ACCESS_ERR, -EFAULT, LOCAL,
	       "memory of this end refused data of the peer",
	       "the rights and bounds of the regions that the peer writes to"),
	STATUS(IBV_WC_REM_INV_REQ_ERR, -EACCES, REFUSED,
	       "the peer refused the request: its channel allows no such access, or its "
	       "end has another MTU",
	       "access, mtu and max_rd_atomic of the peer's channel"),
	STATUS(IBV_WC_REM_ACCESS_ERR, -EACCES, REFUSED,
	       "the peer refused the access: wrong rkey, outside the region, region gone "
	       "or without that right",
	       "that the peer's region still exists, what the peer reported about it, "
	       "and its access"),
	STATUS(IBV_WC_REM_OP_ERR, -EREMOTEIO, REMOTE,
	       "the peer's device failed at the request, for example at the memory of "
	       "its receive",
	       "the error that the peer's channel reports"),
	STATUS(IBV_WC_RETRY_EXC_ERR, -EHOSTUNREACH, UNREACHABLE,
	       "the peer did not answer: it is gone, not connected, or the network loses "
	       "packets (MTU, firewall, wrong GID)",
	       "that the peer is alive and connected, the route between the two GIDs, "
	       "and the switches' flow control"),
	STATUS(IBV_WC_RNR_RETRY_EXC_ERR, -EAGAIN, NOT_READY,
	       "the peer had posted no receive, even after all retries",
	       "how many receives the peer keeps posted, and rnr_retry_count here and "
	       "min_rnr_timer there"),
	STATUS(IBV_WC_LOC_RDD_VIOL_ERR, -EIO, DEVICE, DATAGRAMS, WHO_ELSE),
	STATUS(IBV_WC_REM_INV_RD_REQ_ERR, -EREMOTEIO, REMOTE, DATAGRAMS,
	       "who else uses the peer's queue pair"),
	STATUS(IBV_WC_REM_ABORT_ERR, -EREMOTEIO, REMOTE, "the peer aborted the request",
	       "the error that the peer's channel reports"),
	STATUS(IBV_WC_INV_EECN_ERR, -EIO, DEVICE, DATAGRAMS, WHO_ELSE),
	STATUS(IBV_WC_INV_EEC_STATE_ERR, -EIO, DEVICE, DATAGRAMS, WHO_ELSE),
	STATUS(IBV_WC_FATAL_ERR, -EIO, DEVICE, "the device failed",
	       "the kernel's log; the device may have to be opened again"),
	STATUS(IBV_WC_RESP_TIMEOUT_ERR, -EHOSTUNREACH, UNREACHABLE,
	       "the peer did not answer in time",
	       "that the peer is alive, and the network"),
	STATUS(IBV_WC_GENERAL_ERR, -EIO, DEVICE, "the device gives no details",
	       "the kernel's log, and the vendor code in the device's manual"),
	STATUS(IBV_WC_TM_ERR, -EIO, DEVICE, TAGS, WHO_ELSE),
	STATUS(IBV_WC_TM_RNDV_INCOMPLETE, -EIO, DEVICE, TAGS, WHO_ELSE),
};

/*
 * A responder reports "invalid request" if its receive is too short, and also if its
 * queue pair lacks the access right (IBTA 9.9.3.1.1).
 */
static const struct meaning sends[] = {
	STATUS(IBV_WC_REM_INV_REQ_ERR, -EMSGSIZE, REFUSED,
	       "the message is longer than the peer's receive",
	       "the length that the two ends agreed on"),
};

/*
 * If this end refuses a request, rxe completes the receive that the request would have
 * used with the status that the peer gets (do_class_ac_error() in rxe_resp.c).
 */
static const struct meaning receives[] = {
	STATUS(IBV_WC_REM_INV_REQ_ERR, -EMSGSIZE, LOCAL,
	       "this end refused the peer's request, which does not fit the receive",
	       "the length that the two ends agreed on"),
	STATUS(IBV_WC_REM_ACCESS_ERR, -EFAULT, LOCAL,
	       "this end refused the peer's write: wrong rkey, outside the region, "
	       "region gone or without that right",
	       "what this end reported to the peer about its regions, and that they "
	       "still exist"),
};

/* A keepalive accesses no memory: a peer can only refuse the right to write. */
#define NO_KEEPALIVE "the peer refuses the empty writes that check whether it is alive"
#define KEEPALIVE_RIGHT                                                                  \
	"that the peer's channel gives PIER_ACCESS_REMOTE_WRITE, or leave keepalive_ms " \
	"0"
static const struct meaning keepalives[] = {
	STATUS(IBV_WC_REM_INV_REQ_ERR, -EACCES, REFUSED, NO_KEEPALIVE, KEEPALIVE_RIGHT),
	STATUS(IBV_WC_REM_ACCESS_ERR, -EACCES, REFUSED, NO_KEEPALIVE, KEEPALIVE_RIGHT),
};
#undef STATUS

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The meaning for some opcodes only; NULL: none. */
static const struct meaning *special_meaning(size_t index, enum pier_opcode opcode)
{
	const struct meaning *table = NULL;
	size_t count = 0;

	if (opcode == PIER_OP_SEND)
		table = sends, count = COUNT(sends);
	else if (opcode == PIER_OP_RECV || opcode == PIER_OP_RECV_WRITE_IMM)
		table = receives, count = COUNT(receives);
	else if (opcode == PIER_OP_KEEPALIVE)
		table = keepalives, count = COUNT(keepalives);
	return index < count && table[index].name ? &table[index] : NULL;
}

static const struct meaning *meaning_of(uint32_t status, enum pier_opcode opcode)
{
	static const struct meaning unknown = {
		"unknown status", -EIO, PIER_CLASS_UNKNOWN,
		"this library does not know the status; check ibv_wc_status_str() of the "
		"libibverbs that is installed"
	};
	const struct meaning *special = special_meaning(status, opcode);

	if (special)
		return special;
	return status < COUNT(meanings) ? &meanings[status] : &unknown;
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
		[PIER_OP_KEEPALIVE] = "keepalive",
	};

	return names[opcode];
}

int pier_status_error(enum ibv_wc_status status, enum pier_opcode opcode)
{
	return meaning_of(status, opcode)->error;
}

enum pier_error_class pier_status_class(uint32_t status, enum pier_opcode opcode)
{
	return meaning_of(status, opcode)->error_class;
}

const char *pier_status_name(uint32_t status)
{
	return meaning_of(status, PIER_OP_WRITE)->name;
}

const char *pier_status_explain(uint32_t status, enum pier_opcode opcode)
{
	return meaning_of(status, opcode)->explanation;
}

void pier_describe_status(enum ibv_wc_status status, uint32_t vendor_error,
			  enum pier_opcode opcode, char *ret_sentence, size_t size)
{
	const struct meaning *meaning = meaning_of(status, opcode);
	const char *explanation = status == IBV_WC_WR_FLUSH_ERR ? FIRST_FLUSH
								: meaning->explanation;

	snprintf(ret_sentence, size, "%s failed: %s (status %u, vendor code %#x): %s",
		 pier_opcode_name(opcode), meaning->name, (unsigned int)status,
		 vendor_error, explanation);
}
