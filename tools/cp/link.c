/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/ipc.h>
#include <pier/stream.h>

#include "link.h"
#include "remote/rails.h"

enum {
	PAGE = 65536,	  /* a multiple of every host page size */
	CHUNKS_MAX = 256, /* in flight on a rail */
};

/* The small messages go through soft0, which a build may lack. */
static bool can_send_messages(void)
{
	struct pier_device *device;

	if (pier_device_open(PIER_SOFT_DEVICE, &device) < 0)
		return false;
	pier_device_close(device);
	return true;
}

/*
 * Agree with the other process of this host on whether the sender copies chunks straight
 * into the receiver's memory, without a NIC (pier_buffer_copy()). Both memories are
 * allocated. Sets link->ipc and, for the sender, link->peer; or else the reason in
 * link->report, if the memory is not host memory, which needs no such path.
 *
 * Returns 0, or -1 with control->failure set.
 */
static int agree_on_ipc(struct link *link, enum cp_role role, struct control *control)
{
	struct ipc_message mine = { .ready = false }, theirs = { .ready = true };
	void *pointer;
	int error = -1;

	if (role == CP_SENDER && expect_message(control, FRAME_IPC, &theirs) < 0)
		return -1;
	if (theirs.ready && pier_buffer_map(link->buffer, &pointer) < 0) {
		if (can_send_messages())
			error = role == CP_RECEIVER
					? pier_buffer_ipc_handle(link->buffer,
								 mine.handle)
					: pier_buffer_open_ipc(theirs.handle,
							       sizeof(theirs.handle),
							       link->buffer, &link->peer);
		mine.ready = error == 0;
		if (error)
			snprintf(mine.reason, sizeof(mine.reason), "not by ipc: %s",
				 pier_error_message());
	}
	if (link->peer &&
	    pier_buffer_length(link->peer) < link_stride(link) * link->depth)
		return fail(control->failure, EXIT_PEER,
			    "the receiver offered too little memory");
	if (send_message(control, FRAME_IPC, &mine) < 0 ||
	    (role == CP_RECEIVER && expect_message(control, FRAME_IPC, &theirs) < 0))
		return -1;
	link->ipc = mine.ready && theirs.ready;
	memcpy(link->report.reason, mine.reason[0] ? mine.reason : theirs.reason,
	       sizeof(link->report.reason));
	return 0;
}

