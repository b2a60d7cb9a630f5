/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "channel/wait.h"
#include "transfer.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"

void pier_stop_transfer(struct pier_transfer *transfer, int error, const char *reason)
{
	if (transfer->stop)
		return;
	transfer->stop = error;
	snprintf(transfer->reason, sizeof(transfer->reason), "%s", reason);
}

static uint32_t count_working(const struct pier_transfer *transfer)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < transfer->rail_count; i++)
		count += !transfer->rails[i].error;
	return count;
}

/* After something was done with a rail that had not failed: whether it has now. */
static void note_failure(struct pier_transfer *transfer, uint32_t index)
{
	const struct pier_rail_state *rail = &transfer->rails[index];
	uint32_t working = count_working(transfer);
	char reason[640];

	if (!rail->error)
		return;
	snprintf(reason, sizeof(reason), "rail %u of %u failed: %s", index,
		 transfer->rail_count, rail->sentence);
	if (working > 0 && !(transfer->attr.flags & PIER_TRANSFER_FAIL_FAST))
		pier_warning("transfer of %" PRIu64 " bytes: %s; %u go on",
			     transfer->attr.length, reason, working);
	else
		pier_stop_transfer(transfer, rail->error, reason);
}

static void give_back(struct pier_transfer *transfer, const struct pier_rail_chunk *chunk)
{
	pier_remaining_give_back(&transfer->remaining,
				 (struct pier_range){ chunk->offset, chunk->length });
}

/* What a rail has completed. What is to be copied waits until others are posted. */
static void collect(struct pier_transfer *transfer, uint32_t index, int64_t now)
{
	struct pier_rail_state *rail = &transfer->rails[index];
	struct pier_rail_chunk chunk;

	while (pier_rail_take(rail, now, &chunk)) {
		transfer->in_flight--;
		if (chunk.length == 0) {
			transfer->notice_flies = false;
			transfer->noticed = !chunk.error;
		} else if (chunk.error) {
			give_back(transfer, &chunk);
		} else if (pier_rail_copies(rail, &chunk)) {
			transfer->arrivals[transfer->arrival_count++] =
				(struct pier_arrival){ rail, index, chunk };
		} else {
			pier_rail_land(rail, &chunk);
			transfer->done += chunk.length;
		}
	}
}

/* What a rail whose time is up had in flight can be collected at once. */
static void collect_all(struct pier_transfer *transfer, int64_t now)
{
	for (uint32_t i = 0; i < transfer->rail_count; i++) {
		struct pier_rail_state *rail = &transfer->rails[i];
		bool failed = rail->error;

		collect(transfer, i, now);
		pier_rail_check(rail, now);
		collect(transfer, i, now);
		if (!failed)
			note_failure(transfer, i);
	}
}

/*
 * Chunks that have come go to where they belong, while the NICs have others in flight.
 * Whether there were any.
 */
static bool copy_arrivals(struct pier_transfer *transfer)
{
	uint32_t count = transfer->arrival_count;

	for (uint32_t i = 0; i < count; i++) {
		struct pier_arrival *arrival = &transfer->arrivals[i];
		bool failed = arrival->rail->error;

		if (pier_rail_land(arrival->rail, &arrival->chunk))
			give_back(transfer, &arrival->chunk);
		else
			transfer->done += arrival->chunk.length;
		if (!failed)
			note_failure(transfer, arrival->index);
	}
	transfer->arrival_count = 0;
	return count > 0;
}

/* What came straight into memory of devices is flushed once, before that is told. */
static void flush_rails(struct pier_transfer *transfer)
{
	char reason[640];

	if (transfer->done < transfer->attr.length)
		return;
	for (uint32_t i = 0; i < transfer->rail_count && !transfer->flush_error; i++) {
		transfer->flush_error = pier_rail_flush(&transfer->rails[i]);
		if (!transfer->flush_error)
			continue;
		pier_rail_fail(&transfer->rails[i], transfer->flush_error,
			       pier_error_message());
		snprintf(reason, sizeof(reason),
			 "what rail %u brought is not visible: %s", i,
			 pier_error_message());
		pier_stop_transfer(transfer, transfer->flush_error, reason);
	}
}

