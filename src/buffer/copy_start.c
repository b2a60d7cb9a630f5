/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "buffer.h"
#include "core/caller.h"
#include "core/error.h"

struct pier_copy {
	struct pier_object object;
	struct pier_buffer *buffer;
	struct pier_backend_copy copy;
	void *state; /* the backend's; NULL: the copy is over */
	int error;   /* of a copy that has failed: negative; or 0 */
};

static const char *copy_direction(const struct pier_copy *copy)
{
	return copy->copy.to_host ? "from" : "to";
}

static void describe_copy(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_copy *copy = (const struct pier_copy *)object;

	snprintf(ret_text, size, "copy of %llu bytes %s a buffer of %s",
		 (unsigned long long)copy->copy.length, copy_direction(copy),
		 copy->buffer->backend->name);
}

/* The backend's sentence follows. */
static int fail_copy(const struct pier_copy *copy, int result, const char *step)
{
	return pier_fail_because(pier_backend_errno(result),
				 "%s %llu bytes %s a buffer of %s", step,
				 (unsigned long long)copy->copy.length,
				 copy_direction(copy), copy->buffer->backend->name);
}

/* For backends without copy_start(). */
static int copy_at_once(const struct pier_copy *copy, size_t offset)
{
	const struct pier_backend_copy *wanted = &copy->copy;

	if (wanted->stream)
		return pier_fail(
			EOPNOTSUPP,
			"copying in the order of a stream: the backend %s has no "
			"streams; wait for the stream, and give none",
			copy->buffer->backend->name);
	if (wanted->to_host)
		return pier_buffer_copy_from(copy->buffer, offset, wanted->host,
					     (size_t)wanted->length);
	return pier_buffer_copy_to(copy->buffer, offset, wanted->host,
				   (size_t)wanted->length);
}

static int start_backend_copy(struct pier_copy *copy)
{
	struct pier_buffer *buffer = copy->buffer;
	int result;

	pier_clear_error();
	result = buffer->backend->copy_start(&buffer->memory, &copy->copy, &copy->state);
	return result == 0 ? 0 : fail_copy(copy, result, "starting to copy");
}

static struct pier_copy *new_copy(struct pier_buffer *buffer, size_t offset,
				  const struct pier_backend_copy *wanted)
{
	struct pier_copy *copy = calloc(1, sizeof(*copy));

	if (!copy) {
		pier_fail(ENOMEM, "no memory for a copy's description");
		return NULL;
	}
	copy->object.describe = describe_copy;
	copy->buffer = buffer;
	copy->copy = *wanted;
	copy->copy.size = sizeof(copy->copy);
	copy->copy.offset = buffer->address - buffer->memory.address + offset;
	return copy;
}

static int start_copy(struct pier_buffer *buffer, size_t offset,
		      const struct pier_backend_copy *wanted, struct pier_copy **ret_copy)
{
	int result = pier_check_buffer_range(buffer, offset, (size_t)wanted->length,
					     "starting a copy");
	struct pier_copy *copy;

	if (result != 0)
		return result;
	copy = new_copy(buffer, offset, wanted);
	if (!copy)
		return -ENOMEM;
	if (!buffer->backend->copy_start)
		result = copy_at_once(copy, offset);
	else if (wanted->length > 0)
		result = start_backend_copy(copy);
	if (result != 0) {
		free(copy);
		return result;
	}
	pier_buffer_hold(buffer);
	pier_object_track(&copy->object, PIER_OBJECT_COPY, &buffer->object);
	*ret_copy = copy;
	return 0;
}

int pier_buffer_copy_start_to(struct pier_buffer *buffer, size_t offset,
			      const void *source, size_t length, void *stream,
			      struct pier_copy **ret_copy)
{
	PIER_ENTRY();
	struct pier_backend_copy wanted = {
		.length = length,
		.host = (void *)(uintptr_t)source,
		.stream = stream,
	};

	return start_copy(buffer, offset, &wanted, ret_copy);
}

int pier_buffer_copy_start_from(struct pier_buffer *buffer, size_t offset,
				void *destination, size_t length, void *stream,
				struct pier_copy **ret_copy)
{
	PIER_ENTRY();
	struct pier_backend_copy wanted = {
		.length = length,
		.host = destination,
		.to_host = true,
		.stream = stream,
	};

	return start_copy(buffer, offset, &wanted, ret_copy);
}

static int query_copy(struct pier_copy *copy, bool wait)
{
	int result;

	if (!copy->state)
		return copy->error == 0
			       ? 1
			       : pier_fail(-copy->error, "the copy has failed before");
	pier_clear_error();
	result = copy->buffer->backend->copy_query(copy->state, wait);
	if (result == 0 && !wait)
		return 0;
	copy->state = NULL;
	if (result > 0)
		return 1;
	copy->error = fail_copy(copy, result, "copying");
	return copy->error;
}

int pier_copy_query(struct pier_copy *copy)
{
	int result = pier_check_process(&copy->object);

	return result != 0 ? result : query_copy(copy, false);
}

int pier_copy_wait(struct pier_copy *copy)
{
	int result = copy ? pier_check_process(&copy->object) : 0;

	if (!copy || result != 0)
		return result;
	result = query_copy(copy, true);
	pier_object_untrack(&copy->object);
	pier_buffer_unhold(copy->buffer);
	free(copy);
	return result > 0 ? 0 : result;
}
