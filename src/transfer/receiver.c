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
#include "stream/recv_stream.h"

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

/*
 * Bytes that arrived before are not copied again: the program may be using them. Their
 * digest is compared again if the peer wrote to the memory itself.
 */
static void deliver_chunk(struct pier_receiver *receiver, struct pier_rail_base *rail,
			  struct pier_range chunk)
{
	uint64_t count = count_new_bytes(receiver, chunk);
	int error = 0;

	if (receiver->lost)
		return;
	if (count > 0)
		error = pier_rail_deliver(rail, chunk);
	if (!error && rail->digests && (count > 0 || !rail->bounced))
		error = pier_digest_arrived(rail->digests, chunk, rail->digest);
	if (error) {
		receiver->lost = true;
		pier_drive_stop(&receiver->drive, error, "%s", pier_error_message());
		return;
	}
	if (count == 0)
		return;
	mark_blocks(receiver, chunk);
	rail->done += count;
	receiver->drive.done += count;
	receiver->active_at = pier_now();
}

/*
 * The chunk that a peer announced, whose numbers are not trusted. Errors: -EBADMSG no
 * transfer of this length has it.
 */
static int read_announcement(const struct pier_result *result, uint64_t length,
			     struct pier_range *ret_chunk)
{
	uint64_t offset = (uint64_t)result->immediate * PIER_ANNOUNCE_BLOCK;
	uint64_t longest = (uint64_t)result->byte_length * PIER_ANNOUNCE_BLOCK;
	uint64_t left = offset < length ? length - offset : 0;

	if (!pier_is_announcement(result))
		return pier_fail(EBADMSG, "the peer sent a message, and no chunk%s",
				 result->has_immediate && result->byte_length == 0
					 ? ": if it is a digest, both ends need "
					   "PIER_TRANSFER_DIGEST"
					 : "");
	if (longest == 0 || longest - (PIER_ANNOUNCE_BLOCK - 1) > left)
		return pier_fail(EBADMSG,
				 "the peer announced a chunk of %u blocks at %" PRIu64
				 ", which no transfer of %" PRIu64 " bytes has",
				 result->byte_length, offset, length);
	*ret_chunk = (struct pier_range){ offset, longest < left ? longest : left };
	return 0;
}

/*
 * The digest of the next chunk, in a send, or whether the chunk has had one: 1 that is
 * all, 0 there is a chunk, or -EBADMSG.
 */
static int take_digest(struct pier_rail_base *rail, const struct pier_result *result)
{
	bool told = rail->has_digest;

	if (result->opcode == PIER_OP_RECV && result->has_immediate && !told) {
		rail->has_digest = true;
		rail->digest = result->immediate;
		return 1;
	}
	rail->has_digest = false;
	return told ? 0
		    : pier_fail(EBADMSG, "the peer announced a chunk without a digest: "
					 "both ends need PIER_TRANSFER_DIGEST");
}

/* Take what the peer announced: 1 or -EBADMSG. */
static int take_announcement(struct pier_receiver *receiver, struct pier_rail_base *rail,
			     const struct pier_result *result)
{
	struct pier_range chunk;
	int error = rail->digests ? take_digest(rail, result) : 0;

	if (error)
		return error;
	error = is_stream(receiver)
			? pier_recv_stream_take(receiver, result, &chunk)
			: read_announcement(result, receiver->drive.length, &chunk);
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
	struct pier_rail_base *rail = pier_drive_rail(&receiver->drive, index);
	bool failed = rail->flow.error;
	struct pier_result result;
	int taken = pier_recv_rail_take(rail, &result);

	if (taken > 0 && !receiver->drive.ended)
		pier_recv_rail_post(rail);
	if (taken > 0)
		taken = take_announcement(receiver, rail, &result);
	if (taken < 0)
		pier_drive_stop(&receiver->drive, taken, "%s", pier_error_message());
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

	for (int i = 0; more && i < ROUNDS && (i == 0 || pier_now() < deadline); i++)
		more = take_round(receiver);
	receiver->drive.leftovers = more;
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++) {
		struct pier_rail_base *rail = pier_drive_rail(&receiver->drive, i);

		/* A rail that was taken later may have collected for an earlier one. */
		if (!rail->flow.error && (more || !rail->flow.channel->attr.cq))
			rail->flow.channel->unseen = more;
	}
}

