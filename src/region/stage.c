/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "buffer/buffer.h"
#include "core/page.h"
#include "stage.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/log.h"

/* Of a memfd, into which soft0 copies without a detour; others take it as host memory. */
#define SHADOW "memfd"

/* Where in a page the memory lies, the iova does too: see the page rule. */
static uint64_t page_offset(const struct pier_piece *piece)
{
	return piece->iova & (pier_host_page() - 1);
}

static int check_copies(const struct pier_buffer *buffer)
{
	const struct pier_backend *backend = buffer->backend;

	if (buffer->memory.cpu || (backend->copy_to && backend->copy_from))
		return 0;
	return pier_fail(EOPNOTSUPP, "the backend %s has no way to copy", backend->name);
}

/* The pages' lock makes copies faster; without it they work. */
static void lock_pages(struct pier_stage *stage)
{
	const struct pier_buffer *buffer = stage->buffer;
	uint64_t mask = pier_host_page() - 1;

	if (!buffer->backend->lock_host || !buffer->backend->unlock_host)
		return;
	stage->locked = buffer->backend->lock_host(
				&buffer->memory, stage->cpu - stage->skew,
				(stage->skew + stage->length + mask) & ~mask) == 0;
	if (!stage->locked)
		pier_debug("copies to %s are slower than they could be: %s",
			   buffer->backend->name, pier_error_message());
}

static int make_shadow(struct pier_stage *stage)
{
	void *cpu = NULL;
	uint64_t length;
	int error;

	if (!pier_add_u64(stage->skew, stage->length, &length) || length > SIZE_MAX)
		return pier_fail(ENOMEM, "no host memory for %" PRIu64 " bytes",
				 stage->length);
	error = pier_buffer_alloc(SHADOW, (size_t)length, &stage->shadow);
	if (!error)
		error = pier_buffer_map(stage->shadow, &cpu);
	if (!error)
		stage->cpu = (char *)cpu + stage->skew;
	return error;
}

static int new_stage(const struct pier_piece *piece, struct pier_stage **ret_stage)
{
	struct pier_stage *stage;
	int error = check_copies(piece->range.buffer);

	if (error)
		return error;
	stage = calloc(1, sizeof(*stage));
	if (!stage)
		return pier_fail(ENOMEM, "no memory for a stage");
	atomic_init(&stage->users, 1);
	stage->buffer = piece->range.buffer;
	stage->offset = piece->range.offset;
	stage->length = piece->range.length;
	stage->skew = page_offset(piece);
	error = make_shadow(stage);
	if (error) {
		pier_put_stage(stage);
		return error;
	}
	lock_pages(stage);
	*ret_stage = stage;
	return 0;
}

void pier_put_stage(struct pier_stage *stage)
{
	if (!stage || atomic_fetch_sub(&stage->users, 1) > 1)
		return;
	if (stage->locked)
		stage->buffer->backend->unlock_host(&stage->buffer->memory,
						    stage->cpu - stage->skew);
	/* Nothing is registered of it any more, and it is in no cache. */
	pier_free_buffer_alone(stage->shadow);
	free(stage);
}

static bool covers(const struct pier_stage *stage, const struct pier_mr_range *range)
{
	return stage && stage->buffer == range->buffer &&
	       range->offset >= stage->offset &&
	       pier_range_fits(range->offset - stage->offset, range->length,
			       stage->length);
}

/* What a sub-region's bytes are to its NIC, they are to that of its base. */
static struct pier_stage *find_stage(const struct pier_piece *piece)
{
	uint32_t count = piece->base ? pier_mr_parts(piece->base) : 0;

	for (uint32_t i = 0; i < count; i++) {
		struct pier_stage *stage = pier_mr_part_at(piece->base, i)->stage;

		if (covers(stage, &piece->range))
			return stage;
	}
	return NULL;
}

uint64_t pier_stage_reach(const struct pier_piece *piece)
{
	uint32_t count = piece->base ? pier_mr_parts(piece->base) : 0;
	uint64_t reach = piece->range.length, first = piece->range.offset;

	for (uint32_t i = 0; i < count; i++) {
		const struct pier_stage *stage = pier_mr_part_at(piece->base, i)->stage;
		uint64_t edge;

		if (!stage || stage->buffer != piece->range.buffer)
			continue;
		edge = first < stage->offset ? stage->offset
					     : stage->offset + stage->length;
		if (first < edge && edge - first < reach)
			reach = edge - first;
	}
	return reach;
}

bool pier_base_is_staged(const struct pier_piece *piece)
{
	return find_stage(piece) != NULL;
}

static int register_shadow(const struct pier_piece *piece, struct pier_stage *stage,
			   struct pier_mr_part *ret_part)
{
	struct pier_piece shadow = *piece;
	int error;

	shadow.policy = PIER_POLICY_ANY;
	shadow.mapping = PIER_MAPPING_AUTO;
	shadow.has_segments = shadow.checked = false;
	shadow.range.buffer = stage->shadow;
	shadow.range.offset = stage->skew + (piece->range.offset - stage->offset);
	error = pier_register_buffer(&shadow, ret_part);
	if (error)
		return error;
	free(ret_part->why);
	ret_part->why = NULL;
	ret_part->mapping = PIER_MAPPING_AUTO;
	ret_part->path = PIER_PATH_STAGED;
	ret_part->stage = stage;
	ret_part->stage_offset = piece->range.offset - stage->offset;
	return 0;
}

int pier_register_stage(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	struct pier_stage *stage = find_stage(piece);
	int error = 0;

	if (stage)
		atomic_fetch_add(&stage->users, 1);
	else
		error = new_stage(piece, &stage);
	if (!error)
		error = register_shadow(piece, stage, ret_part);
	if (error)
		pier_put_stage(stage);
	return error;
}

int pier_stage_for_nic(const struct pier_stage *stage, uint64_t offset, uint64_t length)
{
	return pier_buffer_copy_from(stage->buffer, (size_t)(stage->offset + offset),
				     stage->cpu + offset, (size_t)length);
}

int pier_stage_for_device(const struct pier_stage *stage, uint64_t offset,
			  uint64_t length)
{
	return pier_buffer_copy_to(stage->buffer, (size_t)(stage->offset + offset),
				   stage->cpu + offset, (size_t)length);
}

const struct pier_mr *pier_mr_beneath(const struct pier_mr *mr)
{
	while (mr->window && mr->memory_count == 0)
		mr = mr->base;
	return mr;
}

bool pier_has_stage(const struct pier_mr *mr)
{
	bool staged = false;

	mr = pier_mr_beneath(mr);
	for (uint32_t i = 0; i < pier_mr_parts(mr) && !staged; i++)
		staged = pier_mr_part_at(mr, i)->stage;
	return staged;
}
