/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "channel/posting.h"
#include "channel/wait.h"
#include "core/caller.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "core/object.h"
#include "region/mr.h"
#include "region/sub.h"

/* Sub-regions for the peer of a channel. */

enum {
	WRITING = PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_REMOTE_ATOMIC,
	PEERS_RIGHTS = PIER_ACCESS_REMOTE_READ | WRITING,
};

/* The same rights for a window and a region, so a caller need not care which it gets. */
static int check_rights(const struct pier_mr *mr, uint32_t access)
{
	if (!access || (access & ~PEERS_RIGHTS))
		return pier_fail(EINVAL,
				 "access 0x%x: the rights of a peer are REMOTE_READ, "
				 "REMOTE_WRITE and REMOTE_ATOMIC, one or more of them",
				 (unsigned int)access);
	/* C10-74 of the IBTA specification: rxe_check_bind_mw() in rxe_mw.c. */
	if ((access & WRITING) && !(mr->access & PIER_ACCESS_LOCAL_WRITE))
		return pier_fail(EINVAL,
				 "access 0x%x: REMOTE_WRITE and REMOTE_ATOMIC need a "
				 "region that has LOCAL_WRITE (access 0x%x)",
				 (unsigned int)access, (unsigned int)mr->access);
	if (access & mr->pd->device->lacking_access)
		return pier_fail(EOPNOTSUPP, "access 0x%x: %s has no REMOTE_ATOMIC",
				 (unsigned int)access, mr->pd->device->name);
	return 0;
}

static int check_pair(const struct pier_channel *channel, const struct pier_mr *mr)
{
	if (mr->window)
		return pier_fail(EINVAL, "a sub-region of a memory window: make it from "
					 "the region that the window is bound to");
	if (mr->pd != channel->pd)
		return pier_fail(EINVAL, "a sub-region for a peer: the region and the "
					 "channel are in different protection domains");
	if (channel->broken)
		return pier_fail_broken(channel);
	if (channel->state == PIER_CHANNEL_FAILED)
		return pier_fail(ENOTCONN, "the channel failed to connect, and has no "
					   "peer");
	return 0;
}

/* Returns NULL if a window is possible. */
static const char *reason_for_no_window(const struct pier_channel *channel,
					const struct pier_mr *mr)
{
	const unsigned int types = IBV_DEVICE_MEM_WINDOW_TYPE_2A |
				   IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	const struct pier_device *device = mr->pd->device;

	if (!(device->limits.device_cap_flags & types) || !device->provider->alloc_mw)
		return "the device has none of type 2";
	if (!(mr->access & PIER_ACCESS_MW_BIND))
		return "the region lacks MW_BIND";
	if (mr->parts)
		return "the region has no single key for its own addresses";
	if (channel->state != PIER_CHANNEL_CONNECTED)
		return "the channel is not connected";
	return NULL;
}

static int bind_window(struct pier_channel *channel, struct pier_mr *window,
		       int timeout_ms)
{
	struct ibv_mw *mw = window->window->mw;
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {
			.mw = mw,
			/* Each binding gets a new key: IBTA, ibv_inc_rkey(3). */
			.rkey = ibv_inc_rkey(mw->rkey),
			.bind_info = {
				.mr = pier_window_under(window),
				.addr = window->iova,
				.length = window->length,
				.mw_access_flags = (unsigned int)window->access,
			},
		},
	};
	struct pier_work work = { 0 };
	int error = 0;

	if (channel->sends.limit == 0)
		error = pier_refuse_state(channel);
	else if (!pier_has_room(&channel->sends))
		error = pier_make_room(channel, &channel->sends, 1);
	if (!error)
		error = pier_post_wr(channel, &wr, PIER_OP_BIND, NULL, 0, 0, NULL, &work);
	if (!error)
		error = pier_wait_or_stop(channel, work, pier_deadline(timeout_ms),
					  timeout_ms, NULL);
	if (!error)
		pier_window_bound(window, wr.bind_mw.rkey, &channel->windows);
	return error;
}

static int make_and_bind(struct pier_channel *channel, struct pier_mr *mr,
			 uint64_t offset, uint64_t length, uint32_t access,
			 int timeout_ms, struct pier_mr **ret_mr)
{
	struct pier_mr *window;
	int error = pier_make_window(mr, offset, length, access, &window);

	if (error)
		return error;
	error = bind_window(channel, window, timeout_ms);
	if (error) {
		/* The sentence of the failure stays: deregistering leaves none. */
		pier_mr_dereg(window);
		return error;
	}
	*ret_mr = window;
	return 0;
}

int pier_mr_bind_sub(struct pier_channel *channel, struct pier_mr *mr, uint64_t offset,
		     uint64_t length, uint32_t access, int timeout_ms,
		     struct pier_mr **ret_mr)
{
	PIER_REFUSE_NULL(channel, mr, ret_mr);
	PIER_ENTRY();
	int error = pier_check_process(&channel->object);
	const char *reason;

	if (!error)
		error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);
	if (!error)
		error = check_pair(channel, mr);
	if (!error)
		error = pier_check_sub(mr, offset, length);
	if (!error)
		error = check_rights(mr, access);
	if (error)
		return error;
	reason = reason_for_no_window(channel, mr);
	if (reason) {
		pier_debug("a region of its own for a peer, not a memory window: %s",
			   reason);
		if (access & WRITING)
			access |= PIER_ACCESS_LOCAL_WRITE;
		return pier_mr_reg_sub(mr, offset, length, access, ret_mr);
	}
	return make_and_bind(channel, mr, offset, length, access, timeout_ms, ret_mr);
}
