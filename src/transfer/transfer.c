/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/caller.h"
#include "core/deadline.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/extensible.h"
#include "digest.h"
#include "remaining.h"
#include "stream/send_stream.h"

/* One step of a transfer: take what has completed, and post what there is room for. */

static bool is_stream(const struct pier_transfer *transfer)
{
	return transfer->stream.base.size > 0;
}

static void return_chunk(struct pier_transfer *transfer, const struct pier_flight *chunk)
{
	pier_remaining_give_back(&transfer->remaining,
				 (struct pier_range){ chunk->offset, chunk->length });
}

/* The bytes of a chunk have arrived. If there is a check, they count after it. */
static void note_arrival(struct pier_transfer *transfer, struct pier_send_rail *rail,
			 const struct pier_flight *chunk)
{
	struct pier_check *check = chunk->owner;

	if (!check) {
		transfer->drive.done += chunk->length;
		return;
	}
	check->state = PIER_CHECK_WAITING;
	rail->base.digests->waiting++;
	transfer->in_flight++;
}

/* The bytes of a chunk did not arrive. */
static void lose_chunk(struct pier_transfer *transfer, const struct pier_flight *chunk)
{
	if (chunk->owner)
		((struct pier_check *)chunk->owner)->state = PIER_CHECK_FREE;
	return_chunk(transfer, chunk);
}

/* Chunks that wait for their check are moved again, if this is not the end. */
static bool drop_checks(struct pier_transfer *transfer, struct pier_send_rail *rail)
{
	struct pier_digests *digests = rail->base.digests;
	bool dropped = false;

	while (digests && digests->waiting > 0) {
		struct pier_check *check = pier_digests_find(digests, PIER_CHECK_WAITING);

		check->state = PIER_CHECK_FREE;
		digests->waiting--;
		transfer->in_flight--;
		pier_remaining_give_back(&transfer->remaining, check->range);
		dropped = true;
	}
	return dropped;
}

/* Bytes that differ end the transfer: nothing can be trusted before their cause is known.
 */
static void judge_chunk(struct pier_transfer *transfer, uint32_t index,
			const struct pier_flight *chunk)
{
	int error = pier_send_rail_judge(pier_transfer_rail(transfer, index), chunk);

	if (!error) {
		transfer->drive.done += chunk->length;
		return;
	}
	return_chunk(transfer, chunk);
	if (error == -EBADMSG)
		pier_drive_stop(&transfer->drive, error, "rail %u of %u: %s", index,
				transfer->drive.rail_count, pier_error_message());
}

static bool was_read_again(const struct pier_flight *chunk)
{
	const struct pier_check *check = chunk->owner;

	return check && check->state == PIER_CHECK_READING;
}

static void take_chunk(struct pier_transfer *transfer, uint32_t index,
		       const struct pier_flight *chunk)
{
	struct pier_send_rail *rail = pier_transfer_rail(transfer, index);

	transfer->in_flight--;
	if (chunk->length == 0 && is_stream(transfer)) {
		pier_send_stream_note_done(transfer, chunk->error);
	} else if (chunk->length == 0) {
		transfer->notification_sent = false;
		transfer->notified = !chunk->error;
	} else if (chunk->error && is_stream(transfer)) {
		struct pier_send_stream *stream = &transfer->stream;

		/* Until the peer's end of the rail has stopped. */
		stream->held[stream->held_count++] = (struct pier_held_chunk){
			index, { chunk->offset, chunk->length }
		};
	} else if (chunk->error) {
		lose_chunk(transfer, chunk);
	} else if (was_read_again(chunk)) {
		judge_chunk(transfer, index, chunk);
	} else if (pier_send_rail_copies(rail, chunk)) {
		/* Copy after the next chunks were posted. */
		transfer->read_chunks[transfer->read_chunk_count++] =
			(struct pier_read_chunk){ index, *chunk };
	} else {
		pier_send_rail_deliver(rail, chunk);
		note_arrival(transfer, rail, chunk);
	}
}

static void collect_rail(struct pier_transfer *transfer, uint32_t index, int64_t now)
{
	struct pier_flow *flow = &pier_transfer_rail(transfer, index)->base.flow;
	struct pier_result result;
	struct pier_flight chunk;

	while (pier_flow_take(flow, now, &chunk, &result)) {
		/* A note may be acknowledged by a device whose program hangs. */
		if (!chunk.error && chunk.length > 0)
			transfer->stream.base.heard_at = now;
		take_chunk(transfer, index, &chunk);
	}
}

