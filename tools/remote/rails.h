/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_REMOTE_RAILS_H
#define PIER_TOOLS_REMOTE_RAILS_H

#include <stdbool.h>

#include <pier/buffer.h>
#include <pier/rails.h>

#include "remote/control.h"

/*
 * Exchange the NICs of both sides, and choose which to connect.
 *
 * buffer              the memory, or NULL
 * devices             names with "," between them; "": choose
 * local               both sides are on this host: soft0 will do if no RDMA device can
 *                     be used
 * most                pairs; the same on both sides
 * ret_substitute      whether it is soft0 for this reason
 * unreachable_status  the exit status if no NIC of one side reaches one of the other
 *
 * Returns the number of pairs, from 1; or -1 with control->failure set.
 */
int agree_on_rails(struct control *control, const struct pier_buffer *buffer,
		   const char *devices, bool local, struct pier_rail_pair *ret_pairs,
		   uint32_t most, bool *ret_substitute, int unreachable_status);

#endif
