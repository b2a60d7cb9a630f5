/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_USE_H
#define PIER_PY_USE_H

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
 * Close the object against new users, before the library's object is destroyed.
 *
 * Returns 1: destroy it now; 0: it is closed already; -1 with pier.Busy: it has users.
 */
int pier_py_use_close(struct pier_py_use *use, const char *name);

/** Undo pier_py_use_close(): the library could not destroy the object. */
void pier_py_use_reopen(struct pier_py_use *use);

static inline bool pier_py_use_closed(struct pier_py_use *use)
{
	return atomic_load(&use->count) < 0;
}

#endif
