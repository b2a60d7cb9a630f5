/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <string.h>

#include <pier/ipc.h>

#include "ipc.h"
#include "message.h"

/* Take note of the library's last error as the reason. */
static void refuse_ipc(struct ipc_message *message)
{
	message->ready = false;
	snprintf(message->reason, sizeof(message->reason), "not by ipc: %s",
		 pier_error_message());
}

/* The small messages go through soft0, which a build may lack. */
static bool can_send_messages(void)
{
	struct pier_device *device;

	if (pier_open_device(PIER_SOFT_DEVICE, &device) < 0)
		return false;
	pier_close_device(device);
	return true;
}

static bool is_host_memory(const struct link *link)
{
	void *pointer;

	return pier_buffer_map(link->buffer, &pointer) == 0;
}

static void offer_memory(const struct link *link, struct ipc_message *ret_message)
{
	*ret_message = (struct ipc_message){ .ready = false };
	if (is_host_memory(link))
		return;
	ret_message->ready = true;
	if (!can_send_messages() ||
	    pier_buffer_ipc_handle(link->buffer, ret_message->handle) < 0)
		refuse_ipc(ret_message);
}

static void open_peer(struct link *link, const struct ipc_message *theirs,
		      struct ipc_message *ret_message)
{
	*ret_message = (struct ipc_message){ .ready = theirs->ready };
	if (is_host_memory(link))
		ret_message->ready = false;
	else if (!theirs->ready)
		memcpy(ret_message->reason, theirs->reason, sizeof(theirs->reason));
	else if (!can_send_messages() ||
		 pier_buffer_open_ipc(theirs->handle, sizeof(theirs->handle),
				      link->buffer, &link->peer) < 0)
		refuse_ipc(ret_message);
}

static int check_length(const struct link *link, struct control *control)
{
	if (!link->peer ||
	    pier_buffer_length(link->peer) >= link_stride(link) * link->depth)
		return 0;
	return fail(control->failure, EXIT_PEER,
		    "the receiver offered too little memory");
}

int agree_on_ipc(struct link *link, enum cp_role role, struct control *control)
{
	struct ipc_message mine, theirs;

	if (role == CP_RECEIVER) {
		offer_memory(link, &mine);
		if (send_ipc(control, &mine) < 0 || receive_ipc(control, &theirs) < 0)
			return -1;
		link->ipc = mine.ready && theirs.ready;
	} else {
		if (receive_ipc(control, &theirs) < 0)
			return -1;
		open_peer(link, &theirs, &mine);
		if (check_length(link, control) < 0 || send_ipc(control, &mine) < 0)
			return -1;
		link->ipc = mine.ready;
	}
	memcpy(link->report.reason, mine.reason[0] ? mine.reason : theirs.reason,
	       sizeof(link->report.reason));
	return 0;
}
