/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "transfer.h"
#include "core/deadline.h"
#include "core/error.h"

/* One step of a transfer: take what has completed, and post what there is room for. */

static bool is_stream(const struct pier_transfer *transfer)
{
	return transfer->stream.base.size > 0;
}

static void return_chunk(struct pier_transfer *transfer,
			 const struct pier_rail_chunk *chunk)
{
	pier_remaining_give_back(&transfer->remaining,
				 (struct pier_range){ chunk->offset, chunk->length });
}

static void take_chunk(struct pier_transfer *transfer, uint32_t index,
		       const struct pier_rail_chunk *chunk)
{
	struct pier_send_rail *rail = pier_transfer_rail(transfer, index);

	transfer->in_flight--;
	if (chunk->length == 0 && is_stream(transfer)) {
		pier_send_stream_note_done(transfer, chunk->error);
	} else if (chunk->length == 0) {
		transfer->notification_sent = false;
		transfer->notified = !chunk->error;
	} else if (chunk->error && is_stream(transfer)) {
		pier_send_stream_hold(
			transfer, index,
			(struct pier_range){ chunk->offset, chunk->length });
	} else if (chunk->error) {
		return_chunk(transfer, chunk);
	} else if (pier_send_rail_copies(rail, chunk)) {
		/* Copy after the next chunks were posted. */
		transfer->read_chunks[transfer->read_chunk_count++] =
			(struct pier_read_chunk){ index, *chunk };
	} else {
		pier_send_rail_deliver(rail, chunk);
		transfer->drive.done += chunk->length;
	}
}

static void collect_rail(struct pier_transfer *transfer, uint32_t index, int64_t now)
{
	struct pier_rail_chunk chunk;

	while (pier_send_rail_take(pier_transfer_rail(transfer, index), now, &chunk)) {
		/* A note may be acknowledged by a device whose program hangs. */
		if (!chunk.error && chunk.length > 0)
			transfer->stream.base.heard_at = now;
		take_chunk(transfer, index, &chunk);
	}
}

/* The requests of a rail that stalled can be collected at once. */
static void collect_rails(struct pier_transfer *transfer, int64_t now)
{
	if (is_stream(transfer))
		pier_send_stream_take_notes(transfer, now);
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++) {
		struct pier_send_rail *rail = pier_transfer_rail(transfer, i);
		bool failed = rail->base.error;

		collect_rail(transfer, i, now);
		if (is_stream(transfer))
			pier_send_stream_check_rail(transfer, i);
		pier_send_rail_check(rail, now);
		collect_rail(transfer, i, now);
		if (!failed)
			pier_drive_note_failure(&transfer->drive, i);
	}
	if (is_stream(transfer))
		pier_send_stream_repeat(transfer);
}

/* Copy while the NICs move other chunks. Returns whether there was something to copy. */
static bool deliver_read_chunks(struct pier_transfer *transfer)
{
	uint32_t count = transfer->read_chunk_count;

	for (uint32_t i = 0; i < count; i++) {
		const struct pier_read_chunk *read = &transfer->read_chunks[i];
		struct pier_send_rail *rail = pier_transfer_rail(transfer, read->rail);
		bool failed = rail->base.error;

		if (pier_send_rail_deliver(rail, &read->chunk))
			return_chunk(transfer, &read->chunk);
		else
			transfer->drive.done += read->chunk.length;
		if (!failed)
			pier_drive_note_failure(&transfer->drive, read->rail);
	}
	transfer->read_chunk_count = 0;
	return count > 0;
}

static bool all_arrived(const struct pier_transfer *transfer)
{
	return transfer->drive.done == transfer->attr.length &&
	       !transfer->drive.flush_error;
}

/* Once, after all bytes have arrived and before anyone is told. */
static void flush_rails(struct pier_transfer *transfer)
{
	struct pier_drive *drive = &transfer->drive;
	uint32_t index = 0;
	char reason[640];

	if (drive->done < transfer->attr.length || drive->flush_error)
		return;
	drive->flush_error = pier_drive_flush(drive, &index);
	if (!drive->flush_error)
		return;
	pier_rail_record_failure(pier_drive_rail(drive, index), drive->flush_error,
				 pier_error_message());
	snprintf(reason, sizeof(reason), "what rail %u brought is not visible: %s", index,
		 pier_error_message());
	pier_drive_stop(drive, drive->flush_error, reason);
}

/* Post a chunk on one rail. Returns whether there was one. */
static bool post_chunk(struct pier_transfer *transfer, uint32_t index, int64_t now)
{
	struct pier_send_rail *rail = pier_transfer_rail(transfer, index);
	struct pier_range range;
	int64_t length;

	if (rail->base.error || pier_remaining_empty(&transfer->remaining))
		return false;
	range = pier_remaining_first(&transfer->remaining);
	if (is_stream(transfer))
		range = pier_send_stream_clip(transfer, range);
	if (range.length == 0)
		return false;
	length = pier_send_rail_post(rail, range, now);
	if (length < 0)
		pier_drive_note_failure(&transfer->drive, index);
	if (length <= 0)
		return false;
	pier_remaining_take(&transfer->remaining, (uint64_t)length);
	transfer->in_flight++;
	transfer->stream.base.said_at = now;
	return true;
}

/* Round robin, so that each rail gets a share of the remaining bytes. */
static void post_chunks(struct pier_transfer *transfer, int64_t now)
{
	const struct pier_drive *drive = &transfer->drive;
	bool posted = true;

	while (posted) {
		posted = false;
		for (uint32_t i = 0; i < drive->rail_count && !drive->stop; i++)
			posted |= post_chunk(transfer, i, now);
	}
}