/* A chunk by one rail. Returns whether there was one. */
static bool post_chunk(struct pier_transfer *transfer, uint32_t index, int64_t now)
{
	struct pier_rail_state *rail = &transfer->rails[index];
	int64_t length;

	if (rail->error || pier_remaining_empty(&transfer->remaining))
		return false;
	length = pier_rail_post(rail, pier_remaining_first(&transfer->remaining), now);
	if (length < 0)
		note_failure(transfer, index);
	if (length <= 0)
		return false;
	pier_remaining_take(&transfer->remaining, (uint64_t)length);
	transfer->in_flight++;
	return true;
}

/* In turn, so that each rail has some of what there is. */
static void post_chunks(struct pier_transfer *transfer, int64_t now)
{
	bool posted = true;

	while (posted) {
		posted = false;
		for (uint32_t i = 0; i < transfer->rail_count && !transfer->stop; i++)
			posted |= post_chunk(transfer, i, now);
	}
}

static bool all_arrived(const struct pier_transfer *transfer)
{
	return transfer->done == transfer->attr.length && !transfer->flush_error;
}

static bool owes_notice(const struct pier_transfer *transfer)
{
	return (transfer->attr.flags & PIER_TRANSFER_NOTIFY) && !transfer->noticed;
}

static void post_notice(struct pier_transfer *transfer, int64_t now)
{
	if (!all_arrived(transfer) || !owes_notice(transfer))
		return;
	for (uint32_t i = 0; i < transfer->rail_count; i++) {
		struct pier_rail_state *rail = &transfer->rails[i];
		int posted;

		if (rail->error || transfer->stop || transfer->notice_flies)
			continue;
		posted = pier_rail_post_notice(rail, transfer->attr.immediate, now);
		if (posted < 0)
			note_failure(transfer, i);
		transfer->notice_flies = posted > 0;
		transfer->in_flight += posted > 0;
	}
}

/* A full queue is no matter while there is nothing to post. */
static void forget_hunger(struct pier_transfer *transfer)
{
	bool wants = !pier_remaining_empty(&transfer->remaining) ||
		     (all_arrived(transfer) && owes_notice(transfer));

	for (uint32_t i = 0; i < transfer->rail_count && !wants; i++)
		transfer->rails[i].starving_at = 0;
}

static void report(struct pier_transfer *transfer, int64_t now)
{
	const struct pier_transfer_attr *attr = &transfer->attr;
	bool end = all_arrived(transfer);

	if (!attr->progress || transfer->reported_end || transfer->flush_error ||
	    (!end &&
	     (transfer->done == transfer->reported ||
	      now - transfer->reported_at < (int64_t)attr->progress_ms * 1000000)))
		return;
	transfer->reported = transfer->done;
	transfer->reported_at = now;
	transfer->reported_end = end;
	if (attr->progress(attr->context, transfer->done, attr->length))
		pier_stop_transfer(transfer, -ECANCELED,
				   "its progress callback cancelled it");
}

/* While the regions are there: those that it is resumed with may have bounce buffers. */
static void settle_flushes(struct pier_transfer *transfer)
{
	int error = transfer->flush_error;

	for (uint32_t i = 0; i < transfer->rail_count && !error; i++)
		error = pier_rail_flush(&transfer->rails[i]);
	transfer->owes_flush = error;
}

/* Once nothing is in flight: how it ended, if it did. */
static void conclude(struct pier_transfer *transfer)
{
	if (transfer->in_flight > 0)
		return;
	if (all_arrived(transfer) && !owes_notice(transfer)) {
		transfer->ended = true;
	} else if (transfer->stop) {
		settle_flushes(transfer);
		transfer->ended = true;
		transfer->error = transfer->stop;
		snprintf(transfer->sentence, sizeof(transfer->sentence),
			 "transfer: %" PRIu64 " of %" PRIu64 " bytes have arrived: %s",
			 transfer->done, transfer->attr.length, transfer->reason);
	}
}

