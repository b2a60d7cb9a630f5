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

#endif