/* The requests of a rail that stalled can mostly be collected at once. */
static void collect_rails(struct pier_transfer *transfer, int64_t now)
{
	if (is_stream(transfer))
		pier_send_stream_take_notes(transfer, now);
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++) {
		struct pier_send_rail *rail = pier_transfer_rail(transfer, i);
		bool failed = rail->base.flow.error;

		collect_rail(transfer, i, now);
		if (is_stream(transfer))
			pier_send_stream_check_rail(transfer, i);
		pier_flow_check(&rail->base.flow, now);
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
		bool failed = rail->base.flow.error;

		if (pier_send_rail_deliver(rail, &read->chunk))
			lose_chunk(transfer, &read->chunk);
		else
			note_arrival(transfer, rail, &read->chunk);
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

	if (drive->done < transfer->attr.length || drive->flush_error)
		return;
	drive->flush_error = pier_drive_flush(drive, &index);
	if (!drive->flush_error)
		return;
	pier_flow_fail(&pier_drive_rail(drive, index)->flow, drive->flush_error,
		       pier_error_message());
	pier_drive_stop(drive, drive->flush_error,
			"cannot flush the data that arrived on rail %u: %s", index,
			pier_error_message());
}

/* Post a chunk on one rail. Returns whether there was one. */
static bool post_chunk(struct pier_transfer *transfer, uint32_t index, int64_t now)
{
	struct pier_send_rail *rail = pier_transfer_rail(transfer, index);
	struct pier_range range;
	int64_t length;

	if (rail->base.flow.error || pier_remaining_empty(&transfer->remaining))
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

/* Read arrived chunks of one rail once more. Returns whether something changed. */
static bool post_checks(struct pier_transfer *transfer, uint32_t index, int64_t now)
{
	struct pier_send_rail *rail = pier_transfer_rail(transfer, index);
	bool failed = rail->base.flow.error, posted = false;

	while (pier_send_rail_post_check(rail, now) > 0)
		posted = true;
	if (!failed)
		pier_drive_note_failure(&transfer->drive, index);
	if (rail->base.flow.error)
		posted |= drop_checks(transfer, rail);
	return posted;
}

/* Round robin, so that each rail gets a share of the remaining bytes. */
static void post_chunks(struct pier_transfer *transfer, int64_t now)
{
	const struct pier_drive *drive = &transfer->drive;
	bool posted = true;

	while (posted) {
		posted = false;
		for (uint32_t i = 0; i < drive->rail_count && !drive->stop; i++) {
			posted |= post_chunk(transfer, i, now);
			posted |= post_checks(transfer, i, now);
		}
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

		if (rail->base.flow.error || drive->stop || transfer->notification_sent)
			continue;
		posted = pier_send_rail_notify(rail, transfer->attr.immediate, now);
		if (posted < 0)
			pier_drive_note_failure(drive, i);
		transfer->notification_sent = posted > 0;
		transfer->in_flight += posted > 0;
	}
}

static void reset_queue_full_times(struct pier_transfer *transfer)
{
	if (!pier_remaining_empty(&transfer->remaining) ||
	    (all_arrived(transfer) && needs_notification(transfer)))
		return;
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++) {
		struct pier_rail_base *rail = pier_drive_rail(&transfer->drive, i);

		if (!rail->digests || rail->digests->waiting == 0)
			pier_flow_wants_no_room(&rail->flow);
	}
}

/* With a reason to stop, nothing is read once more. */
static void drop_all_checks(struct pier_transfer *transfer)
{
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++)
		drop_checks(transfer, pier_transfer_rail(transfer, i));
}

/* A transfer that has ended holds no region, so the caller can release the PD. */
static void close_digests(struct pier_transfer *transfer)
{
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++) {
		struct pier_rail_base *rail = pier_drive_rail(&transfer->drive, i);

		pier_digests_close(rail->digests);
		rail->digests = NULL;
	}
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
	post_chunks(transfer, now);
}

static bool is_complete(const struct pier_transfer *transfer)
{
	return all_arrived(transfer) &&
	       (is_stream(transfer) ? transfer->stream.answered
				    : !needs_notification(transfer));
}

static void check_stream(struct pier_transfer *transfer, int64_t now)
{
	const struct pier_stream *stream = &transfer->stream.base;

	if (!is_complete(transfer) && now >= stream->heard_at + stream->stall_ns)
		pier_drive_stop(&transfer->drive, -EHOSTUNREACH,
				"nothing was heard from the peer for %d ms",
				(int)(stream->stall_ns / 1000000));
	pier_send_stream_tell(transfer, now);
	pier_send_stream_note_unseen(transfer);
}

