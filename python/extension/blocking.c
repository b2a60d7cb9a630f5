/* SPDX-License-Identifier: BSD-3-Clause */
#include "blocking.h"
#include "error.h"

/* After an exception every further wait of the call ends at once. */
static int check_signals(void *context)
{
	struct pier_py_blocking *blocking = context;

	if (blocking->raised)
		return 1;
	PyEval_RestoreThread(blocking->state);
	blocking->raised = PyErr_CheckSignals() < 0;
	blocking->state = PyEval_SaveThread();
	/* A handler may have made a call like this one. */
	pier_interrupt_set(check_signals, blocking);
	return blocking->raised;
}

void pier_py_blocking_begin(struct pier_py_blocking *blocking)
{
	blocking->raised = false;
	pier_interrupt_set(check_signals, blocking);
	blocking->state = PyEval_SaveThread();
}

int pier_py_blocking_end(struct pier_py_blocking *blocking, int error)
{
	PyEval_RestoreThread(blocking->state);
	pier_interrupt_set(NULL, NULL);
	if (blocking->raised)
		return -1;
	if (error >= 0)
		return error;
	pier_py_fail(error);
	return -1;
}