static int tell(const struct pier_transfer *transfer)
{
	if (!transfer->ended)
		return 0;
	return transfer->error ? pier_fail(-transfer->error, "%s", transfer->sentence)
			       : 1;
}

static void check_deadline(struct pier_transfer *transfer, int64_t now)
{
	char reason[64];

	if (now < transfer->deadline)
		return;
	snprintf(reason, sizeof(reason), "the %d ms were over",
		 transfer->attr.timeout_ms);
	pier_stop_transfer(transfer, -ETIMEDOUT, reason);
}

/* After something has arrived: tell, and go on. */
static void advance(struct pier_transfer *transfer, int64_t now)
{
	flush_rails(transfer);
	report(transfer, now);
	check_deadline(transfer, now);
	post_chunks(transfer, now);
}

static int progress(struct pier_transfer *transfer, int64_t now)
{
	if (transfer->ended)
		return tell(transfer);
	collect_all(transfer, now);
	advance(transfer, now);
	if (copy_arrivals(transfer)) {
		now = pier_now();
		advance(transfer, now);
	}
	post_notice(transfer, now);
	forget_hunger(transfer);
	conclude(transfer);
	return tell(transfer);
}

int pier_transfer_progress(struct pier_transfer *transfer)
{
	int error = pier_check_process(&transfer->object);

	return error ? error : progress(transfer, pier_now());
}

static int64_t wake_at(const struct pier_transfer *transfer)
{
	int64_t deadline = transfer->stop ? INT64_MAX : transfer->deadline;

	for (uint32_t i = 0; i < transfer->rail_count; i++) {
		int64_t rail = pier_rail_deadline(&transfer->rails[i]);

		if (rail < deadline)
			deadline = rail;
	}
	return deadline;
}

/* How it ended is told afterwards. */
static int check_transfer(void *subject)
{
	struct pier_transfer *transfer = subject;
	uint64_t done = transfer->done;

	progress(transfer, pier_now());
	if (transfer->ended)
		return PIER_CONDITION_HOLDS;
	return transfer->done != done ? PIER_CONDITION_PROGRESS : PIER_CONDITION_PENDING;
}

/* A rail that cannot be armed is not slept on: the next look finds out why. */
static int pass_rails(void *subject, struct pier_wait_pass *pass)
{
	struct pier_transfer *transfer = subject;

	for (uint32_t i = 0; i < transfer->rail_count; i++) {
		struct pier_rail_state *rail = &transfer->rails[i];

		if (rail->error && rail->count == 0)
			continue;
		if (pier_wait_pass_channel(pass, rail->channel) == 0)
			continue;
		pier_debug("transfer: rail %u: %s", i, pier_error_message());
		pass->again = true;
	}
	pier_wait_pass_until(pass, wake_at(transfer));
	return 0;
}

int pier_transfer_wait(struct pier_transfer *transfer, int timeout_ms)
{
	const struct pier_wait_condition condition = {
		.check = check_transfer,
		.pass = pass_rails,
		.subject = transfer,
		.fds = transfer->fds,
	};
	int64_t deadline = pier_deadline(timeout_ms);
	int error = pier_check_process(&transfer->object);

	if (error)
		return error;
	if (timeout_ms < 0)
		return pier_fail(EINVAL,
				 "waiting for a transfer: timeout_ms %d is negative",
				 timeout_ms);
	if (timeout_ms == 0)
		return progress(transfer, pier_now());
	/* poll(2) fails for reasons that are not ours: the caller waits again. */
	pier_wait_until(&condition, deadline);
	return tell(transfer);
}

int pier_transfer_run(const struct pier_transfer_attr *attr)
{
	struct pier_transfer *transfer;
	int result = pier_transfer_begin(attr, &transfer);

	if (result)
		return result;
	while (!(result = pier_transfer_wait(transfer, INT_MAX)))
		continue;
	pier_transfer_destroy(transfer);
	return result < 0 ? result : 0;
}
