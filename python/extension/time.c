// SPDX-License-Identifier: BSD-3-Clause
#include <limits.h>
#include <math.h>
#include <time.h>

#include "time.h"

enum {
	PAUSE_US = 50,
};

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

int64_t pier_py_now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

int64_t pier_py_now_ms(void)
{
	return pier_py_now_us() / 1000;
}

void pier_py_let_others_in(void)
{
	const struct timespec pause = { .tv_nsec = PAUSE_US * 1000 };
	PyThreadState *state = PyEval_SaveThread();

	nanosleep(&pause, NULL);
	PyEval_RestoreThread(state);
}
