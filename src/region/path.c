/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer/buffer.h"
#include "bounce.h"
#include "canary.h"
#include "mapping.h"
#include "path.h"
#include "core/error.h"
#include "core/log.h"

/*
 * The paths to a buffer's memory. The first is the one that the memory is made for, a
 * dma-buf or host memory; peer memory follows, and a bounce buffer comes last.
 */

enum {
	CAUSES_SIZE = 768,
};

bool pier_wants_dmabuf(const struct pier_pd *pd, const struct pier_buffer *buffer)
{
	if (buffer->backend->dmabuf)
		return !buffer->memory.cpu || !buffer->facts.host;
	return buffer->backend->memfd && pd->device->provider->takes_memfd;
}

int pier_reach_buffer(const struct pier_buffer *buffer, uint64_t offset, void **ret_addr)
{
	if (!buffer->memory.cpu)
		return pier_fail(EOPNOTSUPP,
				 "memory of the backend %s cannot be registered as host "
				 "memory: the CPU does not reach it",
				 buffer->backend->name);
	*ret_addr = (char *)buffer->memory.cpu +
		    (buffer->address + offset - buffer->memory.address);
	return 0;
}

static int register_host(const struct pier_segment *segment,
			 struct pier_mr_part *ret_part)
{
	void *addr = NULL;
	int error = pier_reach_buffer(segment->range.buffer, segment->range.offset,
				      &addr);

	return error ? error
		     : pier_register_pages(segment, addr, PIER_PATH_HOST, ret_part);
}

static int register_peermem(const struct pier_segment *segment,
			    struct pier_mr_part *ret_part)
{
	const struct pier_buffer *buffer = segment->range.buffer;
	const struct pier_device *device = segment->region->pd->device;
	uint64_t address = buffer->address + segment->range.offset;
	int result = 0;

	if (device->switches.peermem == PIER_SWITCH_OFF)
		return pier_fail(EOPNOTSUPP, "PIER_PEERMEM=off switched it off");
	result = pier_check_canary(segment, PIER_MAPPING_AUTO);
	if (result != 0)
		return result;
	pier_clear_error();
	if (buffer->backend->expose)
		result = buffer->backend->expose(&buffer->memory);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "preparing memory of %s for a NIC",
					 buffer->backend->name);
	result = pier_register_pages(segment, (void *)(uintptr_t)address,
				     PIER_PATH_PEERMEM, ret_part);
	if (result != 0)
		return result;
	result = pier_send_canary(segment, PIER_MAPPING_AUTO, register_peermem);
	if (result != 0)
		device->provider->dereg_mr(ret_part->mr);
	return result;
}

/* If the backend has a reason against an export, the driver is not asked. */
static int register_export(const struct pier_segment *segment,
			   struct pier_mr_part *ret_part)
{
	const struct pier_memory_facts *facts = &segment->range.buffer->facts;

	if (facts->no_export[0])
		return pier_fail(EOPNOTSUPP, "%s", facts->no_export);
	return pier_register_export(segment, ret_part);
}

static int register_buffer(const struct pier_segment *segment,
			   struct pier_mr_part *ret_part);

/* Register the bounce buffer in place of the memory. */
static int register_bounce(const struct pier_segment *segment,
			   struct pier_mr_part *ret_part)
{
	struct pier_bounce *bounce;
	struct pier_segment shadow;
	int error = pier_bounce_get(segment, &bounce);

	if (error)
		return error;
	shadow = pier_bounce_segment(bounce, segment);
	error = register_buffer(&shadow, ret_part);
	if (error) {
		pier_bounce_put(bounce);
		return error;
	}
	free(ret_part->reason);
	ret_part->reason = NULL;
	ret_part->mapping = PIER_MAPPING_AUTO;
	ret_part->path = PIER_PATH_BOUNCE;
	ret_part->bounce = bounce;
	ret_part->bounce_offset = segment->range.offset - bounce->offset;
	return 0;
}

/* The kinds of memory that a fallback is for. */
enum reach {
	REACH_DEVICE,	/* memory that the CPU does not reach */
	REACH_HOST,	/* memory that the CPU reaches */
	REACH_EXPORTED, /* memory that the CPU reaches and that has dma-bufs */
	REACH_ANY,
};

