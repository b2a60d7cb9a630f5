/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/ipc.h>

#include "buffer.h"
#include "core/caller.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/sleep.h"

enum {
	SPIN_NS = 50000, /* of a wait for a copy; many small ones end in it */
};

/* Where `offset` of the buffer lies in its allocation. */
static uint64_t memory_offset(const struct pier_buffer *buffer, size_t offset)
{
	return buffer->address - buffer->memory.address + offset;
}

int pier_buffer_map(struct pier_buffer *buffer, void **ret_pointer)
{
	PIER_REFUSE_NULL(buffer, ret_pointer);
	if (!buffer->memory.cpu)
		return pier_fail(EOPNOTSUPP,
				 "mapping a buffer of %s: the CPU cannot reach this "
				 "memory; copy instead",
				 buffer->backend->name);
	*ret_pointer = (char *)buffer->memory.cpu + memory_offset(buffer, 0);
	return 0;
}

static int begin_cpu(const struct pier_buffer *buffer, bool write)
{
	if (!buffer->memory.cpu)
		return pier_fail(EOPNOTSUPP, "the CPU cannot reach this memory, and its "
					     "backend has no way to copy");
	return buffer->backend->begin_cpu
		       ? buffer->backend->begin_cpu(&buffer->memory, write)
		       : 0;
}

static int end_cpu(const struct pier_buffer *buffer, bool write)
{
	return buffer->backend->end_cpu ? buffer->backend->end_cpu(&buffer->memory, write)
					: 0;
}

/*
 * Between two queries of a copy. No driver waits for an event with a deadline. The time
 * to the next query grows with the time that has passed, so a long copy costs few of
 * them, and its end is noticed an eighth too late at most.
 */
static int pause_polling(int64_t start, int64_t deadline)
{
	int64_t now = pier_now(), next = now + (now - start) / 8;

	if (now - start > SPIN_NS)
		return pier_sleep(NULL, 0,
				  pier_poll_timeout(next < deadline ? next : deadline));
	sched_yield();
	return 0;
}

/*
 * For a backend without copy_to() or copy_from(). The memory is the caller's again when
 * this returns, so nothing ends the wait early.
 */
static int start_and_wait(struct pier_buffer *buffer, uint64_t offset, void *host,
			  size_t length, bool to_host)
{
	const struct pier_backend *backend = buffer->backend;
	struct pier_backend_copy copy = {
		.size = sizeof(copy),
		.offset = offset,
		.length = length,
		.host = host,
		.to_host = to_host,
	};
	void *started = NULL;
	int64_t start = pier_now();
	int result = backend->copy_start(&buffer->memory, &copy, &started);

	if (result != 0 || !started)
		return result;
	while ((result = backend->copy_query(started)) == 0)
		pause_polling(start, INT64_MAX);
	return result > 0 ? 0 : result;
}

static int copy_memory(struct pier_buffer *buffer, uint64_t offset, void *host,
		       size_t length, bool to_host)
{
	const struct pier_backend *backend = buffer->backend;
	int result;

	if (to_host && backend->copy_from)
		return backend->copy_from(&buffer->memory, offset, host, length);
	if (!to_host && backend->copy_to)
		return backend->copy_to(&buffer->memory, offset, host, length);
	if (backend->copy_start)
		return start_and_wait(buffer, offset, host, length, to_host);
	result = begin_cpu(buffer, !to_host);
	if (result != 0)
		return result;
	if (to_host)
		memcpy(host, (const char *)buffer->memory.cpu + offset, length);
	else
		memcpy((char *)buffer->memory.cpu + offset, host, length);
	return end_cpu(buffer, !to_host);
}

static int copy_range(struct pier_buffer *buffer, size_t offset, void *host,
		      size_t length, bool to_host)
{
	int result = pier_check_buffer_range(buffer, offset, length,
					     to_host ? "copying out" : "copying in");

	if (result != 0 || length == 0)
		return result;
	pier_clear_error();
	result = copy_memory(buffer, memory_offset(buffer, offset), host, length,
			     to_host);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "copying %zu bytes %s a buffer of %s", length,
					 to_host ? "from" : "to", buffer->backend->name);
	return 0;
}

