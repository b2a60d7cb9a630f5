/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include <pier/element.h>
#include <pier/remote_vec.h>

#include "announce.h"
#include "channel/channel.h"
#include "region/mr.h"
#include "send_rail_init.h"
#include "core/error.h"

/* Checks the caller's description of a rail, and copies it. */

enum {
	DEFAULT_CHUNK = 1 << 20,
	DEFAULT_WINDOW = 16, /* at most */
};

/* The memory at this end: access rights and bounds. */
static int check_region(const struct pier_rail *given, uint64_t length, bool reads)
{
	uint64_t addr = pier_mr_iova(given->mr);
	struct pier_scatter target;
	struct pier_gather source;
	int error = pier_rail_check_memory(given->channel, given->mr, given->offset,
					   length);

	if (error)
		return error;
	return reads ? pier_mr_scatter(given->mr, addr, 0, &target)
		     : pier_mr_gather(given->mr, addr, 0, &source);
}

static int copy_parts(struct pier_send_rail *rail, const struct pier_rail *given,
		      uint64_t length)
{
	struct pier_remote *copy = calloc(given->count + 1u, sizeof(*copy));
	uint64_t start = 0;
	int error = 0;

	rail->parts = calloc(given->count + 1u, sizeof(*rail->parts));
	if (!copy || !rail->parts)
		error = pier_fail(ENOMEM, "no memory for %u remote parts", given->count);
	if (!error)
		error = pier_remote_vec_sub(given->parts, given->count,
					    given->remote_offset, length, copy,
					    given->count, &rail->part_count);
	for (uint32_t i = 0; !error && i < rail->part_count; i++) {
		rail->parts[i] = (struct pier_rail_part){ start, copy[i] };
		start += copy[i].length;
	}
	free(copy);
	return error;
}

/* capacity  how many chunks the send queue holds */
static uint32_t choose_window(uint32_t wanted, uint32_t capacity)
{
	uint32_t half = (capacity + 1) / 2;

	if (wanted)
		return wanted < capacity ? wanted : capacity;
	return half < DEFAULT_WINDOW ? half : DEFAULT_WINDOW;
}

static int allocate_ring(struct pier_send_rail *rail,
			 const struct pier_transfer_attr *attr)
{
	const struct pier_channel *channel = rail->base.channel;

	rail->max_chunk = attr->chunk ? attr->chunk : DEFAULT_CHUNK;
	if (rail->max_chunk > channel->max_msg_size)
		rail->max_chunk = channel->max_msg_size;
	rail->max_sge = rail->reads ? channel->max_read_sge : channel->attr.max_send_sge;
	rail->base.size = choose_window(attr->window, channel->attr.max_send_wr /
							      (rail->announces ? 2 : 1));
	/* The two requests of an announced chunk may share an element. */
	rail->elements = calloc(rail->max_sge + 1u, sizeof(*rail->elements));
	rail->ring = calloc(rail->base.size, sizeof(*rail->ring));
	if (!rail->elements || !rail->ring)
		return pier_fail(ENOMEM, "no memory for %u chunks of %u elements",
				 rail->base.size, rail->max_sge);
	return 0;
}

int pier_send_rail_init(struct pier_send_rail *rail, uint32_t index,
			const struct pier_rail *given,
			const struct pier_transfer_attr *attr)
{
	/* Of a stream, only the buffer is known. */
	uint64_t length = attr->stream_size ? attr->stream_size : attr->length;
	int stall_ms = attr->stall_ms, error;

	*rail = (struct pier_send_rail){
		.base = {
			.channel = given->channel,
			.mr = given->mr,
			.offset = given->offset,
		},
		.addr = pier_mr_iova(given->mr) + given->offset,
		.length = length,
		.wrap = attr->stream_size,
		.reads = attr->direction == PIER_TRANSFER_READ,
		.announces = attr->flags & PIER_TRANSFER_ANNOUNCE,
	};
	pier_clear_error();
	error = pier_rail_check_channel(given->channel, rail->reads);
	if (!error)
		error = check_region(given, length, rail->reads);
	if (!error)
		error = copy_parts(rail, given, length);
	if (!error)
		error = allocate_ring(rail, attr);
	if (!error && rail->announces)
		error = pier_check_announced_rail(rail);
	if (error) {
		pier_send_rail_free(rail);
		return pier_fail_because(-error, "rail %u of a transfer", index);
	}
	pier_rail_classify_memory(&rail->base);
	if (stall_ms == PIER_TIMEOUT_DEFAULT)
		stall_ms = given->channel->attr.timeout_ms;
	rail->stall_ns = (int64_t)stall_ms * 1000000;
	return 0;
}

void pier_send_rail_free(struct pier_send_rail *rail)
{
	free(rail->parts);
	free(rail->elements);
	free(rail->ring);
	*rail = (struct pier_send_rail){ 0 };
}
