/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_USE_H
#define PIER_PY_USE_H

#include <stddef.h>

#include "extension.h"

/*
 * The users of an object whose functions any thread may call at once, but not while
 * another closes it: devices, protection domains, buffers, regions. Users are calls in
 * progress, and whatever keeps the object open, such as a view of a buffer.
 *
 * Zeroed memory is an open object without users. Needs no GIL.
 */
struct pier_py_use {
	_Atomic int64_t count; /* -1: closed */
};

/** Add a user. Returns false if the object is closed; then nothing is raised. */
bool pier_py_use_try(struct pier_py_use *use);

/**
 * Add a user: at the start of every method that uses the object in the library.
 *
 * name  of the object, for the exception
 *
 * Returns false with a ValueError if the object is closed.
 */
bool pier_py_use_begin(struct pier_py_use *use, const char *name);

void pier_py_use_end(struct pier_py_use *use);

/**
 * Close an object: destroy the object of the library, without the GIL.
 *
 * destroy  a function of the library; on an error it has destroyed nothing
 * handle   the object of the library
 *
 * Returns 1: now closed; 0: it was closed before; -1: raised (pier.Busy if it has users),
 * and it is open.
 */
int pier_py_use_close(struct pier_py_use *use, const char *name, int (*destroy)(void *),
		      void *handle);

/**
 * The same for Py_tp_dealloc, without exceptions.
 *
 * Returns false if it could not be destroyed, such as an object of the parent process
 * (ECHILD): what it uses has to stay.
 */
bool pier_py_use_delete(struct pier_py_use *use, int (*destroy)(void *), void *handle);

static inline bool pier_py_use_closed(struct pier_py_use *use)
{
	return atomic_load(&use->count) < 0;
}

/** The property `closed` of a class whose struct has a member `use`. */
#define PIER_PY_CLOSED_PROPERTY(type)                      \
	{                                                  \
		"closed", pier_py_use_get_closed, NULL,    \
			"Whether close() has closed it.",  \
			(void *)offsetof(struct type, use) \
	}
PyObject *pier_py_use_get_closed(PyObject *self, void *offset);

#endif
