/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "threads.h"

enum {
	/* How long to wait for a lock that another thread has. */
	LOCK_WAIT_MS = 30000,
	/* How long a wait has its locks at a time, and how long it then leaves them. */
	SLICE_MS = 20,
	PAUSE_US = 50,
	/* How long the end of the interpreter waits for threads that drop references. */
	PATIENCE_MS = 10000,
};

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
	if (!PIER_PY_CALL(destroy(handle)))
		return 1;
	atomic_store(&use->count, 0);
	return -1;
}

bool pier_py_use_delete(struct pier_py_use *use, int (*destroy)(void *), void *handle)
{
	return pier_py_use_closed(use) || !PIER_PY_WITHOUT_GIL(destroy(handle));
}

PyObject *pier_py_use_get_closed(PyObject *self, void *offset)
{
	struct pier_py_use *use = (struct pier_py_use *)((char *)self + (size_t)offset);

	return PyBool_FromLong(pier_py_use_closed(use));
}

PyObject *pier_py_use_get(PyObject *self, void *closure)
{
	const struct pier_py_property *property = closure;
	struct pier_py_use *use = (struct pier_py_use *)((char *)self + property->use);
	PyObject *value;

	if (!pier_py_use_begin(use, property->name))
		return NULL;
	value = property->describe(self);
	pier_py_use_end(use);
	return value;
}

/* Differs in a child of fork(2), where the parent's other threads never finish anything.
 */
static _Atomic unsigned int generation = 1;
static _Atomic int drops;		    /* in progress */
static _Atomic unsigned long ending_thread; /* 0: the interpreter runs */

static void count_fork(void)
{
	atomic_fetch_add(&generation, 1);
	atomic_store(&drops, 0);
}

static unsigned int fork_generation(void)
{
	return atomic_load_explicit(&generation, memory_order_relaxed);
}

int64_t pier_py_now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

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
static bool await_owner(struct pier_py_lock *lock, const char *name)
{
	int64_t wait = LOCK_WAIT_MS * INT64_C(1000);
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
	return pier_py_refuse(
		ETIMEDOUT, "another thread has used the %s for %d ms: raise the timeout",
		name, LOCK_WAIT_MS);
}

static void note_owner(struct pier_py_lock *lock)
{
	lock->generation = fork_generation();
	atomic_store(&lock->owner, PyThread_get_thread_ident());
}

bool pier_py_lock_take_any(struct pier_py_lock *lock, const char *name)
{
	if (PyThread_acquire_lock(lock->lock, NOWAIT_LOCK)) {
		/* The usual case. */
	} else if (atomic_load(&lock->owner) && lock->generation != fork_generation()) {
		pier_py_refuse(ECHILD,
			       "a thread of the parent process used the %s during "
			       "fork(): create it in this process",
			       name);
		return false;
	} else if (atomic_load(&lock->owner) == PyThread_get_thread_ident()) {
		PyErr_Format(
			PyExc_RuntimeError,
			"the %s is used in a callback or signal handler that interrupts "
			"a call of it",
			name);
		return false;
	} else if (!await_owner(lock, name)) {
		return false;
	}
	note_owner(lock);
	return true;
}

void pier_py_lock_take_back(struct pier_py_lock *lock)
{
	if (!PyThread_acquire_lock(lock->lock, NOWAIT_LOCK)) {
		PyThreadState *state = PyEval_SaveThread();

		PyThread_acquire_lock(lock->lock, WAIT_LOCK);
		PyEval_RestoreThread(state);
	}
	note_owner(lock);
}

bool pier_py_lock_take(struct pier_py_lock *lock, const char *name)
{
	if (!pier_py_lock_take_any(lock, name))
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

/* After an exception every further wait of the call ends at once. */
static int check_signals(void *context)
{
	struct pier_py_blocking *blocking = context;

	if (blocking->raised)
		return 1;
	PyEval_RestoreThread(blocking->state);
	blocking->raised = PyErr_CheckSignals() < 0;
	blocking->state = PyEval_SaveThread();
	/* A handler may have made a call like this one. */
	pier_interrupt_set(check_signals, blocking);
	return blocking->raised;
}

void pier_py_blocking_begin(struct pier_py_blocking *blocking)
{
	blocking->raised = false;
	pier_interrupt_set(check_signals, blocking);
	blocking->state = PyEval_SaveThread();
}

int pier_py_blocking_end(struct pier_py_blocking *blocking, int error)
{
	PyEval_RestoreThread(blocking->state);
	pier_interrupt_set(NULL, NULL);
	if (blocking->raised)
		return -1;
	return pier_py_check(error);
}

/* Sleep without the GIL, so that a thread that waits for a lock gets it. */
static void let_others_in(void)
{
	const struct timespec pause = { .tv_nsec = PAUSE_US * 1000 };

	Py_BEGIN_ALLOW_THREADS
	nanosleep(&pause, NULL);
	Py_END_ALLOW_THREADS
}

int pier_py_wait_in_slices(int (*wait_slice)(void *subject, int slice_ms), void *subject,
			   int64_t timeout_ms)
{
	int64_t end = pier_py_now_us() + timeout_ms * 1000;

	for (;;) {
		int slice_ms = timeout_ms < SLICE_MS ? (int)timeout_ms : SLICE_MS;
		int result = wait_slice(subject, slice_ms);

		timeout_ms = (end - pier_py_now_us() + 999) / 1000;
		if (result || timeout_ms <= 0)
			return result;
		if (PyErr_CheckSignals() < 0)
			return -1;
		let_others_in();
	}
}

/* The thread that ends the interpreter can always have the GIL. */
static bool may_drop(void)
{
	unsigned long thread = atomic_load(&ending_thread);

	return Py_IsInitialized() && (!thread || thread == PyThread_get_thread_ident());
}

void pier_py_drop(PyObject *object)
{
	PyGILState_STATE state;

	/* First counted: end_drops() waits for all that did not see its flag. */
	atomic_fetch_add(&drops, 1);
	if (may_drop()) {
		state = PyGILState_Ensure();
		Py_DECREF(object);
		PyGILState_Release(state);
	}
	atomic_fetch_sub(&drops, 1);
}

/* atexit calls it before the interpreter takes the GIL from other threads for good. */
static PyObject *end_drops(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
	const struct timespec pause = { .tv_nsec = 1000000 };

	atomic_store(&ending_thread, PyThread_get_thread_ident());
	Py_BEGIN_ALLOW_THREADS
	for (int i = 0; atomic_load(&drops) > 0 && i < PATIENCE_MS; i++)
		nanosleep(&pause, NULL);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static PyMethodDef ending_function = { "_end", end_drops, METH_NOARGS, NULL };

static int watch_ending(void)
{
	PyObject *function = PyCFunction_New(&ending_function, NULL);
	PyObject *result = function ? pier_py_call("atexit", "register", "(O)", function)
				    : NULL;

	Py_XDECREF(function);
	Py_XDECREF(result);
	return result ? 0 : -1;
}

int pier_py_add_threads(PyObject *Py_UNUSED(module))
{
	int error = pthread_atfork(NULL, NULL, count_fork);

	if (!error)
		return watch_ending();
	pier_py_refuse(error, "pthread_atfork() failed");
	return -1;
}
