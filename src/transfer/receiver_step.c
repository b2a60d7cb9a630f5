/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "announce.h"
#include "receiver.h"
#include "core/deadline.h"
#include "core/error.h"

/* One step of a receiver: take the chunks that arrived, and post receives again. */

enum {
	ROUNDS = 32, /* per step: a hostile peer may send as fast as chunks are copied */
};

static bool is_stream(const struct pier_receiver *receiver)
{
	return receiver->stream.base.size > 0;
}

/* How many bytes of a chunk are new. */
static uint64_t count_new_bytes(const struct pier_receiver *receiver,
				struct pier_range chunk)
{
	uint64_t end = chunk.offset + chunk.length, count = 0;

	for (uint64_t at = chunk.offset; at < end; at += PIER_ANNOUNCE_BLOCK) {
		uint64_t left = end - at;

		if (!pier_receiver_has_block(receiver, at / PIER_ANNOUNCE_BLOCK))
			count += left < PIER_ANNOUNCE_BLOCK ? left : PIER_ANNOUNCE_BLOCK;
	}
	return count;
}

static void mark_blocks(struct pier_receiver *receiver, struct pier_range chunk)
{
	uint64_t block = chunk.offset / PIER_ANNOUNCE_BLOCK;
	uint64_t last = (chunk.offset + chunk.length - 1) / PIER_ANNOUNCE_BLOCK;

	for (; block <= last; block++)
		receiver->blocks[block / 64] |= UINT64_C(1) << (block % 64);
}

/* Bytes that arrived before are not copied again: the program may be using them. */
static void deliver_chunk(struct pier_receiver *receiver, struct pier_recv_rail *rail,
			  struct pier_range chunk)
{
	uint64_t count = count_new_bytes(receiver, chunk);
	int error;

	if (count == 0 || receiver->lost)
		return;
	error = pier_rail_deliver(&rail->base, chunk);
	if (error) {
		receiver->lost = true;
		pier_drive_stop(&receiver->drive, error, pier_error_message());
		return;
	}
	mark_blocks(receiver, chunk);
	rail->base.done += count;
	receiver->drive.done += count;
	receiver->active_at = pier_now();
}

/* Take what the peer announced: 1 or -EBADMSG. */
static int take_announcement(struct pier_receiver *receiver, struct pier_recv_rail *rail,
			     const struct pier_result *result)
{
	struct pier_range chunk;
	int error = is_stream(receiver) ? pier_recv_stream_take(receiver, result, &chunk)
					: pier_read_announcement(
						  result, receiver->drive.length, &chunk);

	if (error)
		return error;
	deliver_chunk(receiver, rail, chunk);
	if (is_stream(receiver))
		pier_recv_stream_advance(receiver);
	return 1;
}

/*
 * Take a chunk of one rail: 1, 0 none, or -EBADMSG. While the receiver runs, a receive is
 * posted before the chunk is copied, so that the sender need not wait for the copy.
 */
static int take_chunk(struct pier_receiver *receiver, uint32_t index)
{
	struct pier_recv_rail *rail = pier_receiver_rail(receiver, index);
	bool failed = rail->base.error;
	struct pier_result result;
	int taken = pier_recv_rail_take(rail, &result);

	if (taken > 0 && !receiver->drive.ended)
		pier_recv_rail_post(rail);
	if (taken > 0)
		taken = take_announcement(receiver, rail, &result);
	if (taken < 0)
		pier_drive_stop(&receiver->drive, taken, pier_error_message());
	if (!failed)
		pier_drive_note_failure(&receiver->drive, index);
	return taken;
}

static bool all_arrived(const struct pier_receiver *receiver)
{
	return is_stream(receiver) ? pier_recv_stream_is_complete(receiver)
				   : receiver->drive.done == receiver->drive.length;
}

/* One chunk of each rail, because copying takes long. Whether there was one. */
static bool take_round(struct pier_receiver *receiver)
{
	bool taken = false;

	for (uint32_t i = 0; i < receiver->drive.rail_count; i++)
		if (!receiver->drive.stop && !all_arrived(receiver))
			taken |= take_chunk(receiver, i) > 0;
	return taken;
}

/*
 * Take a bounded number of chunks. Leftovers may already be polled, so no event will
 * announce them.
 */
static void take_chunks(struct pier_receiver *receiver, int64_t deadline)
{
	bool more = true;

	if (receiver->drive.deadline < deadline)
		deadline = receiver->drive.deadline;
	for (int i = 0; more && i < ROUNDS && (i == 0 || pier_now() < deadline); i++)
		more = take_round(receiver);
	receiver->drive.leftovers = more;
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++) {
		struct pier_recv_rail *rail = pier_receiver_rail(receiver, i);

		/* A rail that was taken later may have collected for an earlier one. */
		if (!rail->base.error && (more || !rail->base.channel->attr.cq))
			rail->base.channel->unseen = more;
	}
}

