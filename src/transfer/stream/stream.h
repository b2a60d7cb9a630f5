/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_STREAM_STREAM_H
#define PIER_TRANSFER_STREAM_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include <pier/stream.h>

#include "transfer/drive.h"

/*
 * The state that both ends of a stream (<pier/stream.h>) have. The ends exchange notes:
 * sends of no bytes, whose immediate data is a kind and a value (docs/wire.md). Unlike
 * writes, these need no right at the peer. An end has one note in flight at a time, so
 * the receives of the other always suffice.
 */
enum pier_note {
	PIER_NOTE_ALIVE = 1,
	PIER_NOTE_ROOM = 2,    /* receiver: it has released the bytes before it */
	PIER_NOTE_END = 3,     /* the stream ends there; receiver: all is released */
	PIER_NOTE_FAILED = 4,  /* sender: a rail failed; nothing is posted on it */
	PIER_NOTE_STOPPED = 5, /* receiver: a rail failed; nothing arrives on it */
	PIER_NOTE_ERROR = 6,   /* the stream ends with this errno */
};

enum {
	PIER_NOTE_BITS = 28, /* of the value; positions are in blocks, modulo */
	PIER_NOTE_MASK = (1 << PIER_NOTE_BITS) - 1,
	PIER_NOTE_ERROR_MAX = 4095,
};

struct pier_stream {
	uint64_t size;	   /* of the buffer, in bytes; 0: this is no stream */
	uint64_t released; /* the receiver needs no byte before it */
	uint64_t seen;	   /* the limit, or the end, that the caller was told last */

	uint32_t note;	     /* in flight; 0: none */
	uint64_t rails_told; /* a bit for each: the peer knows that it failed */
	int peer_error;	     /* the peer ended the stream with it */
	bool error_said;     /* the peer may know that this end ends it */
	bool error_told;     /* it does */

	int64_t stall_ns;
	int64_t heard_at, said_at, driven_at; /* the last times */
	int64_t gives_up_at; /* telling why it ends; 0: it does not end */
};

static inline bool pier_is_note(const struct pier_result *result)
{
	return result->opcode == PIER_OP_RECV && result->has_immediate &&
	       result->byte_length == 0;
}

static inline uint32_t pier_make_note(enum pier_note kind, uint64_t value)
{
	return (uint32_t)kind << PIER_NOTE_BITS | (uint32_t)(value & PIER_NOTE_MASK);
}

static inline enum pier_note pier_note_kind(uint32_t note)
{
	return (enum pier_note)(note >> PIER_NOTE_BITS);
}

static inline uint32_t pier_note_value(uint32_t note)
{
	return note & PIER_NOTE_MASK;
}

static inline uint32_t pier_position_note(enum pier_note kind, uint64_t position)
{
	return pier_make_note(kind, position / PIER_STREAM_BLOCK);
}

/* The position of a note: the nearest to `base`, which it may be before. */
static inline uint64_t pier_note_position(uint32_t note, uint64_t base)
{
	uint32_t blocks = (uint32_t)(base / PIER_STREAM_BLOCK);
	int64_t distance = (int32_t)((note - blocks) << (32 - PIER_NOTE_BITS)) >>
			   (32 - PIER_NOTE_BITS);

	return base + (uint64_t)(distance * PIER_STREAM_BLOCK);
}

/* Errors: -EINVAL. */
int pier_check_stream_size(const char *what, uint64_t size);
int pier_check_stream(const struct pier_stream *stream, const struct pier_drive *drive);

/* The public calls that end one with an error. */
int pier_stream_fail(const struct pier_stream *stream, struct pier_drive *drive,
		     int error);

/* Begin, or begin again after channels were reset: the peer has been told nothing. */
void pier_stream_start(struct pier_stream *stream, int64_t now);

/*
 * It is driven now. Silence counts only while this end listens: a process that was
 * stopped (SIGSTOP) cannot know whether the peer was, too. Returns whether this end was
 * away.
 */
bool pier_stream_note_step(struct pier_stream *stream, int64_t now);

/* When this end is to be driven next, and when it is to say something. */
int64_t pier_stream_wake_at(const struct pier_stream *stream);
int64_t pier_stream_speaks_at(const struct pier_stream *stream);
/* If it is to end: telling the peer why takes no longer than stall_ns from now on. */
void pier_stream_note_stop(struct pier_stream *stream, const struct pier_drive *drive,
			   int64_t now);
/* Whether the peer is still to be told that the stream ends with an error. */
bool pier_stream_owes_error(const struct pier_stream *stream,
			    const struct pier_drive *drive);

/* Handle the note of the peer that it ended the stream: this end ends it, too. */
void pier_stream_take_error(struct pier_stream *stream, struct pier_drive *drive,
			    uint32_t note);

/* The note about the first failed rail that the peer does not know; 0: it knows all. */
uint32_t pier_stream_rail_note(const struct pier_stream *stream, enum pier_note kind,
			       uint64_t failed_rails);

/* A note was posted. */
void pier_stream_note_posted(struct pier_stream *stream, uint32_t note, int64_t now);
/* The note in flight has completed: the peer has it, or the rail failed. */
void pier_stream_note_done(struct pier_stream *stream, int error);

#endif
