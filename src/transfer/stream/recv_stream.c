/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "channel/posting.h"
#include "core/deadline.h"
#include "core/error.h"
#include "recv_stream.h"

void pier_recv_stream_start(struct pier_receiver *receiver)
{
	struct pier_recv_stream *stream = &receiver->stream;

	stream->base.size = receiver->attr.stream_size;
	stream->base.stall_ns = receiver->stall_ns;
	stream->room_told = stream->end_told = false;
	pier_stream_start(&stream->base, receiver->active_at);
}

/*
 * The offset of an announced chunk has 32 bits. It is near the released bytes: before
 * them is a chunk that a rail repeats because it does not know that it had arrived.
 */
static int read_chunk(const struct pier_receiver *receiver,
		      const struct pier_result *result, struct pier_range *ret_chunk)
{
	const struct pier_recv_stream *stream = &receiver->stream;
	uint64_t size = stream->base.size, released = stream->base.released;
	int64_t distance = (int32_t)(result->immediate -
				     (uint32_t)(released / PIER_STREAM_BLOCK));
	uint64_t length = (uint64_t)result->byte_length * PIER_STREAM_BLOCK;
	uint64_t offset = released + (uint64_t)(distance * PIER_STREAM_BLOCK);
	uint64_t end = offset + length;

	if (!pier_is_announcement(result) || length == 0)
		return pier_fail(EBADMSG, "the peer sent neither a chunk nor a note");
	if (length > size ||
	    (distance < 0 && (offset > released || released - offset > size)) ||
	    (distance >= 0 && end - released > size) || offset % size + length > size ||
	    (stream->ends && end > receiver->drive.length))
		return pier_fail(EBADMSG,
				 "the peer announced a chunk of %u blocks at block %u, "
				 "for which the stream has no room",
				 result->byte_length, result->immediate);
	if (distance < 0)
		offset = end > released ? released : end;
	*ret_chunk = (struct pier_range){ offset % size, end - offset };
	return 0;
}

static void fail_rail(struct pier_receiver *receiver, uint32_t index, int error,
		      const char *sentence)
{
	struct pier_rail_base *rail = pier_drive_rail(&receiver->drive, index);

	if (rail->flow.error)
		return;
	pier_flow_stop(&rail->flow, error, sentence);
	pier_drive_note_failure(&receiver->drive, index);
}

/* The peer posts nothing more on a rail: late packets must not arrive, either. */
static int take_failed_rail(struct pier_receiver *receiver, uint32_t index)
{
	if (index >= receiver->drive.rail_count)
		return pier_fail(EBADMSG, "the peer reported rail %u of %u", index,
				 receiver->drive.rail_count);
	if (!receiver->drive.ended)
		fail_rail(receiver, index, -ECANCELED,
			  "the peer's end of the rail has failed");
	return 0;
}

static int take_end(struct pier_receiver *receiver, uint32_t note)
{
	struct pier_recv_stream *stream = &receiver->stream;
	uint64_t end = pier_note_position(note, stream->base.released);

	if (stream->ends && end == receiver->drive.length)
		return 0;
	if (stream->ends || end < stream->arrived ||
	    end - stream->base.released > stream->base.size)
		return pier_fail(EBADMSG,
				 "the peer ended a stream at %" PRIu64 ", but %" PRIu64
				 " bytes have arrived",
				 end, stream->arrived);
	stream->ends = true;
	receiver->drive.length = end;
	return 0;
}

static int take_note(struct pier_receiver *receiver, uint32_t note)
{
	switch (pier_note_kind(note)) {
	case PIER_NOTE_ALIVE:
		return 0;
	case PIER_NOTE_END:
		return take_end(receiver, note);
	case PIER_NOTE_FAILED:
		return take_failed_rail(receiver, pier_note_value(note));
	case PIER_NOTE_ERROR:
		pier_stream_take_error(&receiver->stream.base, &receiver->drive, note);
		return 0;
	default:
		return pier_fail(EBADMSG, "the sender of a stream sent note %#x", note);
	}
}

