/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdatomic.h>

#include "error.h"
#include "stream.h"

/*
 * Copies use streams of pier's own, one for each device. In the default stream they would
 * wait for the application's kernels, and one of those may wait for these bytes.
 */

enum {
	MOST_KEPT = 64
};

static _Atomic(struct ihipStream_t *) kept[MOST_KEPT];

/* If two threads create a stream at once, the second destroys its own. */
static struct ihipStream_t *keep_stream(const struct pier_hip *hip, int device,
					struct ihipStream_t *stream)
{
	struct ihipStream_t *first = NULL;

	if (device >= MOST_KEPT ||
	    atomic_compare_exchange_strong(&kept[device], &first, stream))
		return stream;
	hip->hipStreamDestroy(stream);
	return first;
}

int pier_hip_take_stream(const struct pier_hip *hip, int device,
			 struct ihipStream_t **ret_stream)
{
	struct ihipStream_t *stream = device < MOST_KEPT ? atomic_load(&kept[device])
							 : NULL;
	unsigned int error;

	if (!stream) {
		error = hip->hipStreamCreateWithFlags(&stream,
						      PIER_HIP_STREAM_NON_BLOCKING);
		if (error != PIER_HIP_SUCCESS)
			return pier_hip_fail(hip, error, "making a stream on device %d",
					     device);
		stream = keep_stream(hip, device, stream);
	}
	*ret_stream = stream;
	return 0;
}

bool pier_hip_put_stream(const struct pier_hip *hip, int device,
			 struct ihipStream_t *stream, unsigned int error)
{
	if (device >= MOST_KEPT) {
		/* hipStreamDestroy() may destroy a stream whose work is under way. */
		hip->hipStreamSynchronize(stream);
		hip->hipStreamDestroy(stream);
		return false;
	}
	/* clr detects destroyed streams (hip::isValid()). */
	if (error != PIER_HIP_CONTEXT_IS_DESTROYED && error != PIER_HIP_INVALID_HANDLE)
		return false;
	atomic_compare_exchange_strong(&kept[device], &stream, NULL);
	return true;
}
