/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_BLOCKING_H
#define PIER_PY_BLOCKING_H

#include "extension.h"

/*
 * A call of the library that can wait: without the GIL, and such that signal handlers
 * run. If one raises, as that of Ctrl-C does, the wait ends (pier_interrupt_set()).
 */
struct pier_py_blocking {
	PyThreadState *state;
	bool raised;
};

/** Release the GIL. */
void pier_py_blocking_begin(struct pier_py_blocking *blocking);

/**
 * Take the GIL again.
 *
 * error  of the call, or what it returned
 *
 * Returns the same, or -1 with an exception if the call failed or a signal handler
 * raised one.
 */
int pier_py_blocking_end(struct pier_py_blocking *blocking, int error);

#endif
