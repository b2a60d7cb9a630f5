// SPDX-License-Identifier: BSD-3-Clause
#include <pthread.h>
#include <time.h>

#include "error.h"
#include "process.h"

/* How long the end of the interpreter waits for threads that drop references. */
#define PATIENCE_MS 10000

static _Atomic unsigned int fork_generation = 1;
static _Atomic int drops;		    /* in progress */
static _Atomic unsigned long ending_thread; /* 0: the interpreter runs */

static void count_fork(void)
{
	atomic_fetch_add(&fork_generation, 1);
	atomic_store(&drops, 0);
}

unsigned int pier_py_generation(void)
{
	return atomic_load_explicit(&fork_generation, memory_order_relaxed);
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
static PyObject *end_drops(PyObject *module, PyObject *unused)
{
	const struct timespec pause = { .tv_nsec = 1000000 };

	(void)module;
	(void)unused;
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
	PyObject *atexit_module = PyImport_ImportModule("atexit");
	PyObject *function = PyCFunction_New(&ending_function, NULL);
	PyObject *result = NULL;

	if (atexit_module && function)
		result = PyObject_CallMethod(atexit_module, "register", "O", function);
	Py_XDECREF(atexit_module);
	Py_XDECREF(function);
	Py_XDECREF(result);
	return result ? 0 : -1;
}

int pier_py_add_process(PyObject *module)
{
	int error = pthread_atfork(NULL, NULL, count_fork);

	(void)module;
	if (!error)
		return watch_ending();
	pier_py_refuse(error, "pthread_atfork() failed");
	return -1;
}
