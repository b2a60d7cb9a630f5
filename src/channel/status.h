/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_STATUS_H
#define PIER_CHANNEL_STATUS_H

#include <stddef.h>

#include <infiniband/verbs.h>

#include <pier/status.h>

/* "send", "receive", ... */
const char *pier_opcode_name(enum pier_opcode opcode);

/* The negative errno of pier_result.error for a completion status. */
int pier_status_error(enum ibv_wc_status status, enum pier_opcode opcode);

/*
 * One sentence: the request, the status, the vendor code, the likely cause. A flush
 * counts as the first error of its channel: no other one is known.
 */
void pier_describe_status(enum ibv_wc_status status, uint32_t vendor_error,
			  enum pier_opcode opcode, char *ret_sentence, size_t size);

#endif
