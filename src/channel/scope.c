/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "channel/status.h"
#include "channel/stop.h"
#include "channel/wait.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/log.h"
#include "scope.h"
#include "scope_failures.h"

enum {
	SCOPE_OPEN = 0x5c09e,
	SCOPE_DETACHED, /* the channel was destroyed, and the report is complete */
	SCOPE_ENDED,
	SENTENCE = 640,
};

PIER_ASSERT_NO_PADDING(scope_attr, failures);

static int read_attr(const struct pier_scope_attr *attr, struct pier_scope_attr *ret_attr)
{
	int error = PIER_READ_ATTR("scope attributes", scope_attr, attr,
				   PIER_SIZE_UP_TO(scope_attr, failures), ret_attr);

	if (error)
		return error;
	if (ret_attr->flags & ~PIER_SCOPE_MANUAL)
		return pier_fail(EINVAL, "scope attributes: unknown flags %#x",
				 (unsigned int)(ret_attr->flags & ~PIER_SCOPE_MANUAL));
	if (ret_attr->max_failures && !ret_attr->failures)
		return pier_fail(EINVAL, "scope attributes: room for %u failures at NULL",
				 ret_attr->max_failures);
	return 0;
}

static void set_deadline(struct pier_scope *scope, int timeout_ms)
{
	const struct pier_scope *outer = scope->outer;

	scope->timeout_ms = timeout_ms;
	scope->deadline = pier_deadline(timeout_ms);
	if (!outer || scope->deadline <= outer->deadline)
		return;
	scope->timeout_ms = outer->timeout_ms;
	scope->deadline = outer->deadline;
}

/* A window limits the depth of the send queue while the scope is open. */
static void open_window(struct pier_scope *scope, uint32_t window)
{
	struct pier_queue *queue = &scope->channel->sends;

	scope->outer_depth = queue->depth;
	scope->waits = window > 0 || (scope->outer && scope->outer->waits);
	if (window > 0 && window < queue->depth)
		queue->depth = window;
	pier_update_ready(scope->channel);
}

int pier_scope_begin(struct pier_channel *channel, const struct pier_scope_attr *attr,
		     struct pier_scope *ret_scope)
{
	PIER_REFUSE_NULL(channel, ret_scope);
	struct pier_scope_attr known;
	int timeout_ms, error = pier_check_process(&channel->object);

	if (!error)
		error = read_attr(attr, &known);
	if (!error)
		error = pier_channel_timeout(channel, known.timeout_ms, &timeout_ms);
	if (error)
		return error;
	if (channel->broken)
		return pier_fail_broken(channel);
	*ret_scope = (struct pier_scope){
		.channel = channel,
		.outer = channel->scope,
		.first_send = channel->sends.head,
		.first_receive = channel->receives.head,
		.flags = known.flags,
		.level = channel->scope ? channel->scope->level + 1 : 1,
		.state = SCOPE_OPEN,
		.max_failures = known.max_failures,
		.failures = known.failures,
	};
	set_deadline(ret_scope, timeout_ms);
	open_window(ret_scope, known.window);
	channel->scope = ret_scope;
	return 0;
}

int pier_wait_in_window(struct pier_channel *channel, uint32_t count)
{
	const struct pier_scope *scope = channel->scope;
	int error;

	if (!scope || !scope->waits || count > channel->sends.depth || channel->broken)
		return 0;
	error = pier_wait_for_room(channel, count, scope->deadline);
	if (error != -ETIMEDOUT)
		return error;
	return pier_fail(ETIMEDOUT,
			 "no room for %u requests in the window of %u within the %d ms "
			 "of the scope",
			 count, channel->sends.depth, scope->timeout_ms);
}

/*
 * The watched requests of a scope on one queue: in the ring, as far as it reaches back,
 * and set aside. Visited from the last one down, because forgetting one moves the last
 * one of those set aside.
 */
struct visit {
	struct pier_scope *scope;
	struct pier_queue *queue;
	uint64_t first;
	void (*handle)(const struct visit *visit, struct pier_entry *entry);
};