/* Take everything from failed rails whose channels have stopped. */
static void drain_failed_rails(struct pier_receiver *receiver)
{
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++) {
		const struct pier_rail_base *rail = pier_drive_rail(&receiver->drive, i);

		while (rail->flow.error && rail->flow.count > 0 &&
		       take_chunk(receiver, i) != 0)
			continue;
	}
}

/* Post receives for later chunks; a channel that was reset has none to keep. */
static void refill_rails(struct pier_receiver *receiver)
{
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++) {
		struct pier_rail_base *rail = pier_drive_rail(&receiver->drive, i);

		if (!rail->flow.error && pier_recv_rail_post(rail))
			pier_drive_note_failure(&receiver->drive, i);
	}
}

/*
 * Take the chunks that arrived after the receiver ended, while the regions that they
 * arrived in exist.
 *
 * Errors: -EBADMSG, -EIO.
 */
static int receiver_catch_up(struct pier_receiver *receiver)
{
	struct pier_drive *drive = &receiver->drive;

	if (!receiver->lost) {
		bool owed = drive->owes_flush;

		drive->stop = 0;
		while (take_round(receiver))
			continue;
		refill_rails(receiver);
		for (uint32_t i = 0; i < drive->rail_count; i++)
			pier_flow_finish_stop(
				&pier_drive_rail(&receiver->drive, i)->flow);
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
	pier_drive_stop(drive, drive->flush_error, "%s", pier_error_message());
}

static int64_t receiver_wake_at(const struct pier_drive *drive)
{
	const struct pier_receiver *receiver = (const struct pier_receiver *)drive;
	int64_t wake_at = drive->stop || all_arrived(receiver)
				  ? INT64_MAX
				  : receiver->active_at + receiver->stall_ns;

	if (is_stream(receiver) && pier_stream_wake_at(&receiver->stream.base) < wake_at)
		wake_at = pier_stream_wake_at(&receiver->stream.base);
	return wake_at;
}

static void check_times(struct pier_receiver *receiver)
{
	/* Of a stream, the time of the step: the process may be stopped within it. */
	int64_t now = is_stream(receiver) ? receiver->stream.base.driven_at : pier_now();

	if (now >= receiver->active_at + receiver->stall_ns)
		pier_drive_stop(&receiver->drive, -EHOSTUNREACH,
				"nothing new arrived within %" PRId64 " ms",
				receiver->stall_ns / 1000000);
}

static void step_receiver(struct pier_drive *drive, int64_t deadline)
{
	struct pier_receiver *receiver = (struct pier_receiver *)drive;
	int64_t now = pier_now();
	bool stopping;

	if (is_stream(receiver) && pier_stream_note_step(&receiver->stream.base, now))
		receiver->active_at = now;
	take_chunks(receiver, deadline);
	stopping = pier_drive_is_stopping(drive);
	drain_failed_rails(receiver);
	/* Of a stream, all bytes have been flushed and used. */
	if (all_arrived(receiver) && !is_stream(receiver) && !stopping)
		flush_rails(receiver);
	else if (!drive->stop && !all_arrived(receiver))
		check_times(receiver);
	if (is_stream(receiver))
		pier_recv_stream_tell(receiver, pier_now());
	if (stopping || pier_recv_stream_owes_note(receiver))
		return;
	/* Once all bytes are visible, a reason to stop came too late. */
	pier_drive_conclude(drive, all_arrived(receiver) && !receiver->lost &&
					   !drive->flush_error);
	if (drive->ended)
		pier_recv_stream_end(receiver);
}

static const struct pier_drive_ops drive_ops = {
	.name = "receiver",
	.rail_size = sizeof(struct pier_rail_base),
	.step = step_receiver,
	.wake_at = receiver_wake_at,
	.has_news = pier_recv_stream_has_news,
};

int pier_receiver_progress(struct pier_receiver *receiver)
{
	PIER_REFUSE_NULL(receiver);
	return pier_drive_progress(&receiver->drive);
}

int pier_receiver_wait(struct pier_receiver *receiver, int timeout_ms)
{
	PIER_REFUSE_NULL(receiver);
	return pier_drive_wait(&receiver->drive, timeout_ms);
}

static int check_size(const struct pier_receiver_rail *rails, uint32_t rail_count,
		      uint64_t length)
{
	if (length > PIER_ANNOUNCE_MAX)
		return pier_fail(EINVAL,
				 "receiver: %" PRIu64 " bytes are more than 16 TiB",
				 length);
	return pier_drive_check_rails(&drive_ops, rails, sizeof(*rails), rail_count);
}

PIER_ASSERT_NO_PADDING(receiver_attr, stream_size);

static int read_attr(const struct pier_receiver_attr *given,
		     struct pier_receiver_attr *ret_attr)
{
	int error = PIER_READ_ATTR("receiver", receiver_attr, given,
				   offsetof(struct pier_receiver_attr, stream_size),
				   ret_attr);

	if (!error && (ret_attr->flags & ~PIER_TRANSFER_DIGEST))
		error = pier_fail(EINVAL, "receiver: flags %#x are not known",
				  (unsigned int)ret_attr->flags);
	if (!error)
		error = pier_check_stall(drive_ops.name, ret_attr->stall_ms);
	if (!error)
		error = pier_check_stream_size("receiver", ret_attr->stream_size);
	if (!error && ret_attr->stream_size && (ret_attr->length || ret_attr->flags))
		error = pier_fail(EINVAL, "receiver: a stream has no %s",
				  ret_attr->length ? "length" : "digests");
	if (!error)
		error = check_size(ret_attr->rails, ret_attr->rail_count,
				   ret_attr->length);
	/*
	 * This has allocated nothing yet: in a child of fork(2), another thread of the
	 * parent may have left the allocator locked.
	 */
	for (uint32_t i = 0; i < ret_attr->rail_count && !error; i++)
		error = pier_check_process(&ret_attr->rails[i].channel->object);
	return error;
}

/* The earlier rail whose receives can be taken over for a channel, or NULL. */
static struct pier_rail_base *find_predecessor(const struct pier_receiver *receiver,
					       const struct pier_channel *channel)
{
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++) {
		struct pier_rail_base *rail = pier_drive_rail(&receiver->drive, i);

		if (rail->flow.channel == channel && pier_recv_rail_is_alive(rail))
			return rail;
	}
	return NULL;
}