int pier_recv_stream_take(struct pier_receiver *receiver,
			  const struct pier_result *result, struct pier_range *ret_chunk)
{
	receiver->active_at = pier_now();
	*ret_chunk = (struct pier_range){ 0, 0 };
	if (pier_is_note(result))
		return take_note(receiver, result->immediate);
	return read_chunk(receiver, result, ret_chunk);
}

/* The block of the buffer that a position is in. */
static uint64_t block_of(const struct pier_receiver *receiver, uint64_t position)
{
	return position % receiver->stream.base.size / PIER_STREAM_BLOCK;
}

static void empty_place(struct pier_receiver *receiver, uint64_t position)
{
	uint64_t block = block_of(receiver, position);

	receiver->blocks[block / 64] &= ~(UINT64_C(1) << (block % 64));
}

void pier_recv_stream_advance(struct pier_receiver *receiver)
{
	struct pier_recv_stream *stream = &receiver->stream;
	uint64_t end = stream->base.released + stream->base.size;

	while (stream->arrived < end &&
	       pier_receiver_has_block(receiver, block_of(receiver, stream->arrived)))
		stream->arrived += PIER_STREAM_BLOCK;
	if (!stream->ends)
		receiver->drive.length = stream->arrived;
}

static bool all_released(const struct pier_receiver *receiver)
{
	return receiver->stream.ends &&
	       receiver->stream.base.released == receiver->drive.length;
}

static bool room_is_due(const struct pier_recv_stream *stream, int64_t now)
{
	return !stream->room_told || stream->told != stream->base.released ||
	       now >= pier_stream_speaks_at(&stream->base);
}

static uint32_t next_note(struct pier_receiver *receiver, int64_t now)
{
	const struct pier_recv_stream *stream = &receiver->stream;
	uint32_t note;

	if (receiver->drive.stop)
		return pier_recv_stream_owes_note(receiver)
			       ? pier_make_note(PIER_NOTE_ERROR,
						(uint64_t)-receiver->drive.stop)
			       : 0;
	note = pier_stream_rail_note(&stream->base, PIER_NOTE_STOPPED,
				     pier_drive_failed_rails(&receiver->drive));
	if (!note && all_released(receiver))
		note = pier_position_note(PIER_NOTE_END, stream->base.released);
	else if (!note && room_is_due(stream, now))
		note = pier_position_note(PIER_NOTE_ROOM, stream->base.released);
	return note;
}

/* Returns whether the note in flight has completed, or its rail failed. */
static bool collect_note(struct pier_receiver *receiver)
{
	struct pier_recv_stream *stream = &receiver->stream;
	enum pier_note kind = pier_note_kind(stream->base.note);
	struct pier_result result = { .error = 0 };
	int done = pier_work_poll(stream->channel, stream->work, &result);

	if (done == 0)
		return false;
	if (done > 0)
		done = result.error;
	if (!done && kind == PIER_NOTE_ROOM) {
		stream->room_told = true;
		stream->told = stream->telling;
	}
	stream->end_told = !done && kind == PIER_NOTE_END;
	pier_stream_note_done(&stream->base, done);
	for (uint32_t i = 0; done && i < receiver->drive.rail_count; i++)
		if (pier_drive_rail(&receiver->drive, i)->flow.channel == stream->channel)
			fail_rail(receiver, i, done, pier_error_message());
	return true;
}

static void post_note(struct pier_receiver *receiver, uint32_t note, int64_t now)
{
	struct pier_recv_stream *stream = &receiver->stream;

	for (uint32_t i = 0; i < receiver->drive.rail_count; i++) {
		struct pier_rail_base *rail = pier_drive_rail(&receiver->drive, i);
		int error;

		if (rail->flow.error)
			continue;
		error = pier_post_immediate(rail->flow.channel, PIER_OP_SEND, note,
					    &stream->work);
		if (error && error != -EAGAIN)
			fail_rail(receiver, i, error, pier_error_message());
		if (error)
			continue;
		stream->channel = rail->flow.channel;
		stream->telling = stream->base.released;
		pier_stream_note_posted(&stream->base, note, now);
		return;
	}
}

