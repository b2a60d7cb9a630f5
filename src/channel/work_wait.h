/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_WORK_WAIT_H
#define PIER_CHANNEL_WORK_WAIT_H

#include "channel.h"

/* Waits on one channel. */

/*
 * Wait until an outstanding request has completed, as pier_work_wait() does.
 *
 * timeout_ms  the caller's, for the error sentence
 */
int pier_wait_for_work(struct pier_channel *channel, struct pier_work work,
		       int64_t deadline, int timeout_ms, struct pier_result *ret_result);

/*
 * Why the oldest outstanding send may not complete, in brackets after a blank: by default
 * a NIC repeats a request that finds no receive without limit, and no error says so. ""
 * if it needs no receive.
 */
const char *pier_explain_silence(const struct pier_channel *channel);

/*
 * Wait until the send queue takes `count` more requests. A broken channel is not an error
 * here: the next post reports it.
 *
 * Returns 0, -ETIMEDOUT without a sentence, or another error of waiting. Stops nothing.
 */
int pier_wait_for_room(struct pier_channel *channel, uint32_t count, int64_t deadline);

/* Likewise until everything before these positions of the two queues has completed. */
int pier_wait_for_positions(struct pier_channel *channel, uint64_t sends,
			    uint64_t receives, int64_t deadline);

/* Likewise until the SRQ has delivered a message, or the channel is broken. */
int pier_wait_for_message(struct pier_channel *channel, int64_t deadline);

#endif