static int check_distinct_channel(const struct pier_receiver_rail *given, uint32_t index)
{
	for (uint32_t i = 0; i < index; i++)
		if (given[i].channel == given[index].channel)
			return pier_fail(
				EINVAL, "receiver: rails %u and %u have the same channel",
				i, index);
	return 0;
}

/* Check the rails and make copies of them, without changing the receiver. */
static int make_rails(const struct pier_receiver *receiver,
		      const struct pier_receiver_rail *given, uint32_t count,
		      uint64_t length, struct pier_rail_base **ret_rails)
{
	struct pier_rail_base *rails = calloc(count, sizeof(*rails));
	int error = 0;

	if (!rails)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	for (uint32_t i = 0; i < count && !error; i++) {
		error = check_distinct_channel(given, i);
		if (!error)
			error = pier_recv_rail_init(
				&rails[i], "receiver", i, &given[i], length,
				find_predecessor(receiver, given[i].channel));
		if (!error && (receiver->attr.flags & PIER_TRANSFER_DIGEST))
			error = pier_digests_open(given[i].mr, given[i].offset, 0, 0,
						  &rails[i].digests);
	}
	if (error) {
		pier_recv_rails_release(rails, count);
		return error;
	}
	*ret_rails = rails;
	return 0;
}

/*
 * Replace the rails; the new ones take over receives that are posted. On an error the
 * receiver is unchanged.
 */
static int replace_rails(struct pier_receiver *receiver,
			 const struct pier_receiver_rail *given, uint32_t count,
			 uint64_t span)
{
	struct pier_rail_base *rails = NULL;
	int error = make_rails(receiver, given, count, span, &rails);

	if (error)
		return error;
	error = pier_drive_reserve_fds(&receiver->drive, count);
	if (error) {
		pier_recv_rails_release(rails, count);
		return error;
	}
	for (uint32_t i = 0; i < count; i++) {
		struct pier_rail_base *predecessor = find_predecessor(
			receiver, rails[i].flow.channel);

		if (predecessor)
			pier_recv_rail_inherit(&rails[i], predecessor);
	}
	pier_recv_rails_release(receiver->drive.rails, receiver->drive.rail_count);
	receiver->drive.rails = rails;
	receiver->drive.rail_count = count;
	return 0;
}

