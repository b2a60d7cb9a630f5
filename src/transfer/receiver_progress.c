/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <pier/recovery.h>

#include "announce.h"
#include "channel/wait.h"
#include "receiver.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"

enum {
	ROUNDS = 32, /* of chunks in one call: they may come as fast as copied */
};

void pier_stop_receiver(struct pier_receiver *receiver, int error, const char *reason)
{
	if (receiver->stop)
		return;
	receiver->stop = error;
	snprintf(receiver->reason, sizeof(receiver->reason), "%s", reason);
}

static bool has_come(const struct pier_receiver *receiver, uint64_t block)
{
	return receiver->blocks[block / 64] >> (block % 64) & 1;
}

/* How many bytes of a chunk have not come before. */
static uint64_t count_new(const struct pier_receiver *receiver, struct pier_range chunk)
{
	uint64_t end = chunk.offset + chunk.length, count = 0;

	for (uint64_t at = chunk.offset; at < end; at += PIER_ANNOUNCE_BLOCK) {
		uint64_t left = end - at;

		if (!has_come(receiver, at / PIER_ANNOUNCE_BLOCK))
			count += left < PIER_ANNOUNCE_BLOCK ? left : PIER_ANNOUNCE_BLOCK;
	}
	return count;
}

static void mark(struct pier_receiver *receiver, struct pier_range chunk)
{
	uint64_t block = chunk.offset / PIER_ANNOUNCE_BLOCK;
	uint64_t last = (chunk.offset + chunk.length - 1) / PIER_ANNOUNCE_BLOCK;

	for (; block <= last; block++)
		receiver->blocks[block / 64] |= UINT64_C(1) << (block % 64);
}

/* What came before is not touched again: it may be in use. */
static void land(struct pier_receiver *receiver, struct pier_receiver_side *side,
		 struct pier_range chunk)
{
	uint64_t count = count_new(receiver, chunk);
	int error;

	if (count == 0 || receiver->lost)
		return;
	error = pier_side_land(side, chunk);
	if (error) {
		receiver->lost = true;
		pier_stop_receiver(receiver, error, pier_error_message());
		return;
	}
	mark(receiver, chunk);
	side->done += count;
	receiver->done += count;
	receiver->alive_at = pier_now();
}

void pier_note_side_failure(struct pier_receiver *receiver, uint32_t index)
{
	const struct pier_receiver_side *side = &receiver->sides[index];
	uint32_t working = 0;
	char reason[640];

	for (uint32_t i = 0; i < receiver->side_count; i++)
		working += !receiver->sides[i].error;
	snprintf(reason, sizeof(reason), "rail %u of %u failed: %s", index,
		 receiver->side_count, side->sentence);
	if (working > 0)
		pier_warning("receiver of %" PRIu64 " bytes: %s; %u go on",
			     receiver->attr.length, reason, working);
	else
		pier_stop_receiver(receiver, side->error, reason);
}

/*
 * A chunk of one rail: 1, 0 none, or what is no chunk. Before it is copied a receive is
 * posted, so that the sender need not wait for that; not by a receiver that has ended.
 */
static int take_chunk(struct pier_receiver *receiver, uint32_t index)
{
	struct pier_receiver_side *side = &receiver->sides[index];
	bool failed = side->error;
	struct pier_range chunk;
	int taken = pier_side_take(side, receiver->attr.length, &chunk);

	if (taken > 0 && !receiver->ended)
		pier_side_post(side);
	if (taken > 0)
		land(receiver, side, chunk);
	if (taken < 0)
		pier_stop_receiver(receiver, taken, pier_error_message());
	if (!failed && side->error)
		pier_note_side_failure(receiver, index);
	return taken;
}

static bool all_came(const struct pier_receiver *receiver)
{
	return receiver->done == receiver->attr.length;
}