/* While this end was away, the peer may have been, too: no rail has stalled. */
static void note_step(struct pier_transfer *transfer, int64_t now)
{
	if (!is_stream(transfer) || !pier_stream_note_step(&transfer->stream.base, now))
		return;
	for (uint32_t i = 0; i < transfer->drive.rail_count; i++)
		pier_flow_restart_stall(&pier_transfer_rail(transfer, i)->base.flow, now);
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
	if (drive->stop)
		drop_all_checks(transfer);
	if (transfer->in_flight == 0 && !pier_send_stream_owes_note(transfer) &&
	    !pier_drive_is_stopping(drive))
		pier_drive_conclude(drive, is_complete(transfer));
	if (drive->ended)
		close_digests(transfer);
}

static int64_t transfer_wake_at(const struct pier_drive *drive)
{
	const struct pier_transfer *transfer = (const struct pier_transfer *)drive;

	return is_stream(transfer) ? pier_stream_wake_at(&transfer->stream.base)
				   : INT64_MAX;
}

static const struct pier_drive_ops drive_ops = {
	.name = "transfer",
	.rail_size = sizeof(struct pier_send_rail),
	.step = step_transfer,
	.wake_at = transfer_wake_at,
	.has_news = pier_send_stream_has_news,
};

int pier_transfer_progress(struct pier_transfer *transfer)
{
	PIER_REFUSE_NULL(transfer);
	return pier_drive_progress(&transfer->drive);
}

int pier_transfer_wait(struct pier_transfer *transfer, int timeout_ms)
{
	PIER_REFUSE_NULL(transfer);
	return pier_drive_wait(&transfer->drive, timeout_ms);
}

enum {
	KNOWN_FLAGS = PIER_TRANSFER_FAIL_FAST | PIER_TRANSFER_NOTIFY |
		      PIER_TRANSFER_ANNOUNCE | PIER_TRANSFER_DIGEST,
};

PIER_ASSERT_NO_PADDING(transfer_attr, stream_size);

/* Whether chunks can be announced. */
static int check_announcing(const struct pier_transfer_attr *attr)
{
	const char *wrong = NULL;

	if (!(attr->flags & PIER_TRANSFER_ANNOUNCE))
		return 0;
	if (attr->direction == PIER_TRANSFER_READ)
		wrong = "reading tells the peer nothing";
	else if (attr->flags & PIER_TRANSFER_NOTIFY)
		wrong = "with PIER_TRANSFER_NOTIFY, whose immediate data would be taken "
			"for a chunk; a receiver knows when all has arrived";
	if (wrong)
		return pier_fail(EINVAL, "transfer: PIER_TRANSFER_ANNOUNCE: %s", wrong);
	if (attr->chunk % PIER_ANNOUNCE_BLOCK)
		return pier_fail(EINVAL,
				 "transfer: PIER_TRANSFER_ANNOUNCE: chunk %u is no "
				 "multiple of %d",
				 attr->chunk, PIER_ANNOUNCE_BLOCK);
	if (attr->length > PIER_ANNOUNCE_MAX)
		return pier_fail(EINVAL,
				 "transfer: PIER_TRANSFER_ANNOUNCE: %" PRIu64
				 " bytes are more than 16 TiB",
				 attr->length);
	return 0;
}

static int check_attr(const struct pier_transfer_attr *attr)
{
	int error;

	if (attr->direction != PIER_TRANSFER_WRITE &&
	    attr->direction != PIER_TRANSFER_READ)
		return pier_fail(EINVAL,
				 "transfer: direction %d is not one of enum "
				 "pier_transfer_direction",
				 (int)attr->direction);
	if (attr->flags & ~KNOWN_FLAGS)
		return pier_fail(EINVAL, "transfer: flags %#x are not known",
				 (unsigned int)(attr->flags & ~KNOWN_FLAGS));
	if ((attr->flags & PIER_TRANSFER_DIGEST) && attr->stream_size)
		return pier_fail(EINVAL, "transfer: PIER_TRANSFER_DIGEST: a stream has "
					 "no digests");
	if (attr->progress_ms < 0)
		return pier_fail(EINVAL, "transfer: progress_ms %d is negative",
				 attr->progress_ms);
	error = check_announcing(attr);
	if (!error)
		error = pier_check_stream_attr(attr);
	if (!error)
		error = pier_check_stall(drive_ops.name, attr->stall_ms);
	if (!error)
		error = pier_drive_check_rails(&drive_ops, attr->rails,
					       sizeof(*attr->rails), attr->rail_count);
	/*
	 * This has allocated nothing yet: in a child of fork(2), another thread of the
	 * parent may have left the allocator locked.
	 */
	for (uint32_t i = 0; i < attr->rail_count && !error; i++)
		error = pier_check_process(&attr->rails[i].channel->object);
	return error;
}

