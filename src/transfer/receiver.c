/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "announce.h"
#include "channel/channel.h"
#include "receiver.h"
#include "core/caller.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/extensible.h"

static int check_size(const struct pier_receiver_rail *rails, uint32_t rail_count,
		      uint64_t length)
{
	if (length > PIER_ANNOUNCE_MAX)
		return pier_fail(EINVAL,
				 "receiver: %" PRIu64 " bytes are more than 16 TiB",
				 length);
	return pier_drive_check_rails(&pier_receiver_drive_ops, rails, rail_count);
}

static int read_attr(const struct pier_receiver_attr *given,
		     struct pier_receiver_attr *ret_attr)
{
	int error;

	if (!given)
		return pier_fail(EINVAL, "receiver: the attributes are NULL");
	pier_receiver_attr_init(ret_attr);
	error = pier_read_extensible("receiver", "pier_receiver_attr_init()", given,
				     offsetof(struct pier_receiver_attr, stream_size),
				     sizeof(*given), ret_attr);
	if (!error && ret_attr->flags)
		error = pier_fail(EINVAL, "receiver: flags %#x are not known",
				  (unsigned int)ret_attr->flags);
	if (!error)
		error = pier_drive_check_time(&pier_receiver_drive_ops, "stall_ms",
					      ret_attr->stall_ms);
	if (!error)
		error = pier_drive_check_time(&pier_receiver_drive_ops, "timeout_ms",
					      ret_attr->timeout_ms);
	if (!error)
		error = pier_check_stream_size("receiver", ret_attr->stream_size);
	if (!error && ret_attr->stream_size && ret_attr->length)
		error = pier_fail(EINVAL, "receiver: a stream has no length");
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

static void free_rails(struct pier_recv_rail *rails, uint32_t count)
{
	for (uint32_t i = 0; rails && i < count; i++)
		pier_recv_rail_free(&rails[i]);
	free(rails);
}

/* The earlier rail whose receives can be taken over for a channel, or NULL. */
static struct pier_recv_rail *find_predecessor(const struct pier_receiver *receiver,
					       const struct pier_channel *channel)
{
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++) {
		struct pier_recv_rail *rail = pier_receiver_rail(receiver, i);

		if (rail->base.channel == channel && pier_recv_rail_is_alive(rail))
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
		      uint64_t length, struct pier_recv_rail **ret_rails)
{
	struct pier_recv_rail *rails = calloc(count, sizeof(*rails));
	int error = 0;

	if (!rails)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	for (uint32_t i = 0; i < count && !error; i++) {
		error = check_distinct_channel(given, i);
		if (!error)
			error = pier_recv_rail_init(
				&rails[i], "receiver", i, &given[i], length,
				find_predecessor(receiver, given[i].channel));
	}
	if (error) {
		free_rails(rails, count);
		return error;
	}
	*ret_rails = rails;
	return 0;
}

/* Replace the rails; the new ones take over receives that are posted. */
static int set_rails(struct pier_receiver *receiver, struct pier_recv_rail *rails,
		     uint32_t count)
{
	int error = pier_drive_reserve_fds(&receiver->drive, count);

	if (error)
		return error;
	for (uint32_t i = 0; i < count; i++) {
		struct pier_recv_rail *predecessor = find_predecessor(
			receiver, rails[i].base.channel);

		if (predecessor)
			pier_recv_rail_inherit(&rails[i], predecessor);
	}
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++)
		pier_recv_rail_release(pier_receiver_rail(receiver, i));
	free_rails(receiver->drive.rails, receiver->drive.rail_count);
	receiver->drive.rails = rails;
	receiver->drive.rail_count = count;
	return 0;
}