static bool needs_notification(const struct pier_transfer *transfer)
{
	return (transfer->attr.flags & PIER_TRANSFER_NOTIFY) && !transfer->notified;
}

static void notify_peer(struct pier_transfer *transfer, int64_t now)
{
	struct pier_drive *drive = &transfer->drive;

	if (!all_arrived(transfer) || !needs_notification(transfer))
		return;
	for (uint32_t i = 0; i < drive->rail_count; i++) {
		struct pier_send_rail *rail = pier_transfer_rail(transfer, i);
		int posted;

		if (rail->base.error || drive->stop || transfer->notification_sent)
			continue;
		posted = pier_send_rail_notify(rail, transfer->attr.immediate, now);
		if (posted < 0)
			pier_drive_note_failure(drive, i);
		transfer->notification_sent = posted > 0;
		transfer->in_flight += posted > 0;
	}
}

/* While there is nothing to post, a full queue is no stall. */
static void reset_queue_full_times(struct pier_transfer *transfer)
{
	if (!pier_remaining_empty(&transfer->remaining) ||
	    (all_arrived(transfer) && needs_notification(transfer)))
		return;
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++)
		pier_transfer_rail(transfer, i)->queue_full_at = 0;
}

static void report_progress(struct pier_transfer *transfer, int64_t now)
{
	const struct pier_transfer_attr *attr = &transfer->attr;
	uint64_t done = transfer->drive.done;
	bool end = all_arrived(transfer);

	if (!attr->progress || transfer->reported_end || transfer->drive.flush_error ||
	    (!end &&
	     (done == transfer->reported ||
	      now - transfer->reported_at < (int64_t)attr->progress_ms * 1000000)))
		return;
	transfer->reported = done;
	transfer->reported_at = now;
	transfer->reported_end = end;
	if (attr->progress(attr->context, done, attr->length))
		pier_drive_stop(&transfer->drive, -ECANCELED,
				"its progress callback cancelled it");
}

static void report_and_post(struct pier_transfer *transfer, int64_t now)
{
	flush_rails(transfer);
	report_progress(transfer, now);
	pier_drive_check_deadline(&transfer->drive, now);
	post_chunks(transfer, now);
}

static bool is_complete(const struct pier_transfer *transfer)
{
	return all_arrived(transfer) &&
	       (is_stream(transfer) ? pier_send_stream_is_complete(transfer)
				    : !needs_notification(transfer));
}

static void check_stream(struct pier_transfer *transfer, int64_t now)
{
	char reason[96];

	if (!is_complete(transfer) &&
	    now >= pier_stream_stalls_at(&transfer->stream.base)) {
		snprintf(reason, sizeof(reason),
			 "nothing was heard from the peer for %d ms",
			 (int)(transfer->stream.base.stall_ns / 1000000));
		pier_drive_stop(&transfer->drive, -ETIMEDOUT, reason);
	}
	pier_send_stream_tell(transfer, now);
	pier_send_stream_note_unseen(transfer);
}

/* While this end was away, the peer may have been, too: no rail has stalled. */
static void note_step(struct pier_transfer *transfer, int64_t now)
{
	if (!is_stream(transfer) || !pier_stream_note_step(&transfer->stream.base, now))
		return;
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++)
		pier_send_rail_restart_stall(pier_transfer_rail(transfer, i), now);
}

static void step_transfer(struct pier_drive *drive, int64_t deadline)
{
	struct pier_transfer *transfer = (struct pier_transfer *)drive;
	int64_t now = pier_now();

	(void)deadline;
	note_step(transfer, now);
	collect_rails(transfer, now);
	report_and_post(transfer, now);
	if (deliver_read_chunks(transfer)) {
		now = pier_now();
		report_and_post(transfer, now);
	}
	notify_peer(transfer, now);
	reset_queue_full_times(transfer);
	if (is_stream(transfer))
		check_stream(transfer, now);
	/* The peer may have told just now that it takes nothing more. */
	if (is_stream(transfer) && drive->stop && transfer->in_flight > 0)
		collect_rails(transfer, now);
	if (transfer->in_flight == 0 && !pier_send_stream_owes_note(transfer))
		pier_drive_conclude(drive, is_complete(transfer));
}

static bool needs_rail(const struct pier_rail_base *rail)
{
	return !rail->error || rail->count > 0;
}

static int64_t transfer_wake_at(const struct pier_drive *drive)
{
	const struct pier_transfer *transfer = (const struct pier_transfer *)drive;
	int64_t wake_at = drive->stop ? INT64_MAX : drive->deadline;

	if (is_stream(transfer) && pier_stream_wake_at(&transfer->stream.base) < wake_at)
		wake_at = pier_stream_wake_at(&transfer->stream.base);

	for (uint32_t i = 0; i < drive->rail_count; i++) {
		int64_t rail = pier_send_rail_deadline(pier_transfer_rail(transfer, i));

		if (rail < wake_at)
			wake_at = rail;
	}
	return wake_at;
}

const struct pier_drive_ops pier_transfer_drive_ops = {
	.name = "transfer",
	.rail_size = sizeof(struct pier_send_rail),
	.step = step_transfer,
	.needs_rail = needs_rail,
	.wake_at = transfer_wake_at,
	.has_news = pier_send_stream_has_news,
};

int pier_transfer_progress(struct pier_transfer *transfer)
{
	return pier_drive_progress(&transfer->drive);
}

int pier_transfer_wait(struct pier_transfer *transfer, int timeout_ms)
{
	return pier_drive_wait(&transfer->drive, timeout_ms);
}