/* Requested memory is allocated first, and devices near it are then chosen. */
static int alloc_memory(struct link *link, const char *spec, struct failure *failure)
{
	if (link->borrowed)
		return 0;
	snprintf(link->report.memory, sizeof(link->report.memory), "%s", spec);
	if (spec[0] &&
	    pier_buffer_alloc(spec, link_stride(link) * link->depth, &link->buffer) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

static void choose_slots(struct link *link, const struct cp_settings *settings,
			 uint64_t size)
{
	uint64_t chunks;

	link->chunk = (size_t)settings->chunk;
	if (size < link->chunk)
		link->chunk = ((size_t)size + CP_CHUNK_MIN - 1) / CP_CHUNK_MIN *
			      CP_CHUNK_MIN;
	if (link->chunk == 0)
		link->chunk = CP_CHUNK_MIN;
	chunks = size / link->chunk + (size % link->chunk != 0);
	link->depth = settings->depth;
	if (chunks < link->depth)
		link->depth = chunks ? (uint32_t)chunks : 1;
}

static int open_device(struct link *link, struct rail *rail, const char *name,
		       struct failure *failure)
{
	struct cp_report *report = &link->report;
	size_t used = strlen(report->device);
	struct pier_device_attr attr;

	if (pier_device_open(name, &rail->device) < 0 ||
	    pier_device_query(rail->device, &attr, sizeof(attr)) < 0 ||
	    pier_pd_alloc(rail->device, &rail->pd) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	snprintf(report->device + used, sizeof(report->device) - used, "%s%s",
		 used ? "," : "", attr.name);
	/* soft0 copies directly to and from another process's memfd. */
	if (!link->buffer)
		return alloc_memory(link, attr.memfd_as_dmabuf ? "memfd" : "host",
				    failure);
	return 0;
}

/*
 * The access rights of the peer. With REMOTE_READ as well, soft0 lets a peer on the same
 * host copy directly into a memfd. The peer could read there only what it wrote.
 */
static int slot_access(const struct link *link, enum cp_role role)
{
	const int written = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE;

	if (role == CP_SENDER)
		return PIER_ACCESS_LOCAL_READ;
	return strcmp(link->report.memory, "memfd") == 0
		       ? written | PIER_ACCESS_REMOTE_READ
		       : written;
}

/* How each rail reaches the memory, if they differ. */
static void report_path(struct cp_report *report, const struct pier_mr *mr)
{
	const char *path = pier_path_name(pier_mr_path(mr));
	size_t used = strlen(report->path);

	if (strstr(report->path, path))
		return;
	snprintf(report->path + used, sizeof(report->path) - used, "%s%s",
		 used ? ", " : "", path);
	used = strlen(report->reason);
	if (!pier_mr_reason(mr)[0])
		return;
	snprintf(report->reason + used, sizeof(report->reason) - used, "%s%s",
		 used ? "; " : "", pier_mr_reason(mr));
}

static int register_memory(struct link *link, struct rail *rail, enum cp_role role,
			   bool direct, struct failure *failure)
{
	struct pier_mr_range range =
		link->ipc ? pier_mr_range_host(link->headers, link->stream_size)
			  : pier_mr_range_buffer(link->buffer, 0, link->stream_size);
	const char *reason = link->report.reason;
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = slot_access(link, role);
	/* A chunk is looked at when the message behind it has arrived. */
	attr.ordering = PIER_ORDERING_COMPLETIONS;
	/*
	 * Peer memory copies nothing either, and is the only path with NVIDIA's
	 * proprietary kernel modules, whose GPUs export no dma-bufs.
	 */
	attr.policy = direct ? PIER_POLICY_PEERMEM : PIER_POLICY_BOUNCE;
	/* The set-up message has room for one key. */
	attr.split = PIER_SPLIT_NEVER;
	/* If a better path was refused before, the remedy may be in that sentence. */
	if (pier_mr_reg_attr(rail->pd, &attr, &rail->mr) < 0)
		return fail(failure, EXIT_DEVICE, "%s%s%s", pier_error_message(),
			    reason[0] ? "; " : "", reason);
	report_path(&link->report, rail->mr);
	return 0;
}

/* On each rail: all that there are, if it is alone. */
static uint32_t chunks_in_flight(const struct link *link)
{
	return link->depth < CHUNKS_MAX ? link->depth : CHUNKS_MAX;
}

static int open_channel(const struct link *link, struct rail *rail, uint32_t port,
			enum cp_role role, const struct cp_settings *settings,
			struct failure *failure)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	/* Two requests for each chunk that the stream announces, and its notes. */
	attr.max_send_wr = 2 * chunks_in_flight(link) + 2;
	attr.max_recv_wr = chunks_in_flight(link) + 2;
	attr.port = port;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.timeout_ms = (int)settings->timeout_ms;
	attr.access = slot_access(link, role);
	if (pier_channel_create(rail->pd, &attr, &rail->channel) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

void borrow_memory(struct link *link, const struct link *owner)
{
	link->borrowed = true;
	link->buffer = owner->buffer;
	strcpy(link->report.memory, owner->report.memory);
}

int open_link(struct link *link, enum cp_role role, const struct cp_settings *settings,
	      const struct cp_side *side, bool local, uint64_t size,
	      struct control *control)
{
	/* With ipc there is one, for the messages alone. */
	struct pier_rail_pair pairs[CP_RAILS_MAX] = { { .device = PIER_SOFT_DEVICE,
							.port = 1 } };
	int count = 1;

	/* The client's request overrides the environment of both sides. */
	if (settings->channel[0] && !link->borrowed &&
	    setenv("PIER_CHANNEL", settings->channel, 1) < 0)
		return fail(control->failure, EXIT_DEVICE, "out of memory");
	choose_slots(link, settings, size);
	if (alloc_memory(link, side->memory, control->failure) < 0)
		return -1;
	if (local && settings->ipc && link->buffer &&
	    agree_on_ipc(link, role, control) < 0)
		return -1;
	/* Another neighbour may have NICs that fit. */
	if (!link->ipc)
		count = agree_on_rails(control, link->buffer, side->device, local, pairs,
				       CP_RAILS_MAX, &link->substitute,
				       settings->chain ? EXIT_PEER : EXIT_DEVICE);
	if (count < 0)
		return -1;
	link->rail_count = (uint32_t)count < link->depth ? (uint32_t)count : link->depth;
	link->stream_size = link->depth *
			    (link->ipc ? PIER_STREAM_BLOCK : link_stride(link));
	if (link->ipc) {
		size_t length = ((size_t)link->stream_size + PAGE - 1) / PAGE * PAGE;

		link->headers = aligned_alloc(PAGE, length);
		if (!link->headers)
			return fail(control->failure, EXIT_DEVICE, "out of memory");
		memset(link->headers, 0, length);
	}
	for (uint32_t i = 0; i < link->rail_count; i++)
		/* The first device may choose the memory. */
		if (open_device(link, &link->rails[i], pairs[i].device,
				control->failure) < 0 ||
		    register_memory(link, &link->rails[i], role, settings->direct,
				    control->failure) < 0 ||
		    open_channel(link, &link->rails[i], pairs[i].port, role, settings,
				 control->failure) < 0)
			return -1;
	if (link->ipc) {
		link->report.device[0] = '\0';
		strcpy(link->report.path, "ipc");
	}
	return 0;
}

int link_setup(struct link *link, enum cp_role role, struct setup_message *ret_setup,
	       struct failure *failure)
{
	memset(ret_setup, 0, sizeof(*ret_setup));
	ret_setup->report = link->report;
	ret_setup->rail_count = link->rail_count;
	ret_setup->next = link->released;
	for (uint32_t i = 0; i < link->rail_count; i++) {
		const struct rail *rail = &link->rails[i];

		if ((role == CP_RECEIVER &&
		     pier_mr_remote(rail->mr, &ret_setup->remotes[i]) < 0) ||
		    pier_channel_endpoint(rail->channel, &ret_setup->endpoints[i]) < 0)
			return fail_pier(failure, EXIT_DEVICE);
	}
	return 0;
}

int link_close_peer(struct link *link)
{
	int error = pier_buffer_free(link->peer);

	link->peer = NULL;
	return error;
}

int close_link(struct link *link)
{
	int left = link_close_peer(link) < 0;

	/* Otherwise the end of the stream would wait to tell the other side of it. */
	link_stop(link);
	left |= pier_transfer_destroy(link->transfer) < 0;
	left |= pier_receiver_destroy(link->receiver) < 0;
	/* The channels first: afterwards nothing accesses the memory. */
	for (uint32_t i = 0; i < CP_RAILS_MAX; i++) {
		struct rail *rail = &link->rails[i];

		left |= pier_channel_destroy(rail->channel) < 0;
		left |= pier_mr_dereg(rail->mr) < 0;
	}
	left |= !link->borrowed && pier_buffer_free(link->buffer) < 0;
	for (uint32_t i = 0; i < CP_RAILS_MAX; i++) {
		left |= pier_pd_dealloc(link->rails[i].pd) < 0;
		left |= pier_device_close(link->rails[i].device) < 0;
	}
	free(link->headers);
	memset(link, 0, sizeof(*link));
	return left;
}

int link_begin_receiving(struct link *link, int stall_ms)
{
	struct pier_receiver_rail rails[CP_RAILS_MAX];
	struct pier_receiver_attr attr;

	if (link->result > 0)
		return 0;
	for (uint32_t i = 0; i < link->rail_count; i++)
		rails[i] = (struct pier_receiver_rail){ .channel = link->rails[i].channel,
							.mr = link->rails[i].mr };
	link->result = 0;
	if (link->receiver)
		return pier_receiver_resume(link->receiver, rails, link->rail_count);
	pier_receiver_attr_init(&attr);
	attr.rails = rails;
	attr.rail_count = link->rail_count;
	attr.stream_size = link->stream_size;
	attr.stall_ms = stall_ms;
	return pier_receiver_create(&attr, &link->receiver);
}

int link_begin_sending(struct link *link, int stall_ms, const struct pier_remote *remotes)
{
	struct pier_rail rails[CP_RAILS_MAX];
	struct pier_transfer_attr attr;

	if (link->result > 0)
		return 0;
	for (uint32_t i = 0; i < link->rail_count; i++)
		rails[i] = (struct pier_rail){ .channel = link->rails[i].channel,
					       .mr = link->rails[i].mr,
					       .parts = &remotes[i],
					       .count = 1 };
	link->result = 0;
	if (link->transfer)
		return pier_transfer_resume(link->transfer, rails, link->rail_count);
	pier_transfer_attr_init(&attr);
	attr.rails = rails;
	attr.rail_count = link->rail_count;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	attr.chunk = (uint32_t)link_stride(link);
	attr.window = chunks_in_flight(link);
	attr.stream_size = link->stream_size;
	attr.stall_ms = stall_ms;
	return pier_transfer_create(&attr, &link->transfer);
}

void link_finish(struct link *link)
{
	pier_transfer_finish(link->transfer);
	link->finished = true;
}

uint64_t link_extended(const struct link *link)
{
	struct pier_transfer_status status;

	pier_transfer_query(link->transfer, &status, sizeof(status));
	return status.length;
}

uint64_t link_credited(const struct link *link)
{
	/* The end may be known from the control connection alone. */
	return link->result > 0 ? link_extended(link)
				: pier_transfer_limit(link->transfer) - link->stream_size;
}

int link_progress(struct link *link)
{
	if (link->transfer)
		link->result = pier_transfer_progress(link->transfer);
	else if (link->receiver)
		link->result = pier_receiver_progress(link->receiver);
	return link->result;
}

void link_stop(struct link *link)
{
	for (uint32_t i = 0; i < link->rail_count; i++)
		if (link->rails[i].channel)
			pier_channel_cancel(link->rails[i].channel);
	/* Nothing is in flight, so it ends at once. */
	while (link->result == 0 && (link->transfer || link->receiver))
		link_progress(link);
}

struct pier_rail_status link_rail_status(const struct link *link, uint32_t index)
{
	struct pier_rail_status status = { .error = 0 };

	if (link->transfer)
		pier_transfer_query_rail(link->transfer, index, &status, sizeof(status));
	else if (link->receiver)
		pier_receiver_query_rail(link->receiver, index, &status, sizeof(status));
	return status;
}

/* Whether the port is down, or cannot be asked because its device is gone. */
static bool explain_port(const struct rail *rail, char *ret_text, size_t size)
{
	struct pier_channel_attr channel;
	struct pier_port_attr port;

	if (!rail->channel)
		return false;
	pier_channel_query(rail->channel, &channel, sizeof(channel));
	if (pier_device_query_port(rail->device, channel.port, &port, sizeof(port)) < 0)
		snprintf(ret_text, size, "%s", pier_error_message());
	else if (!port.active)
		snprintf(ret_text, size,
			 "port %u of %s is down: check the cable, the switch and "
			 "(InfiniBand) the subnet manager",
			 channel.port, pier_device_name(rail->device));
	else
		return false;
	return true;
}

bool link_find_down_port(const struct link *link, char *ret_text, size_t size)
{
	for (uint32_t i = 0; i < link->rail_count; i++)
		if (explain_port(&link->rails[i], ret_text, size))
			return true;
	return false;
}

const struct rail *link_find_broken_rail(const struct link *link)
{
	const struct rail *broken = NULL;
	struct pier_channel_failure failure;

	for (uint32_t i = 0; i < link->rail_count; i++) {
		const struct rail *rail = &link->rails[i];

		if (pier_channel_error(rail->channel, &failure, sizeof(failure)) == 0)
			continue;
		if (failure.error_class == PIER_CLASS_UNREACHABLE)
			return rail;
		broken = broken ? broken : rail;
	}
	return broken;
}
