/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_TRANSFER_H
#define PIER_PY_TRANSFER_H

#include "rails.h"

/** pier.Transfer */
struct pier_py_transfer {
	PyObject ob_base;
	struct pier_py_lock lock;
	struct pier_transfer *transfer;
	struct pier_py_rails rails;
	PyObject *progress; /* NULL, or a function */
	uint64_t reported;  /* to it: done; UINT64_MAX: nothing yet */
};

int pier_py_add_transfer(PyObject *module);

/**
 * Drive a transfer: for `timeout_ms`, in short slices, or once if it is 0.
 *
 * Returns 1 when all bytes have arrived; 0 when the time is over; -1 with an exception.
 */
int pier_py_transfer_drive(struct pier_py_transfer *self, int64_t timeout_ms);

/**
 * Release what a transfer that has ended does not use any more. Keeps an exception. With
 * the lock of the transfer.
 */
void pier_py_transfer_settle(struct pier_py_transfer *self);

/**
 * Cancel a transfer, and wait for the chunks in flight until its rails stall. With the
 * lock of the transfer. Returns 0, or -1 with an exception.
 */
int pier_py_transfer_end(struct pier_py_transfer *self);

/**
 * Destroy a transfer that nobody has any more: chunks that do not complete soon are
 * stopped with their channels. With the locks of the rails.
 */
void pier_py_transfer_abandon(struct pier_py_transfer *self);

/** The constructor of the class. */
PyObject *pier_py_transfer_new(PyTypeObject *type, PyObject *arguments,
			       PyObject *keywords);

/** The method resume(). */
PyObject *pier_py_transfer_resume(struct pier_py_transfer *self, PyObject *rails);

#endif
