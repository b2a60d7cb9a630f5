/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/ipc.h>

#include "ipc.h"
#include "link.h"
#include "remote/rails.h"

enum {
	PAGE = 65536 /* a multiple of every host page size */
};

/* Requested memory is allocated first, and devices near it are then chosen. */
static int alloc_memory(struct link *link, const char *spec, struct failure *failure)
{
	snprintf(link->report.memory, sizeof(link->report.memory), "%s", spec);
	if (spec[0] &&
	    pier_buffer_alloc(spec, link->chunk * link->depth, &link->buffer) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

/* The memory is allocated with room for all slots, some of which may then not be used. */
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

/* Each rail has the same number of slots. */
static void share_slots(struct link *link, uint32_t rails)
{
	link->rail_count = rails < link->depth ? rails : link->depth;
	link->depth -= link->depth % link->rail_count;
}

static int open_device(struct link *link, struct rail *rail, const char *name,
		       struct failure *failure)
{
	struct cp_report *report = &link->report;
	size_t used = strlen(report->device);
	struct pier_device_attr attr;

	if (pier_open_device(name, &rail->device) < 0 ||
	    pier_query_device(rail->device, &attr) < 0 ||
	    pier_alloc_pd(rail->device, &rail->pd) < 0)
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

/* If a better path was refused before, the remedy may be in that sentence. */
static int fail_registration(const struct link *link, struct failure *failure)
{
	const char *reason = link->report.reason;

	return fail(failure, EXIT_DEVICE, "%s%s%s", pier_error_message(),
		    reason[0] ? "; " : "", reason);
}

static int register_memory(struct link *link, struct rail *rail, enum cp_role role,
			   bool direct, struct failure *failure)
{
	size_t length = link->chunk * link->depth;
	struct pier_mr_range range = pier_mr_range_buffer(link->buffer, 0, length);
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
	if (pier_reg_mr_attr(rail->pd, &attr, &rail->mr) < 0)
		return fail_registration(link, failure);
	report_path(&link->report, rail->mr);
	return 0;
}

static size_t messages_size(const struct link *link)
{
	return 2 * (size_t)link->depth * LINK_MESSAGE_MAX;
}

static int alloc_messages(struct link *link, struct failure *failure)
{
	size_t length = messages_size(link);

	link->messages = aligned_alloc(PAGE, (length + PAGE - 1) / PAGE * PAGE);
	if (!link->messages)
		return fail(failure, EXIT_DEVICE, "out of memory");
	memset(link->messages, 0, length);
	return 0;
}

static int open_channel(const struct link *link, struct rail *rail, uint32_t port,
			enum cp_role role, const struct cp_settings *settings,
			struct failure *failure)
{
	uint32_t slots = link->depth / link->rail_count;
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	/* The sender posts a write and a message per slot, the receiver one message. */
	attr.max_send_wr = 2 * slots + 1;
	attr.max_recv_wr = slots;
	attr.port = port;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.timeout_ms = (int)settings->timeout_ms;
	attr.access = slot_access(link, role);
	if (pier_channel_create(rail->pd, &attr, &rail->channel) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

static int open_rail(struct link *link, struct rail *rail,
		     const struct pier_rail_pair *pair, enum cp_role role,
		     const struct cp_settings *settings, struct failure *failure)
{
	if (open_device(link, rail, pair->device, failure) < 0 ||
	    (!link->ipc &&
	     register_memory(link, rail, role, settings->direct, failure) < 0))
		return -1;
	if (pier_reg_mr(rail->pd, link->messages, messages_size(link),
			PIER_ACCESS_LOCAL_WRITE, &rail->messages_mr) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return open_channel(link, rail, pair->port, role, settings, failure);
}

/* Returns the number of rails, or -1. With ipc there is one, for the messages alone. */
static int agree_on_way(struct link *link, enum cp_role role,
			const struct cp_settings *settings, const struct cp_side *side,
			bool local, struct pier_rail_pair ret_pairs[CP_RAILS_MAX],
			struct control *control)
{
	if (local && settings->ipc && link->buffer &&
	    agree_on_ipc(link, role, control) < 0)
		return -1;
	if (!link->ipc)
		return agree_on_rails(control, link->buffer, side->device, local,
				      ret_pairs, CP_RAILS_MAX, &link->substitute);
	ret_pairs[0] = (struct pier_rail_pair){ .device = PIER_SOFT_DEVICE, .port = 1 };
	return 1;
}

int open_link(struct link *link, enum cp_role role, const struct cp_settings *settings,
	      const struct cp_side *side, bool local, uint64_t size,
	      struct control *control)
{
	struct pier_rail_pair pairs[CP_RAILS_MAX];
	int count;

	/* The client's request overrides the environment of both sides. */
	if (settings->channel[0] && setenv("PIER_CHANNEL", settings->channel, 1) < 0)
		return fail(control->failure, EXIT_DEVICE, "out of memory");
	choose_slots(link, settings, size);
	if (alloc_memory(link, side->memory, control->failure) < 0)
		return -1;
	count = agree_on_way(link, role, settings, side, local, pairs, control);
	if (count < 0)
		return -1;
	share_slots(link, (uint32_t)count);
	if (alloc_messages(link, control->failure) < 0)
		return -1;
	for (uint32_t i = 0; i < link->rail_count; i++)
		if (open_rail(link, &link->rails[i], &pairs[i], role, settings,
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
	for (uint32_t i = 0; i < link->rail_count; i++) {
		const struct rail *rail = &link->rails[i];

		if ((role == CP_RECEIVER && !link->ipc &&
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

	/* The channels first: afterwards nothing accesses the memory. */
	for (uint32_t i = 0; i < CP_RAILS_MAX; i++) {
		struct rail *rail = &link->rails[i];

		left |= pier_channel_destroy(rail->channel) < 0;
		left |= pier_dereg_mr(rail->messages_mr) < 0;
		left |= pier_dereg_mr(rail->mr) < 0;
	}
	left |= pier_buffer_free(link->buffer) < 0;
	for (uint32_t i = 0; i < CP_RAILS_MAX; i++) {
		left |= pier_dealloc_pd(link->rails[i].pd) < 0;
		left |= pier_close_device(link->rails[i].device) < 0;
	}
	free(link->messages);
	memset(link, 0, sizeof(*link));
	return left;
}

struct rail *link_rail(struct link *link, uint64_t slot)
{
	return &link->rails[slot % link->rail_count];
}

uint8_t *link_outgoing(const struct link *link, uint32_t slot)
{
	return link->messages + (size_t)slot * LINK_MESSAGE_MAX;
}

uint8_t *link_incoming(const struct link *link, uint32_t slot)
{
	return link_outgoing(link, link->depth + slot);
}

static uint64_t message_iova(const struct link *link, const struct rail *rail,
			     const uint8_t *message)
{
	return pier_mr_iova(rail->messages_mr) + (uint64_t)(message - link->messages);
}

int link_send(struct link *link, uint32_t slot, const uint8_t *message, size_t length,
	      struct pier_work *ret_work)
{
	const struct rail *rail = link_rail(link, slot);
	uint64_t iova = message_iova(link, rail, message);
	struct pier_gather element;
	int error = pier_mr_gather(rail->messages_mr, iova, length, &element);

	return error ? error : pier_post_send(rail->channel, &element, 1, ret_work);
}

int link_recv(struct link *link, uint32_t slot, struct pier_work *ret_work)
{
	const struct rail *rail = link_rail(link, slot);
	uint64_t iova = message_iova(link, rail, link_incoming(link, slot));
	struct pier_scatter element;
	int error = pier_mr_scatter(rail->messages_mr, iova, LINK_MESSAGE_MAX, &element);

	return error ? error : pier_post_recv(rail->channel, &element, 1, ret_work);
}

int link_copy(struct link *link, uint32_t slot, size_t length)
{
	size_t offset = (size_t)slot * link->chunk;

	return pier_buffer_copy(link->peer, offset, link->buffer, offset, length);
}

int link_write(struct link *link, uint32_t slot, size_t length,
	       const struct pier_remote *remotes)
{
	const struct pier_remote *remote = &remotes[slot % link->rail_count];
	const struct rail *rail = link_rail(link, slot);
	uint64_t offset = (uint64_t)slot * link->chunk;
	struct pier_gather element;
	struct pier_remote target;
	int error;

	if (link->ipc)
		return 0;
	error = pier_mr_gather(rail->mr, pier_mr_iova(rail->mr) + offset, length,
			       &element);
	if (!error)
		error = pier_remote_sub(remote, offset, length, &target);
	return error ? error : pier_post_write(rail->channel, &element, 1, &target, NULL);
}
