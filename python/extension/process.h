/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_PROCESS_H
#define PIER_PY_PROCESS_H

#include "extension.h"

/* Forks, which leave the other threads behind, and the end of the interpreter. */

/**
 * Return a number that differs in a child of fork(2): what the parent's other threads
 * were in the middle of is never finished there.
 */
unsigned int pier_py_generation(void);

/**
 * Drop a reference from any thread of the process, with or without the GIL, such as that
 * of a consumer of DLPack that frees a tensor.
 *
 * When the interpreter ends, other threads than its own drop nothing any more: a thread
 * that then waits for the GIL ends in PyGILState_Ensure(), with the locks that it has, or
 * hangs (PyEval_RestoreThread() in the documentation of Python).
 */
void pier_py_drop(PyObject *object);

/** Start to watch forks and the end of the interpreter. Returns 0, or -1: raised. */
int pier_py_add_process(PyObject *module);

#endif