static void start_stall_time(struct pier_receiver *receiver)
{
	const struct pier_receiver_attr *attr = &receiver->attr;
	int stall_ms = attr->stall_ms;

	for (uint32_t i = 0; attr->stall_ms < 0 && i < receiver->drive.rail_count; i++) {
		int timeout_ms = pier_drive_rail(&receiver->drive, i)
					 ->flow.channel->attr.timeout_ms;

		if (timeout_ms > stall_ms)
			stall_ms = timeout_ms;
	}
	receiver->stall_ns = (int64_t)stall_ms * 1000000;
	receiver->active_at = pier_now();
}

/* Receives that cannot be posted fail their rails, which the next step reports. */
static void start_receiver(struct pier_receiver *receiver)
{
	receiver->lost = false;
	pier_drive_start(&receiver->drive);
	start_stall_time(receiver);
	pier_recv_stream_start(receiver);
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++)
		if (pier_recv_rail_post(pier_drive_rail(&receiver->drive, i)))
			pier_drive_note_failure(&receiver->drive, i);
}

/* Begin with no bytes arrived. On an error the receiver is unchanged. */
static int restart_receiver(struct pier_receiver *receiver,
			    const struct pier_receiver_rail *rails, uint32_t count,
			    uint64_t length)
{
	uint64_t span = receiver->attr.stream_size ? receiver->attr.stream_size : length;
	uint64_t *blocks = calloc(span / (64 * PIER_ANNOUNCE_BLOCK) + 1, sizeof(*blocks));
	int error = blocks ? replace_rails(receiver, rails, count, span)
			   : pier_fail(ENOMEM,
				       "no memory for the blocks of %" PRIu64 " bytes",
				       span);

	if (error) {
		free(blocks);
		return error;
	}
	free(receiver->blocks);
	receiver->blocks = blocks;
	receiver->drive.done = 0;
	receiver->drive.length = length;
	receiver->drive.span = span;
	start_receiver(receiver);
	return 0;
}

static void describe_receiver(const struct pier_object *object, char *ret_text,
			      size_t size)
{
	const struct pier_receiver *receiver = (const struct pier_receiver *)object;

	snprintf(ret_text, size, "receiver of %" PRIu64 " bytes", receiver->drive.length);
}

static void free_receiver(struct pier_receiver *receiver)
{
	pier_recv_rails_release(receiver->drive.rails, receiver->drive.rail_count);
	free(receiver->blocks);
	free(receiver->drive.fds);
	free(receiver);
}

int pier_receiver_create(const struct pier_receiver_attr *attr,
			 struct pier_receiver **ret_receiver)
{
	PIER_REFUSE_NULL(attr, ret_receiver);
	PIER_ENTRY();
	struct pier_receiver_attr known;
	struct pier_receiver *receiver;
	int error = read_attr(attr, &known);

	if (error)
		return error;
	receiver = calloc(1, sizeof(*receiver));
	if (!receiver)
		return pier_fail(ENOMEM, "no memory for a receiver");
	receiver->attr = known;
	receiver->attr.rails = NULL;
	if (!known.stream_size && pier_switched_on("PIER_TRANSFER_DIGEST"))
		receiver->attr.flags |= PIER_TRANSFER_DIGEST;
	receiver->drive.ops = &drive_ops;
	receiver->drive.incoming = true;
	error = restart_receiver(receiver, known.rails, known.rail_count, known.length);
	if (error) {
		free_receiver(receiver);
		return error;
	}
	receiver->drive.object.describe = describe_receiver;
	pier_object_track(&receiver->drive.object, PIER_OBJECT_RECEIVER, NULL);
	*ret_receiver = receiver;
	return 0;
}

static int check_ended(const struct pier_receiver *receiver)
{
	int error = pier_check_process(&receiver->drive.object);

	if (!error && !receiver->drive.ended)
		error = pier_fail(EBUSY, "a receiver that has not ended goes on already: "
					 "drive it to its end, or cancel it");
	return error;
}