int pier_visit_buffer(struct pier_buffer *buffer, uint64_t offset, uint64_t length,
		      const struct pier_visit *visit)
{
	const struct pier_backend *backend = buffer->backend;
	int error;

	if (buffer->memory.cpu && !backend->copy_from && !backend->copy_start) {
		error = begin_cpu(buffer, false);
		if (!error) {
			visit->look(visit->context,
				    (const char *)buffer->memory.cpu +
					    memory_offset(buffer, offset),
				    length);
			error = end_cpu(buffer, false);
		}
		return error ? pier_fail_because(pier_backend_errno(error),
						 "reading a buffer of %s", backend->name)
			     : 0;
	}
	while (length > 0) {
		size_t piece = length < visit->copy_size ? length : visit->copy_size;

		error = copy_range(buffer, offset, visit->copy, piece, true);
		if (error)
			return error;
		visit->look(visit->context, visit->copy, piece);
		offset += piece;
		length -= piece;
	}
	return 0;
}

int pier_buffer_copy_to(struct pier_buffer *buffer, uint64_t offset, const void *source,
			uint64_t length)
{
	PIER_REFUSE_NULL(buffer);
	PIER_REFUSE_NULL_ARRAY(source, length);

	return copy_range(buffer, offset, (void *)(uintptr_t)source, length, false);
}

int pier_buffer_copy_from(struct pier_buffer *buffer, uint64_t offset, void *destination,
			  uint64_t length)
{
	PIER_REFUSE_NULL(buffer);
	PIER_REFUSE_NULL_ARRAY(destination, length);

	return copy_range(buffer, offset, destination, length, true);
}

/* The CPU copies what it reaches: the backend of the other buffer moves the bytes. */
static int copy_by_cpu(struct pier_buffer *to, uint64_t to_offset,
		       struct pier_buffer *from, uint64_t from_offset, size_t length)
{
	bool write = to->memory.cpu != NULL;
	struct pier_buffer *reached = write ? to : from;
	int result = begin_cpu(reached, write), ended;

	if (result != 0)
		return result;
	result = write ? copy_memory(from, from_offset,
				     (char *)to->memory.cpu + to_offset, length, true)
		       : copy_memory(to, to_offset,
				     (char *)from->memory.cpu + from_offset, length,
				     false);
	ended = end_cpu(reached, write);
	return result ? result : ended;
}

static int copy_buffers(struct pier_buffer *to, uint64_t to_offset,
			struct pier_buffer *from, uint64_t from_offset, size_t length)
{
	if (to->memory.cpu || from->memory.cpu)
		return copy_by_cpu(to, to_offset, from, from_offset, length);
	if (to->backend != from->backend || !to->backend->copy_between)
		return pier_fail(EOPNOTSUPP, "the CPU reaches neither, and the device "
					     "has no way to copy between them");
	return to->backend->copy_between(&to->memory, to_offset, &from->memory,
					 from_offset, length);
}

int pier_buffer_copy(struct pier_buffer *to, uint64_t to_offset, struct pier_buffer *from,
		     uint64_t from_offset, uint64_t length)
{
	PIER_REFUSE_NULL(to, from);
	int result = pier_check_buffer_range(to, to_offset, length, "copying to");

	if (result == 0)
		result = pier_check_buffer_range(from, from_offset, length,
						 "copying from");
	if (result != 0 || length == 0)
		return result;
	pier_clear_error();
	result = copy_buffers(to, memory_offset(to, to_offset), from,
			      memory_offset(from, from_offset), length);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "copying %zu bytes from a buffer of %s to one "
					 "of %s",
					 length, from->backend->name, to->backend->name);
	return 0;
}

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
	return copy_range(copy->buffer, offset, wanted->host, (size_t)wanted->length,
			  wanted->to_host);
}

