/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_TIME_H
#define PIER_PY_TIME_H

#include "extension.h"

/**
 * Convert a timeout in seconds, for "O&" of PyArg_ParseTuple(): None is
 * PIER_TIMEOUT_DEFAULT; a fraction of a millisecond is rounded up.
 *
 * milliseconds  an int
 *
 * Returns 1, or 0 with TypeError or ValueError (negative, no number, 24 days or more).
 */
int pier_py_timeout(PyObject *seconds, void *milliseconds);

/** As pier_py_timeout(), for calls without a default: None is refused. */
int pier_py_deadline(PyObject *seconds, void *milliseconds);

/*
 * The clock of the extension, which asks for the time nowhere else. That of the library
 * (core/clock.h) is not in its public headers, and the extension uses only those.
 */

/** In microseconds of CLOCK_MONOTONIC. */
int64_t pier_py_now_us(void);

/** In milliseconds of the same clock. */
int64_t pier_py_now_ms(void);

/** Sleep without the GIL, so that a thread that waits for a lock gets it. */
void pier_py_let_others_in(void);

#endif