static void note_unseen(const struct pier_receiver *receiver)
{
	for (uint32_t i = 0; i < receiver->drive.rail_count && !receiver->drive.stop; i++)
		pier_recv_rail_note_unseen(pier_drive_rail(&receiver->drive, i));
}

static bool note_is_pending(struct pier_receiver *receiver)
{
	return receiver->stream.base.note && !collect_note(receiver);
}

void pier_recv_stream_tell(struct pier_receiver *receiver, int64_t now)
{
	struct pier_recv_stream *stream = &receiver->stream;
	uint32_t note;

	pier_stream_note_stop(&stream->base, &receiver->drive, now);
	note = note_is_pending(receiver) ? 0 : next_note(receiver, now);
	note_unseen(receiver);
	if (note)
		post_note(receiver, note, now);
}

void pier_recv_stream_end(struct pier_receiver *receiver)
{
	struct pier_recv_stream *stream = &receiver->stream;

	if (stream->base.note)
		pier_work_drop(stream->channel, stream->work);
	stream->base.note = 0;
}

bool pier_recv_stream_is_complete(const struct pier_receiver *receiver)
{
	/* A reason to stop comes too late then, unless the peer may have heard it. */
	return all_released(receiver) &&
	       (receiver->stream.end_told ||
		(receiver->drive.stop && !receiver->stream.base.error_said));
}

bool pier_recv_stream_owes_note(const struct pier_receiver *receiver)
{
	return pier_stream_owes_error(&receiver->stream.base, &receiver->drive) &&
	       !pier_recv_stream_is_complete(receiver);
}

bool pier_recv_stream_has_news(const struct pier_drive *drive)
{
	const struct pier_receiver *receiver = (const struct pier_receiver *)drive;

	return !drive->stop && receiver->stream.arrived != receiver->stream.base.seen;
}

/* A flush is tried once: without it the stream cannot go on. */
static int flush_arrived(struct pier_receiver *receiver)
{
	struct pier_drive *drive = &receiver->drive;
	uint32_t index;

	if (drive->flush_error)
		return pier_fail(-drive->flush_error, "%s", drive->reason);
	if (drive->ended && drive->owes_flush)
		return pier_fail(EIO, "the receiver has ended, and the last bytes that "
				      "arrived could not be made visible");
	drive->flush_error = pier_drive_flush(drive, &index);
	if (drive->flush_error)
		pier_drive_stop(drive, drive->flush_error, "%s", pier_error_message());
	return drive->flush_error;
}

int pier_receiver_arrived(struct pier_receiver *receiver, uint64_t *ret_end)
{
	PIER_REFUSE_NULL(receiver, ret_end);
	int error = pier_check_stream(&receiver->stream.base, &receiver->drive);
	uint64_t end = receiver->stream.arrived;

	if (!error && end != receiver->stream.base.seen)
		error = flush_arrived(receiver);
	if (error)
		return error;
	receiver->stream.base.seen = end;
	*ret_end = end;
	return 0;
}

int pier_receiver_release(struct pier_receiver *receiver, uint64_t end)
{
	PIER_REFUSE_NULL(receiver);
	struct pier_recv_stream *stream = &receiver->stream;
	int error = pier_check_stream(&stream->base, &receiver->drive);

	if (error)
		return error;
	if (end % PIER_STREAM_BLOCK || end < stream->base.released ||
	    end > stream->base.seen)
		return pier_fail(EINVAL,
				 "releasing a stream to %" PRIu64
				 ": it is released to %" PRIu64
				 ", and had arrived to %" PRIu64,
				 end, stream->base.released, stream->base.seen);
	for (; stream->base.released < end; stream->base.released += PIER_STREAM_BLOCK)
		empty_place(receiver, stream->base.released);
	/* Bytes that arrived earlier may now follow without a gap. */
	pier_recv_stream_advance(receiver);
	return 0;
}

int pier_receiver_fail(struct pier_receiver *receiver, int error)
{
	PIER_REFUSE_NULL(receiver);
	return pier_stream_fail(&receiver->stream.base, &receiver->drive, error);
}
