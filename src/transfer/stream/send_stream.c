/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/deadline.h"
#include "core/error.h"
#include "send_stream.h"

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

		for (uint32_t i = 0; i < rail->base.flow.count; i++) {
			const struct pier_flight *chunk = pier_flow_at(&rail->base.flow,
								       i);

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

/*
 * Repeat all that the peer has not released. Its device may have acknowledged a chunk and
 * then reported an error to the peer's program, which does not know that it arrived.
 */
static void send_stream_doubt(struct pier_transfer *transfer)
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
	PIER_REFUSE_NULL_AS(0, transfer);
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
	PIER_REFUSE_NULL(transfer);
	int error = pier_check_stream(&transfer->stream.base, &transfer->drive);
	uint64_t start = transfer->attr.length;

	if (!error)
		error = check_extension(transfer, end);
	if (error || end == start)
		return error;
	pier_remaining_give_back(&transfer->remaining,
				 (struct pier_range){ start, end - start });
	transfer->attr.length = transfer->drive.length = end;
	return 0;
}

enum {
	NOTES_PER_STEP = 64, /* a hostile peer may send without end */
};

int pier_check_stream_attr(const struct pier_transfer_attr *attr)
{
	const char *wrong = NULL;

	if (!attr->stream_size)
		return 0;
	if (!(attr->flags & PIER_TRANSFER_ANNOUNCE))
		wrong = "PIER_TRANSFER_ANNOUNCE is not set";
	else if (attr->length)
		wrong = "length is not 0; pier_transfer_finish() determines it";
	else if (attr->progress)
		wrong = "progress is not NULL; pier_transfer_limit() reports it";
	else if (attr->state)
		wrong = "state is not NULL; streams have none";
	if (wrong)
		return pier_fail(EINVAL, "transfer: stream_size: %s", wrong);
	return pier_check_stream_size("transfer", attr->stream_size);
}

static int open_notes(struct pier_transfer *transfer)
{
	struct pier_send_stream *stream = &transfer->stream;
	uint32_t count = transfer->drive.rail_count;

	stream->notes = calloc(count, sizeof(*stream->notes));
	if (!stream->notes)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	for (uint32_t i = 0; i < count; i++) {
		const struct pier_rail_base *rail =
			&pier_transfer_rail(transfer, i)->base;
		const struct pier_receiver_rail given = { .channel = rail->flow.channel,
							  .mr = rail->mr,
							  .offset = rail->offset };
		int error = pier_recv_rail_init(&stream->notes[i], "transfer", i, &given,
						stream->base.size, NULL);

		if (error) {
			pier_recv_rails_release(stream->notes, i);
			stream->notes = NULL;
			return error;
		}
		/* A failure is the rail's: see pier_send_stream_check_rail(). */
		pier_recv_rail_post(&stream->notes[i]);
	}
	return 0;
}

static void choose_stall_time(struct pier_transfer *transfer)
{
	struct pier_stream *stream = &transfer->stream.base;

	stream->stall_ns = 0;
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++) {
		int64_t stall_ns = pier_transfer_rail(transfer, i)->base.flow.stall_ns;

		if (stall_ns > stream->stall_ns)
			stream->stall_ns = stall_ns;
	}
}

int pier_send_stream_open(struct pier_transfer *transfer, uint32_t chunks)
{
	struct pier_send_stream *stream = &transfer->stream;
	struct pier_held_chunk *held;
	int error;

	stream->base.size = transfer->attr.stream_size;
	if (!stream->base.size)
		return 0;
	/* Those that are held now return to the transfer. */
	held = reallocarray(stream->held, chunks + stream->held_count, sizeof(*held));
	if (!held)
		return pier_fail(ENOMEM, "no memory for %u chunks", chunks);
	stream->held = held;
	error = open_notes(transfer);
	if (error)
		return error;
	while (stream->held_count > 0)
		pier_remaining_give_back(&transfer->remaining,
					 stream->held[--stream->held_count].range);
	send_stream_doubt(transfer);
	stream->stopped = 0;
	stream->end_told = stream->answered = false;
	choose_stall_time(transfer);
	pier_stream_start(&stream->base, pier_now());
	return 0;
}

void pier_send_stream_close(struct pier_transfer *transfer)
{
	if (transfer->stream.notes)
		pier_recv_rails_release(transfer->stream.notes,
					transfer->drive.rail_count);
	transfer->stream.notes = NULL;
}

