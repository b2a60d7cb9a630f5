/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_ERROR_H
#define PIER_PY_ERROR_H

#include "extension.h"

/**
 * Raise the exception of a failed call of the library: pier.Error or a subclass of it,
 * with the sentence of pier_error_message(). Call it on the thread of the failed call,
 * before any other call of the library.
 *
 * error  as the library returned it: negative
 *
 * Returns NULL.
 */
void *pier_py_fail(int error);

/**
 * Raise an exception of pier.Error with a sentence of our own.
 *
 * error   positive
 * format  as for PyUnicode_FromFormat()
 *
 * Returns NULL.
 */
void *pier_py_refuse(int error, const char *format, ...);

/**
 * Raise TypeError: the sentence, and ", not " with the name of the object's type. The
 * repr of an object can be several times as long as its memory.
 *
 * format  as for PyUnicode_FromFormat()
 *
 * Returns NULL.
 */
void *pier_py_wrong_type(PyObject *object, const char *format, ...);

/**
 * Return None for the result of a call of the library, or raise its exception.
 */
PyObject *pier_py_result(int error);

/** The class pier.Error. */
extern PyObject *pier_py_error;

#endif
