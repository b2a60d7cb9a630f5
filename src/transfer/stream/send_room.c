/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include "core/error.h"
#include "transfer/transfer.h"

/* How far a stream may go: what the caller may fill, and what may be posted. */

static void choose_first(struct pier_range *first, struct pier_range range, uint64_t at)
{
	if (range.offset + range.length > at && range.offset < first->offset)
		*first = range;
}

/* The first range that ends after `at` and is in flight or to be posted. */
static struct pier_range find_pending(const struct pier_transfer *transfer, uint64_t at)
{
	const struct pier_send_stream *stream = &transfer->stream;
	struct pier_range first = { transfer->attr.length, 0 };

	for (uint32_t i = 0; i < transfer->remaining.count; i++)
		choose_first(&first, transfer->remaining.ranges[i], at);
	for (uint32_t i = 0; i < stream->held_count; i++)
		choose_first(&first, stream->held[i].range, at);
	for (uint32_t r = 0; r < transfer->drive.rail_count; r++) {
		const struct pier_send_rail *rail = pier_transfer_rail(transfer, r);

		for (uint32_t i = 0; i < rail->base.count; i++) {
			const struct pier_rail_chunk *chunk =
				&rail->ring[(rail->base.first + i) % rail->base.size];

			choose_first(&first,
				     (struct pier_range){ chunk->offset, chunk->length },
				     at);
		}
	}
	return first;
}

static uint64_t stream_limit(const struct pier_transfer *transfer)
{
	const struct pier_stream *stream = &transfer->stream.base;
	/* The first byte that a request in flight, or one to be posted, may write. */
	uint64_t first = find_pending(transfer, 0).offset;

	if (stream->released < first)
		first = stream->released;
	return first + stream->size;
}

struct pier_range pier_send_stream_clip(const struct pier_transfer *transfer,
					struct pier_range range)
{
	uint64_t limit = stream_limit(transfer);
	uint64_t room = range.offset < limit ? limit - range.offset : 0;

	if (range.length > room)
		range.length = room;
	return range;
}

void pier_send_stream_doubt(struct pier_transfer *transfer)
{
	uint64_t at = transfer->stream.base.released;

	transfer->stream.doubtful = false;
	while (at < transfer->attr.length) {
		struct pier_range pending = find_pending(transfer, at);

		if (pending.offset > at) {
			struct pier_range done = { at, pending.offset - at };

			pier_remaining_give_back(&transfer->remaining, done);
			transfer->drive.done -= done.length;
		}
		at = pending.offset + pending.length;
	}
}

bool pier_send_stream_has_news(const struct pier_drive *drive)
{
	const struct pier_transfer *transfer = (const struct pier_transfer *)drive;
	const struct pier_stream *stream = &transfer->stream.base;

	return stream->size && !drive->stop && stream_limit(transfer) != stream->seen;
}

uint64_t pier_transfer_limit(struct pier_transfer *transfer)
{
	struct pier_stream *stream = &transfer->stream.base;

	if (stream->size)
		stream->seen = stream_limit(transfer);
	return stream->seen;
}

static int check_extension(const struct pier_transfer *transfer, uint64_t end)
{
	uint64_t limit = stream_limit(transfer);

	if (transfer->stream.finished || end % PIER_STREAM_BLOCK ||
	    end < transfer->attr.length)
		return pier_fail(
			EINVAL,
			"extending a stream of %" PRIu64 " bytes to %" PRIu64 ": %s",
			transfer->attr.length, end,
			transfer->stream.finished ? "it is finished"
						  : "no later block begins there");
	if (end > limit)
		return pier_fail(ENOSPC,
				 "extending a stream to %" PRIu64
				 ": there is room up to %" PRIu64,
				 end, limit);
	return 0;
}

int pier_transfer_extend(struct pier_transfer *transfer, uint64_t end)
{
	int error = pier_check_process(&transfer->drive.object);
	uint64_t start = transfer->attr.length;

	if (!error)
		error = pier_check_stream(&transfer->stream.base, "transfer");
	if (!error)
		error = check_extension(transfer, end);
	if (error || end == start)
		return error;
	pier_remaining_give_back(&transfer->remaining,
				 (struct pier_range){ start, end - start });
	transfer->attr.length = transfer->drive.length = end;
	return 0;
}
