// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "error.h"
#include "use.h"

bool pier_py_use_try(struct pier_py_use *use)
{
	int64_t count = atomic_load(&use->count);

	while (count >= 0) {
		if (atomic_compare_exchange_weak(&use->count, &count, count + 1))
			return true;
	}
	return false;
}

bool pier_py_use_begin(struct pier_py_use *use, const char *name)
{
	if (pier_py_use_try(use))
		return true;
	PyErr_Format(PyExc_ValueError, "the %s is closed", name);
	return false;
}

void pier_py_use_end(struct pier_py_use *use)
{
	atomic_fetch_sub(&use->count, 1);
}

int pier_py_use_close(struct pier_py_use *use, const char *name, int (*destroy)(void *),
		      void *handle)
{
	int64_t count = 0;
	int error;

	if (!atomic_compare_exchange_strong(&use->count, &count, -1)) {
		if (count < 0)
			return 0;
		pier_py_refuse(
			EBUSY,
			"the %s has users (%lld), such as views or calls in progress: "
			"release them first",
			name, (long long)count);
		return -1;
	}
	Py_BEGIN_ALLOW_THREADS
	error = destroy(handle);
	Py_END_ALLOW_THREADS
	if (!error)
		return 1;
	atomic_store(&use->count, 0);
	pier_py_fail(error);
	return -1;
}

bool pier_py_use_delete(struct pier_py_use *use, int (*destroy)(void *), void *handle)
{
	int error;

	if (pier_py_use_closed(use))
		return true;
	Py_BEGIN_ALLOW_THREADS
	error = destroy(handle);
	Py_END_ALLOW_THREADS
	return !error;
}

PyObject *pier_py_use_get_closed(PyObject *self, void *offset)
{
	struct pier_py_use *use = (struct pier_py_use *)((char *)self + (size_t)offset);

	return PyBool_FromLong(pier_py_use_closed(use));
}
