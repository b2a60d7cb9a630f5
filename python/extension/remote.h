/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_REMOTE_H
#define PIER_PY_REMOTE_H

#include "extension.h"

/** pier.Remote: a remote vector, which never changes. */
struct pier_py_remote {
	PyVarObject ob_base; /* its size is the number of parts */
	uint64_t length;
	struct pier_remote parts[];
};

extern PyTypeObject *pier_py_remote_type;

int pier_py_add_remote(PyObject *module);

/** Make a Remote of `count` parts. NULL: raised; the parts may be of a peer. */
PyObject *pier_py_remote_new(const struct pier_remote *parts, uint32_t count);

/** Check the argument of a method. Returns it, borrowed, or NULL with TypeError. */
struct pier_py_remote *pier_py_remote_check(PyObject *object);

static inline uint32_t pier_py_remote_count(struct pier_py_remote *remote)
{
	return (uint32_t)Py_SIZE((PyObject *)remote);
}

#endif
