/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_LINK_H
#define PIER_TOOLS_CP_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/pier.h>

#include "message.h"

/*
 * One side's device, memory and channel. The memory is `depth` slots of `chunk`
 * bytes; chunk number n of the file goes from the sender's slot n % depth to
 * the receiver's. Beside it lies host memory for one small message each way per
 * slot. Begin with zeroes.
 */
struct link {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	uint8_t *messages; /* `depth` to send, then `depth` to receive */
	struct pier_mr *messages_mr;
	struct pier_channel *channel;
	size_t chunk;
	uint32_t depth;
	bool substitute; /* soft0, which nobody named, in place of an RDMA device */
	struct cp_report report;
};

enum {
	LINK_MESSAGE_MAX = 64
};

/*
 * Slots no larger and no more than a file of `size` needs. With `local`, soft0 is used
 * where no RDMA device can be: both sides are on this host.
 */
int open_link(struct link *link, enum cp_role role, const struct cp_settings *settings,
	      const struct cp_side *side, bool local, uint64_t size,
	      struct failure *failure);
int link_setup(struct link *link, enum cp_role role, struct setup_message *ret_setup,
	       struct failure *failure);
/* Returns 0, or 1 when something was left, which is a bug. NULLs are fine. */
int close_link(struct link *link);

uint8_t *link_outgoing(const struct link *link, uint32_t slot);
uint8_t *link_incoming(const struct link *link, uint32_t slot);
/* The slot's outgoing message; its incoming one. These return as pier does. */
int link_send(struct link *link, uint32_t slot, size_t length,
	      struct pier_work *ret_work);
int link_recv(struct link *link, uint32_t slot, struct pier_work *ret_work);
/* The slot's data, to the same slot of the peer; nobody waits for it. */
int link_write(struct link *link, uint32_t slot, size_t length,
	       const struct pier_remote *remote);

#endif