int pier_receiver_next(struct pier_receiver *receiver,
		       const struct pier_receiver_rail *rails, uint32_t count,
		       uint64_t length)
{
	PIER_REFUSE_NULL(receiver);
	PIER_REFUSE_NULL_ARRAY(rails, count);
	int error = check_ended(receiver);

	if (!error && receiver->drive.error && !receiver->drive.flush_error)
		error = pier_fail(EBUSY, "the next receiver of one that ended with an "
					 "error: more of its chunks may come");
	if (!error && receiver->attr.stream_size)
		error = pier_fail(EINVAL, "a stream has no next transfer");
	if (!error)
		error = check_size(rails, count, length);
	return error ? error : restart_receiver(receiver, rails, count, length);
}

/* Whether a working rail continues unchanged. */
static bool rail_continues(const struct pier_rail_base *rail,
			   const struct pier_receiver_rail *rails, uint32_t count)
{
	bool found = rail->flow.error;

	for (uint32_t i = 0; i < count && !found; i++)
		found = rails[i].channel == rail->flow.channel &&
			rails[i].mr == rail->mr && rails[i].offset == rail->offset;
	return found;
}

static int check_resume(const struct pier_receiver *receiver,
			const struct pier_receiver_rail *rails, uint32_t count)
{
	/* Only the buffer of a stream is limited. */
	uint64_t length = receiver->attr.stream_size ? 0 : receiver->drive.length;
	int error = check_size(rails, count, length);

	for (uint32_t i = 0; i < receiver->drive.rail_count && !error; i++)
		if (!rail_continues(pier_drive_rail(&receiver->drive, i), rails, count))
			error = pier_fail(EINVAL,
					  "resuming a receiver: rail %u has not failed, "
					  "and is not as it was among the %u rails",
					  i, count);
	return error;
}

/* Take what arrived on working channels after the receiver ended. */
static int prepare_resume(struct pier_receiver *receiver,
			  const struct pier_receiver_rail *rails, uint32_t count)
{
	int error = check_ended(receiver);

	if (!error && !receiver->drive.error)
		error = pier_fail(EALREADY,
				  "resuming a receiver: all of its %" PRIu64
				  " bytes have arrived",
				  receiver->drive.length);
	if (!error)
		error = receiver_catch_up(receiver);
	return error ? error : check_resume(receiver, rails, count);
}

int pier_receiver_resume(struct pier_receiver *receiver,
			 const struct pier_receiver_rail *rails, uint32_t count)
{
	PIER_REFUSE_NULL(receiver);
	PIER_REFUSE_NULL_ARRAY(rails, count);
	int error = prepare_resume(receiver, rails, count);

	if (!error)
		error = replace_rails(receiver, rails, count, receiver->drive.span);
	if (!error)
		start_receiver(receiver);
	return error;
}

int pier_receiver_cancel(struct pier_receiver *receiver)
{
	PIER_REFUSE_NULL(receiver);
	return pier_drive_cancel(&receiver->drive);
}

int pier_receiver_destroy(struct pier_receiver *receiver)
{
	int error;

	if (!receiver)
		return 0;
	error = pier_check_process(&receiver->drive.object);
	if (error)
		return error;
	pier_recv_stream_end(receiver);
	pier_object_untrack(&receiver->drive.object);
	free_receiver(receiver);
	return 0;
}

void pier_receiver_query(const struct pier_receiver *receiver,
			 struct pier_receiver_status *ret_status, size_t size)
{
	PIER_REFUSE_NULL_AS(, receiver, ret_status);
	struct pier_receiver_status status = {
		.length = receiver->drive.length,
		.done = receiver->drive.done,
		.rails = receiver->drive.rail_count,
		.working_rails = pier_drive_count_working(&receiver->drive),
		.ended = receiver->drive.ended,
		.error = receiver->drive.error,
	};
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++)
		status.receives += pier_drive_rail(&receiver->drive, i)->flow.count;
	pier_write_extensible(&status, sizeof(status), ret_status, size);
}

int pier_receiver_query_rail(const struct pier_receiver *receiver, uint32_t index,
			     struct pier_rail_status *ret_status, size_t size)
{
	PIER_REFUSE_NULL(receiver, ret_status);
	return pier_drive_query_rail(&receiver->drive, index, ret_status, size);
}
