/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "announce.h"
#include "transfer.h"
#include "core/caller.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/extensible.h"

enum {
	KNOWN_FLAGS = PIER_TRANSFER_FAIL_FAST | PIER_TRANSFER_NOTIFY |
		      PIER_TRANSFER_ANNOUNCE,
};

static int check_time(const char *name, int ms)
{
	if (ms > 0 || ms == PIER_TIMEOUT_DEFAULT)
		return 0;
	return pier_fail(EINVAL, "transfer: %s %d is neither more than 0 nor the default",
			 name, ms);
}

static int check_rail_count(uint32_t count)
{
	if (count >= 1 && count <= PIER_RAILS_MAX)
		return 0;
	return pier_fail(EINVAL, "transfer: %u rails; it has 1 to %d", count,
			 PIER_RAILS_MAX);
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
	if (attr->progress_ms < 0)
		return pier_fail(EINVAL, "transfer: progress_ms %d is negative",
				 attr->progress_ms);
	error = pier_check_announcing(attr);
	if (!error)
		error = check_time("stall_ms", attr->stall_ms);
	if (!error)
		error = check_time("timeout_ms", attr->timeout_ms);
	return error ? error : check_rail_count(attr->rail_count);
}

static int read_attr(const struct pier_transfer_attr *given,
		     struct pier_transfer_attr *ret_attr)
{
	int error;

	if (!given)
		return pier_fail(EINVAL, "transfer: the attributes are NULL");
	pier_transfer_attr_init(ret_attr);
	/* Its first version had all that is in there. */
	error = pier_read_extensible("transfer", "pier_transfer_attr_init()", given,
				     sizeof(*given), sizeof(*given), ret_attr);
	return error ? error : check_attr(ret_attr);
}

static void free_rails(struct pier_rail_state *rails, uint32_t count)
{
	for (uint32_t i = 0; rails && i < count; i++)
		pier_rail_free(&rails[i]);
	free(rails);
}

/* The rails of a transfer, checked, before anything of it is changed. */
static int make_rails(const struct pier_transfer_attr *attr,
		      const struct pier_rail *given, uint32_t count,
		      struct pier_rail_state **ret_rails, uint32_t *ret_chunks)
{
	struct pier_rail_state *rails = calloc(count, sizeof(*rails));
	uint32_t chunks = 0;
	int error = 0;

	if (!rails)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	for (uint32_t i = 0; i < count && !error; i++) {
		error = pier_rail_init(&rails[i], i, &given[i], attr);
		chunks += rails[i].window;
	}
	if (error) {
		free_rails(rails, count);
		return error;
	}
	*ret_rails = rails;
	*ret_chunks = chunks;
	return 0;
}

/* Take over rails that were made; the old ones go. */
static int set_rails(struct pier_transfer *transfer, struct pier_rail_state *rails,
		     uint32_t count, uint32_t chunks)
{
	struct pollfd *fds = reallocarray(transfer->fds, count, sizeof(*fds));
	struct pier_arrival *arrivals;

	if (!fds)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	transfer->fds = fds;
	arrivals = reallocarray(transfer->arrivals, chunks, sizeof(*arrivals));
	if (!arrivals)
		return pier_fail(ENOMEM, "no memory for %u chunks", chunks);
	transfer->arrivals = arrivals;
	free_rails(transfer->rails, transfer->rail_count);
	transfer->rails = rails;
	transfer->rail_count = count;
	return 0;
}

static void start_times(struct pier_transfer *transfer)
{
	int timeout_ms = transfer->attr.timeout_ms;

	transfer->deadline = timeout_ms == PIER_TIMEOUT_DEFAULT
				     ? INT64_MAX
				     : pier_deadline(timeout_ms);
}

/*
 * What is in flight may come back in as many ranges as there are chunks; so may as many
 * that have come and cannot be copied; and one more is what was never handed out.
 */
static uint32_t count_ranges(uint32_t chunks)
{
	return 2 * chunks + 1;
}

/* What came before has been flushed by nobody, for all that is known here. */
static void doubt_visibility(struct pier_transfer *transfer)
{
	for (uint32_t i = 0; i < transfer->rail_count; i++) {
		struct pier_rail_state *rail = &transfer->rails[i];

		rail->unflushed = transfer->done > 0 && rail->reads &&
				  (rail->direct || transfer->owes_flush);
		rail->doubtful = rail->unflushed;
	}
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
		transfer->done = attr->length -
				 pier_remaining_length(&transfer->remaining);
	if (!error && (attr->flags & PIER_TRANSFER_ANNOUNCE))
		error = pier_check_announced_ranges(&transfer->remaining, attr->length);
	return error;
}