/* In turn, since all may have some, and copying takes long. Whether there was one. */
static bool take_round(struct pier_receiver *receiver)
{
	bool taken = false;

	for (uint32_t i = 0; i < receiver->side_count; i++)
		if (!receiver->stop && !all_came(receiver))
			taken |= take_chunk(receiver, i) > 0;
	return taken;
}

/* Something, and not for ever. What may be left was maybe collected: no event tells it.
 */
static void take_chunks(struct pier_receiver *receiver, int64_t deadline)
{
	bool more = true;

	if (receiver->deadline < deadline)
		deadline = receiver->deadline;
	for (int i = 0; more && i < ROUNDS && (i == 0 || pier_now() < deadline); i++)
		more = take_round(receiver);
	for (uint32_t i = 0; i < receiver->side_count; i++)
		if (!receiver->sides[i].error)
			receiver->sides[i].channel->unseen = more;
}

/* A channel that failed has stopped, and must not be needed any more at the end. */
static void empty_failed(struct pier_receiver *receiver)
{
	for (uint32_t i = 0; i < receiver->side_count; i++) {
		const struct pier_receiver_side *side = &receiver->sides[i];

		while (side->error && side->count > 0 && take_chunk(receiver, i) != 0)
			continue;
	}
}

/* What came straight into memory of devices. 0, or the first error, which is told. */
static int flush_sides(struct pier_receiver *receiver)
{
	int error = 0;

	for (uint32_t i = 0; i < receiver->side_count && !error; i++)
		error = pier_side_flush(&receiver->sides[i], receiver->attr.length);
	return error;
}

/*
 * At an end with an error, while the regions are there: it may be resumed with others,
 * which need no flush. Whether something is still to be flushed.
 */
static bool settle_flushes(struct pier_receiver *receiver)
{
	bool owes = receiver->flush_error;

	for (uint32_t i = 0; i < receiver->side_count; i++)
		owes |= pier_side_flush(&receiver->sides[i], receiver->attr.length) != 0;
	return owes;
}

/* Receives for what comes next; a channel that was reset since has none to be kept. */
static void refill(struct pier_receiver *receiver)
{
	for (uint32_t i = 0; i < receiver->side_count; i++)
		if (!receiver->sides[i].error && pier_side_post(&receiver->sides[i]))
			pier_note_side_failure(receiver, i);
}

int pier_catch_up(struct pier_receiver *receiver)
{
	if (!receiver->lost) {
		receiver->stop = 0;
		while (take_round(receiver))
			continue;
		refill(receiver);
		empty_failed(receiver);
		receiver->owes_flush |= settle_flushes(receiver);
	}
	if (receiver->stop == -EBADMSG)
		return pier_fail(EBADMSG, "resuming a receiver: %s", receiver->reason);
	if (receiver->lost)
		return pier_fail(EIO,
				 "resuming a receiver: bytes that had come could not be "
				 "copied, and the peer will not move them again: %s",
				 receiver->reason);
	return 0;
}

/* Once, when all have come. */
static void flush(struct pier_receiver *receiver)
{
	receiver->flush_error = flush_sides(receiver);
	if (!receiver->flush_error)
		return;
	/* Also where it is cancelled: that would come too late. */
	receiver->stop = 0;
	pier_stop_receiver(receiver, receiver->flush_error, pier_error_message());
}

static int64_t wake_at(const struct pier_receiver *receiver)
{
	int64_t stalls = receiver->alive_at + receiver->stall_ns;

	return stalls < receiver->deadline ? stalls : receiver->deadline;
}

static void check_times(struct pier_receiver *receiver, int64_t now)
{
	char reason[96];

	if (now < wake_at(receiver))
		return;
	if (now >= receiver->deadline)
		snprintf(reason, sizeof(reason), "the %d ms were over",
			 receiver->attr.timeout_ms);
	else
		snprintf(reason, sizeof(reason), "nothing new came within %" PRId64 " ms",
			 receiver->stall_ns / 1000000);
	pier_stop_receiver(receiver, -ETIMEDOUT, reason);
}

