/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include "channel/status.h"
#include "scope_failures.h"

/*
 * Insert into the list, which is sorted by id. The last one is dropped if the list is
 * full.
 */
static void list_failure(struct pier_scope *scope, uint64_t count,
			 const struct pier_scope_failure *failure)
{
	struct pier_scope_failure *list = scope->failures;
	uint32_t at = count < scope->max_failures ? (uint32_t)count : scope->max_failures;

	while (at > 0 && list[at - 1].work.id > failure->work.id) {
		if (at < scope->max_failures)
			list[at] = list[at - 1];
		at--;
	}
	if (at < scope->max_failures)
		list[at] = *failure;
}

void pier_scope_note_failure(struct pier_scope *scope, uint64_t id,
			     const struct pier_result *result)
{
	struct pier_scope_failure failure = { .work.id = id, .result = *result };
	struct pier_scope_report *report = &scope->report;

	/* A flush is not the cause if there is any other failure. */
	if (report->failed == 0 || (report->cause.result.status == IBV_WC_WR_FLUSH_ERR &&
				    result->status != IBV_WC_WR_FLUSH_ERR))
		report->cause = failure;
	list_failure(scope, report->failed, &failure);
	report->failed++;
}

bool pier_scope_has_posted(const struct pier_scope *scope, uint64_t id)
{
	uint64_t first = id & PIER_ID_RECEIVE ? scope->first_receive : scope->first_send;

	return (id & PIER_ID_POSITION) >= first;
}

void pier_note_in_scope(struct pier_channel *channel, uint64_t id,
			const struct pier_result *result)
{
	struct pier_scope *scope = channel->scope;

	while (scope && !pier_scope_has_posted(scope, id))
		scope = scope->outer;
	if (scope)
		pier_scope_note_failure(scope, id, result);
}

void pier_scope_describe_failures(const struct pier_scope *scope, bool detached,
				  char *ret_text, size_t size)
{
	const struct pier_scope_report *report = &scope->report;
	const struct pier_result *cause = &report->cause.result;
	const struct pier_channel *channel = scope->channel;
	int length = snprintf(ret_text, size, "%llu of the %llu requests of a scope: ",
			      (unsigned long long)report->failed,
			      (unsigned long long)report->posted);

	ret_text += length;
	size -= (size_t)length;
	if (detached && cause->status == IBV_WC_WR_FLUSH_ERR)
		snprintf(ret_text, size, "outstanding when the channel was destroyed");
	else if (cause->status == IBV_WC_WR_FLUSH_ERR && !channel->cause_is_flush)
		snprintf(ret_text, size, "flushed, because of this: %s", channel->cause);
	else
		pier_describe_status((enum ibv_wc_status)cause->status,
				     cause->vendor_error, cause->opcode, ret_text, size);
}
