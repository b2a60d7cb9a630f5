/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_LINK_H
#define PIER_TOOLS_CP_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/pier.h>

#include "message.h"

/* One NIC of a side, and what is registered with it. */
struct rail {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *mr;	     /* all slots */
	struct pier_mr *messages_mr; /* all messages */
	struct pier_channel *channel;
};

/*
 * One side's memory and NICs. The memory consists of `depth` slots of `chunk` bytes;
 * chunk number n of the file goes from the sender's slot n % depth to the receiver's,
 * through the rail n % rail_count. `depth` is a multiple of rail_count. A second region,
 * of host memory, has room for one small message in each direction per slot. Zero the
 * struct before open_link().
 */
struct link {
	struct rail rails[CP_RAILS_MAX];
	uint32_t rail_count;
	struct pier_buffer *buffer;
	struct pier_buffer *peer; /* with ipc, the sender's: the receiver's buffer */
	uint8_t *messages;	  /* `depth` to send, then `depth` to receive */
	size_t chunk;
	uint32_t depth;
	bool ipc;	 /* chunks are copied to `peer`; soft0 carries the messages */
	bool substitute; /* soft0, which nobody named, in place of an RDMA device */
	struct cp_report report;
};

enum {
	LINK_MESSAGE_MAX = 64
};

/*
 * Agree with the other side on the NICs, and open this side. Allocates no larger and no
 * more slots than a file of `size` needs. If both sides are on this host (`local`), soft0
 * is used if no RDMA device can be.
 */
int open_link(struct link *link, enum cp_role role, const struct cp_settings *settings,
	      const struct cp_side *side, bool local, uint64_t size,
	      struct control *control);
int link_setup(struct link *link, enum cp_role role, struct setup_message *ret_setup,
	       struct failure *failure);
/* With ipc, before the receiver may free its memory. */
int link_close_peer(struct link *link);
/* Close everything that is open. Returns 1 if something is still in use, which is a bug.
 */
int close_link(struct link *link);

/* The rail of a slot, or of a chunk by its number. */
struct rail *link_rail(struct link *link, uint64_t slot);

uint8_t *link_outgoing(const struct link *link, uint32_t slot);
uint8_t *link_incoming(const struct link *link, uint32_t slot);
/* Send a part of the slot's outgoing message, receive its incoming one: 0 or -errno. */
int link_send(struct link *link, uint32_t slot, const uint8_t *message, size_t length,
	      struct pier_work *ret_work);
int link_recv(struct link *link, uint32_t slot, struct pier_work *ret_work);
/* With ipc: copy the slot's data to the same slot of the peer: 0 or -errno. Any thread.
 */
int link_copy(struct link *link, uint32_t slot, size_t length);
/*
 * Write the slot's data to the same slot of the peer, without a completion. With ipc it
 * is there already.
 *
 * remotes  the peer's slots, for each rail
 */
int link_write(struct link *link, uint32_t slot, size_t length,
	       const struct pier_remote *remotes);

#endif
