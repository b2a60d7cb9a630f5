/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_WORK_H
#define PIER_PY_WORK_H

#include "channel.h"

/** pier.Work: a request that was posted. */
struct pier_py_work {
	PyObject ob_base;
	struct pier_py_channel *channel;
	struct pier_work work;
	/*
	 * The handle is valid, and the result is not known yet. Written with the lock of
	 * the channel. False without it means that the result can be read.
	 */
	_Atomic bool posted;
	/* With the lock of the channel: */
	PyObject *regions;
	PyObject *result; /* a Result; or, if it failed, NULL */
	PyObject *error;
};

/** Make the Work of a request before it is posted. NULL: raised. */
struct pier_py_work *pier_py_work_new(struct pier_py_channel *channel);

/**
 * Wait until the request has completed. With the lock, which is given up in between.
 *
 * timeout_ms  also PIER_TIMEOUT_DEFAULT. Afterwards the channel is stopped
 * blocking    there is no other handle of the request: stop the channel also if a signal
 *             handler raised an exception
 *
 * Returns the Result; NULL: raised.
 */
PyObject *pier_py_work_finish(struct pier_py_work *work, int timeout_ms, bool blocking);

#endif
