/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_STATUS_H
#define PIER_STATUS_H

#include <stdint.h>

#include <pier/channel.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * The meaning of a completion's status.
 *
 * The status is pier_result.status, a value of enum ibv_wc_status (ibv_poll_cq(3)).
 *
 * Threads: any thread may call any function. No function can fail.
 */

/** Classes of statuses. The class shows where to look for the cause of an error. */
enum pier_error_class {
	PIER_CLASS_SUCCESS = 0,
	/** This end made an invalid request: its own memory, keys or lengths. */
	PIER_CLASS_LOCAL = 1,
	/**
	 * The peer's device refused the request: keys, ranges, rights, length of a
	 * receive.
	 */
	PIER_CLASS_REFUSED = 2,
	/** The peer accepted the request and failed to execute it. */
	PIER_CLASS_REMOTE = 3,
	/** The peer had posted no receive. */
	PIER_CLASS_NOT_READY = 4,
	/**
	 * The peer does not answer: it is gone, not connected, or cut off by the
	 * network.
	 */
	PIER_CLASS_UNREACHABLE = 5,
	/**
	 * The request was not executed, or not completely: the queue pair had stopped.
	 */
	PIER_CLASS_FLUSHED = 6,
	/** This end's device or driver failed. */
	PIER_CLASS_DEVICE = 7,
	/**
	 * Not a status: pier stopped the channel, because a wait timed out or the
	 * device refused a request.
	 */
	PIER_CLASS_STOPPED = 8,
	/** The library does not know the status. */
	PIER_CLASS_UNKNOWN = 9,
};

/**
 * Return the class of a status.
 *
 * opcode  of the request: some statuses have another meaning for a receive
 */
PIER_API enum pier_error_class pier_status_class(uint32_t status,
						 enum pier_opcode opcode);

/**
 * Return the name of a status: "IBV_WC_RETRY_EXC_ERR" and so on; "unknown status" if it
 * is not a status.
 */
PIER_API const char *pier_status_name(uint32_t status);

/**
 * Explain a status: the probable cause, and the things to check.
 *
 * Returns English text without a final full stop. pier_error_message() contains it
 * after a request failed.
 */
PIER_API const char *pier_status_explain(uint32_t status, enum pier_opcode opcode);

PIER_END_DECLS

#endif
