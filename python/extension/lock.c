// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "error.h"
#include "lock.h"
#include "process.h"
#include "time.h"

#define DEFAULT_WAIT_MS 30000

int pier_py_lock_init(struct pier_py_lock *lock)
{
	lock->lock = PyThread_allocate_lock();
	if (lock->lock)
		return 0;
	PyErr_NoMemory();
	return -1;
}

void pier_py_lock_destroy(struct pier_py_lock *lock)
{
	/* A lock that a thread of the parent had cannot be freed (sem_destroy(3)). */
	if (lock->lock && !atomic_load(&lock->owner))
		PyThread_free_lock(lock->lock);
	lock->lock = NULL;
}

/* Another thread has it. Signal handlers run in between. */
static bool await_owner(struct pier_py_lock *lock, const char *name, int timeout_ms)
{
	int64_t wait = (timeout_ms < 0 ? DEFAULT_WAIT_MS : timeout_ms) * INT64_C(1000);
	int64_t end = pier_py_now_us() + wait;
	PyLockStatus status;

	do {
		Py_BEGIN_ALLOW_THREADS
		status = PyThread_acquire_lock_timed(lock->lock, wait, 1);
		Py_END_ALLOW_THREADS
		if (status == PY_LOCK_ACQUIRED)
			return true;
		if (PyErr_CheckSignals() < 0)
			return false;
		wait = end - pier_py_now_us();
	} while (status == PY_LOCK_INTR && wait > 0);
	pier_py_refuse(ETIMEDOUT,
		       "another thread has used the %s for %d ms: raise the timeout",
		       name, timeout_ms < 0 ? DEFAULT_WAIT_MS : timeout_ms);
	return false;
}

bool pier_py_lock_take_any(struct pier_py_lock *lock, const char *name, int timeout_ms)
{
	unsigned long self = PyThread_get_thread_ident();

	if (PyThread_acquire_lock(lock->lock, NOWAIT_LOCK)) {
		/* The usual case. */
	} else if (atomic_load(&lock->owner) &&
		   lock->generation != pier_py_generation()) {
		pier_py_refuse(ECHILD,
			       "a thread of the parent process used the %s during "
			       "fork(): create it in this process",
			       name);
		return false;
	} else if (atomic_load(&lock->owner) == self) {
		PyErr_Format(
			PyExc_RuntimeError,
			"the %s is used in a callback or signal handler that interrupts "
			"a call of it",
			name);
		return false;
	} else if (!await_owner(lock, name, timeout_ms)) {
		return false;
	}
	lock->generation = pier_py_generation();
	atomic_store(&lock->owner, self);
	return true;
}

bool pier_py_lock_take(struct pier_py_lock *lock, const char *name, int timeout_ms)
{
	if (!pier_py_lock_take_any(lock, name, timeout_ms))
		return false;
	if (!lock->closed)
		return true;
	pier_py_lock_release(lock);
	PyErr_Format(PyExc_ValueError, "the %s is closed", name);
	return false;
}

void pier_py_lock_release(struct pier_py_lock *lock)
{
	atomic_store(&lock->owner, 0);
	PyThread_release_lock(lock->lock);
}
