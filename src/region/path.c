/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer/buffer.h"
#include "piece.h"
#include "stage.h"
#include "core/error.h"
#include "core/log.h"

/*
 * The paths to a buffer's memory, the one that it is made for first: as a dma-buf or as
 * host memory, then as peer memory, then through a copy.
 */

enum {
	CAUSES_SIZE = 768,
};

bool pier_wants_dmabuf(const struct pier_pd *pd, const struct pier_buffer *buffer)
{
	if (buffer->backend->dmabuf)
		return !buffer->memory.cpu || !pier_facts_of(buffer).host;
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

static int register_host(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	void *addr = NULL;
	int error = pier_reach_buffer(piece->range.buffer, piece->range.offset, &addr);

	return error ? error : pier_register_pages(piece, addr, PIER_PATH_HOST, ret_part);
}

static int register_peermem(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	const struct pier_buffer *buffer = piece->range.buffer;
	uint64_t address = buffer->address + piece->range.offset;
	int result = 0;

	pier_clear_error();
	if (buffer->backend->expose)
		result = buffer->backend->expose(&buffer->memory);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "preparing memory of %s for a NIC",
					 buffer->backend->name);
	return pier_register_pages(piece, (void *)(uintptr_t)address, PIER_PATH_PEERMEM,
				   ret_part);
}

/* By a dma-buf: of memory of which the backend says why not, without asking the driver.
 */
static int register_export(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	struct pier_memory_facts facts = pier_facts_of(piece->range.buffer);

	if (facts.no_export[0])
		return pier_fail(EOPNOTSUPP, "%s", facts.no_export);
	return pier_register_export(piece, ret_part);
}

/* What kinds of memory a step is for. */
enum reach {
	REACH_DEVICE,	/* that the CPU does not reach */
	REACH_HOST,	/* that it does */
	REACH_EXPORTED, /* that it does, but that has dma-bufs too */
	REACH_ANY,
};

/* A step down: what else there is, for whom, and what it is called. */
static const struct step {
	enum pier_policy policy; /* from which on it is accepted */
	enum reach reach;
	const char *name;
	int (*take)(const struct pier_piece *piece, struct pier_mr_part *ret_part);
} steps[] = {
	{ PIER_POLICY_PEERMEM, REACH_DEVICE, "peer memory", register_peermem },
	{ PIER_POLICY_ANY, REACH_HOST, "host memory", register_host },
	{ PIER_POLICY_ANY, REACH_EXPORTED, "a dma-buf", register_export },
	{ PIER_POLICY_STAGED, REACH_ANY, "a copy in host memory", pier_register_stage },
};

/* dmabuf: that is what was tried first */
static bool is_open(const struct step *step, const struct pier_piece *piece, bool dmabuf)
{
	const struct pier_buffer *buffer = piece->range.buffer;

	if (piece->policy < step->policy)
		return false;
	switch (step->reach) {
	case REACH_DEVICE:
		return !buffer->memory.cpu && !pier_facts_of(buffer).moves;
	case REACH_HOST:
		return buffer->memory.cpu && dmabuf;
	case REACH_EXPORTED:
		return buffer->memory.cpu && !dmabuf && buffer->backend->dmabuf;
	default:
		return true;
	}
}

/* The sentence of what failed is pier_error_message(). */
static void add_cause(char *causes, const char *name)
{
	size_t used = strlen(causes);

	snprintf(causes + used, CAUSES_SIZE - used, "%sas %s: %s", used ? "; " : "", name,
		 pier_error_message());
}

static int take_step(const struct step *step, const struct pier_piece *piece,
		     const char *causes, struct pier_mr_part *ret_part)
{
	char *why = strdup(causes);
	int error;

	if (!why)
		return pier_fail(ENOMEM, "no memory for why a path was not taken");
	error = step->take(piece, ret_part);
	if (error) {
		free(why);
		return error;
	}
	ret_part->why = why;
	pier_warning("%s memory is registered as %s, not %s",
		     piece->range.buffer->backend->name, step->name, causes);
	return 0;
}

/* After the path that the memory is made for, which leaves its sentence. */
static int step_down(const struct pier_piece *piece, bool dmabuf, int error,
		     struct pier_mr_part *ret_part)
{
	char causes[CAUSES_SIZE] = "";
	const char *name = dmabuf ? "a dma-buf" : "host memory";
	bool tried = false;

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		if (!is_open(&steps[i], piece, dmabuf))
			continue;
		add_cause(causes, name);
		error = take_step(&steps[i], piece, causes, ret_part);
		if (!error)
			return 0;
		name = steps[i].name;
		tried = true;
	}
	if (!tried && error == -EXDEV)
		return pier_fail(EOPNOTSUPP, "%s; under one key it cannot be",
				 pier_error_message());
	if (!tried)
		return error;
	return pier_fail(-error, "%s; and before, %s", pier_error_message(), causes);
}

int pier_register_buffer(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	const struct pier_buffer *buffer = piece->range.buffer;
	bool dmabuf = pier_wants_dmabuf(piece->pd, buffer);
	/* Of the program's own memory there is no other way to the same pages. */
	bool only = !dmabuf && buffer->memory.cpu && !buffer->backend->dmabuf;
	int error;

	/* What is written by the one and not by the other would be overwritten. */
	if (pier_base_is_staged(piece))
		return pier_register_stage(piece, ret_part);
	error = dmabuf ? register_export(piece, ret_part)
		       : register_host(piece, ret_part);

	if (!error || only || (error == -EXDEV && piece->has_segments))
		return error;
	return step_down(piece, dmabuf, error, ret_part);
}