static void visit_watched(const struct visit *visit)
{
	struct pier_queue *queue = visit->queue;
	uint64_t position = queue->head, ring = (uint64_t)queue->mask + 1;
	struct pier_entry *entry;

	for (uint32_t i = queue->aside_count; i > 0; i--) {
		if (pier_scope_has_posted(visit->scope, queue->aside[i - 1].id))
			visit->handle(visit, &queue->aside[i - 1]);
	}
	while (position > visit->first && queue->head - position < ring) {
		entry = pier_queue_entry(queue, --position);
		/*
		 * Otherwise the entry was written for a request that could not be
		 * posted.
		 */
		if (pier_entry_get_state(entry) != PIER_ENTRY_UNWATCHED &&
		    (entry->id & PIER_ID_POSITION) == position)
			visit->handle(visit, entry);
	}
}

static void visit_both(struct pier_scope *scope, void (*handle)(const struct visit *visit,
								struct pier_entry *entry))
{
	struct pier_channel *channel = scope->channel;

	visit_watched(&(struct visit){ .scope = scope,
				       .queue = &channel->receives,
				       .first = scope->first_receive,
				       .handle = handle });
	visit_watched(&(struct visit){ .scope = scope,
				       .queue = &channel->sends,
				       .first = scope->first_send,
				       .handle = handle });
}

/* The first one; those of the send queue come before those of the receive queue. */
static void count_unpolled(const struct visit *visit, struct pier_entry *entry)
{
	struct pier_scope_report *report = &visit->scope->report;

	if (report->unpolled == 0 || entry->id < report->first_unpolled.id)
		report->first_unpolled.id = entry->id;
	report->unpolled++;
}

static void take_result(const struct visit *visit, struct pier_entry *entry)
{
	if (pier_entry_get_state(entry) == PIER_ENTRY_DONE && entry->result.error)
		pier_scope_note_failure(visit->scope, entry->id, &entry->result);
	pier_queue_forget(visit->queue, entry);
}

static uint64_t count_posted(const struct pier_scope *scope)
{
	const struct pier_channel *channel = scope->channel;

	return channel->sends.head - scope->first_send + channel->receives.head -
	       scope->first_receive;
}

/* Nothing is outstanding: complete the report and restore the channel. */
static void close_scope(struct pier_scope *scope)
{
	struct pier_channel *channel = scope->channel;
	uint64_t posted = count_posted(scope);

	visit_both(scope, take_result);
	scope->report.posted = posted - scope->posted_within;
	if (scope->report.failed && !scope->report.drain_error)
		scope->report.drain_error = scope->report.cause.result.error;
	if (scope->outer)
		scope->outer->posted_within += posted;
	channel->sends.depth = scope->outer_depth;
	pier_update_ready(channel);
	channel->scope = scope->outer;
}

void pier_end_scopes(struct pier_channel *channel)
{
	while (channel->scope) {
		struct pier_scope *scope = channel->scope;

		visit_both(scope, count_unpolled);
		pier_fill_in_flush(channel);
		close_scope(scope);
		scope->state = SCOPE_DETACHED;
	}
}

/* Do not wait for a queue in which the scope posted nothing. */
static uint64_t last_of(const struct pier_queue *queue, uint64_t first)
{
	return queue->head == first ? queue->tail : queue->head;
}

static uint32_t count_outstanding(const struct pier_scope *scope)
{
	const struct pier_queue *sends = &scope->channel->sends;
	const struct pier_queue *receives = &scope->channel->receives;
	uint64_t sent = scope->first_send, received = scope->first_receive;

	sent = sent > sends->tail ? sent : sends->tail;
	received = received > receives->tail ? received : receives->tail;
	return (uint32_t)(sends->head - sent + receives->head - received);
}

/*
 * Wait until nothing is outstanding, or stop the channel. Leaves the sentence of an
 * error.
 */
static int drain_scope(struct pier_scope *scope)
{
	struct pier_channel *channel = scope->channel;
	int error = pier_wait_for_positions(
		channel, last_of(&channel->sends, scope->first_send),
		last_of(&channel->receives, scope->first_receive), scope->deadline);

	if (!error)
		return 0;
	if (error != -ETIMEDOUT)
		return pier_stop_because(channel, error, "%s", pier_error_message());
	return pier_stop_because(channel, error,
				 "%u of the requests of a scope did not complete within "
				 "its %d ms%s; everything outstanding was stopped",
				 count_outstanding(scope), scope->timeout_ms,
				 pier_explain_silence(channel));
}