/* A reason to stop that came too late is none, unless bytes are lost. */
static void conclude(struct pier_receiver *receiver)
{
	bool complete = all_came(receiver) && !receiver->lost && !receiver->flush_error;

	receiver->ended = complete || receiver->stop;
	if (complete || !receiver->stop)
		return;
	receiver->owes_flush = settle_flushes(receiver);
	receiver->error = receiver->stop;
	snprintf(receiver->sentence, sizeof(receiver->sentence),
		 "receiver: %" PRIu64 " of %" PRIu64 " bytes have come: %s",
		 receiver->done, receiver->attr.length, receiver->reason);
}

static int tell(const struct pier_receiver *receiver)
{
	if (!receiver->ended)
		return 0;
	return receiver->error ? pier_fail(-receiver->error, "%s", receiver->sentence)
			       : 1;
}

/* Until the deadline, at most; but something. */
static int progress(struct pier_receiver *receiver, int64_t deadline)
{
	if (!receiver->ended) {
		take_chunks(receiver, deadline);
		empty_failed(receiver);
		if (all_came(receiver))
			flush(receiver);
		else if (!receiver->stop)
			check_times(receiver, pier_now());
		conclude(receiver);
	}
	return tell(receiver);
}

int pier_receiver_progress(struct pier_receiver *receiver)
{
	int error = pier_check_process(&receiver->object);

	return error ? error : progress(receiver, INT64_MAX);
}

/* One wait for a receiver. */
struct receiver_wait {
	struct pier_receiver *receiver;
	int64_t deadline;
};

/* Chunks may be left that were collected already, for which no event comes. */
static bool has_leftovers(const struct pier_receiver *receiver)
{
	for (uint32_t i = 0; i < receiver->side_count; i++)
		if (!receiver->sides[i].error && receiver->sides[i].channel->unseen)
			return true;
	return false;
}

/* How it ended is told afterwards. */
static int check_receiver(void *subject)
{
	const struct receiver_wait *wait = subject;
	struct pier_receiver *receiver = wait->receiver;
	uint64_t done = receiver->done;

	progress(receiver, wait->deadline);
	if (receiver->ended)
		return PIER_CONDITION_HOLDS;
	return receiver->done != done || has_leftovers(receiver) ? PIER_CONDITION_PROGRESS
								 : PIER_CONDITION_PENDING;
}

/* A side that cannot be armed is not slept on: the next look finds out why. */
static int pass_sides(void *subject, struct pier_wait_pass *pass)
{
	const struct receiver_wait *wait = subject;
	struct pier_receiver *receiver = wait->receiver;

	for (uint32_t i = 0; i < receiver->side_count; i++) {
		struct pier_receiver_side *side = &receiver->sides[i];

		if (side->error || pier_wait_pass_channel(pass, side->channel) == 0)
			continue;
		pier_debug("receiver: rail %u: %s", i, pier_error_message());
		pass->again = true;
	}
	pier_wait_pass_until(pass, wake_at(receiver));
	return 0;
}

int pier_receiver_wait(struct pier_receiver *receiver, int timeout_ms)
{
	struct receiver_wait wait = { .receiver = receiver,
				      .deadline = pier_deadline(timeout_ms) };
	const struct pier_wait_condition condition = {
		.check = check_receiver,
		.pass = pass_sides,
		.subject = &wait,
		.fds = receiver->fds,
	};
	int error = pier_check_process(&receiver->object);

	if (error)
		return error;
	if (timeout_ms < 0)
		return pier_fail(EINVAL,
				 "waiting for a receiver: timeout_ms %d is negative",
				 timeout_ms);
	if (timeout_ms == 0)
		return progress(receiver, wait.deadline);
	/* poll(2) fails for reasons that are not ours: the caller waits again. */
	pier_wait_until(&condition, wait.deadline);
	return tell(receiver);
}
