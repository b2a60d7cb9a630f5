/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "call.h"

/* Copies and their streams. */

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	INVALID_HANDLE = 400,
	NOT_READY = 600,
	CONTEXT_IS_DESTROYED = 709,

	HOST_TO_DEVICE = 1,
	DEVICE_TO_HOST = 2,
	NON_BLOCKING = 1,
	RELAXED = 2,
};

/* A pending operation, which is executed when it is waited for or asked about. */
struct operation {
	struct operation *next;
	char *to;
	const char *from; /* or NULL: `value` */
	int value;
	size_t size;
	uint64_t number;
};

struct ihipStream_t {
	struct ihipStream_t *next;
	struct operation *first, **last;
	int device;
	bool blocking; /* the stream and the default stream wait for each other */
};

/* Behind the operations of a stream up to that number. */
struct ihipEvent_t {
	struct ihipEvent_t *next;
	struct ihipStream_t *stream;
	uint64_t number;
	int device;
};

static struct ihipStream_t *streams;
static struct ihipEvent_t *events;
static uint64_t newest;
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

static void finish_until(struct ihipStream_t *stream, uint64_t number)
{
	while (stream->first && stream->first->number <= number) {
		struct operation *operation = stream->first;

		if (operation->from)
			memcpy(operation->to, operation->from, operation->size);
		else
			memset(operation->to, operation->value, operation->size);
		stream->first = operation->next;
		free(operation);
	}
	if (!stream->first)
		stream->last = &stream->first;
}

static void finish(struct ihipStream_t *stream)
{
	finish_until(stream, UINT64_MAX);
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
	copy->number = ++newest;
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

FAKE_API void fake_hip_catch_up(void)
{
	fake_lock();
	fake_finish_all();
	fake_unlock();
}

static struct ihipEvent_t **find_event(struct ihipEvent_t *event)
{
	struct ihipEvent_t **link = &events;

	while (*link && *link != event)
		link = &(*link)->next;
	return *link ? link : NULL;
}

FAKE_API unsigned int hipEventCreateWithFlags(struct ihipEvent_t **ret_event,
					      unsigned int flags)
{
	unsigned int error = fake_begin("hipEventCreateWithFlags");
	struct ihipEvent_t *event = error ? NULL : calloc(1, sizeof(*event));

	if (!error && (!event || !ret_event || flags > 7)) {
		free(event);
		error = INVALID_VALUE;
	}
	if (!error) {
		event->device = fake_current_device();
		event->next = events;
		events = event;
		fake_settings()->events++;
		*ret_event = event;
	}
	return fake_end(error);
}

FAKE_API unsigned int hipEventDestroy(struct ihipEvent_t *event)
{
	unsigned int error = fake_begin("hipEventDestroy");
	struct ihipEvent_t **link = find_event(event);

	/* Also if the device is lost: a process can still let go of what it has. */
	if (link) {
		*link = event->next;
		fake_settings()->events--;
		free(event);
	} else if (!error) {
		error = INVALID_HANDLE;
	}
	return fake_end(error);
}

/* clr: the event and the stream must be of the same device. */
FAKE_API unsigned int hipEventRecord(struct ihipEvent_t *event,
				     struct ihipStream_t *stream)
{
	unsigned int error = fake_begin("hipEventRecord");

	if (!error && (!find_event(event) || event->device != fake_current_device()))
		error = INVALID_HANDLE;
	if (!error)
		error = check(stream);
	if (!error) {
		event->stream = stream;
		event->number = newest;
	}
	return fake_end(error);
}

static bool is_pending(const struct ihipEvent_t *event)
{
	return event->stream && find(event->stream) && event->stream->first &&
	       event->stream->first->number <= event->number;
}

FAKE_API unsigned int hipEventQuery(struct ihipEvent_t *event)
{
	unsigned int error = fake_begin_unsafe("hipEventQuery");

	if (!error && !find_event(event))
		error = INVALID_HANDLE;
	if (!error && is_pending(event) && fake_settings()->stalled)
		error = NOT_READY;
	else if (!error && is_pending(event))
		finish_until(event->stream, event->number);
	return fake_end(error);
}

/* As with hipStreamSynchronize(), what was under way when it fails never happens. */
FAKE_API unsigned int hipEventSynchronize(struct ihipEvent_t *event)
{
	unsigned int error = fake_begin_unsafe("hipEventSynchronize");

	if (!find_event(event))
		return fake_end(error ? error : INVALID_HANDLE);
	if (is_pending(event) && error)
		forget(event->stream);
	else if (is_pending(event))
		finish_until(event->stream, event->number);
	return fake_end(error);
}