static void start_stall_time(struct pier_receiver *receiver)
{
	const struct pier_receiver_attr *attr = &receiver->attr;
	int stall_ms = attr->stall_ms;

	for (uint32_t i = 0; attr->stall_ms < 0 && i < receiver->drive.rail_count; i++) {
		int timeout_ms =
			pier_receiver_rail(receiver, i)->base.channel->attr.timeout_ms;

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
		if (pier_recv_rail_post(pier_receiver_rail(receiver, i)))
			pier_drive_note_failure(&receiver->drive, i);
}

static int make_blocks(uint64_t length, uint64_t **ret_blocks)
{
	uint64_t words = length / (64 * PIER_ANNOUNCE_BLOCK) + 1;
	uint64_t *blocks = calloc(words, sizeof(*blocks));

	if (!blocks)
		return pier_fail(ENOMEM, "no memory for the blocks of %" PRIu64 " bytes",
				 length);
	*ret_blocks = blocks;
	return 0;
}

/* Begin with no bytes arrived. On an error the receiver is unchanged. */
static int restart_receiver(struct pier_receiver *receiver,
			    const struct pier_receiver_rail *rails, uint32_t count,
			    uint64_t length)
{
	struct pier_recv_rail *made = NULL;
	uint64_t *blocks = NULL;
	uint64_t span = receiver->attr.stream_size ? receiver->attr.stream_size : length;
	int error = make_rails(receiver, rails, count, span, &made);

	if (!error)
		error = make_blocks(span, &blocks);
	if (!error)
		error = set_rails(receiver, made, count);
	if (error) {
		free_rails(made, made ? count : 0);
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
	free_rails(receiver->drive.rails, receiver->drive.rail_count);
	free(receiver->blocks);
	free(receiver->drive.fds);
	free(receiver);
}

int pier_receiver_begin(const struct pier_receiver_attr *attr,
			struct pier_receiver **ret_receiver)
{
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
	receiver->drive.ops = &pier_receiver_drive_ops;
	receiver->drive.timeout_ms = known.timeout_ms;
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
static bool rail_continues(const struct pier_recv_rail *rail,
			   const struct pier_receiver_rail *rails, uint32_t count)
{
	bool found = rail->base.error;

	for (uint32_t i = 0; i < count && !found; i++)
		found = rails[i].channel == rail->base.channel &&
			rails[i].mr == rail->base.mr &&
			rails[i].offset == rail->base.offset;
	return found;
}

static int check_resume(const struct pier_receiver *receiver,
			const struct pier_receiver_rail *rails, uint32_t count)
{
	/* Only the buffer of a stream is limited. */
	uint64_t length = receiver->attr.stream_size ? 0 : receiver->drive.length;
	int error = check_size(rails, count, length);

	for (uint32_t i = 0; i < receiver->drive.rail_count && !error; i++)
		if (!rail_continues(pier_receiver_rail(receiver, i), rails, count))
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
		error = pier_receiver_catch_up(receiver);
	return error ? error : check_resume(receiver, rails, count);
}

int pier_receiver_resume(struct pier_receiver *receiver,
			 const struct pier_receiver_rail *rails, uint32_t count)
{
	struct pier_recv_rail *made = NULL;
	int error = prepare_resume(receiver, rails, count);

	if (!error)
		error = make_rails(receiver, rails, count, receiver->drive.span, &made);
	if (error)
		return error;
	error = set_rails(receiver, made, count);
	if (error) {
		free_rails(made, count);
		return error;
	}
	start_receiver(receiver);
	return 0;
}

int pier_receiver_cancel(struct pier_receiver *receiver)
{
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
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++)
		pier_recv_rail_release(pier_receiver_rail(receiver, i));
	pier_object_untrack(&receiver->drive.object);
	free_receiver(receiver);
	return 0;
}

void pier_receiver_query(const struct pier_receiver *receiver,
			 struct pier_receiver_status *ret_status)
{
	*ret_status = (struct pier_receiver_status){
		.length = receiver->drive.length,
		.done = receiver->drive.done,
		.rails = receiver->drive.rail_count,
		.working_rails = pier_drive_count_working(&receiver->drive),
		.ended = receiver->drive.ended,
		.error = receiver->drive.error,
	};
	for (uint32_t i = 0; i < receiver->drive.rail_count; i++)
		ret_status->receives += pier_receiver_rail(receiver, i)->base.count;
}

int pier_receiver_query_rail(const struct pier_receiver *receiver, uint32_t index,
			     struct pier_rail_status *ret_status)
{
	return pier_drive_query_rail(&receiver->drive, index, ret_status);
}
