/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <pier/element.h>
#include <pier/remote_vec.h>

#include "channel/channel.h"
#include "memory/mr.h"
#include "rail.h"
#include "util/checked.h"
#include "util/deadline.h"
#include "util/error.h"

enum {
	DEFAULT_CHUNK = 1 << 20,
	DEFAULT_WINDOW = 16, /* at most */
};

static int check_channel(const struct pier_channel *channel, bool reads)
{
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	if (channel->state != PIER_CHANNEL_CONNECTED)
		return pier_fail(ENOTCONN, "the channel is not connected");
	if (channel->broken)
		return pier_fail_broken(channel);
	if (channel->max_msg_size == 0)
		return pier_fail(EMSGSIZE, "the port's max_msg_size is 0");
	if (reads && channel->read_depth == 0)
		return pier_fail(EOPNOTSUPP,
				 "no reads on this channel: max_rd_atomic of one of its "
				 "ends is 0");
	if ((reads ? channel->max_read_sge : channel->attr.max_send_sge) == 0 ||
	    channel->attr.max_send_wr == 0)
		return pier_fail(EINVAL,
				 "the channel takes no elements: max_send_wr %u, "
				 "max_send_sge %u",
				 channel->attr.max_send_wr, channel->attr.max_send_sge);
	return 0;
}

/* The memory here: rights, and that the bytes lie in it. */
static int check_region(const struct pier_rail *given, uint64_t length, bool reads)
{
	uint64_t addr = pier_mr_iova(given->mr);
	struct pier_scatter target;
	struct pier_gather source;

	if (pier_mr_pd(given->mr) != given->channel->pd)
		return pier_fail(EINVAL, "the region is in another protection domain "
					 "than the channel");
	if (!pier_range_fits(given->offset, length, pier_mr_length(given->mr)))
		return pier_fail(ERANGE,
				 "offset %" PRIu64 " and length %" PRIu64
				 " leave the region of %zu bytes",
				 given->offset, length, pier_mr_length(given->mr));
	return reads ? pier_scatter(given->mr, addr, 0, &target)
		     : pier_gather(given->mr, addr, 0, &source);
}

