// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "error.h"
#include "range.h"

bool pier_py_range_make(unsigned long long offset, PyObject *length, uint64_t total,
			const char *name, struct pier_py_range *ret_range)
{
	unsigned long long bytes = offset <= total ? total - offset : 0;

	if (length && length != Py_None && !pier_py_uint64(length, &bytes))
		return false;
	if (offset > total || bytes > total - offset) {
		pier_py_refuse(ERANGE,
			       "%llu bytes at offset %llu are not inside the %s of "
			       "%llu bytes",
			       bytes, offset, name, (unsigned long long)total);
		return false;
	}
	*ret_range = (struct pier_py_range){ offset, bytes };
	return true;
}

/* Returns false if it is before the first byte or behind the last. */
static bool find_bound(Py_ssize_t bound, uint64_t total, uint64_t *ret_bound)
{
	uint64_t distance = bound < 0 ? -(uint64_t)bound : (uint64_t)bound;

	*ret_bound = bound < 0 ? total - distance : distance;
	return distance <= total;
}

/* A missing end and one of 64 bits and more both become PY_SSIZE_T_MAX. */
static bool lacks_end(PyObject *slice, Py_ssize_t stop)
{
	PyObject *end = NULL;

	if (stop == PY_SSIZE_T_MAX)
		end = PyObject_GetAttrString(slice, "stop");
	Py_XDECREF(end);
	return end == Py_None;
}

bool pier_py_range_slice(PyObject *slice, uint64_t total, const char *name,
			 struct pier_py_range *ret_range)
{
	Py_ssize_t start, stop, step;
	uint64_t from, to;

	if (!PySlice_Check(slice)) {
		pier_py_wrong_type(slice, "a %s is indexed by slices", name);
		return false;
	}
	if (PySlice_Unpack(slice, &start, &stop, &step) < 0)
		return false;
	if (step != 1) {
		PyErr_Format(PyExc_ValueError,
			     "the step of a slice of a %s is %zd, not 1", name, step);
		return false;
	}
	to = total;
	if (!find_bound(start, total, &from) ||
	    (!lacks_end(slice, stop) && !find_bound(stop, total, &to)) || from > to) {
		pier_py_refuse(ERANGE, "the slice %R is not inside the %s of %llu bytes",
			       slice, name, (unsigned long long)total);
		return false;
	}
	*ret_range = (struct pier_py_range){ from, to - from };
	return true;
}
