/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "step.h"

enum {
	PIECE = 1 << 20,
	GUARD = 64, /* bytes behind a message that must stay zero */
};

/* The bytes that a side sends on a lane. Neither 0 nor equal on two lanes or sides. */
static uint8_t pattern_byte(bool client, uint32_t lane, uint64_t offset)
{
	uint64_t mixed = (offset + 1) * UINT64_C(0x9e3779b97f4a7c15) +
			 lane * UINT64_C(0x517cc1b727220a95) + client;

	return (uint8_t)(mixed >> 32) | 1;
}

static size_t piece_at(uint64_t done, uint64_t length)
{
	return length - done < PIECE ? (size_t)(length - done) : PIECE;
}

static int fill_lane(struct side *side, uint32_t number, uint8_t *piece)
{
	uint64_t source = side->lanes[number].source, length = side->settings->slot;
	int error = 0;

	for (uint64_t done = 0; !error && done < length; done += PIECE) {
		size_t size = piece_at(done, length);

		for (size_t i = 0; i < size; i++)
			piece[i] = pattern_byte(side->client, number, done + i);
		error = pier_buffer_copy_to(side->buffer, source + done, piece, size);
	}
	return error;
}

/*
 * The NIC of soft0 is a thread of this process: its lock orders what this thread has
 * written before what the NIC reads, and the other way round.
 */
static int order_with_nic(struct side *side)
{
	int error = 0;

	for (uint32_t i = 0; error >= 0 && i < side->lane_count; i++)
		error = pier_channel_poll(side->lanes[i].channel);
	return error < 0 ? error : 0;
}

/* The NIC reads what this side has written. */
static int sync_for_nic(struct side *side)
{
	int error = 0;

	for (uint32_t i = 0; !error && !side->staging && i < side->rail_count; i++)
		error = pier_mr_sync_for_nic(side->rails[i].mr, 0,
					     pier_mr_length(side->rails[i].mr));
	return error ? error : order_with_nic(side);
}

/* This side reads what the NIC has written. */
static int sync_for_device(struct side *side)
{
	int error = order_with_nic(side);

	for (uint32_t i = 0; !error && !side->staging && i < side->rail_count; i++)
		error = pier_mr_sync_for_device(side->rails[i].mr, 0,
						pier_mr_length(side->rails[i].mr));
	return error;
}

/* Zeroed. Returns NULL with the failure set. */
static uint8_t *alloc_piece(struct failure *failure)
{
	uint8_t *piece = calloc(1, PIECE);

	if (!piece)
		fail(failure, EXIT_DEVICE, "out of memory");
	return piece;
}

int fill_sources(struct side *side, struct failure *failure)
{
	uint8_t *piece = alloc_piece(failure);
	int error = 0;

	if (!piece)
		return -1;
	for (uint32_t i = 0; !error && i < side->lane_count; i++)
		error = fill_lane(side, i, piece);
	if (!error)
		error = sync_for_nic(side);
	free(piece);
	return error ? fail_pier(failure, EXIT_DEVICE) : 0;
}

static uint64_t checked_length(const struct side *side, uint64_t size)
{
	return size + GUARD < side->stride ? size + GUARD : side->stride;
}

static int clear_lane(struct side *side, const struct lane *lane, uint64_t size,
		      const uint8_t *zeroes)
{
	uint64_t length = checked_length(side, size);
	int error = 0;

	for (uint64_t done = 0; !error && done < length; done += PIECE)
		error = pier_buffer_copy_to(side->buffer, lane->destination + done,
					    zeroes, piece_at(done, length));
	return error;
}

int prepare_step(struct side *side, uint64_t size, struct failure *failure)
{
	uint8_t *zeroes = alloc_piece(failure);
	int error = 0;

	if (!zeroes)
		return -1;
	for (uint32_t i = 0; !error && i < side->lane_count; i++) {
		error = clear_lane(side, &side->lanes[i], size, zeroes);
		if (!error)
			error = prepare_lane(&side->lanes[i], size);
	}
	if (!error)
		error = sync_for_nic(side);
	free(zeroes);
	return error ? fail_pier(failure, EXIT_DEVICE) : 0;
}

static uint8_t expected_byte(const struct side *side, uint32_t lane, uint64_t size,
			     uint64_t offset)
{
	return offset < size ? pattern_byte(!side->client, lane, offset) : 0;
}

static int compare_piece(const struct side *side, uint32_t lane, uint64_t size,
			 uint64_t offset, const uint8_t *piece, size_t length,
			 struct failure *failure)
{
	/* Polled memory counts the messages in the last byte. */
	uint64_t counter = side_polls_memory(side) ? size - 1 : UINT64_MAX;

	for (size_t i = 0; i < length; i++)
		if (piece[i] != expected_byte(side, lane, size, offset + i) &&
		    offset + i != counter)
			return fail(failure, EXIT_VERIFY,
				    "verification failed: byte %llu of a message of %llu "
				    "bytes (channel %u) arrived as 0x%02x, not 0x%02x",
				    (unsigned long long)(offset + i),
				    (unsigned long long)size, lane, piece[i],
				    expected_byte(side, lane, size, offset + i));
	return 0;
}

static int verify_bytes(struct side *side, uint32_t number, uint64_t size, uint8_t *piece,
			struct failure *failure)
{
	uint64_t length = checked_length(side, size);

	for (uint64_t done = 0; done < length; done += PIECE) {
		size_t part = piece_at(done, length);

		if (pier_buffer_copy_from(side->buffer,
					  side->lanes[number].destination + done, piece,
					  part) < 0)
			return fail_pier(failure, EXIT_DEVICE);
		if (compare_piece(side, number, size, done, piece, part, failure) < 0)
			return -1;
	}
	return 0;
}

/* Each fetch-and-add added 1; the first compare-and-swap replaced 0 by 1. */
static int verify_atomic(struct side *side, uint32_t number, uint64_t arrived,
			 struct failure *failure)
{
	uint64_t expected = arrived, value;

	if (side->settings->opcode == PIER_OP_COMPARE_SWAP)
		expected = arrived > 0;
	if (pier_buffer_copy_from(side->buffer, side->lanes[number].destination, &value,
				  sizeof(value)) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	if (value == expected)
		return 0;
	return fail(failure, EXIT_VERIFY,
		    "verification failed: after %llu atomics the number of channel %u is "
		    "%llu, not %llu",
		    (unsigned long long)arrived, number, (unsigned long long)value,
		    (unsigned long long)expected);
}

int verify_step(struct side *side, uint64_t size, const uint64_t *arrived,
		struct failure *failure)
{
	uint8_t *piece;
	int result = 0;

	if (sync_for_device(side) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	piece = alloc_piece(failure);
	if (!piece)
		return -1;
	for (uint32_t i = 0; result == 0 && i < side->lane_count; i++) {
		if (is_atomic(side->settings->opcode))
			result = verify_atomic(side, i, arrived[i], failure);
		else if (arrived[i])
			result = verify_bytes(side, i, size, piece, failure);
	}
	free(piece);
	return result;
}
