/* SPDX-License-Identifier: BSD-3-Clause */
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