static int read_attr(const struct pier_transfer_attr *given,
		     struct pier_transfer_attr *ret_attr)
{
	int error = PIER_READ_ATTR("transfer", transfer_attr, given,
				   offsetof(struct pier_transfer_attr, stream_size),
				   ret_attr);

	return error ? error : check_attr(ret_attr);
}

static void free_rails(struct pier_send_rail *rails, uint32_t count)
{
	for (uint32_t i = 0; rails && i < count; i++)
		pier_send_rail_free(&rails[i]);
	free(rails);
}

/* Check the rails and make copies of them, without changing the transfer. */
static int make_rails(const struct pier_transfer_attr *attr,
		      const struct pier_rail *given, uint32_t count,
		      struct pier_send_rail **ret_rails, uint32_t *ret_chunks)
{
	struct pier_send_rail *rails = calloc(count, sizeof(*rails));
	uint32_t chunks = 0;
	int error = 0;

	if (!rails)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	for (uint32_t i = 0; i < count && !error; i++) {
		error = pier_send_rail_init(&rails[i], i, &given[i], attr);
		chunks += rails[i].base.flow.size;
	}
	if (error) {
		free_rails(rails, count);
		return error;
	}
	*ret_rails = rails;
	*ret_chunks = chunks;
	return 0;
}

/* Replace the rails. */
static int set_rails(struct pier_transfer *transfer, struct pier_send_rail *rails,
		     uint32_t count, uint32_t chunks)
{
	struct pier_read_chunk *read_chunks;
	int error = pier_drive_reserve_fds(&transfer->drive, count);

	if (error)
		return error;
	read_chunks = reallocarray(transfer->read_chunks, chunks, sizeof(*read_chunks));
	if (!read_chunks)
		return pier_fail(ENOMEM, "no memory for %u chunks", chunks);
	transfer->read_chunks = read_chunks;
	free_rails(transfer->drive.rails, transfer->drive.rail_count);
	transfer->drive.rails = rails;
	transfer->drive.rail_count = count;
	return 0;
}

/*
 * Chunks in flight can return as one range each, and so can as many chunks that were read
 * and cannot be copied. One more range is everything that was never posted.
 */
static uint32_t count_ranges(uint32_t chunks)
{
	return 2 * chunks + 1;
}

/* Missing ranges must begin and end on blocks. */
static int check_announced_ranges(const struct pier_remaining *remaining, uint64_t length)
{
	for (uint32_t i = 0; i < remaining->count; i++) {
		struct pier_range range = remaining->ranges[i];
		uint64_t end = range.offset + range.length;

		if (range.offset % PIER_ANNOUNCE_BLOCK ||
		    (end % PIER_ANNOUNCE_BLOCK && end != length))
			return pier_fail(EINVAL,
					 "transfer: PIER_TRANSFER_ANNOUNCE: the state "
					 "has a missing range [%" PRIu64 ", +%" PRIu64
					 "), not in blocks of %d",
					 range.offset, range.length, PIER_ANNOUNCE_BLOCK);
	}
	return 0;
}

static int init_remaining(struct pier_transfer *transfer, uint32_t chunks)
{
	const struct pier_transfer_attr *attr = &transfer->attr;
	int error;

	if (attr->state)
		error = pier_remaining_unpack(&transfer->remaining, attr->length,
					      count_ranges(chunks), attr->state,
					      attr->state_size);
	else
		error = pier_remaining_init(&transfer->remaining, attr->length,
					    count_ranges(chunks));
	if (!error)
		transfer->drive.done = attr->length -
				       pier_remaining_length(&transfer->remaining);
	if (!error && (attr->flags & PIER_TRANSFER_ANNOUNCE))
		error = check_announced_ranges(&transfer->remaining, attr->length);
	return error;
}

static void free_transfer(struct pier_transfer *transfer)
{
	pier_send_stream_close(transfer);
	free_rails(transfer->drive.rails, transfer->drive.rail_count);
	pier_remaining_free(&transfer->remaining);
	free(transfer->stream.held);
	free(transfer->read_chunks);
	free(transfer->drive.fds);
	free(transfer);
}

