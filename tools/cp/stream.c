/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/ipc.h>
#include <pier/stream.h>

#include "stream.h"
#include "remote/rails.h"

enum {
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
 * allocated. Sets stream->ipc and, for the sender, stream->peer; or else the reason in
 * stream->report, if the memory is not host memory, which needs no such path.
 *
 * Returns 0, or -1 with control->failure set.
 */
static int agree_on_ipc(struct stream *stream, enum cp_role role, struct control *control)
{
	struct ipc_message mine = { .ready = false }, theirs = { .ready = true };
	void *pointer;
	int error = -1;

	if (role == CP_SENDER && expect_message(control, FRAME_IPC, &theirs) < 0)
		return -1;
	if (theirs.ready && pier_buffer_map(stream->buffer, &pointer) < 0) {
		if (can_send_messages())
			error = role == CP_RECEIVER
					? pier_buffer_ipc_export(stream->buffer,
								 mine.handle,
								 sizeof(mine.handle))
					: pier_buffer_ipc_open(
						  theirs.handle, sizeof(theirs.handle),
						  stream->buffer, &stream->peer);
		mine.ready = error == 0;
		if (error)
			snprintf(mine.reason, sizeof(mine.reason), "not by ipc: %s",
				 pier_error_message());
	}
	if (stream->peer &&
	    pier_buffer_length(stream->peer) < stream_stride(stream) * stream->depth)
		return fail(control->failure, EXIT_PEER,
			    "the receiver offered too little memory");
	if (send_message(control, FRAME_IPC, &mine) < 0 ||
	    (role == CP_RECEIVER && expect_message(control, FRAME_IPC, &theirs) < 0))
		return -1;
	stream->ipc = mine.ready && theirs.ready;
	memcpy(stream->report.reason, mine.reason[0] ? mine.reason : theirs.reason,
	       sizeof(stream->report.reason));
	return 0;
}

/* Add to a text that has a separator between its parts. */
static void append_text(char *text, size_t size, const char *separator, const char *part)
{
	size_t used = strlen(text);

	snprintf(text + used, size - used, "%s%s", used ? separator : "", part);
}

/* Requested memory is allocated first, and devices near it are then chosen. */
static int alloc_memory(struct stream *stream, const char *spec, struct failure *failure)
{
	if (stream->borrowed)
		return 0;
	snprintf(stream->report.memory, sizeof(stream->report.memory), "%s", spec);
	if (spec[0] && pier_buffer_alloc(spec, stream_stride(stream) * stream->depth,
					 &stream->buffer) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

static void choose_slots(struct stream *stream, const struct cp_settings *settings,
			 uint64_t size)
{
	uint64_t chunk = (size + CP_CHUNK_MIN - 1) / CP_CHUNK_MIN * CP_CHUNK_MIN, chunks;

	if (size == 0)
		size = chunk = CP_CHUNK_MIN;
	if (chunk > settings->chunk)
		chunk = settings->chunk;
	chunks = (size + chunk - 1) / chunk;
	stream->chunk = (size_t)chunk;
	stream->depth = chunks < settings->depth ? (uint32_t)chunks : settings->depth;
}

static int open_device(struct stream *stream, struct rail *rail, const char *name,
		       struct failure *failure)
{
	struct cp_report *report = &stream->report;
	struct pier_device_attr attr;

	if (pier_device_open(name, &rail->device) < 0 ||
	    pier_device_query(rail->device, &attr, sizeof(attr)) < 0 ||
	    pier_pd_alloc(rail->device, &rail->pd) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	append_text(report->device, sizeof(report->device), ",", attr.name);
	/* soft0 copies directly to and from another process's memfd. */
	if (!stream->buffer)
		return alloc_memory(stream, attr.memfd_as_dmabuf ? "memfd" : "host",
				    failure);
	return 0;
}

/*
 * The access rights of the peer. With REMOTE_READ as well, soft0 lets a peer on the same
 * host copy directly into a memfd. The peer could read there only what it wrote.
 */
static int slot_access(const struct stream *stream, enum cp_role role)
{
	const int written = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE;

	if (role == CP_SENDER)
		return PIER_ACCESS_LOCAL_READ;
	return strcmp(stream->report.memory, "memfd") == 0
		       ? written | PIER_ACCESS_REMOTE_READ
		       : written;
}

/* How each rail reaches the memory, if they differ. */
static void report_path(struct cp_report *report, const struct pier_mr *mr)
{
	const char *path = pier_path_name(pier_mr_path(mr)), *reason = pier_mr_reason(mr);

	if (strstr(report->path, path))
		return;
	append_text(report->path, sizeof(report->path), ", ", path);
	if (reason[0])
		append_text(report->reason, sizeof(report->reason), "; ", reason);
}

static int register_memory(struct stream *stream, struct rail *rail, enum cp_role role,
			   bool direct, struct failure *failure)
{
	struct pier_mr_range range = pier_mr_range_buffer(stream_memory(stream), 0,
							  stream->stream_size);
	const char *reason = stream->report.reason;
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = slot_access(stream, role);
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
	report_path(&stream->report, rail->mr);
	return 0;
}

/* On each rail: all that there are, if it is alone. */
static uint32_t chunks_in_flight(const struct stream *stream)
{
	return stream->depth < CHUNKS_MAX ? stream->depth : CHUNKS_MAX;
}

static int open_channel(const struct stream *stream, struct rail *rail, uint32_t port,
			enum cp_role role, const struct cp_settings *settings,
			struct failure *failure)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	/* Two requests for each chunk that the stream announces, and its notes. */
	attr.max_send_wr = 2 * chunks_in_flight(stream) + 2;
	attr.max_recv_wr = chunks_in_flight(stream) + 2;
	attr.port = port;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.timeout_ms = (int)settings->timeout_ms;
	attr.access = slot_access(stream, role);
	if (pier_channel_create(rail->pd, &attr, &rail->channel) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

void borrow_memory(struct stream *stream, const struct stream *owner)
{
	stream->borrowed = true;
	stream->buffer = owner->buffer;
	strcpy(stream->report.memory, owner->report.memory);
}

int open_stream(struct stream *stream, enum cp_role role,
		const struct cp_settings *settings, const struct cp_side *side,
		bool local, uint64_t size, struct control *control)
{
	/* With ipc there is one, for the messages alone. */
	struct pier_rail_pair pairs[CP_RAILS_MAX] = { { .device = PIER_SOFT_DEVICE,
							.port = 1 } };
	int count = 1;

	/* The client's request overrides the environment of both sides. */
	if (settings->channel[0] && !stream->borrowed &&
	    setenv("PIER_CHANNEL", settings->channel, 1) < 0)
		return fail(control->failure, EXIT_DEVICE, "out of memory");
	choose_slots(stream, settings, size);
	if (alloc_memory(stream, side->memory, control->failure) < 0)
		return -1;
	if (local && settings->ipc && stream->buffer &&
	    agree_on_ipc(stream, role, control) < 0)
		return -1;
	/* Another neighbour may have NICs that fit. */
	if (!stream->ipc)
		count = agree_on_rails(control, stream->buffer, side->device, local,
				       pairs, CP_RAILS_MAX, &stream->substitute,
				       settings->chain ? EXIT_PEER : EXIT_DEVICE);
	if (count < 0)
		return -1;
	stream->rail_count = (uint32_t)count < stream->depth ? (uint32_t)count
							     : stream->depth;
	stream->stream_size = stream->depth *
			      (stream->ipc ? PIER_STREAM_BLOCK : stream_stride(stream));
	if (stream->ipc &&
	    pier_buffer_alloc("host", stream->stream_size, &stream->headers) < 0)
		return fail_pier(control->failure, EXIT_DEVICE);
	for (uint32_t i = 0; i < stream->rail_count; i++)
		/* The first device may choose the memory. */
		if (open_device(stream, &stream->rails[i], pairs[i].device,
				control->failure) < 0 ||
		    register_memory(stream, &stream->rails[i], role, settings->direct,
				    control->failure) < 0 ||
		    open_channel(stream, &stream->rails[i], pairs[i].port, role, settings,
				 control->failure) < 0)
			return -1;
	if (stream->ipc) {
		stream->report.device[0] = '\0';
		strcpy(stream->report.path, "ipc");
	}
	return 0;
}

int stream_setup(struct stream *stream, enum cp_role role,
		 struct setup_message *ret_setup, struct failure *failure)
{
	memset(ret_setup, 0, sizeof(*ret_setup));
	ret_setup->report = stream->report;
	ret_setup->rail_count = stream->rail_count;
	ret_setup->next = stream->released;
	for (uint32_t i = 0; i < stream->rail_count; i++) {
		const struct rail *rail = &stream->rails[i];

		if ((role == CP_RECEIVER &&
		     pier_mr_remote(rail->mr, &ret_setup->remotes[i]) < 0) ||
		    pier_channel_endpoint(rail->channel, &ret_setup->endpoints[i]) < 0)
			return fail_pier(failure, EXIT_DEVICE);
	}
	return 0;
}

int stream_close_peer(struct stream *stream)
{
	int error = pier_buffer_free(stream->peer);

	stream->peer = NULL;
	return error;
}

int close_stream(struct stream *stream)
{
	int left = stream_close_peer(stream) < 0;

	/* Otherwise the end of the stream would wait to tell the other side of it. */
	stream_stop(stream);
	left |= pier_transfer_destroy(stream->transfer) < 0;
	left |= pier_receiver_destroy(stream->receiver) < 0;
	/* The channels first: afterwards nothing accesses the memory. */
	for (uint32_t i = 0; i < CP_RAILS_MAX; i++) {
		struct rail *rail = &stream->rails[i];

		left |= pier_channel_destroy(rail->channel) < 0;
		left |= pier_mr_dereg(rail->mr) < 0;
	}
	left |= !stream->borrowed && pier_buffer_free(stream->buffer) < 0;
	left |= pier_buffer_free(stream->headers) < 0;
	for (uint32_t i = 0; i < CP_RAILS_MAX; i++) {
		left |= pier_pd_dealloc(stream->rails[i].pd) < 0;
		left |= pier_device_close(stream->rails[i].device) < 0;
	}
	memset(stream, 0, sizeof(*stream));
	return left;
}

int stream_begin_receiving(struct stream *stream, int stall_ms)
{
	struct pier_receiver_rail rails[CP_RAILS_MAX];
	struct pier_receiver_attr attr;

	if (stream->result > 0)
		return 0;
	for (uint32_t i = 0; i < stream->rail_count; i++)
		rails[i] = (struct pier_receiver_rail){
			.channel = stream->rails[i].channel, .mr = stream->rails[i].mr
		};
	stream->result = 0;
	if (stream->receiver)
		return pier_receiver_resume(stream->receiver, rails, stream->rail_count);
	pier_receiver_attr_init(&attr);
	attr.rails = rails;
	attr.rail_count = stream->rail_count;
	attr.stream_size = stream->stream_size;
	attr.stall_ms = stall_ms;
	return pier_receiver_create(&attr, &stream->receiver);
}

int stream_begin_sending(struct stream *stream, int stall_ms,
			 const struct pier_remote *remotes)
{
	struct pier_rail rails[CP_RAILS_MAX];
	struct pier_transfer_attr attr;

	if (stream->result > 0)
		return 0;
	for (uint32_t i = 0; i < stream->rail_count; i++)
		rails[i] = (struct pier_rail){ .channel = stream->rails[i].channel,
					       .mr = stream->rails[i].mr,
					       .parts = &remotes[i],
					       .count = 1 };
	stream->result = 0;
	if (stream->transfer)
		return pier_transfer_resume(stream->transfer, rails, stream->rail_count);
	pier_transfer_attr_init(&attr);
	attr.rails = rails;
	attr.rail_count = stream->rail_count;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	attr.chunk = (uint32_t)stream_stride(stream);
	attr.window = chunks_in_flight(stream);
	attr.stream_size = stream->stream_size;
	attr.stall_ms = stall_ms;
	return pier_transfer_create(&attr, &stream->transfer);
}

void stream_finish(struct stream *stream)
{
	pier_transfer_finish(stream->transfer);
	stream->finished = true;
}

uint64_t stream_extended(const struct stream *stream)
{
	struct pier_transfer_status status;

	pier_transfer_query(stream->transfer, &status, sizeof(status));
	return status.length;
}

uint64_t stream_credited(const struct stream *stream)
{
	/* The end may be known from the control connection alone. */
	return stream->result > 0
		       ? stream_extended(stream)
		       : pier_transfer_limit(stream->transfer) - stream->stream_size;
}

int stream_progress(struct stream *stream)
{
	if (stream->transfer)
		stream->result = pier_transfer_progress(stream->transfer);
	else if (stream->receiver)
		stream->result = pier_receiver_progress(stream->receiver);
	return stream->result;
}

static void *cancel_channel(void *channel)
{
	pier_channel_cancel(channel);
	return NULL;
}

/*
 * A device that withholds completions takes a second, so all channels are cancelled at
 * the same time: the first one by this thread.
 */
static void cancel_channels(const struct stream *stream)
{
	bool started[CP_RAILS_MAX] = { false };
	pthread_t threads[CP_RAILS_MAX] = { 0 };

	for (uint32_t i = stream->rail_count; i-- > 0;) {
		struct pier_channel *channel = stream->rails[i].channel;

		started[i] = channel && i > 0 &&
			     pthread_create(&threads[i], NULL, cancel_channel, channel) ==
				     0;
		if (channel && !started[i])
			cancel_channel(channel);
	}
	for (uint32_t i = 0; i < stream->rail_count; i++)
		if (started[i])
			pthread_join(threads[i], NULL);
}

void stream_stop(struct stream *stream)
{
	cancel_channels(stream);
	/* Nothing is in flight, so it ends at once. */
	while (stream->result == 0 && (stream->transfer || stream->receiver))
		stream_progress(stream);
}

struct pier_rail_status stream_rail_status(const struct stream *stream, uint32_t index)
{
	struct pier_rail_status status = { .error = 0 };

	if (stream->transfer)
		pier_transfer_query_rail(stream->transfer, index, &status,
					 sizeof(status));
	else if (stream->receiver)
		pier_receiver_query_rail(stream->receiver, index, &status,
					 sizeof(status));
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

bool stream_find_down_port(const struct stream *stream, char *ret_text, size_t size)
{
	for (uint32_t i = 0; i < stream->rail_count; i++)
		if (explain_port(&stream->rails[i], ret_text, size))
			return true;
	return false;
}

const struct rail *stream_find_broken_rail(const struct stream *stream)
{
	const struct rail *broken = NULL;
	struct pier_channel_failure failure;

	for (uint32_t i = 0; i < stream->rail_count; i++) {
		const struct rail *rail = &stream->rails[i];

		if (pier_channel_error(rail->channel, &failure, sizeof(failure)) == 0)
			continue;
		if (failure.error_class == PIER_CLASS_UNREACHABLE)
			return rail;
		broken = broken ? broken : rail;
	}
	return broken;
}
