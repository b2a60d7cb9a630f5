/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include <pier/element.h>

#include "channel/channel.h"
#include "memory/mr.h"
#include "rail.h"

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