static int init_transfer(struct pier_transfer *transfer)
{
	struct pier_transfer_attr *attr = &transfer->attr;
	struct pier_send_rail *rails = NULL;
	uint32_t chunks = 0;
	int error = make_rails(attr, attr->rails, attr->rail_count, &rails, &chunks);

	if (error)
		return error;
	error = set_rails(transfer, rails, attr->rail_count, chunks);
	if (error) {
		free_rails(rails, attr->rail_count);
		return error;
	}
	error = init_remaining(transfer, chunks);
	if (!error)
		error = pier_send_stream_open(transfer, chunks);
	/* Borrowed for this call only. */
	attr->rails = NULL;
	attr->state = NULL;
	pier_drive_start(&transfer->drive);
	return error;
}

static void describe_transfer(const struct pier_object *object, char *ret_text,
			      size_t size)
{
	const struct pier_transfer *transfer = (const struct pier_transfer *)object;

	snprintf(ret_text, size, "transfer of %" PRIu64 " bytes", transfer->attr.length);
}

int pier_transfer_create(const struct pier_transfer_attr *attr,
			 struct pier_transfer **ret_transfer)
{
	PIER_REFUSE_NULL(attr, ret_transfer);
	PIER_ENTRY();
	struct pier_transfer_attr known;
	struct pier_transfer *transfer;
	int error = read_attr(attr, &known);

	if (error)
		return error;
	transfer = calloc(1, sizeof(*transfer));
	if (!transfer)
		return pier_fail(ENOMEM, "no memory for a transfer");
	transfer->attr = known;
	if (!known.stream_size && pier_switched_on("PIER_TRANSFER_DIGEST"))
		transfer->attr.flags |= PIER_TRANSFER_DIGEST;
	transfer->drive.ops = &drive_ops;
	transfer->drive.length = known.length;
	transfer->drive.span = known.length;
	transfer->drive.incoming = known.direction == PIER_TRANSFER_READ;
	transfer->drive.fail_fast = known.flags & PIER_TRANSFER_FAIL_FAST;
	error = init_transfer(transfer);
	if (error) {
		free_transfer(transfer);
		return error;
	}
	transfer->drive.object.describe = describe_transfer;
	pier_object_track(&transfer->drive.object, PIER_OBJECT_TRANSFER, NULL);
	*ret_transfer = transfer;
	return 0;
}

int pier_transfer_resume(struct pier_transfer *transfer, const struct pier_rail *rails,
			 uint32_t count)
{
	PIER_REFUSE_NULL(transfer);
	PIER_REFUSE_NULL_ARRAY(rails, count);
	struct pier_send_rail *made = NULL;
	uint32_t chunks = 0;
	int error = pier_check_process(&transfer->drive.object);

	if (error)
		return error;
	if (!transfer->drive.ended)
		return pier_fail(EBUSY, "resuming a transfer that has not ended: "
					"cancel it and drive it to its end");
	if (!transfer->drive.error)
		return pier_fail(EALREADY,
				 "resuming a transfer: all of its %" PRIu64
				 " bytes have arrived",
				 transfer->attr.length);
	error = pier_drive_check_rails(&drive_ops, rails, sizeof(*rails), count);
	if (!error)
		error = make_rails(&transfer->attr, rails, count, &made, &chunks);
	if (error)
		return error;
	error = pier_remaining_grow(&transfer->remaining,
				    count_ranges(chunks) + transfer->stream.held_count);
	pier_send_stream_close(transfer);
	if (!error)
		error = set_rails(transfer, made, count, chunks);
	if (error) {
		free_rails(made, count);
		return error;
	}
	error = pier_send_stream_open(transfer, chunks);
	if (!error)
		pier_drive_start(&transfer->drive);
	return error;
}

int pier_transfer_cancel(struct pier_transfer *transfer)
{
	PIER_REFUSE_NULL(transfer);
	return pier_drive_cancel(&transfer->drive);
}

int pier_transfer_destroy(struct pier_transfer *transfer)
{
	int error;

	if (!transfer)
		return 0;
	error = pier_check_process(&transfer->drive.object);
	if (error)
		return error;
	if (!transfer->drive.ended)
		pier_drive_stop(&transfer->drive, -ECANCELED, "it was destroyed");
	while (!transfer->drive.ended)
		pier_transfer_wait(transfer, PIER_TIMEOUT_DEFAULT);
	pier_object_untrack(&transfer->drive.object);
	free_transfer(transfer);
	return 0;
}

