/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "fake.h"

/* Streams and events. Only copies can be in progress: see queue.c. */

struct CUstream_st {
	CUstream next;
	CUcontext context;
	bool blocking; /* the stream and the default stream wait for each other */
};

struct CUevent_st {
	CUevent next;
	CUcontext context;
	int device;
	/* What it was recorded behind: the copies of a stream up to that number. */
	CUstream stream;
	uint64_t number;
};

static _Thread_local CUstreamCaptureMode capture_mode;
static CUstream streams;
static CUevent events;

/* NULL, 1 and 2 are the default streams: CU_STREAM_LEGACY, CU_STREAM_PER_THREAD. */
static bool is_default(CUstream stream)
{
	return (uintptr_t)stream <= 2;
}

static CUstream find_stream(CUstream stream)
{
	CUstream known = streams;

	while (known && known != stream)
		known = known->next;
	return known;
}

bool fake_is_stream(CUstream stream)
{
	return is_default(stream) ||
	       (find_stream(stream) && stream->context == fake_current());
}

CUresult fake_use_stream(CUstream stream)
{
	if (!fake_is_stream(stream))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!fake_driver.control.kernel_polls ||
	    (!is_default(stream) && !stream->blocking))
		return CUDA_SUCCESS;
	fake_driver.control.hangs++;
	return CUDA_ERROR_NOT_READY;
}

static bool is_event(CUevent event)
{
	CUevent known = events;

	while (known && known != event)
		known = known->next;
	return known;
}

bool fake_is_relaxed(void)
{
	return capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

CUresult fake_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode previous = capture_mode;

	FAKE_ENTER("cuThreadExchangeStreamCaptureMode", FAKE_NEEDS_INIT);
	if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	capture_mode = *mode;
	*mode = previous;
	return CUDA_SUCCESS;
}

CUresult fake_cuStreamCreate(CUstream *ret_stream, unsigned int flags)
{
	CUstream stream;

	FAKE_ENTER("cuStreamCreate", FAKE_NEEDS_DEVICE);
	if (!ret_stream || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->next = streams;
	stream->context = scope.current;
	stream->blocking = flags == 0;
	streams = stream;
	fake_driver.control.live[FAKE_CUDA_STREAM]++;
	*ret_stream = stream;
	return CUDA_SUCCESS;
}

/*
 * cuStreamDestroy(): "In case the device is still doing work in the stream, the function
 * will return immediately and the resources will be released automatically once the
 * device has completed all work".
 */
CUresult fake_cuStreamDestroy_v2(CUstream stream)
{
	CUstream *link = &streams;

	FAKE_ENTER("cuStreamDestroy", FAKE_NEEDS_INIT);
	while (*link && *link != stream)
		link = &(*link)->next;
	if (!*link)
		return CUDA_ERROR_INVALID_HANDLE;
	*link = stream->next;
	fake_driver.control.live[FAKE_CUDA_STREAM]--;
	free(stream);
	return CUDA_SUCCESS;
}

void fake_drop_streams(CUcontext context)
{
	for (CUstream *link = &streams; *link;) {
		CUstream stream = *link;

		if (stream->context != context) {
			link = &stream->next;
			continue;
		}
		fake_run_copies(stream, UINT64_MAX);
		*link = stream->next;
		fake_driver.control.live[FAKE_CUDA_STREAM]--;
		free(stream);
	}
}

CUresult fake_cuStreamSynchronize(CUstream stream)
{
	CUresult result;

	FAKE_ENTER("cuStreamSynchronize", FAKE_NEEDS_DEVICE);
	result = fake_use_stream(stream);
	if (result == CUDA_SUCCESS)
		fake_run_copies(stream, UINT64_MAX);
	return result;
}

static CUresult query_copies(CUstream stream, uint64_t number)
{
	if (fake_driver.control.stalled && fake_is_pending(stream, number))
		return CUDA_ERROR_NOT_READY;
	fake_run_copies(stream, number);
	return CUDA_SUCCESS;
}

CUresult fake_cuStreamQuery(CUstream stream)
{
	FAKE_ENTER("cuStreamQuery", FAKE_NEEDS_DEVICE);
	return fake_is_stream(stream) ? query_copies(stream, UINT64_MAX)
				      : CUDA_ERROR_INVALID_HANDLE;
}

CUresult fake_cuEventCreate(CUevent *ret_event, unsigned int flags)
{
	CUevent event;

	FAKE_ENTER("cuEventCreate", FAKE_NEEDS_DEVICE);
	if (!ret_event || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->next = events;
	event->context = scope.current;
	event->device = scope.device;
	events = event;
	fake_driver.control.live[FAKE_CUDA_EVENT]++;
	*ret_event = event;
	return CUDA_SUCCESS;
}

CUresult fake_cuEventDestroy_v2(CUevent event)
{
	CUevent *link = &events;

	FAKE_ENTER("cuEventDestroy", FAKE_NEEDS_INIT);
	while (*link && *link != event)
		link = &(*link)->next;
	if (!*link)
		return CUDA_ERROR_INVALID_HANDLE;
	*link = event->next;
	fake_driver.control.live[FAKE_CUDA_EVENT]--;
	free(event);
	return CUDA_SUCCESS;
}

/* cuda.h: the event and the stream must be of the same context. */
CUresult fake_cuEventRecord(CUevent event, CUstream stream)
{
	FAKE_ENTER("cuEventRecord", FAKE_NEEDS_DEVICE);
	if (!is_event(event) || !fake_is_stream(stream) ||
	    event->context != scope.current)
		return CUDA_ERROR_INVALID_HANDLE;
	event->stream = stream;
	event->number = fake_newest_copy();
	return CUDA_SUCCESS;
}

static CUresult use_event(CUevent event)
{
	CUresult result;

	if (!is_event(event))
		return CUDA_ERROR_INVALID_HANDLE;
	result = fake_use_device(event->device);
	if (result != CUDA_SUCCESS)
		fake_drop_copies(event->device);
	return result;
}

/* Success too for an event that was never recorded (cuda.h). */
CUresult fake_cuEventQuery(CUevent event)
{
	CUresult result;

	FAKE_ENTER("cuEventQuery", FAKE_NEEDS_INIT);
	result = use_event(event);
	return result == CUDA_SUCCESS ? query_copies(event->stream, event->number)
				      : result;
}

static CUresult wait_for_event(CUevent event)
{
	CUresult result;

	FAKE_ENTER("cuEventSynchronize", FAKE_NEEDS_INIT);
	result = use_event(event);
	if (result == CUDA_SUCCESS)
		fake_run_copies(event->stream, event->number);
	return result;
}

/* A wait fails because the device's work has failed: none of it is executed later. */
CUresult fake_cuEventSynchronize(CUevent event)
{
	CUresult result = wait_for_event(event);
	struct fake_scope scope;

	if (result == CUDA_SUCCESS)
		return result;
	scope = fake_enter_unseen();
	if (is_event(event))
		fake_drop_copies(event->device);
	fake_leave(&scope);
	return result;
}
