/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "announce.h"
#include "send_rail_init.h"
#include "state.h"
#include "transfer.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"

enum {
	KNOWN_FLAGS = PIER_TRANSFER_FAIL_FAST | PIER_TRANSFER_NOTIFY |
		      PIER_TRANSFER_ANNOUNCE,
};

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
	if (attr->progress_ms < 0)
		return pier_fail(EINVAL, "transfer: progress_ms %d is negative",
				 attr->progress_ms);
	error = pier_check_announcing(attr);
	if (!error)
		error = pier_check_stream_attr(attr);
	if (!error)
		error = pier_drive_check_time(&pier_transfer_drive_ops, "stall_ms",
					      attr->stall_ms);
	if (!error)
		error = pier_drive_check_time(&pier_transfer_drive_ops, "timeout_ms",
					      attr->timeout_ms);
	if (!error)
		error = pier_drive_check_rails(&pier_transfer_drive_ops, attr->rails,
					       attr->rail_count);
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
	int error;

	if (!given)
		return pier_fail(EINVAL, "transfer: the attributes are NULL");
	pier_transfer_attr_init(ret_attr);
	error = pier_read_extensible("transfer", "pier_transfer_attr_init()", given,
				     offsetof(struct pier_transfer_attr, stream_size),
				     sizeof(*given), ret_attr);
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
		chunks += rails[i].base.size;
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
		error = pier_check_announced_ranges(&transfer->remaining, attr->length);
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

int pier_transfer_begin(const struct pier_transfer_attr *attr,
			struct pier_transfer **ret_transfer)
{
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
	transfer->drive.ops = &pier_transfer_drive_ops;
	transfer->drive.length = known.length;
	transfer->drive.span = known.length;
	transfer->drive.timeout_ms = known.timeout_ms;
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
	error = pier_drive_check_rails(&pier_transfer_drive_ops, rails, count);
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
		pier_transfer_wait(transfer, INT_MAX);
	pier_object_untrack(&transfer->drive.object);
	free_transfer(transfer);
	return 0;
}

void pier_transfer_query(const struct pier_transfer *transfer,
			 struct pier_transfer_status *ret_status)
{
	*ret_status = (struct pier_transfer_status){
		.length = transfer->attr.length,
		.done = transfer->drive.done,
		.rails = transfer->drive.rail_count,
		.working_rails = pier_drive_count_working(&transfer->drive),
		.in_flight = transfer->in_flight,
		.ended = transfer->drive.ended,
		.error = transfer->drive.error,
	};
}

int pier_transfer_query_rail(const struct pier_transfer *transfer, uint32_t index,
			     struct pier_rail_status *ret_status)
{
	return pier_drive_query_rail(&transfer->drive, index, ret_status);
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

		for (uint32_t i = 0; i < rail->base.count; i++) {
			const struct pier_rail_chunk *chunk =
				&rail->ring[(rail->base.first + i) % rail->base.size];

			if (chunk->length > 0)
				pier_remaining_give_back(
					ret_missing,
					(struct pier_range){ chunk->offset,
							     chunk->length });
		}
	}
	return 0;
}

int pier_transfer_pack(const struct pier_transfer *transfer, void *ret_state, size_t size)
{
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

int pier_transfer_run(const struct pier_transfer_attr *attr)
{
	struct pier_transfer *transfer;
	struct pier_transfer_attr known;
	int result = read_attr(attr, &known);

	if (!result && known.stream_size)
		result = pier_fail(EINVAL, "a stream needs pier_transfer_begin()");
	if (!result)
		result = pier_transfer_begin(attr, &transfer);
	if (result)
		return result;
	while (!(result = pier_transfer_wait(transfer, INT_MAX)))
		continue;
	pier_transfer_destroy(transfer);
	return result < 0 ? result : 0;
}
