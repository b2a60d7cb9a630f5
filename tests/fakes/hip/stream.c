/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "call.h"

/* Copies and their streams. */

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	NOT_READY = 600,
	CONTEXT_IS_DESTROYED = 709,

	HOST_TO_DEVICE = 1,
	DEVICE_TO_HOST = 2,
	NON_BLOCKING = 1,
	RELAXED = 2,
};

/* A pending operation, which is only executed when it is waited for. */
struct operation {
	struct operation *next;
	char *to;
	const char *from; /* or NULL: `value` */
	int value;
	size_t size;
};

struct ihipStream_t {
	struct ihipStream_t *next;
	struct operation *first, **last;
	int device;
	bool blocking; /* the stream and the default stream wait for each other */
};

static struct ihipStream_t *streams;
static __thread unsigned int capture_mode;

bool fake_is_relaxed(void)
{
	return capture_mode == RELAXED;
}

FAKE_API unsigned int hipThreadExchangeStreamCaptureMode(unsigned int *mode)
{
	unsigned int error = fake_begin("hipThreadExchangeStreamCaptureMode");
	unsigned int previous = capture_mode;

	if (!error && (!mode || *mode > RELAXED))
		error = INVALID_VALUE;
	if (!error) {
		capture_mode = *mode;
		*mode = previous;
	}
	return fake_end(error);
}

/* Compares pointers only, because the application may pass a stale stream. */
static struct ihipStream_t **find(struct ihipStream_t *stream)
{
	struct ihipStream_t **link = &streams;

	while (*link && *link != stream)
		link = &(*link)->next;
	return *link ? link : NULL;
}

FAKE_API unsigned int hipStreamCreateWithFlags(struct ihipStream_t **ret_stream,
					       unsigned int flags)
{
	unsigned int error = fake_begin_unsafe("hipStreamCreateWithFlags");
	struct ihipStream_t *stream = error ? NULL : calloc(1, sizeof(*stream));

	if (!error && (!stream || !ret_stream || flags > NON_BLOCKING)) {
		free(stream);
		error = INVALID_VALUE;
	}
	if (!error) {
		stream->last = &stream->first;
		stream->device = fake_current_device();
		stream->blocking = flags == 0;
		stream->next = streams;
		streams = stream;
		fake_settings()->streams++;
		*ret_stream = stream;
	}
	return fake_end(error);
}

static void finish(struct ihipStream_t *stream)
{
	while (stream->first) {
		struct operation *operation = stream->first;

		if (operation->from)
			memcpy(operation->to, operation->from, operation->size);
		else
			memset(operation->to, operation->value, operation->size);
		stream->first = operation->next;
		free(operation);
	}
	stream->last = &stream->first;
}

static void destroy(struct ihipStream_t **link)
{
	struct ihipStream_t *stream = *link;

	finish(stream);
	*link = stream->next;
	fake_settings()->streams--;
	free(stream);
}

FAKE_API unsigned int hipStreamDestroy(struct ihipStream_t *stream)
{
	unsigned int error = fake_begin_unsafe("hipStreamDestroy");
	struct ihipStream_t **link = find(stream);

	if (!error && !link)
		error = CONTEXT_IS_DESTROYED;
	if (!error)
		destroy(link);
	return fake_end(error);
}

FAKE_API void fake_hip_reset(int device)
{
	struct ihipStream_t **link = &streams;

	fake_lock();
	while (*link) {
		if ((*link)->device == device)
			destroy(link);
		else
			link = &(*link)->next;
	}
	fake_unlock();
}

/* A polling kernel never ends, so waiting for it would not end either. */
static unsigned int check(struct ihipStream_t *stream)
{
	if (stream && !find(stream))
		return CONTEXT_IS_DESTROYED;
	if (stream && stream->device != fake_current_device())
		return INVALID_VALUE;
	if (!fake_settings()->kernel_polls || (stream && !stream->blocking))
		return SUCCESS;
	fake_settings()->hangs++;
	return NOT_READY;
}

/* In the default stream the operation is executed immediately. */
static unsigned int add(struct ihipStream_t *stream, const struct operation *operation)
{
	struct ihipStream_t now = { .last = &now.first };
	struct operation *copy = malloc(sizeof(*copy));

	if (!copy)
		return INVALID_VALUE;
	*copy = *operation;
	if (!stream)
		stream = &now;
	*stream->last = copy;
	stream->last = &copy->next;
	if (stream == &now)
		finish(stream);
	return SUCCESS;
}

/*
 * Returns the driver's address for the application's, or NULL if the range is not inside
 * one allocation.
 */
static char *reach(const void *pointer, size_t size)
{
	struct fake_allocation *allocation = fake_find(pointer);
	size_t offset;

	if (!allocation)
		return NULL;
	offset = (size_t)((const char *)pointer - allocation->address);
	if (offset > allocation->size || size > allocation->size - offset)
		return NULL;
	return allocation->driver + offset;
}

FAKE_API unsigned int hipMemcpyAsync(void *destination, const void *source, size_t size,
				     unsigned int kind, struct ihipStream_t *stream)
{
	unsigned int error = fake_begin("hipMemcpyAsync");
	struct operation operation = { .to = destination, .from = source, .size = size };

	if (!error)
		error = check(stream);
	if (!error && kind != HOST_TO_DEVICE && kind != DEVICE_TO_HOST)
		error = INVALID_VALUE;
	if (!error && kind == HOST_TO_DEVICE)
		operation.to = reach(destination, size);
	if (!error && kind == DEVICE_TO_HOST)
		operation.from = reach(source, size);
	if (!error && (!operation.to || !operation.from))
		error = INVALID_VALUE;
	if (!error)
		error = add(stream, &operation);
	return fake_end(error);
}

FAKE_API unsigned int hipMemsetAsync(void *destination, int value, size_t size,
				     struct ihipStream_t *stream)
{
	unsigned int error = fake_begin("hipMemsetAsync");
	struct operation operation = { .value = value, .size = size };

	if (!error)
		error = check(stream);
	operation.to = reach(destination, size);
	if (!error && !operation.to)
		error = INVALID_VALUE;
	if (!error)
		error = add(stream, &operation);
	return fake_end(error);
}

void fake_finish_all(void)
{
	for (struct ihipStream_t *stream = streams; stream; stream = stream->next)
		finish(stream);
}

static void forget(struct ihipStream_t *stream)
{
	while (stream->first) {
		struct operation *operation = stream->first;

		stream->first = operation->next;
		free(operation);
	}
	stream->last = &stream->first;
}

/* If the call fails, pending operations are never executed. */
FAKE_API unsigned int hipStreamSynchronize(struct ihipStream_t *stream)
{
	unsigned int error = fake_begin_unsafe("hipStreamSynchronize");

	if (!error)
		error = check(stream);
	for (struct ihipStream_t *s = streams; s; s = s->next) {
		if (s != stream && (stream || !s->blocking))
			continue;
		if (error)
			forget(s);
		else
			finish(s);
	}
	return fake_end(error);
}
