/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/receiver.h>

#include "channel/wait.h"
#include "drive.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/log.h"

int pier_check_stall(const char *what, int stall_ms)
{
	if (stall_ms > 0 || stall_ms == PIER_TIMEOUT_DEFAULT)
		return 0;
	return pier_fail(EINVAL, "%s: stall_ms %d is neither more than 0 nor the default",
			 what, stall_ms);
}

/* The first members of both kinds of rails. */
struct given_rail {
	const struct pier_channel *channel;
	const struct pier_mr *mr;
};
_Static_assert(offsetof(struct pier_rail, mr) == offsetof(struct given_rail, mr) &&
		       offsetof(struct pier_receiver_rail, mr) ==
			       offsetof(struct given_rail, mr),
	       "a rail begins with its channel and its region");

int pier_drive_check_rails(const struct pier_drive_ops *ops, const void *rails,
			   size_t size, uint32_t count)
{
	if (count < 1 || count > PIER_RAILS_MAX)
		return pier_fail(EINVAL, "%s: %u rails; it has 1 to %d", ops->name, count,
				 PIER_RAILS_MAX);
	if (!rails)
		return pier_fail(EINVAL, "%s: rails is NULL", ops->name);
	for (uint32_t i = 0; i < count; i++) {
		const struct given_rail *rail = (const void *)((const char *)rails +
							       i * size);

		if (!rail->channel || !rail->mr)
			return pier_fail(EINVAL, "rail %u of a %s: %s is NULL", i,
					 ops->name, rail->channel ? "mr" : "channel");
	}
	return 0;
}

int pier_drive_reserve_fds(struct pier_drive *drive, uint32_t count)
{
	struct pollfd *fds = reallocarray(drive->fds, count, sizeof(*fds));

	if (!fds)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	drive->fds = fds;
	return 0;
}

/* Bytes that arrived earlier may not have been flushed. */
static void doubt_visibility(struct pier_drive *drive)
{
	for (uint32_t i = 0; i < drive->rail_count; i++) {
		struct pier_rail_base *rail = pier_drive_rail(drive, i);

		rail->unflushed = drive->incoming && drive->done > 0 &&
				  (rail->direct || drive->owes_flush);
		rail->doubtful = rail->unflushed;
	}
}

void pier_drive_start(struct pier_drive *drive)
{
	drive->ended = false;
	drive->stop = drive->error = drive->flush_error = 0;
	doubt_visibility(drive);
}

void pier_drive_stop(struct pier_drive *drive, int error, const char *format, ...)
{
	va_list arguments;

	if (drive->stop)
		return;
	drive->stop = error;
	va_start(arguments, format);
	vsnprintf(drive->reason, sizeof(drive->reason), format, arguments);
	va_end(arguments);
}

uint32_t pier_drive_count_working(const struct pier_drive *drive)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < drive->rail_count; i++)
		count += !pier_drive_rail(drive, i)->flow.error;
	return count;
}

uint64_t pier_drive_failed_rails(const struct pier_drive *drive)
{
	uint64_t failed = 0;

	for (uint32_t i = 0; i < drive->rail_count; i++)
		if (pier_drive_rail(drive, i)->flow.error &&
		    !pier_drive_rail(drive, i)->flow.stops_at)
			failed |= UINT64_C(1) << i;
	return failed;
}

bool pier_drive_is_stopping(const struct pier_drive *drive)
{
	bool stopping = false;

	for (uint32_t i = 0; i < drive->rail_count; i++)
		stopping |= pier_flow_is_stopping(&pier_drive_rail(drive, i)->flow);
	return stopping;
}

void pier_drive_note_failure(struct pier_drive *drive, uint32_t index)
{
	const struct pier_rail_base *rail = pier_drive_rail(drive, index);
	uint32_t working = pier_drive_count_working(drive);
	char reason[640];

	if (!rail->flow.error || drive->stop)
		return;
	snprintf(reason, sizeof(reason), "rail %u of %u failed: %s", index,
		 drive->rail_count, rail->flow.sentence);
	if (working > 0 && !drive->fail_fast)
		pier_warning("%s of %" PRIu64 " bytes: %s; %u others continue",
			     drive->ops->name, drive->length, reason, working);
	else
		pier_drive_stop(drive, rail->flow.error, "%s", reason);
}

int pier_drive_flush(struct pier_drive *drive, uint32_t *ret_index)
{
	int error = 0;

	for (uint32_t i = 0; i < drive->rail_count && !error; i++) {
		error = pier_rail_flush(pier_drive_rail(drive, i), drive->span);
		*ret_index = i;
	}
	return error;
}

void pier_drive_settle_flushes(struct pier_drive *drive)
{
	bool owes = drive->flush_error;

	for (uint32_t i = 0; i < drive->rail_count; i++)
		owes |= pier_rail_flush(pier_drive_rail(drive, i), drive->span) != 0;
	drive->owes_flush = owes;
}

