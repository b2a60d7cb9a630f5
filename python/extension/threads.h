/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_THREADS_H
#define PIER_PY_THREADS_H

/*
 * How threads share objects and the GIL: users, which exclude only close(); locks, which
 * exclude each other; waits without the GIL; and references that any thread drops.
 */
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

/** A property of an open object of a class whose struct has a member `use`. */
struct pier_py_property {
	PyObject *(*describe)(void *self);
	size_t use;	  /* the offset of the member */
	const char *name; /* of the object, for the exception */
};

/** The getter, and its closure. */
PyObject *pier_py_use_get(PyObject *self, void *property);
#define PIER_PY_PROPERTY(type, name_, function)                   \
	(void *)&(const struct pier_py_property)                  \
	{                                                         \
		.describe = (PyObject * (*)(void *)) function,    \
		.use = offsetof(struct type, use), .name = name_, \
	}

/*
 * The lock of an object that one thread at a time may use: channels, transfers, groups.
 * A second thread waits, without the GIL.
 */
struct pier_py_lock {
	PyThread_type_lock lock;
	/* Of the thread that has the lock; only that thread finds its own name here. */
	_Atomic unsigned long owner;
	unsigned int generation; /* of the process that took the lock */
	bool closed;		 /* read and written by the thread that has the lock */
};

/** The attribute `closed` of a class whose struct has the lock as a member. */
#define PIER_PY_CLOSED_MEMBER(type, member)                                \
	{                                                                  \
		"closed", T_BOOL, offsetof(type, member.closed), READONLY, \
			"Whether close() has closed it."                   \
	}

/** Returns 0, or -1 with an exception. */
int pier_py_lock_init(struct pier_py_lock *lock);

/** Half-built locks are allowed. */
void pier_py_lock_destroy(struct pier_py_lock *lock);

/**
 * Take the lock of an object, whether it is closed or not: for close(). Waits 30 s for
 * another thread.
 *
 * name  of the object, for exceptions
 *
 * Returns false with pier.TimedOut; RuntimeError if this thread has the lock, because a
 * callback uses the object that called it; pier.Forked if a thread of the parent had it
 * during the fork; or the exception of a signal handler.
 */
bool pier_py_lock_take_any(struct pier_py_lock *lock, const char *name);

/** Take the lock of an open object: also false with ValueError if it is closed. */
bool pier_py_lock_take(struct pier_py_lock *lock, const char *name);

/**
 * Take a lock again that this thread has released for a while: without a timeout, because
 * the caller of a wait has the lock when the wait returns, also after an error.
 */
void pier_py_lock_take_back(struct pier_py_lock *lock);

void pier_py_lock_release(struct pier_py_lock *lock);

/*
 * A call of the library that can wait: without the GIL, and such that signal handlers
 * run. If one raises, as that of Ctrl-C does, the wait ends (pier_interrupt_set()).
 */
struct pier_py_blocking {
	PyThreadState *state;
	bool raised;
};

/** Release the GIL. */
void pier_py_blocking_begin(struct pier_py_blocking *blocking);

/**
 * Take the GIL again.
 *
 * error  of the call, or what it returned
 *
 * Returns the same, with the exception of a call that failed, or -1 with that of a
 * signal handler.
 */
int pier_py_blocking_end(struct pier_py_blocking *blocking, int error);

/** Make such a call. Evaluates to what pier_py_blocking_end() returns. */
#define PIER_PY_BLOCKING(call)                            \
	__extension__({                                   \
		struct pier_py_blocking blocking_;        \
                                                          \
		pier_py_blocking_begin(&blocking_);       \
		pier_py_blocking_end(&blocking_, (call)); \
	})

/*
 * The clock of the extension, in microseconds of CLOCK_MONOTONIC. That of the library
 * (core/clock.h) is not in its public headers, and the extension uses only those.
 */
int64_t pier_py_now_us(void);

/**
 * Wait for a transfer or a ring, in short slices. The library drives it meanwhile,
 * without the GIL and with the locks of its channels; other threads get the locks in
 * between.
 *
 * A request needs no driving, so pier_py_queue_wait() sleeps without the lock.
 *
 * wait_slice  waits for slice_ms with the locks: 1: it is over, 0: the time was, -1:
 * raised
 *
 * Returns as the last slice; also -1 with the exception of a signal handler.
 */
int pier_py_wait_in_slices(int (*wait_slice)(void *subject, int slice_ms), void *subject,
			   int64_t timeout_ms);

/**
 * Drop a reference from any thread of the process, with or without the GIL, such as that
 * of a consumer of DLPack that frees a tensor.
 *
 * When the interpreter ends, other threads than its own drop nothing any more: a thread
 * that then waits for the GIL ends in PyGILState_Ensure(), with the locks that it has, or
 * hangs (PyEval_RestoreThread() in the documentation of Python).
 */
void pier_py_drop(PyObject *object);

#endif
