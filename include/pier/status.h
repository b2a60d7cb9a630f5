/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_STATUS_H
#define PIER_STATUS_H

#include <stdint.h>

#include <pier/channel.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * What the status of a completion means: pier_result.status, enum ibv_wc_status of
 * ibv_poll_cq(3). Any thread may ask at any time; nothing here can fail.
 */

/** Who has to look: a class for every status. */
enum pier_error_class {
	PIER_CLASS_SUCCESS = 0,
	/** This end asked for what it may not: memory, keys, lengths of its own. */
	PIER_CLASS_LOCAL = 1,
	/** The peer's device refused it: keys, ranges, rights, the length of a receive.
	 */
	PIER_CLASS_REFUSED = 2,
	/** The peer took it, and failed at it. */
	PIER_CLASS_REMOTE = 3,
	/** The peer had posted no receive. */
	PIER_CLASS_NOT_READY = 4,
	/** The peer does not answer: gone, not connected, or behind a broken network. */
	PIER_CLASS_UNREACHABLE = 5,
	/** Not tried, or not to its end: the queue pair had stopped before. */
	PIER_CLASS_FLUSHED = 6,
	/** This end's device or driver failed. */
	PIER_CLASS_DEVICE = 7,
	/**
	 * No status: pier stopped the channel, because the time of a wait was up or the
	 * device refused a request.
	 */
	PIER_CLASS_STOPPED = 8,
	/** A status that this library does not know. */
	PIER_CLASS_UNKNOWN = 9,
};

/**
 * The class of a status.
 *
 * opcode  of the request: some statuses mean another thing of a receive
 */
PIER_API enum pier_error_class pier_status_class(uint32_t status,
						 enum pier_opcode opcode);

/** "local", "refused", ...; "unknown" of what is no class. */
PIER_API const char *pier_error_class_name(enum pier_error_class error_class);

/** "IBV_WC_RETRY_EXC_ERR", ...; "unknown status" of what is none. */
PIER_API const char *pier_status_name(uint32_t status);

/**
 * What probably happened, and what to check; in English, without a full stop.
 * pier_error_message() holds it after a request failed.
 */
PIER_API const char *pier_status_explain(uint32_t status, enum pier_opcode opcode);

PIER_END_DECLS

#endif
