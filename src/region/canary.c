/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "canary.h"
#include "canary_run.h"
#include "core/error.h"
#include "core/log.h"
#include "device/pair.h"

static bool needs_canary(const struct pier_segment *segment)
{
	const struct pier_buffer *buffer = segment->range.buffer;

	return !segment->canary && !buffer->memory.cpu &&
	       segment->region->pd->device->switches.canary != PIER_SWITCH_OFF;
}

/* Of one unit, one kind of memory may be registered and reached, and another not. */
static struct pier_pair *find_pair(struct pier_device *device,
				   const struct pier_buffer *buffer)
{
	struct pier_memory_facts facts = pier_facts_of(buffer);

	return pier_find_pair(device, buffer->backend->name,
			      facts.alike[0] ? facts.alike : facts.unit);
}

/* NULL: the memory needs no canary, or it is switched off. */
static struct pier_pair *find_tested_pair(const struct pier_segment *segment)
{
	return needs_canary(segment)
		       ? find_pair(segment->region->pd->device, segment->range.buffer)
		       : NULL;
}

/* Errors that may be gone the next time. */
static bool is_passing(int error)
{
	return error == -ENOMEM || error == -EMFILE || error == -ENFILE ||
	       error == -EAGAIN || error == -ENETDOWN || error == -EBUSY;
}

/* Of two threads, the first one's stays. */
static void keep_text(_Atomic(char *) *kept, char *text)
{
	char *none = NULL;

	if (text && !atomic_compare_exchange_strong(kept, &none, text) &&
	    text != pier_canary_passed && text != pier_canary_impossible)
		free(text);
}

/* The registrations from now on are counted: see is_due(). */
static void put_off(struct pier_canary_answer *answer)
{
	unsigned int none = 0;

	atomic_compare_exchange_strong(&answer->untested, &none, 1);
}

/*
 * After an error that may pass the canary is sent again at the second registration, the
 * fourth, the eighth and so on: a program that uses all of a GPU would otherwise ask for
 * more of its memory at each one.
 */
static bool is_due(struct pier_canary_answer *answer)
{
	unsigned int count = 0;

	if (atomic_load(&answer->untested))
		count = atomic_fetch_add(&answer->untested, 1) + 1;
	return (count & (count - 1)) == 0;
}

static void keep_obstacle(struct pier_canary_answer *answer, const char *reason)
{
	char *text = NULL;

	if (asprintf(&text, "not run: %s", reason) >= 0)
		keep_text(&answer->obstacle, text);
}

/*
 * The mapping is not tested. Of several ones the wrong one is no error: bytes would be
 * lost without a word.
 */
static int accept_untested(const struct pier_segment *segment, enum pier_mapping mapping,
			   const struct pier_pair *pair)
{
	const char *obstacle = atomic_load(&pair->canary[mapping].obstacle);

	if (mapping == PIER_MAPPING_AUTO ||
	    !pier_facts_of(segment->range.buffer).coherent)
		return 0;
	return pier_fail(EIO,
			 "whether %s reaches the memory of %s with this mapping is "
			 "unknown (the test was %s), and the wrong mapping loses bytes "
			 "without an error. PIER_CANARY=off accepts it untested",
			 segment->region->pd->device->name, pair->memory,
			 obstacle ? obstacle : "not run: no memory");
}

static void report_untested(const struct pier_pd *pd, const struct pier_pair *pair,
			    struct pier_canary_answer *answer, const char *reason)
{
	/* Once: the canary may be sent again and again. */
	if (atomic_load(&answer->obstacle))
		return;
	pier_warning("whether %s reaches the memory of %s was not tested: %s",
		     pd->device->name, pair->memory, reason);
	keep_obstacle(answer, reason);
}

static int send_canary(struct pier_pd *pd, struct pier_pair *pair,
		       enum pier_mapping mapping, pier_path_function *take)
{
	struct pier_canary_answer *answer = &pair->canary[mapping];
	char reason[PIER_CANARY_SENTENCE];
	int error = pier_run_canary(pd, pair, mapping, take, reason);

	if (!error && reason[0]) {
		keep_text(&answer->text, strdup(reason));
		return pier_fail(EIO, "%s", reason);
	}
	if (error)
		report_untested(pd, pair, answer, reason);
	if (is_passing(error))
		put_off(answer);
	else
		keep_text(&answer->text,
			  error ? pier_canary_impossible : pier_canary_passed);
	return 0;
}

static bool is_refusal(const char *text)
{
	return text && text != pier_canary_passed && text != pier_canary_impossible;
}

int pier_check_canary(const struct pier_segment *segment, enum pier_mapping mapping)
{
	const struct pier_pair *pair = find_tested_pair(segment);
	const char *text = pair ? atomic_load(&pair->canary[mapping].text) : NULL;

	return is_refusal(text) ? pier_fail(EIO, "%s", text) : 0;
}

int pier_send_canary(const struct pier_segment *segment, enum pier_mapping mapping,
		     pier_path_function *take)
{
	struct pier_pair *pair = find_tested_pair(segment);
	int error;

	if (!pair)
		return 0;
	if (!atomic_load(&pair->canary[mapping].text) && is_due(&pair->canary[mapping]))
		error = send_canary(segment->region->pd, pair, mapping, take);
	else
		error = pier_check_canary(segment, mapping);
	if (error || atomic_load(&pair->canary[mapping].text) == pier_canary_passed)
		return error;
	return accept_untested(segment, mapping, pair);
}

/* The dma-bufs of a backend without a choice have the mapping DEFAULT here. */
static const char *describe_answer(struct pier_device *device,
				   const struct pier_buffer *buffer,
				   const struct pier_mr_part *part)
{
	bool only = part->path == PIER_PATH_DMABUF && part->mapping == PIER_MAPPING_AUTO;
	enum pier_mapping mapping = only ? PIER_MAPPING_DEFAULT : part->mapping;
	const struct pier_pair *pair = find_pair(device, buffer);
	const char *text = pair ? atomic_load(&pair->canary[mapping].text) : NULL;

	if (text && text != pier_canary_impossible)
		return text;
	text = pair ? atomic_load(&pair->canary[mapping].obstacle) : NULL;
	return text ? text : "not run: the ranges have one key, or no memory was left";
}

const char *pier_mr_canary(const struct pier_mr *mr)
{
	const struct pier_mr_part *part = pier_mr_part_at(mr, 0);
	struct pier_device *device = mr->pd->device;
	const struct pier_mr_range *range;

	mr = pier_mr_beneath(mr);
	range = &mr->ranges[0].range;
	if (range->source != PIER_MR_BUFFER || range->buffer->memory.cpu ||
	    (part->path != PIER_PATH_DMABUF && part->path != PIER_PATH_PEERMEM))
		return "";
	if (device->switches.canary == PIER_SWITCH_OFF)
		return "off: PIER_CANARY";
	return describe_answer(device, range->buffer, part);
}
