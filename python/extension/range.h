/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_RANGE_H
#define PIER_PY_RANGE_H

#include "extension.h"

/** [offset, offset + length), in bytes. */
struct pier_py_range {
	uint64_t offset;
	uint64_t length;
};

/**
 * Make the range of the arguments offset and length of a method.
 *
 * length  an int, or None or NULL for all that follows offset
 * total   the length of the object
 * name    of the object, for the exception
 *
 * Returns false with TypeError, OverflowError or pier.OutOfRange.
 */
bool pier_py_range_make(unsigned long long offset, PyObject *length, uint64_t total,
			const char *name, struct pier_py_range *ret_range);

/**
 * Make the range of a slice. Negative bounds count from the end, as everywhere in
 * Python, but what is out of range is refused instead of shortened: a request of fewer
 * bytes than the program meant is an error that nobody sees.
 *
 * Returns false with TypeError (not a slice), ValueError (a step) or pier.OutOfRange.
 */
bool pier_py_range_slice(PyObject *slice, uint64_t total, const char *name,
			 struct pier_py_range *ret_range);

#endif