static int copy_parts(struct pier_rail_state *rail, const struct pier_rail *given,
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

static uint32_t choose_window(uint32_t wanted, uint32_t max_send_wr)
{
	uint32_t half = (max_send_wr + 1) / 2;

	if (wanted)
		return wanted < max_send_wr ? wanted : max_send_wr;
	return half < DEFAULT_WINDOW ? half : DEFAULT_WINDOW;
}

static int allocate(struct pier_rail_state *rail, const struct pier_transfer_attr *attr)
{
	const struct pier_channel *channel = rail->channel;

	rail->max_chunk = attr->chunk ? attr->chunk : DEFAULT_CHUNK;
	if (rail->max_chunk > channel->max_msg_size)
		rail->max_chunk = channel->max_msg_size;
	rail->max_sge = rail->reads ? channel->max_read_sge : channel->attr.max_send_sge;
	rail->window = choose_window(attr->window, channel->attr.max_send_wr);
	rail->elements = calloc(rail->max_sge, sizeof(*rail->elements));
	rail->ring = calloc(rail->window, sizeof(*rail->ring));
	if (!rail->elements || !rail->ring)
		return pier_fail(ENOMEM, "no memory for %u chunks of %u elements",
				 rail->window, rail->max_sge);
	return 0;
}

int pier_rail_init(struct pier_rail_state *rail, uint32_t index,
		   const struct pier_rail *given, const struct pier_transfer_attr *attr)
{
	int stall_ms = attr->stall_ms, error;

	*rail = (struct pier_rail_state){
		.channel = given->channel,
		.mr = given->mr,
		.addr = pier_mr_iova(given->mr) + given->offset,
		.reads = attr->direction == PIER_TRANSFER_READ,
	};
	pier_clear_error();
	error = check_channel(given->channel, rail->reads);
	if (!error)
		error = check_region(given, attr->length, rail->reads);
	if (!error)
		error = copy_parts(rail, given, attr->length);
	if (!error)
		error = allocate(rail, attr);
	if (error) {
		pier_rail_free(rail);
		return pier_fail_because(-error, "rail %u of a transfer", index);
	}
	if (stall_ms == PIER_TIMEOUT_DEFAULT)
		stall_ms = given->channel->attr.timeout_ms;
	rail->stall_ns = (int64_t)stall_ms * 1000000;
	return 0;
}

void pier_rail_free(struct pier_rail_state *rail)
{
	free(rail->parts);
	free(rail->elements);
	free(rail->ring);
	*rail = (struct pier_rail_state){ 0 };
}

/* The peer's part that has the byte at `offset`. */
static const struct pier_rail_part *find_part(const struct pier_rail_state *rail,
					      uint64_t offset)
{
	uint32_t first = 0, count = rail->part_count;

	while (count > 1) {
		uint32_t half = count / 2;

		if (rail->parts[first + half].start <= offset) {
			first += half;
			count -= half;
		} else {
			count = half;
		}
	}
	return &rail->parts[first];
}

/* An element of at most `length` bytes, which ends at the end of a part of the region. */
static struct ibv_sge make_element(const struct pier_mr *mr, uint64_t addr,
				   uint32_t length)
{
	struct pier_gather element;

	if (mr->parts) {
		uint64_t offset = addr - mr->iova;
		const struct pier_mr_part *part = pier_mr_find_part(mr, offset);
		uint64_t left = part->length - (offset - part->start);

		if (length > left)
			length = (uint32_t)left;
	}
	element = pier_gather_unchecked(mr, addr, length);
	return (struct ibv_sge){ element.addr, element.length, element.lkey };
}

/* How many elements; and how many bytes are in them, of at most *length. */
static int make_elements(const struct pier_rail_state *rail, uint64_t offset,
			 uint32_t *length)
{
	uint32_t left = *length, count = 0;

	while (left > 0 && count < rail->max_sge) {
		struct ibv_sge sge = make_element(
			rail->mr, rail->addr + offset + (*length - left), left);

		rail->elements[count++] = sge;
		left -= sge.length;
	}
	*length -= left;
	return (int)count;
}

static int post_elements(struct pier_rail_state *rail, int count,
			 const struct pier_remote *remote, struct pier_work *ret_work)
{
	if (rail->reads)
		return pier_post_read(rail->channel,
				      (const struct pier_scatter *)rail->elements, count,
				      remote, ret_work);
	return pier_post_write(rail->channel, (const struct pier_gather *)rail->elements,
			       count, remote, ret_work);
}

static void add_chunk(struct pier_rail_state *rail, struct pier_rail_chunk chunk,
		      int64_t now)
{
	if (rail->count == 0)
		rail->alive_at = now;
	rail->starving_at = 0;
	rail->ring[(rail->first + rail->count++) % rail->window] = chunk;
}

/* A full queue will have room again; anything else is how the rail ends. */
static int refused(struct pier_rail_state *rail, int error, int64_t now)
{
	if (error == -EAGAIN) {
		if (rail->count == 0 && rail->starving_at == 0)
			rail->starving_at = now;
		return 0;
	}
	pier_rail_fail(rail, error, pier_last_error());
	return error;
}

int64_t pier_rail_post(struct pier_rail_state *rail, struct pier_range range, int64_t now)
{
	struct pier_rail_chunk chunk = { .offset = range.offset };
	const struct pier_rail_part *part;
	struct pier_remote remote;
	uint64_t left;
	int count, error;

	if (rail->error || rail->count == rail->window)
		return rail->error;
	part = find_part(rail, range.offset);
	left = part->remote.length - (range.offset - part->start);
	if (left > range.length)
		left = range.length;
	chunk.length = left < rail->max_chunk ? (uint32_t)left : rail->max_chunk;
	count = make_elements(rail, range.offset, &chunk.length);
	remote = pier_remote_sub_unchecked(&part->remote, range.offset - part->start,
					   chunk.length);
	error = post_elements(rail, count, &remote, &chunk.work);
	if (error)
		return refused(rail, error, now);
	add_chunk(rail, chunk, now);
	return chunk.length;
}

int pier_rail_post_notice(struct pier_rail_state *rail, uint32_t immediate, int64_t now)
{
	struct pier_rail_chunk chunk = { .length = 0 };
	int error;

	if (rail->error || rail->count == rail->window)
		return rail->error;
	error = pier_post_write_imm(rail->channel, NULL, 0, NULL, immediate, &chunk.work);
	if (error)
		return refused(rail, error, now);
	add_chunk(rail, chunk, now);
	return 1;
}

/*
 * The channel does not give back what is in flight: pier_wait() without time stops
 * everything on it, and has a result for each. What a reset channel knows nothing of any
 * more has not arrived.
 */
static void stop(struct pier_rail_state *rail)
{
	for (uint32_t i = 0; i < rail->count; i++) {
		struct pier_rail_chunk *chunk =
			&rail->ring[(rail->first + i) % rail->window];
		struct pier_result result = { .error = -ESTALE };

		if (chunk->stopped)
			continue;
		pier_wait(rail->channel, chunk->work, 0, &result);
		chunk->stopped = true;
		chunk->error = result.error;
	}
}

/* How the chunk ended: 1, or 0 if it has not. */
static int poll_chunk(struct pier_rail_state *rail, struct pier_rail_chunk *chunk)
{
	struct pier_result result;
	int done;

	if (chunk->stopped)
		return 1;
	done = pier_poll_work(rail->channel, chunk->work, &result);
	if (done < 0) {
		pier_rail_fail(rail, done, pier_last_error());
		stop(rail);
		return 1;
	}
	if (done && result.error)
		pier_rail_fail(rail, result.error, pier_last_error());
	if (done)
		chunk->error = result.error;
	return done;
}

int pier_rail_take(struct pier_rail_state *rail, int64_t now,
		   struct pier_rail_chunk *ret_chunk)
{
	struct pier_rail_chunk *chunk = &rail->ring[rail->first];

	if (rail->count == 0 || !poll_chunk(rail, chunk))
		return 0;
	rail->first = (rail->first + 1) % rail->window;
	rail->count--;
	rail->alive_at = now;
	if (!chunk->error)
		rail->done += chunk->length;
	*ret_chunk = *chunk;
	return 1;
}

void pier_rail_fail(struct pier_rail_state *rail, int error, const char *sentence)
{
	int broken = rail->channel->broken;

	if (rail->error)
		return;
	rail->error = (error == -ECANCELED || error == -EPIPE) && broken ? broken : error;
	snprintf(rail->sentence, sizeof(rail->sentence), "%s", sentence);
}

static int64_t late_at(int64_t since, int64_t stall_ns)
{
	return since ? since + stall_ns : INT64_MAX;
}

int64_t pier_rail_deadline(const struct pier_rail_state *rail)
{
	return late_at(rail->count > 0 ? rail->alive_at : rail->starving_at,
		       rail->stall_ns);
}

void pier_rail_check(struct pier_rail_state *rail, int64_t now)
{
	char sentence[PIER_RAIL_SENTENCE_SIZE];
	int ms = (int)(rail->stall_ns / 1000000);

	if (now < pier_rail_deadline(rail))
		return;
	rail->starving_at = 0;
	if (rail->count == 0) {
		snprintf(sentence, sizeof(sentence),
			 "the send queue was full of other requests for %d ms", ms);
		pier_rail_fail(rail, -EAGAIN, sentence);
		return;
	}
	snprintf(sentence, sizeof(sentence),
		 "transfer: no chunk completed within %d ms; everything outstanding was "
		 "stopped",
		 ms);
	pier_rail_fail(rail, -ETIMEDOUT, sentence);
	pier_break_channel(rail->channel, -ETIMEDOUT, sentence);
	stop(rail);
}