void pier_drive_conclude(struct pier_drive *drive, bool complete)
{
	drive->ended = complete || drive->stop;
	if (complete || !drive->stop)
		return;
	/* Now, while the regions exist: it may be resumed with others. */
	pier_drive_settle_flushes(drive);
	drive->error = drive->stop;
	snprintf(drive->sentence, sizeof(drive->sentence),
		 "%s: %" PRIu64 " of %" PRIu64 " bytes have arrived: %s",
		 drive->ops->name, drive->done, drive->length, drive->reason);
}

static int drive_result(const struct pier_drive *drive)
{
	if (!drive->ended)
		return 0;
	return drive->error ? pier_fail(-drive->error, "%s", drive->sentence) : 1;
}

static int step_drive(struct pier_drive *drive, int64_t deadline)
{
	if (!drive->ended)
		drive->ops->step(drive, deadline);
	return drive_result(drive);
}

int pier_drive_progress(struct pier_drive *drive)
{
	int error = pier_check_process(&drive->object);

	return error ? error : step_drive(drive, INT64_MAX);
}

struct drive_wait {
	struct pier_drive *drive;
	int64_t deadline;
};

static int check_drive(void *subject)
{
	const struct drive_wait *wait = subject;
	struct pier_drive *drive = wait->drive;
	uint64_t done = drive->done;

	step_drive(drive, wait->deadline);
	if (drive->ended || drive->ops->has_news(drive))
		return PIER_CONDITION_HOLDS;
	return drive->done != done || drive->leftovers ? PIER_CONDITION_PROGRESS
						       : PIER_CONDITION_PENDING;
}

/* If a rail cannot be armed, do not sleep: the next step finds the cause. */
static int pass_rails(void *subject, struct pier_wait_pass *pass)
{
	const struct pier_drive *drive = ((const struct drive_wait *)subject)->drive;

	for (uint32_t i = 0; i < drive->rail_count; i++) {
		const struct pier_flow *flow = &pier_drive_rail(drive, i)->flow;

		pier_wait_pass_until(pass, pier_flow_wakes_at(flow));
		if ((flow->error && flow->count == 0 && !flow->stops_at) ||
		    pier_wait_pass_channel(pass, flow->channel) == 0)
			continue;
		pier_debug("%s: rail %u: %s", drive->ops->name, i, pier_error_message());
		pass->again = true;
	}
	pier_wait_pass_until(pass, drive->ops->wake_at(drive));
	return 0;
}

int pier_drive_wait(struct pier_drive *drive, int timeout_ms)
{
	struct drive_wait wait = { drive, timeout_ms == PIER_TIMEOUT_DEFAULT
						  ? INT64_MAX
						  : pier_deadline(timeout_ms) };
	const struct pier_wait_condition condition = {
		.check = check_drive,
		.pass = pass_rails,
		.subject = &wait,
		.fds = drive->fds,
	};
	int error = pier_check_process(&drive->object);

	if (!error)
		error = pier_check_timeout(timeout_ms, timeout_ms, &timeout_ms);
	if (error)
		return error;
	if (timeout_ms == 0)
		return step_drive(drive, wait.deadline);
	error = pier_wait_until(&condition, wait.deadline);
	if (error == -ETIMEDOUT)
		return pier_fail(ETIMEDOUT,
				 "the %s did not end within %d ms: %" PRIu64
				 " of %" PRIu64 " bytes have arrived",
				 drive->ops->name, timeout_ms, drive->done,
				 drive->length);
	return error ? error : drive_result(drive);
}

static int stop_from_outside(struct pier_drive *drive, int error, const char *reason)
{
	int wrong = pier_check_process(&drive->object);

	if (wrong)
		return wrong;
	if (drive->ended)
		return pier_fail(EALREADY, "cancelling a %s that has ended",
				 drive->ops->name);
	pier_drive_stop(drive, error, "%s", reason);
	return 0;
}

int pier_drive_cancel(struct pier_drive *drive)
{
	return stop_from_outside(drive, -ECANCELED, "it was cancelled");
}

int pier_drive_fail(struct pier_drive *drive, int error)
{
	char reason[128];

	snprintf(reason, sizeof(reason), "ended by this side: %s", strerror(-error));
	return stop_from_outside(drive, error, reason);
}

int pier_drive_query_rail(const struct pier_drive *drive, uint32_t index,
			  struct pier_rail_status *ret_status, size_t size)
{
	const struct pier_rail_base *rail;
	struct pier_rail_status status;

	if (index >= drive->rail_count)
		return pier_fail(ERANGE, "rail %u of a %s of %u", index, drive->ops->name,
				 drive->rail_count);
	rail = pier_drive_rail(drive, index);
	status = (struct pier_rail_status){
		.channel = rail->flow.channel,
		.done = rail->done,
		.in_flight = rail->flow.count,
		.error = rail->flow.error,
	};
	snprintf(status.sentence, sizeof(status.sentence), "%s",
		 rail->flow.error ? rail->flow.sentence : "");
	pier_write_extensible(&status, sizeof(status), ret_status, size);
	return 0;
}
