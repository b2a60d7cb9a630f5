/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <pier/recovery.h>

#include "announce.h"
#include "channel/channel.h"
#include "landing.h"
#include "util/deadline.h"
#include "util/error.h"
#include "util/log.h"

enum {
	BRIEF_POLLS = 100, /* some microseconds, before asking for events */
	ROUNDS = 32,	   /* of chunks in one call: they may come as fast as copied */
};

void pier_stop_landing(struct pier_landing *landing, int error, const char *reason)
{
	if (landing->stop)
		return;
	landing->stop = error;
	snprintf(landing->reason, sizeof(landing->reason), "%s", reason);
}

static bool has_come(const struct pier_landing *landing, uint64_t block)
{
	return landing->blocks[block / 64] >> (block % 64) & 1;
}

/* How many bytes of a chunk have not come before. */
static uint64_t count_new(const struct pier_landing *landing, struct pier_range chunk)
{
	uint64_t end = chunk.offset + chunk.length, count = 0;

	for (uint64_t at = chunk.offset; at < end; at += PIER_ANNOUNCE_BLOCK) {
		uint64_t left = end - at;

		if (!has_come(landing, at / PIER_ANNOUNCE_BLOCK))
			count += left < PIER_ANNOUNCE_BLOCK ? left : PIER_ANNOUNCE_BLOCK;
	}
	return count;
}

static void mark(struct pier_landing *landing, struct pier_range chunk)
{
	uint64_t block = chunk.offset / PIER_ANNOUNCE_BLOCK;
	uint64_t last = (chunk.offset + chunk.length - 1) / PIER_ANNOUNCE_BLOCK;

	for (; block <= last; block++)
		landing->blocks[block / 64] |= UINT64_C(1) << (block % 64);
}

/* What came before is not touched again: it may be in use. */
static void land(struct pier_landing *landing, struct pier_landing_side *side,
		 struct pier_range chunk)
{
	uint64_t count = count_new(landing, chunk);
	int error;

	if (count == 0 || landing->lost)
		return;
	error = pier_side_land(side, chunk);
	if (error) {
		landing->lost = true;
		pier_stop_landing(landing, error, pier_last_error());
		return;
	}
	mark(landing, chunk);
	side->done += count;
	landing->done += count;
	landing->alive_at = pier_now();
}

void pier_note_side_failure(struct pier_landing *landing, uint32_t index)
{
	const struct pier_landing_side *side = &landing->sides[index];
	uint32_t working = 0;
	char reason[640];

	for (uint32_t i = 0; i < landing->side_count; i++)
		working += !landing->sides[i].error;
	snprintf(reason, sizeof(reason), "rail %u of %u failed: %s", index,
		 landing->side_count, side->sentence);
	if (working > 0)
		pier_warning("landing of %" PRIu64 " bytes: %s; %u go on",
			     landing->attr.length, reason, working);
	else
		pier_stop_landing(landing, side->error, reason);
}

/*
 * A chunk of one rail: 1, 0 none, or what is no chunk. Before it is copied a receive is
 * posted, so that the sender need not wait for that; not by a landing that has ended.
 */
static int take_chunk(struct pier_landing *landing, uint32_t index)
{
	struct pier_landing_side *side = &landing->sides[index];
	bool failed = side->error;
	struct pier_range chunk;
	int taken = pier_side_take(side, landing->attr.length, &chunk);

	if (taken > 0 && !landing->ended)
		pier_side_post(side);
	if (taken > 0)
		land(landing, side, chunk);
	if (taken < 0)
		pier_stop_landing(landing, taken, pier_last_error());
	if (!failed && side->error)
		pier_note_side_failure(landing, index);
	return taken;
}

static bool all_came(const struct pier_landing *landing)
{
	return landing->done == landing->attr.length;
}

/* In turn, since all may have some, and copying takes long. Whether there was one. */
static bool take_round(struct pier_landing *landing)
{
	bool taken = false;

	for (uint32_t i = 0; i < landing->side_count; i++)
		if (!landing->stop && !all_came(landing))
			taken |= take_chunk(landing, i) > 0;
	return taken;
}

/* Something, and not for ever. What may be left was maybe collected: no event tells it.
 */
static void take_chunks(struct pier_landing *landing, int64_t deadline)
{
	bool more = true;

	if (landing->deadline < deadline)
		deadline = landing->deadline;
	for (int i = 0; more && i < ROUNDS && (i == 0 || pier_now() < deadline); i++)
		more = take_round(landing);
	for (uint32_t i = 0; more && i < landing->side_count; i++)
		if (!landing->sides[i].error)
			landing->sides[i].channel->unseen = true;
}

/* A channel that failed has stopped, and must not be needed any more at the end. */
static void empty_failed(struct pier_landing *landing)
{
	for (uint32_t i = 0; i < landing->side_count; i++) {
		const struct pier_landing_side *side = &landing->sides[i];

		while (side->error && side->count > 0 && take_chunk(landing, i) != 0)
			continue;
	}
}

/* What came straight into memory of devices. 0, or the first error, which is told. */
static int flush_sides(struct pier_landing *landing)
{
	int error = 0;

	for (uint32_t i = 0; i < landing->side_count && !error; i++)
		error = pier_side_flush(&landing->sides[i], landing->attr.length);
	return error;
}

/*
 * At an end with an error, while the regions are there: it may be resumed with others,
 * which need no flush. Whether something is still to be flushed.
 */
