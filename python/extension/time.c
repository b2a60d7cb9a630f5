// SPDX-License-Identifier: BSD-3-Clause
#include <limits.h>
#include <math.h>

#include "time.h"

int pier_py_timeout(PyObject *seconds, void *milliseconds)
{
	if (seconds == Py_None) {
		*(int *)milliseconds = PIER_TIMEOUT_DEFAULT;
		return 1;
	}
	return pier_py_deadline(seconds, milliseconds);
}

int pier_py_deadline(PyObject *seconds, void *milliseconds)
{
	double value = PyFloat_AsDouble(seconds);

	if (value == -1.0 && PyErr_Occurred())
		return 0;
	/* The negated test also refuses what is not a number. */
	if (!(value >= 0 && ceil(value * 1e3) <= INT_MAX)) {
		PyErr_Format(PyExc_ValueError,
			     "timeout %R is not between 0 and %d seconds: no wait is "
			     "unlimited",
			     seconds, INT_MAX / 1000);
		return 0;
	}
	*(int *)milliseconds = (int)ceil(value * 1e3);
	return 1;
}