void pier_transfer_query(const struct pier_transfer *transfer,
			 struct pier_transfer_status *ret_status, size_t size)
{
	PIER_REFUSE_NULL_AS(, transfer, ret_status);
	struct pier_transfer_status status = {
		.length = transfer->attr.length,
		.done = transfer->drive.done,
		.rails = transfer->drive.rail_count,
		.working_rails = pier_drive_count_working(&transfer->drive),
		.in_flight = transfer->in_flight,
		.ended = transfer->drive.ended,
		.error = transfer->drive.error,
	};

	pier_write_extensible(&status, sizeof(status), ret_status, size);
}

int pier_transfer_query_rail(const struct pier_transfer *transfer, uint32_t index,
			     struct pier_rail_status *ret_status, size_t size)
{
	PIER_REFUSE_NULL(transfer, ret_status);
	return pier_drive_query_rail(&transfer->drive, index, ret_status, size);
}

static void add_waiting_checks(const struct pier_send_rail *rail,
			       struct pier_remaining *missing)
{
	const struct pier_digests *digests = rail->base.digests;

	for (uint32_t i = 0; digests && i < digests->count; i++)
		if (digests->checks[i].state == PIER_CHECK_WAITING)
			pier_remaining_give_back(missing, digests->checks[i].range);
}

/* Everything that has not arrived, including chunks in flight. */
static int copy_missing(const struct pier_transfer *transfer,
			struct pier_remaining *ret_missing)
{
	const struct pier_remaining *remaining = &transfer->remaining;
	int error = pier_remaining_init(ret_missing, 0,
					remaining->count + transfer->in_flight);

	if (error)
		return error;
	for (uint32_t i = 0; i < remaining->count; i++)
		pier_remaining_give_back(ret_missing, remaining->ranges[i]);
	for (uint32_t r = 0; r < transfer->drive.rail_count; r++) {
		const struct pier_send_rail *rail = pier_transfer_rail(transfer, r);

		for (uint32_t i = 0; i < rail->base.flow.count; i++) {
			const struct pier_flight *chunk = pier_flow_at(&rail->base.flow,
								       i);

			if (chunk->length > 0)
				pier_remaining_give_back(
					ret_missing,
					(struct pier_range){ chunk->offset,
							     chunk->length });
		}
		add_waiting_checks(rail, ret_missing);
	}
	return 0;
}

int pier_transfer_pack(const struct pier_transfer *transfer, void *ret_state, size_t size)
{
	PIER_REFUSE_NULL(transfer);
	struct pier_remaining missing;
	int result = pier_check_process(&transfer->drive.object);

	if (!result && transfer->stream.base.size)
		result = pier_fail(EINVAL, "a stream has no state that can be stored");
	if (!result)
		result = copy_missing(transfer, &missing);
	if (result)
		return result;
	result = pier_remaining_pack(&missing, transfer->attr.length, ret_state, size);
	pier_remaining_free(&missing);
	return result;
}

/* At the deadline, or if waiting fails, the chunks in flight are still awaited. */
static int drive_to_end(struct pier_drive *drive, int timeout_ms)
{
	int result = pier_drive_wait(drive, timeout_ms);

	if (!drive->ended && (result == 0 || result == -ETIMEDOUT))
		pier_drive_stop(drive, -ETIMEDOUT, "the time limit of %d ms expired",
				timeout_ms);
	else if (!drive->ended)
		pier_drive_stop(drive, result, "%s", pier_error_message());
	while (!drive->ended)
		result = pier_drive_wait(drive, PIER_TIMEOUT_DEFAULT);
	return result;
}

int pier_transfer_run(const struct pier_transfer_attr *attr, int timeout_ms)
{
	PIER_REFUSE_NULL(attr);
	struct pier_transfer *transfer;
	struct pier_transfer_attr known;
	int result = read_attr(attr, &known);

	if (!result && known.stream_size)
		result = pier_fail(EINVAL, "a stream needs pier_transfer_create()");
	if (!result)
		result = pier_check_timeout(timeout_ms, timeout_ms, &timeout_ms);
	if (!result)
		result = pier_transfer_create(attr, &transfer);
	if (result)
		return result;
	result = drive_to_end(&transfer->drive, timeout_ms);
	pier_transfer_destroy(transfer);
	return result < 0 ? result : 0;
}