static bool settle_flushes(struct pier_landing *landing)
{
	bool owes = landing->flush_error;

	for (uint32_t i = 0; i < landing->side_count; i++)
		owes |= pier_side_flush(&landing->sides[i], landing->attr.length) != 0;
	return owes;
}

/* Receives for what comes next; a channel that was reset since has none to be kept. */
static void refill(struct pier_landing *landing)
{
	for (uint32_t i = 0; i < landing->side_count; i++)
		if (!landing->sides[i].error && pier_side_post(&landing->sides[i]))
			pier_note_side_failure(landing, i);
}

int pier_catch_up(struct pier_landing *landing)
{
	if (!landing->lost) {
		landing->stop = 0;
		while (take_round(landing))
			continue;
		refill(landing);
		empty_failed(landing);
		landing->owes_flush |= settle_flushes(landing);
	}
	if (landing->stop == -EBADMSG)
		return pier_fail(EBADMSG, "resuming a landing: %s", landing->reason);
	if (landing->lost)
		return pier_fail(EIO,
				 "resuming a landing: bytes that had come could not be "
				 "copied, and the peer will not move them again: %s",
				 landing->reason);
	return 0;
}

/* Once, when all have come. */
static void flush(struct pier_landing *landing)
{
	landing->flush_error = flush_sides(landing);
	if (!landing->flush_error)
		return;
	/* Also where it is cancelled: that would come too late. */
	landing->stop = 0;
	pier_stop_landing(landing, landing->flush_error, pier_last_error());
}

static int64_t wake_at(const struct pier_landing *landing)
{
	int64_t stalls = landing->alive_at + landing->stall_ns;

	return stalls < landing->deadline ? stalls : landing->deadline;
}

static void check_times(struct pier_landing *landing, int64_t now)
{
	char reason[96];

	if (now < wake_at(landing))
		return;
	if (now >= landing->deadline)
		snprintf(reason, sizeof(reason), "the %d ms were over",
			 landing->attr.timeout_ms);
	else
		snprintf(reason, sizeof(reason), "nothing new came within %" PRId64 " ms",
			 landing->stall_ns / 1000000);
	pier_stop_landing(landing, -ETIMEDOUT, reason);
}

/* A reason to stop that came too late is none, unless bytes are lost. */
static void conclude(struct pier_landing *landing)
{
	bool complete = all_came(landing) && !landing->lost && !landing->flush_error;

	landing->ended = complete || landing->stop;
	if (complete || !landing->stop)
		return;
	landing->owes_flush = settle_flushes(landing);
	landing->error = landing->stop;
	snprintf(landing->sentence, sizeof(landing->sentence),
		 "landing: %" PRIu64 " of %" PRIu64 " bytes have come: %s", landing->done,
		 landing->attr.length, landing->reason);
}

/* Until the deadline, at most; but something. */
static int progress(struct pier_landing *landing, int64_t deadline)
{
	if (!landing->ended) {
		take_chunks(landing, deadline);
		empty_failed(landing);
		if (all_came(landing))
			flush(landing);
		else if (!landing->stop)
			check_times(landing, pier_now());
		conclude(landing);
	}
	if (!landing->ended)
		return 0;
	return landing->error ? pier_fail(-landing->error, "%s", landing->sentence) : 1;
}

int pier_progress_landing(struct pier_landing *landing)
{
	int error = pier_check_process(&landing->object);

	return error ? error : progress(landing, INT64_MAX);
}

/* How many completions came meanwhile: look before sleeping. */
static int arm(struct pier_landing *landing)
{
	int total = 0;

	for (uint32_t i = 0; i < landing->side_count; i++) {
		struct pier_landing_side *side = &landing->sides[i];
		int count = side->error ? 0 : pier_arm_channel(side->channel);

		if (count < 0)
			pier_debug("landing: rail %u: %s", i, pier_last_error());
		total += count != 0;
	}
	return total;
}

/* No longer than until a keepalive is due: who only receives hears nothing else. */
static void sleep_on_channels(struct pier_landing *landing, int64_t deadline)
{
	int64_t until = wake_at(landing);
	nfds_t count = 0;
	int timeout;

	timeout = pier_poll_timeout(until < deadline ? until : deadline);
	for (uint32_t i = 0; i < landing->side_count; i++) {
		struct pier_channel *channel = landing->sides[i].channel;
		int next;

		if (landing->sides[i].error)
			continue;
		next = pier_channel_next_ms(channel);
		if (next >= 0 && next < timeout)
			timeout = next;
		landing->fds[count++] = (struct pollfd){ .fd = pier_channel_fd(channel),
							 .events = POLLIN };
	}
	poll(landing->fds, count, timeout);
}

int pier_wait_landing(struct pier_landing *landing, int timeout_ms)
{
	int64_t deadline = pier_deadline(timeout_ms);
	int error = pier_check_process(&landing->object);

	if (error)
		return error;
	if (timeout_ms < 0)
		return pier_fail(EINVAL,
				 "waiting for a landing: timeout_ms %d is negative",
				 timeout_ms);
	for (int polls = 0;; polls++) {
		uint64_t done = landing->done;
		int result = progress(landing, deadline);

		if (result || pier_now() >= deadline)
			return result;
		if (landing->done != done)
			polls = 0;
		if (polls >= BRIEF_POLLS && arm(landing) == 0)
			sleep_on_channels(landing, deadline);
	}
}
