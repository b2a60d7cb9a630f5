/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "stream.h"
#include "core/deadline.h"
#include "core/error.h"

enum {
	REPORTS_PER_STALL = 4,
};

/* A peer that sleeps is woken this often at most. */
static const int64_t report_max_ns = 1000000000;

int pier_check_stream_size(const char *what, uint64_t size)
{
	if (size % PIER_STREAM_BLOCK == 0 && size <= PIER_STREAM_SIZE_MAX)
		return 0;
	return pier_fail(EINVAL,
			 "%s: stream_size %" PRIu64
			 " is no multiple of %d, or more than 256 GiB",
			 what, size, PIER_STREAM_BLOCK);
}

int pier_check_stream(const struct pier_stream *stream, const struct pier_drive *drive)
{
	int error = pier_check_process(&drive->object);

	return error || stream->size
		       ? error
		       : pier_fail(EINVAL, "%s: not a stream: stream_size is 0",
				   drive->ops->name);
}

int pier_stream_fail(const struct pier_stream *stream, struct pier_drive *drive,
		     int error)
{
	int wrong = pier_check_stream(stream, drive);

	if (wrong)
		return wrong;
	if (error >= 0 || error < -PIER_NOTE_ERROR_MAX || pier_is_of_wait(error))
		return pier_fail(
			EINVAL,
			"%s: error %d is not -1 to -%d, or is an error of a wait "
			"(-ETIMEDOUT, -EINTR)",
			drive->ops->name, error, PIER_NOTE_ERROR_MAX);
	return pier_drive_fail(drive, error);
}

void pier_stream_start(struct pier_stream *stream, int64_t now)
{
	stream->note = 0;
	stream->gives_up_at = 0;
	stream->rails_told = 0;
	stream->peer_error = 0;
	stream->error_said = stream->error_told = false;
	stream->heard_at = stream->said_at = stream->driven_at = now;
}

static int64_t report_interval(const struct pier_stream *stream)
{
	int64_t interval = stream->stall_ns / REPORTS_PER_STALL;

	return interval < report_max_ns ? interval : report_max_ns;
}

bool pier_stream_note_step(struct pier_stream *stream, int64_t now)
{
	bool away = now - stream->driven_at > 2 * report_interval(stream);

	if (away)
		stream->heard_at = now;
	stream->driven_at = now;
	return away;
}

int64_t pier_stream_wake_at(const struct pier_stream *stream)
{
	return stream->gives_up_at ? stream->gives_up_at
				   : stream->driven_at + report_interval(stream);
}

int64_t pier_stream_speaks_at(const struct pier_stream *stream)
{
	return stream->said_at + report_interval(stream);
}

void pier_stream_note_stop(struct pier_stream *stream, const struct pier_drive *drive,
			   int64_t now)
{
	if (drive->stop && stream->gives_up_at == 0)
		stream->gives_up_at = now + stream->stall_ns;
}

bool pier_stream_owes_error(const struct pier_stream *stream,
			    const struct pier_drive *drive)
{
	return stream->size && drive->stop && !stream->peer_error &&
	       !stream->error_told && pier_drive_count_working(drive) > 0 &&
	       (stream->gives_up_at == 0 || pier_now() < stream->gives_up_at);
}

void pier_stream_take_error(struct pier_stream *stream, struct pier_drive *drive,
			    uint32_t note)
{
	int error = (int)(pier_note_value(note) & PIER_NOTE_ERROR_MAX);

	stream->peer_error = error && !pier_is_of_wait(-error) ? -error : -EBADMSG;
	pier_drive_stop(drive, stream->peer_error, "the peer ended the stream: %s",
			strerror(-stream->peer_error));
}

uint32_t pier_stream_rail_note(const struct pier_stream *stream, enum pier_note kind,
			       uint64_t failed_rails)
{
	uint64_t untold = failed_rails & ~stream->rails_told;

	return untold ? pier_make_note(kind, (uint64_t)__builtin_ctzll(untold)) : 0;
}

void pier_stream_note_posted(struct pier_stream *stream, uint32_t note, int64_t now)
{
	stream->note = note;
	stream->said_at = now;
	stream->error_said |= pier_note_kind(note) == PIER_NOTE_ERROR;
}

void pier_stream_note_done(struct pier_stream *stream, int error)
{
	uint32_t note = stream->note;
	enum pier_note kind = pier_note_kind(note);

	stream->note = 0;
	if (error)
		return;
	if (kind == PIER_NOTE_FAILED || kind == PIER_NOTE_STOPPED)
		stream->rails_told |= UINT64_C(1) << pier_note_value(note);
	if (kind == PIER_NOTE_ERROR)
		stream->error_told = true;
}
