/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_STAGED_H
#define PIER_TOOLS_PERF_STAGED_H

#include "lane.h"

/*
 * The path of programs without direct access: the sender copies each message from its
 * memory to host memory, the NICs send it into host memory of the receiver, and the
 * receiver copies it to its memory. The receiver writes the number of messages that it
 * has copied into the sender's staging buffer, so the sender never has more messages on
 * the way than there are receives.
 *
 * Functions that return int return 0 or a negative errno of the library.
 */

/* Where the receive of a message, counted from 0, puts it in the staging buffer. */
uint64_t staged_receive_slot(const struct lane *lane, uint64_t number);

/* Before a step: nothing has been sent. */
void prepare_staged(struct lane *lane);

/* Copy the next message and post it. The send queue must have room. */
int post_staged(struct lane *lane, struct pier_work *ret_work);
/* The messages that may be sent now. */
uint32_t staged_credits(const struct lane *lane);

/* Copy a message that has arrived, counted from 0. */
int store_staged(const struct lane *lane, uint64_t number, size_t size);
/* Tell the other side what was copied since the last call, if there is room. */
int return_credits(struct lane *lane);

#endif
