/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link.h"

enum {
	PAGE = 65536 /* a multiple of every host page size */
};

/* Requested memory is allocated first, and the nearest device is then opened. */
static int alloc_memory(struct link *link, const char *spec, struct failure *failure)
{
	snprintf(link->report.memory, sizeof(link->report.memory), "%s", spec);
	if (spec[0] &&
	    pier_buffer_alloc(spec, link->chunk * link->depth, &link->buffer) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

/* The library never chooses soft0: between processes of one host it will do. */
static int choose_device(struct link *link, bool local)
{
	int error = pier_open_near_device(link->buffer, &link->device);
	const char *chosen = secure_getenv("PIER_DEVICE");

	if (error != -ENODEV || !local || (chosen && chosen[0]))
		return error;
	link->substitute = true;
	return pier_open_device(PIER_SOFT_DEVICE, &link->device);
}

static int open_device(struct link *link, const char *name, bool local,
		       struct failure *failure)
{
	struct pier_device_attr attr;
	int error = name[0] ? pier_open_device(name, &link->device)
			    : choose_device(link, local);

	if (error < 0 || pier_query_device(link->device, &attr) < 0 ||
	    pier_alloc_pd(link->device, &link->pd) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	snprintf(link->report.device, sizeof(link->report.device), "%s", attr.name);
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

static int register_memory(struct link *link, enum cp_role role, bool direct,
			   struct failure *failure)
{
	size_t length = link->chunk * link->depth;
	struct pier_mr_range range = pier_mr_range_buffer(link->buffer, 0, length);
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = slot_access(link, role);
	attr.policy = direct ? PIER_POLICY_DIRECT : PIER_POLICY_BOUNCE;
	/* The set-up message has room for one key. */
	attr.split = PIER_SPLIT_NEVER;
	if (pier_reg_mr_attr(link->pd, &attr, &link->mr) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	snprintf(link->report.path, sizeof(link->report.path), "%s",
		 pier_path_name(pier_mr_path(link->mr)));
	snprintf(link->report.reason, sizeof(link->report.reason), "%s",
		 pier_mr_reason(link->mr));
	return 0;
}

static int open_messages(struct link *link, struct failure *failure)
{
	size_t length = 2 * (size_t)link->depth * LINK_MESSAGE_MAX;

	link->messages = aligned_alloc(PAGE, (length + PAGE - 1) / PAGE * PAGE);
	if (!link->messages)
		return fail(failure, EXIT_DEVICE, "out of memory");
	memset(link->messages, 0, length);
	if (pier_reg_mr(link->pd, link->messages, length, PIER_ACCESS_LOCAL_WRITE,
			&link->messages_mr) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

static int open_channel(struct link *link, enum cp_role role,
			const struct cp_settings *settings, struct failure *failure)
{
	struct pier_channel_attr attr;

	/* What the client requests replaces what either side has in its environment. */
	if (settings->channel[0] && setenv("PIER_CHANNEL", settings->channel, 1) < 0)
		return fail(failure, EXIT_DEVICE, "out of memory");
	pier_channel_attr_init(&attr);
	/* The sender posts a write and a message per slot, the receiver one message. */
	attr.max_send_wr = 2 * link->depth + 1;
	attr.max_recv_wr = link->depth;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.timeout_ms = (int)settings->timeout_ms;
	attr.access = slot_access(link, role);
	if (pier_channel_create(link->pd, &attr, &link->channel) < 0)
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

int open_link(struct link *link, enum cp_role role, const struct cp_settings *settings,
	      const struct cp_side *side, bool local, uint64_t size,
	      struct failure *failure)
{
	choose_slots(link, settings, size);
	if (alloc_memory(link, side->memory, failure) < 0 ||
	    open_device(link, side->device, local, failure) < 0 ||
	    register_memory(link, role, settings->direct, failure) < 0 ||
	    open_messages(link, failure) < 0)
		return -1;
	return open_channel(link, role, settings, failure);
}

int link_setup(struct link *link, enum cp_role role, struct setup_message *ret_setup,
	       struct failure *failure)
{
	memset(ret_setup, 0, sizeof(*ret_setup));
	ret_setup->report = link->report;
	if (role == CP_RECEIVER && pier_mr_remote(link->mr, &ret_setup->remote) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	if (pier_channel_endpoint(link->channel, &ret_setup->endpoint) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

int close_link(struct link *link)
{
	/* The channel first: afterwards nothing accesses the memory. */
	int left = pier_channel_destroy(link->channel) < 0;

	left |= pier_dereg_mr(link->messages_mr) < 0;
	left |= pier_dereg_mr(link->mr) < 0;
	left |= pier_buffer_free(link->buffer) < 0;
	left |= pier_dealloc_pd(link->pd) < 0;
	left |= pier_close_device(link->device) < 0;
	free(link->messages);
	memset(link, 0, sizeof(*link));
	return left;
}

uint8_t *link_outgoing(const struct link *link, uint32_t slot)
{
	return link->messages + (size_t)slot * LINK_MESSAGE_MAX;
}

uint8_t *link_incoming(const struct link *link, uint32_t slot)
{
	return link_outgoing(link, link->depth + slot);
}

static uint64_t message_iova(const struct link *link, const uint8_t *message)
{
	return pier_mr_iova(link->messages_mr) + (uint64_t)(message - link->messages);
}

int link_send(struct link *link, uint32_t slot, size_t length, struct pier_work *ret_work)
{
	uint64_t iova = message_iova(link, link_outgoing(link, slot));
	struct pier_gather element;
	int error = pier_mr_gather(link->messages_mr, iova, length, &element);

	return error ? error : pier_post_send(link->channel, &element, 1, ret_work);
}

int link_recv(struct link *link, uint32_t slot, struct pier_work *ret_work)
{
	uint64_t iova = message_iova(link, link_incoming(link, slot));
	struct pier_scatter element;
	int error = pier_mr_scatter(link->messages_mr, iova, LINK_MESSAGE_MAX, &element);

	return error ? error : pier_post_recv(link->channel, &element, 1, ret_work);
}

int link_write(struct link *link, uint32_t slot, size_t length,
	       const struct pier_remote *remote)
{
	uint64_t offset = (uint64_t)slot * link->chunk;
	struct pier_gather element;
	struct pier_remote target;
	int error;

	error = pier_mr_gather(link->mr, pier_mr_iova(link->mr) + offset, length,
			       &element);
	if (!error)
		error = pier_remote_sub(remote, offset, length, &target);
	return error ? error : pier_post_write(link->channel, &element, 1, &target, NULL);
}
