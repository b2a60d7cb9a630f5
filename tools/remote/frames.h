/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_REMOTE_FRAMES_H
#define PIER_TOOLS_REMOTE_FRAMES_H

#include <sys/types.h>

#include "control.h"

/*
 * The lower half of control.h: bytes and frames, for control.c alone. Unless stated
 * otherwise, functions that return int return 0, or -1 with control->failure set.
 */

uint64_t deadline_after(uint32_t ms);

/* Returns the number of bytes, 1 to size; or -1. */
ssize_t read_some(struct control *control, uint8_t *ret_data, size_t size,
		  uint64_t deadline);
int read_all(struct control *control, uint8_t *ret_data, size_t size, uint64_t deadline);
/*
 * Read more of a frame, of which `have` bytes have arrived; the first of them are its
 * header. Returns 1, with *have 0 again, when it is complete; or 0.
 */
int receive_part(struct control *control, struct frame *frame, size_t *have,
		 uint64_t deadline);
/* The next frame; one that reports a failure is a failure. */
int receive_until(struct control *control, struct frame *ret_frame, uint64_t deadline);

/*
 * These return 0; 1 if the other side has closed its pipe; or -1. Where there is an
 * outbox, they only put the bytes into it.
 */
int put_out(struct control *control, const uint8_t *data, size_t size);
int try_send(struct control *control, uint32_t type, const struct wire_writer *writer);

/* These return -1. */
int fail_peer_closed(struct control *control);
int fail_unexpected_frame(struct control *control, const struct frame *frame);

#endif