static int start_backend_copy(struct pier_copy *copy)
{
	struct pier_buffer *buffer = copy->buffer;
	int result;

	pier_clear_error();
	result = buffer->backend->copy_start(&buffer->memory, &copy->copy, &copy->state);
	return result == 0 ? 0 : fail_copy(copy, result, "starting to copy");
}

static int start_copy(struct pier_buffer *buffer, size_t offset,
		      const struct pier_backend_copy *wanted, struct pier_copy **ret_copy)
{
	int result = pier_check_buffer_range(buffer, offset, (size_t)wanted->length,
					     "starting a copy");
	struct pier_copy *copy;

	if (result != 0)
		return result;
	copy = calloc(1, sizeof(*copy));
	if (!copy)
		return pier_fail(ENOMEM, "no memory for a copy's description");
	copy->object.describe = describe_copy;
	copy->buffer = buffer;
	copy->copy = *wanted;
	copy->copy.size = sizeof(copy->copy);
	copy->copy.offset = memory_offset(buffer, offset);
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

int pier_buffer_copy_start_to(struct pier_buffer *buffer, uint64_t offset,
			      const void *source, uint64_t length, void *stream,
			      struct pier_copy **ret_copy)
{
	PIER_REFUSE_NULL(buffer, ret_copy);
	PIER_REFUSE_NULL_ARRAY(source, length);
	PIER_ENTRY();
	struct pier_backend_copy wanted = {
		.length = length,
		.host = (void *)(uintptr_t)source,
		.stream = stream,
	};

	return start_copy(buffer, offset, &wanted, ret_copy);
}

int pier_buffer_copy_start_from(struct pier_buffer *buffer, uint64_t offset,
				void *destination, uint64_t length, void *stream,
				struct pier_copy **ret_copy)
{
	PIER_REFUSE_NULL(buffer, ret_copy);
	PIER_REFUSE_NULL_ARRAY(destination, length);
	PIER_ENTRY();
	struct pier_backend_copy wanted = {
		.length = length,
		.host = destination,
		.to_host = true,
		.stream = stream,
	};

	return start_copy(buffer, offset, &wanted, ret_copy);
}

static int query_copy(struct pier_copy *copy)
{
	int result;

	if (!copy->state)
		return copy->error == 0
			       ? 1
			       : pier_fail(-copy->error, "the copy has failed before");
	pier_clear_error();
	result = copy->buffer->backend->copy_query(copy->state);
	if (result == 0)
		return 0;
	copy->state = NULL;
	if (result > 0)
		return 1;
	copy->error = fail_copy(copy, result, "copying");
	return copy->error;
}

int pier_copy_wait(struct pier_copy *copy, int timeout_ms)
{
	PIER_REFUSE_NULL(copy);
	int result = pier_check_process(&copy->object);
	int64_t start, deadline;

	if (result == 0)
		result = pier_check_timeout(timeout_ms, PIER_TIMEOUT_USUAL, &timeout_ms);
	if (result != 0)
		return result;
	start = pier_now();
	deadline = start + (int64_t)timeout_ms * 1000000;
	while ((result = query_copy(copy)) == 0 && pier_now() < deadline) {
		result = pause_polling(start, deadline);
		if (result < 0)
			return result;
	}
	if (result != 0 || timeout_ms == 0)
		return result;
	return pier_fail(ETIMEDOUT,
			 "a copy of %llu bytes %s a buffer of %s is not done after %d ms",
			 (unsigned long long)copy->copy.length, copy_direction(copy),
			 copy->buffer->backend->name, timeout_ms);
}

int pier_copy_free(struct pier_copy *copy)
{
	int error = copy ? pier_check_process(&copy->object) : 0;

	if (!copy || error)
		return error;
	if (query_copy(copy) == 0)
		return pier_fail(EBUSY,
				 "freeing a copy of %llu bytes %s a buffer of %s: it is "
				 "still running; wait for it",
				 (unsigned long long)copy->copy.length,
				 copy_direction(copy), copy->buffer->backend->name);
	pier_object_untrack(&copy->object);
	pier_buffer_unhold(copy->buffer);
	free(copy);
	return 0;
}