static void free_transfer(struct pier_transfer *transfer)
{
	free_rails(transfer->rails, transfer->rail_count);
	pier_remaining_free(&transfer->remaining);
	free(transfer->arrivals);
	free(transfer->fds);
	free(transfer);
}

static int init_transfer(struct pier_transfer *transfer)
{
	struct pier_transfer_attr *attr = &transfer->attr;
	struct pier_rail_state *rails = NULL;
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
	doubt_visibility(transfer);
	/* Borrowed, and not looked at again. */
	attr->rails = NULL;
	attr->state = NULL;
	start_times(transfer);
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
	error = init_transfer(transfer);
	if (error) {
		free_transfer(transfer);
		return error;
	}
	transfer->object.describe = describe_transfer;
	pier_object_track(&transfer->object, PIER_OBJECT_TRANSFER, NULL);
	*ret_transfer = transfer;
	return 0;
}

int pier_transfer_resume(struct pier_transfer *transfer, const struct pier_rail *rails,
			 uint32_t count)
{
	struct pier_rail_state *made = NULL;
	uint32_t chunks = 0;
	int error = pier_check_process(&transfer->object);

	if (error)
		return error;
	if (!transfer->ended)
		return pier_fail(EBUSY, "resuming a transfer that has not ended: "
					"cancel it and drive it to its end");
	if (!transfer->error)
		return pier_fail(EALREADY,
				 "resuming a transfer: all of its %" PRIu64
				 " bytes have arrived",
				 transfer->attr.length);
	error = check_rail_count(count);
	if (!error)
		error = make_rails(&transfer->attr, rails, count, &made, &chunks);
	if (error)
		return error;
	error = pier_remaining_grow(&transfer->remaining, count_ranges(chunks));
	if (!error)
		error = set_rails(transfer, made, count, chunks);
	if (error) {
		free_rails(made, count);
		return error;
	}
	transfer->ended = false;
	transfer->stop = transfer->error = transfer->flush_error = 0;
	doubt_visibility(transfer);
	start_times(transfer);
	return 0;
}

int pier_transfer_cancel(struct pier_transfer *transfer)
{
	int error = pier_check_process(&transfer->object);

	if (error)
		return error;
	if (transfer->ended)
		return pier_fail(EALREADY, "cancelling a transfer that has ended");
	pier_stop_transfer(transfer, -ECANCELED, "it was cancelled");
	return 0;
}

int pier_transfer_destroy(struct pier_transfer *transfer)
{
	int error;

	if (!transfer)
		return 0;
	error = pier_check_process(&transfer->object);
	if (error)
		return error;
	if (!transfer->ended)
		pier_stop_transfer(transfer, -ECANCELED, "it was destroyed");
	while (!transfer->ended)
		pier_transfer_wait(transfer, INT_MAX);
	pier_object_untrack(&transfer->object);
	free_transfer(transfer);
	return 0;
}

void pier_transfer_query(const struct pier_transfer *transfer,
			 struct pier_transfer_status *ret_status)
{
	*ret_status = (struct pier_transfer_status){
		.length = transfer->attr.length,
		.done = transfer->done,
		.rails = transfer->rail_count,
		.in_flight = transfer->in_flight,
		.ended = transfer->ended,
		.error = transfer->error,
	};
	for (uint32_t i = 0; i < transfer->rail_count; i++)
		ret_status->working_rails += !transfer->rails[i].error;
}

int pier_transfer_query_rail(const struct pier_transfer *transfer, uint32_t index,
			     struct pier_rail_status *ret_status)
{
	const struct pier_rail_state *rail;

	if (index >= transfer->rail_count)
		return pier_fail(ERANGE, "rail %u of a transfer of %u", index,
				 transfer->rail_count);
	rail = &transfer->rails[index];
	*ret_status = (struct pier_rail_status){
		.channel = rail->channel,
		.done = rail->done,
		.in_flight = rail->count,
		.error = rail->error,
	};
	snprintf(ret_status->sentence, sizeof(ret_status->sentence), "%s",
		 rail->error ? rail->sentence : "");
	return 0;
}

/* All that has not arrived: what is in flight too. */
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
	for (uint32_t r = 0; r < transfer->rail_count; r++) {
		const struct pier_rail_state *rail = &transfer->rails[r];

		for (uint32_t i = 0; i < rail->count; i++) {
			const struct pier_rail_chunk *chunk =
				&rail->ring[(rail->first + i) % rail->window];

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
	int result = pier_check_process(&transfer->object);

	if (!result)
		result = copy_missing(transfer, &missing);
	if (result)
		return result;
	result = pier_remaining_pack(&missing, transfer->attr.length, ret_state, size);
	pier_remaining_free(&missing);
	return result;
}