/* The paths to fall back to, in this order. */
static const struct fallback {
	enum pier_policy policy; /* the strictest that accepts it */
	enum reach reach;
	const char *name;
	int (*take)(const struct pier_segment *segment, struct pier_mr_part *ret_part);
} fallbacks[] = {
	{ PIER_POLICY_PEERMEM, REACH_DEVICE, "peer memory", register_peermem },
	{ PIER_POLICY_ANY, REACH_HOST, "host memory", register_host },
	{ PIER_POLICY_ANY, REACH_EXPORTED, "a dma-buf", register_export },
	{ PIER_POLICY_BOUNCE, REACH_ANY, "a bounce buffer", register_bounce },
};

/* dmabuf: a dma-buf was tried first */
static bool is_possible(const struct fallback *fallback,
			const struct pier_segment *segment, bool dmabuf)
{
	const struct pier_buffer *buffer = segment->range.buffer;

	if (segment->policy < fallback->policy)
		return false;
	switch (fallback->reach) {
	case REACH_DEVICE:
		return !buffer->memory.cpu && !buffer->facts.moves;
	case REACH_HOST:
		return buffer->memory.cpu && dmabuf;
	case REACH_EXPORTED:
		return buffer->memory.cpu && !dmabuf && buffer->backend->dmabuf;
	default:
		return true;
	}
}

/* Append the sentence of the failure, which is pier_error_message(). */
static void add_cause(char *causes, const char *name)
{
	size_t used = strlen(causes);

	snprintf(causes + used, CAUSES_SIZE - used, "%sas %s: %s", used ? "; " : "", name,
		 pier_error_message());
}

static int take_fallback(const struct fallback *fallback,
			 const struct pier_segment *segment, const char *causes,
			 struct pier_mr_part *ret_part)
{
	char *reason = strdup(causes);
	int error;

	if (!reason)
		return pier_fail(ENOMEM, "no memory for the reason for a path");
	error = fallback->take(segment, ret_part);
	if (error) {
		free(reason);
		return error;
	}
	ret_part->reason = reason;
	pier_warning("%s memory is registered as %s, not %s",
		     segment->range.buffer->backend->name, fallback->name, causes);
	return 0;
}

/* Fall back after the first path failed with `error` and a sentence. */
static int fall_back(const struct pier_segment *segment, bool dmabuf, int error,
		     struct pier_mr_part *ret_part)
{
	char causes[CAUSES_SIZE] = "";
	const char *name = dmabuf ? "a dma-buf" : "host memory";
	bool tried = false;

	for (size_t i = 0; i < sizeof(fallbacks) / sizeof(fallbacks[0]); i++) {
		if (!is_possible(&fallbacks[i], segment, dmabuf))
			continue;
		add_cause(causes, name);
		error = take_fallback(&fallbacks[i], segment, causes, ret_part);
		if (!error)
			return 0;
		name = fallbacks[i].name;
		tried = true;
	}
	if (!tried && error == -EXDEV)
		return pier_fail(EOPNOTSUPP, "%s; it cannot be registered under one key",
				 pier_error_message());
	if (!tried)
		return error;
	return pier_fail(-error, "%s; before that, %s", pier_error_message(), causes);
}

static int register_buffer(const struct pier_segment *segment,
			   struct pier_mr_part *ret_part)
{
	const struct pier_buffer *buffer = segment->range.buffer;
	bool dmabuf = pier_wants_dmabuf(segment->region->pd, buffer);
	/* The program's own memory has no other path. */
	bool only = !dmabuf && buffer->memory.cpu && !buffer->backend->dmabuf;
	int error;

	/* Two paths to the same bytes would overwrite each other's writes. */
	if (pier_base_has_bounce(segment))
		return register_bounce(segment, ret_part);
	error = dmabuf ? register_export(segment, ret_part)
		       : register_host(segment, ret_part);

	if (!error || only || (error == -EXDEV && pier_segment_splits(segment)))
		return error;
	return fall_back(segment, dmabuf, error, ret_part);
}

int pier_register_segment(const struct pier_segment *segment,
			  struct pier_mr_part *ret_part)
{
	const struct pier_mr_range *range = &segment->range;

	switch (range->source) {
	case PIER_MR_HOST:
		return pier_register_pages(segment, range->addr, PIER_PATH_HOST,
					   ret_part);
	case PIER_MR_DMABUF:
		return pier_register_fd(segment, range->fd, range->offset, ret_part);
	default:
		return register_buffer(segment, ret_part);
	}
}