/* The sentence about the requests, or "". */
static void describe_drain(const struct pier_scope *scope, int drained, char *ret_text,
			   size_t size)
{
	const struct pier_scope_report *report = &scope->report;
	const struct pier_result *cause = &report->cause.result;
	const struct pier_channel *channel = scope->channel;
	bool flush = cause->status == IBV_WC_WR_FLUSH_ERR;
	int length;

	ret_text[0] = '\0';
	if (drained)
		snprintf(ret_text, size, "%s", pier_error_message());
	if (drained || !report->failed)
		return;
	length = snprintf(ret_text, size, "%llu of the %llu requests of a scope: ",
			  (unsigned long long)report->failed,
			  (unsigned long long)report->posted);
	ret_text += length;
	size -= (size_t)length;
	if (flush && scope->state == SCOPE_DETACHED)
		snprintf(ret_text, size, "outstanding when the channel was destroyed");
	else if (flush && !channel->cause_is_flush)
		snprintf(ret_text, size, "flushed, because of this: %s", channel->cause);
	else
		pier_describe_status((enum ibv_wc_status)cause->status,
				     cause->vendor_error, cause->opcode, ret_text, size);
}

static int fail_unpolled(const struct pier_scope_report *report)
{
	const char *queue = report->first_unpolled.id & PIER_ID_RECEIVE ? "receive"
									: "send";

	pier_warning("a manual scope was left with %llu handles unpolled",
		     (unsigned long long)report->unpolled);
	return pier_fail(
		ENOTEMPTY,
		"the body of a manual scope did not ask for %llu of its handles, the "
		"first being %#llx, of the %s queue: it must poll or drop all of them",
		(unsigned long long)report->unpolled,
		(unsigned long long)report->first_unpolled.id, queue);
}

/*
 * said   the last sentence when the body ended
 * found  the sentence about the requests
 */
static int result_of_scope(const struct pier_scope *scope, bool misplaced,
			   const char *said, const char *found)
{
	const struct pier_scope_report *report = &scope->report;

	if (report->body_error) {
		pier_fail(-report->body_error, "%s%s%s", said,
			  found[0] ? "; and when its scope ended: " : "", found);
		return report->body_error;
	}
	if (report->drain_error)
		return pier_fail(-report->drain_error, "%s", found);
	if (misplaced)
		return pier_fail(EBUSY, "a scope ended while an inner scope was open, "
					"and ended the inner scope too");
	if ((scope->flags & PIER_SCOPE_MANUAL) && report->unpolled)
		return fail_unpolled(report);
	return 0;
}

/* Returns 0, or the reason why the scope cannot be ended. */
static int check_end(const struct pier_scope *scope)
{
	if (scope->state == SCOPE_DETACHED)
		return 0;
	if (scope->state != SCOPE_OPEN)
		return pier_fail(EALREADY, "the scope was ended before");
	if (pier_inherited(&scope->channel->object))
		return pier_fail_inherited(&scope->channel->object);
	/* An outer scope ended this one without touching its memory. */
	if (!scope->channel->scope || scope->channel->scope->level < scope->level)
		return pier_fail(EALREADY,
				 "the scope was ended together with an outer scope");
	return 0;
}

int pier_scope_end(struct pier_scope *scope, int body_error,
		   struct pier_scope_report *ret_report)
{
	PIER_REFUSE_NULL(scope);
	char said[SENTENCE], found[SENTENCE];
	bool misplaced = false;
	int drained = 0, error = check_end(scope);

	if (error)
		return error;
	snprintf(said, sizeof(said), "%s", pier_error_message());
	scope->report.body_error = body_error;
	if (scope->state == SCOPE_OPEN) {
		misplaced = scope->channel->scope != scope;
		visit_both(scope, count_unpolled);
		drained = scope->report.drain_error = drain_scope(scope);
		close_scope(scope);
	}
	describe_drain(scope, drained, found, sizeof(found));
	scope->state = SCOPE_ENDED;
	scope->report.error = result_of_scope(scope, misplaced, said, found);
	if (ret_report)
		*ret_report = scope->report;
	return scope->report.error;
}