/*
 * The peer released bytes; it may not have had them all. A note that arrived on another
 * rail can be older than the last one.
 */
static int note_released(struct pier_transfer *transfer, uint64_t end, int wrong)
{
	struct pier_stream *stream = &transfer->stream.base;

	if (end > transfer->attr.length)
		return pier_fail(wrong,
				 "the peer released %" PRIu64 " bytes of a stream that "
				 "has %" PRIu64,
				 end, transfer->attr.length);
	if (end > stream->released)
		stream->released = end;
	return 0;
}

static int take_room(struct pier_transfer *transfer, uint32_t note)
{
	uint64_t released = transfer->stream.base.released;

	return note_released(transfer, pier_note_position(note, released), EBADMSG);
}

static int take_answer(struct pier_transfer *transfer, uint32_t note)
{
	struct pier_send_stream *stream = &transfer->stream;
	uint64_t length = transfer->attr.length;

	if (!stream->finished || pier_note_position(note, length) != length)
		return pier_fail(EBADMSG,
				 "the peer released a stream of %" PRIu64
				 " bytes to its end, which is elsewhere",
				 length);
	stream->base.released = length;
	stream->answered = true;
	return 0;
}

static int take_note(struct pier_transfer *transfer, const struct pier_result *result)
{
	struct pier_send_stream *stream = &transfer->stream;
	uint32_t note = result->immediate, value = pier_note_value(note);

	if (!pier_is_note(result))
		return pier_fail(EBADMSG, "the receiver of a stream sent no note");
	switch (pier_note_kind(note)) {
	case PIER_NOTE_ALIVE:
		return 0;
	case PIER_NOTE_ROOM:
		return take_room(transfer, note);
	case PIER_NOTE_END:
		return take_answer(transfer, note);
	case PIER_NOTE_STOPPED:
		if (value >= transfer->drive.rail_count)
			break;
		stream->doubtful |= !(stream->stopped >> value & 1);
		stream->stopped |= UINT64_C(1) << value;
		return 0;
	case PIER_NOTE_ERROR:
		pier_stream_take_error(&stream->base, &transfer->drive, note);
		return 0;
	default:
		break;
	}
	return pier_fail(EBADMSG, "the receiver of a stream sent note %#x", note);
}

static void take_rail_notes(struct pier_transfer *transfer, struct pier_rail_base *notes,
			    int64_t now)
{
	struct pier_result result;

	for (int i = 0; i < NOTES_PER_STEP; i++) {
		int taken = pier_recv_rail_take(notes, &result);

		if (taken == 0)
			break;
		if (taken > 0)
			taken = take_note(transfer, &result);
		if (taken < 0)
			pier_drive_stop(&transfer->drive, taken, "%s",
					pier_error_message());
		transfer->stream.base.heard_at = now;
		if (!notes->flow.error)
			pier_recv_rail_post(notes);
	}
}

void pier_send_stream_take_notes(struct pier_transfer *transfer, int64_t now)
{
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++)
		take_rail_notes(transfer, &transfer->stream.notes[i], now);
}

/* It ends, and the peer knows or cannot be told: it takes nothing more. */
static bool is_cut_off(const struct pier_transfer *transfer)
{
	return transfer->drive.stop && !pier_send_stream_owes_note(transfer);
}

void pier_send_stream_check_rail(struct pier_transfer *transfer, uint32_t index)
{
	const struct pier_rail_base *notes = &transfer->stream.notes[index];
	struct pier_send_rail *rail = pier_transfer_rail(transfer, index);
	bool in_use = !rail->base.flow.error || rail->base.flow.count > 0;

	if (notes->flow.error && !rail->base.flow.error)
		pier_flow_stop(&rail->base.flow, notes->flow.error, notes->flow.sentence);
	else if (in_use && transfer->stream.stopped >> index & 1)
		pier_flow_stop(&rail->base.flow, -ECANCELED,
			       "the peer's end of the rail has failed");
	else if (rail->base.flow.count > 0 && is_cut_off(transfer))
		pier_flow_stop(&rail->base.flow, -ECANCELED, "the stream has ended");
}

