/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include <pier/element.h>
#include <pier/sync.h>

#include "announce.h"
#include "channel/channel.h"
#include "region/mr.h"
#include "region/sync.h"
#include "rail.h"
#include "core/deadline.h"
#include "core/error.h"

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
	element = pier_mr_gather_unchecked(mr, addr, length);
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

/* What is announced ends at a block, where elements would end it within one. */
static int make_chunk(const struct pier_rail_state *rail, struct pier_rail_chunk *chunk)
{
	int count = make_elements(rail, chunk->offset, &chunk->length);

	if (!rail->announces || chunk->offset + chunk->length == rail->length ||
	    chunk->length % PIER_ANNOUNCE_BLOCK == 0)
		return count;
	chunk->length -= chunk->length % PIER_ANNOUNCE_BLOCK;
	return make_elements(rail, chunk->offset, &chunk->length);
}

static int post_elements(struct pier_rail_state *rail, int count,
			 const struct pier_remote *remote, struct pier_rail_chunk *chunk)
{
	const struct pier_gather *source = (const struct pier_gather *)rail->elements;

	if (rail->reads)
		return pier_post_read(rail->channel,
				      (const struct pier_scatter *)rail->elements, count,
				      remote, &chunk->work);
	if (rail->announces)
		return pier_post_write_imm(rail->channel, source, count, remote,
					   pier_announce_chunk(chunk->offset),
					   &chunk->work);
	return pier_post_write(rail->channel, source, count, remote, &chunk->work);
}

/*
 * What a full queue refused is not copied again when it has room: nobody changes the
 * source meanwhile.
 */
static int copy_source(struct pier_rail_state *rail, const struct pier_rail_chunk *chunk)
{
	struct pier_range range = { chunk->offset, chunk->length };
	int error;

	if (range.offset == rail->copied.offset && range.length <= rail->copied.length)
		return 0;
	error = pier_mr_sync_for_nic(rail->mr, rail->offset + range.offset, range.length);
	if (!error)
		rail->copied = range;
	return error;
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
	pier_rail_fail(rail, error, pier_error_message());
	return error;
}

/* The bytes of the peer for a chunk from `offset` on, of as many as there may be. */
static struct pier_remote find_remote(const struct pier_rail_state *rail,
				      struct pier_range range)
{
	const struct pier_rail_part *part = find_part(rail, range.offset);
	uint64_t skipped = range.offset - part->start;
	uint64_t left = part->remote.length - skipped;

	if (left > range.length)
		left = range.length;
	if (left > rail->max_chunk)
		left = rail->max_chunk;
	return pier_remote_sub_unchecked(&part->remote, skipped, left);
}

int64_t pier_rail_post(struct pier_rail_state *rail, struct pier_range range, int64_t now)
{
	struct pier_rail_chunk chunk = { .offset = range.offset };
	struct pier_remote remote;
	int count, error = 0;

	if (rail->error || rail->count == rail->window)
		return rail->error;
	remote = find_remote(rail, range);
	chunk.length = (uint32_t)remote.length;
	count = make_chunk(rail, &chunk);
	remote.length = chunk.length;
	if (rail->bounced && !rail->reads) {
		error = copy_source(rail, &chunk);
		now = pier_now();
	}
	if (!error)
		error = post_elements(rail, count, &remote, &chunk);
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
 * The channel does not give back what is in flight: pier_work_wait() without time stops
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
		pier_work_wait(rail->channel, chunk->work, 0, &result);
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
	done = pier_work_poll(rail->channel, chunk->work, &result);
	if (done < 0) {
		pier_rail_fail(rail, done, pier_error_message());
		stop(rail);
		return 1;
	}
	if (done && result.error)
		pier_rail_fail(rail, result.error, pier_error_message());
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
	*ret_chunk = *chunk;
	return 1;
}

bool pier_rail_copies(const struct pier_rail_state *rail,
		      const struct pier_rail_chunk *chunk)
{
	return rail->reads && rail->bounced && !chunk->error && chunk->length > 0;
}

int pier_rail_land(struct pier_rail_state *rail, const struct pier_rail_chunk *chunk)
{
	int error = 0;

	if (pier_rail_copies(rail, chunk)) {
		error = pier_copy_for_device(rail->mr, rail->offset + chunk->offset,
					     chunk->length);
		rail->alive_at = pier_now();
	}
	rail->unflushed |= rail->reads && rail->direct && chunk->length > 0;
	if (error)
		pier_rail_fail(rail, error, pier_error_message());
	else
		rail->done += chunk->length;
	return error;
}

int pier_rail_flush(struct pier_rail_state *rail)
{
	int error = 0;

	if (rail->unflushed)
		error = pier_flush_for_device(rail->mr, rail->offset, rail->length,
					      rail->doubtful);
	rail->unflushed = error;
	rail->doubtful &= rail->unflushed;
	return error;
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