/* Take everything from failed rails: their channels have stopped. */
static void drain_failed_rails(struct pier_receiver *receiver)
{
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++) {
		const struct pier_recv_rail *rail = pier_receiver_rail(receiver, i);

		while (rail->base.error && rail->base.count > 0 &&
		       take_chunk(receiver, i) != 0)
			continue;
	}
}

/* Post receives for later chunks; a channel that was reset has none to keep. */
static void refill_rails(struct pier_receiver *receiver)
{
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++) {
		struct pier_recv_rail *rail = pier_receiver_rail(receiver, i);

		if (!rail->base.error && pier_recv_rail_post(rail))
			pier_drive_note_failure(&receiver->drive, i);
	}
}

int pier_receiver_catch_up(struct pier_receiver *receiver)
{
	struct pier_drive *drive = &receiver->drive;

	if (!receiver->lost) {
		bool owed = drive->owes_flush;

		drive->stop = 0;
		while (take_round(receiver))
			continue;
		refill_rails(receiver);
		drain_failed_rails(receiver);
		pier_drive_settle_flushes(drive);
		drive->owes_flush |= owed;
	}
	if (drive->stop == -EBADMSG)
		return pier_fail(EBADMSG, "resuming a receiver: %s", drive->reason);
	if (receiver->lost)
		return pier_fail(EIO,
				 "resuming a receiver: bytes that had arrived could not "
				 "be copied, and the peer will not send them again: %s",
				 drive->reason);
	return 0;
}

/* Once, after all bytes have arrived. */
static void flush_rails(struct pier_receiver *receiver)
{
	struct pier_drive *drive = &receiver->drive;
	uint32_t index;

	drive->flush_error = pier_drive_flush(drive, &index);
	if (!drive->flush_error)
		return;
	/* A cancellation would have come too late, so this is the reason. */
	drive->stop = 0;
	pier_drive_stop(drive, drive->flush_error, pier_error_message());
}

static int64_t receiver_wake_at(const struct pier_drive *drive)
{
	const struct pier_receiver *receiver = (const struct pier_receiver *)drive;
	int64_t stalls_at = receiver->active_at + receiver->stall_ns;

	if (is_stream(receiver) &&
	    pier_stream_wake_at(&receiver->stream.base) < stalls_at)
		stalls_at = pier_stream_wake_at(&receiver->stream.base);
	return stalls_at < drive->deadline ? stalls_at : drive->deadline;
}

static void check_times(struct pier_receiver *receiver)
{
	/* Of a stream, the time of the step: the process may be stopped within it. */
	int64_t now = is_stream(receiver) ? receiver->stream.base.driven_at : pier_now();
	char reason[96];

	pier_drive_check_deadline(&receiver->drive, now);
	if (now < receiver->active_at + receiver->stall_ns)
		return;
	snprintf(reason, sizeof(reason), "nothing new arrived within %" PRId64 " ms",
		 receiver->stall_ns / 1000000);
	pier_drive_stop(&receiver->drive, -ETIMEDOUT, reason);
}

static void step_receiver(struct pier_drive *drive, int64_t deadline)
{
	struct pier_receiver *receiver = (struct pier_receiver *)drive;
	int64_t now = pier_now();

	if (is_stream(receiver) && pier_stream_note_step(&receiver->stream.base, now))
		receiver->active_at = now;
	take_chunks(receiver, deadline);
	drain_failed_rails(receiver);
	/* Of a stream, all bytes have been flushed and used. */
	if (all_arrived(receiver) && !is_stream(receiver))
		flush_rails(receiver);
	else if (!drive->stop)
		check_times(receiver);
	if (is_stream(receiver))
		pier_recv_stream_tell(receiver, pier_now());
	if (pier_recv_stream_owes_note(receiver))
		return;
	/* Once all bytes are visible, a reason to stop came too late. */
	pier_drive_conclude(drive, all_arrived(receiver) && !receiver->lost &&
					   !drive->flush_error);
	if (drive->ended)
		pier_recv_stream_end(receiver);
}

static bool needs_rail(const struct pier_rail_base *rail)
{
	return !rail->error;
}

const struct pier_drive_ops pier_receiver_drive_ops = {
	.name = "receiver",
	.rail_size = sizeof(struct pier_recv_rail),
	.step = step_receiver,
	.needs_rail = needs_rail,
	.wake_at = receiver_wake_at,
	.has_news = pier_recv_stream_has_news,
};

int pier_receiver_progress(struct pier_receiver *receiver)
{
	return pier_drive_progress(&receiver->drive);
}

int pier_receiver_wait(struct pier_receiver *receiver, int timeout_ms)
{
	return pier_drive_wait(&receiver->drive, timeout_ms);
}