/* Once everything has arrived, nothing is repeated, so no place is written again. */
static void release_held_chunks(struct pier_transfer *transfer)
{
	struct pier_send_stream *stream = &transfer->stream;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < stream->held_count; i++) {
		struct pier_held_chunk held = stream->held[i];

		if (stream->answered || stream->stopped >> held.rail & 1)
			pier_remaining_give_back(&transfer->remaining, held.range);
		else
			stream->held[kept++] = held;
	}
	stream->held_count = kept;
}

void pier_send_stream_repeat(struct pier_transfer *transfer)
{
	uint64_t released = transfer->stream.base.released;

	release_held_chunks(transfer);
	if (transfer->stream.doubtful)
		send_stream_doubt(transfer);
	while (!pier_remaining_empty(&transfer->remaining)) {
		struct pier_range first = pier_remaining_first(&transfer->remaining);
		uint64_t arrived;

		if (first.offset >= released)
			break;
		arrived = released - first.offset;
		if (arrived > first.length)
			arrived = first.length;
		pier_remaining_take(&transfer->remaining, arrived);
		transfer->drive.done += arrived;
	}
}

static uint32_t next_note(const struct pier_transfer *transfer, int64_t now)
{
	const struct pier_send_stream *stream = &transfer->stream;
	uint32_t note;

	if (transfer->drive.stop)
		return pier_send_stream_owes_note(transfer)
			       ? pier_make_note(PIER_NOTE_ERROR,
						(uint64_t)-transfer->drive.stop)
			       : 0;
	if (stream->answered)
		return 0;
	note = pier_stream_rail_note(&stream->base, PIER_NOTE_FAILED,
				     pier_drive_failed_rails(&transfer->drive));
	if (!note && stream->finished && !stream->end_told)
		note = pier_position_note(PIER_NOTE_END, transfer->attr.length);
	if (!note && now >= pier_stream_speaks_at(&stream->base))
		note = pier_make_note(PIER_NOTE_ALIVE, 0);
	return note;
}

void pier_send_stream_tell(struct pier_transfer *transfer, int64_t now)
{
	struct pier_stream *stream = &transfer->stream.base;
	uint32_t note;

	pier_stream_note_stop(stream, &transfer->drive, now);
	note = stream->note ? 0 : next_note(transfer, now);
	for (uint32_t i = 0; note && i < transfer->drive.rail_count; i++) {
		struct pier_send_rail *rail = pier_transfer_rail(transfer, i);
		int posted = rail->base.flow.error
				     ? 0
				     : pier_send_rail_notify(rail, note, now);

		if (posted < 0)
			pier_drive_note_failure(&transfer->drive, i);
		if (posted <= 0)
			continue;
		pier_stream_note_posted(stream, note, now);
		transfer->in_flight++;
		return;
	}
}

void pier_send_stream_note_unseen(const struct pier_transfer *transfer)
{
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++)
		pier_recv_rail_note_unseen(&transfer->stream.notes[i]);
}

void pier_send_stream_note_done(struct pier_transfer *transfer, int error)
{
	struct pier_send_stream *stream = &transfer->stream;

	if (!error && pier_note_kind(stream->base.note) == PIER_NOTE_END)
		stream->end_told = true;
	pier_stream_note_done(&stream->base, error);
}

bool pier_send_stream_owes_note(const struct pier_transfer *transfer)
{
	return pier_stream_owes_error(&transfer->stream.base, &transfer->drive) &&
	       !transfer->stream.answered;
}

int pier_transfer_finish(struct pier_transfer *transfer)
{
	PIER_REFUSE_NULL(transfer);
	int error = pier_check_stream(&transfer->stream.base, &transfer->drive);

	if (!error)
		transfer->stream.finished = true;
	return error;
}

int pier_transfer_released(struct pier_transfer *transfer, uint64_t end)
{
	PIER_REFUSE_NULL(transfer);
	int error = pier_check_stream(&transfer->stream.base, &transfer->drive);

	if (!error && end % PIER_STREAM_BLOCK)
		error = pier_fail(EINVAL,
				  "released to %" PRIu64 ", which no block ends at", end);
	return error ? error : note_released(transfer, end, ERANGE);
}

int pier_transfer_fail(struct pier_transfer *transfer, int error)
{
	PIER_REFUSE_NULL(transfer);
	return pier_stream_fail(&transfer->stream.base, &transfer->drive, error);
}
