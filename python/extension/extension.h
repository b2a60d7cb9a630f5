/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_EXTENSION_H
#define PIER_PY_EXTENSION_H

/*
 * Helpers of every class of the extension: exceptions, classes, and the conversion of
 * arguments.
 *
 * The limited API of CPython 3.11 makes one binary for all later versions. The
 * free-threaded builds have no limited API (PEP 703), so the extension is compiled for
 * each of them.
 */
#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>
#include <structmember.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/pier.h>

/*
 * Each creates the types of a file and adds them, and its functions, to the module.
 * module.c calls them in an order in which each finds those that it needs. -1: raised.
 */
int pier_py_add_base(PyObject *module);
int pier_py_add_threads(PyObject *module);
int pier_py_add_device(PyObject *module);
int pier_py_add_buffer(PyObject *module);
int pier_py_add_view(PyObject *module);
int pier_py_add_view_export(PyObject *module);
int pier_py_add_remote(PyObject *module);
int pier_py_add_region(PyObject *module);
int pier_py_add_channel(PyObject *module);
int pier_py_add_post(PyObject *module);
int pier_py_add_transfer(PyObject *module);
int pier_py_add_group(PyObject *module);
int pier_py_add_ring(PyObject *module);
int pier_py_add_ring_fill(PyObject *module);
int pier_py_add_data(PyObject *module);

/* Exceptions */

/** The class pier.Error. */
extern PyObject *pier_py_error;

/**
 * Raise the exception of a failed call of the library: pier.Error or a subclass of it,
 * with the sentence of pier_error_message(). Call it on the thread of the failed call,
 * before any other call of the library.
 *
 * error  as the library returned it: negative
 *
 * Returns NULL.
 */
void *pier_py_fail(int error);

/**
 * Raise an exception of pier.Error with a sentence of our own.
 *
 * error   positive
 * format  as for PyUnicode_FromFormat()
 *
 * Returns NULL, which is also false.
 */
void *pier_py_refuse(int error, const char *format, ...);

/**
 * Raise TypeError: the sentence, and ", not " with the name of the object's type. The
 * repr of an object can be several times as long as its memory.
 *
 * format  as for PyUnicode_FromFormat()
 *
 * Returns NULL.
 */
void *pier_py_wrong_type(PyObject *object, const char *format, ...);

/** Raise the exception of a call of the library if it failed. Returns its result. */
int pier_py_check(int result);

/** Return None for the result of a call of the library, or raise its exception. */
PyObject *pier_py_result(int error);

/** Make a call of the library without the GIL. Evaluates to its result. */
#define PIER_PY_WITHOUT_GIL(call)                            \
	__extension__({                                      \
		PyThreadState *state_ = PyEval_SaveThread(); \
		int result_ = (call);                        \
                                                             \
		PyEval_RestoreThread(state_);                \
		result_;                                     \
	})

/** The same, and raise the exception of a call that failed. */
#define PIER_PY_CALL(call) pier_py_check(PIER_PY_WITHOUT_GIL(call))

/* Classes */

/** A function of METH_KEYWORDS or METH_NOARGS as a PyCFunction. */
#define PIER_PY_METHOD(function) ((PyCFunction)(void (*)(void))(function))

/**
 * Create a class and add it to the module. It is never destroyed.
 *
 * name   with that of the package: "pier.Region"
 * size   of its struct
 * slots  without Py_tp_new only the extension makes objects; with Py_tp_traverse the
 *        garbage collector knows them. A class of the same name in pier/_methods.py is
 *        its base
 *
 * Returns 0, or -1 with an exception.
 */
int pier_py_add_type(PyObject *module, const char *name, size_t size, PyType_Slot *slots,
		     PyTypeObject **ret_type);

/** The same for a class with items or flags of its own. */
int pier_py_add_spec(PyObject *module, const PyType_Spec *spec, PyTypeObject **ret_type);

/**
 * Add methods to a class of another file, which does not know them.
 *
 * methods  ended by an entry without a name; it stays in use
 *
 * Returns 0, or -1 with an exception.
 */
int pier_py_add_methods(PyTypeObject *type, PyMethodDef *methods);

/** Allocate an object of a type, all zero. NULL: raised. */
void *pier_py_new(PyTypeObject *type);

/** The end of every Py_tp_dealloc: free the memory of the object. */
void pier_py_delete(void *object);

/**
 * Make a value of a NamedTuple of pier/_types.py from a tuple of its fields.
 *
 * format  as for Py_BuildValue(3), with parentheses
 */
PyObject *pier_py_record(const char *name, const char *format, ...);

/** Import a module of Python, and call a function of it. NULL: raised. */
PyObject *pier_py_call(const char *module, const char *function, const char *format, ...);

/** Make a list of what a function returns for each index. NULL: it raised. */
PyObject *pier_py_list(size_t count,
		       PyObject *(*describe)(const void *subject, size_t index),
		       const void *subject);

/** The method __enter__(): return self. */
PyObject *pier_py_enter(PyObject *self, PyObject *unused);

/**
 * The method __exit__(type, value, traceback): call self.close(). An error of close()
 * does not replace an exception of the block.
 */
PyObject *pier_py_exit(PyObject *self, PyObject *arguments);

/** The entries of a table of methods that make a context manager of a class with close().
 */
#define PIER_PY_CONTEXT_METHODS                                         \
	{ "__enter__", pier_py_enter, METH_NOARGS, "Return self." },    \
	{                                                               \
		"__exit__", pier_py_exit, METH_VARARGS, "Call close()." \
	}

/* Arguments. "O&" of PyArg_ParseTuple() takes functions that return 1, or 0: raised. */

/** Convert an int of at most 64 bits to an unsigned long long. */
int pier_py_uint64(PyObject *object, void *number);

/** Convert an int of at most 32 bits to a uint32_t. */
int pier_py_uint32(PyObject *object, void *number);

/**
 * Convert an argument that may be missing, such as immediate data.
 *
 * object  NULL or None: missing
 *
 * Returns 1 if it is there, 0 if not, or -1 with an exception.
 */
int pier_py_optional_uint32(PyObject *object, uint32_t *ret_number);

/**
 * Convert a timeout in seconds to an int in milliseconds: None is PIER_TIMEOUT_DEFAULT; a
 * fraction of a millisecond is rounded up.
 *
 * Returns 1, or 0 with TypeError or ValueError (negative, no number, 24 days or more).
 */
int pier_py_timeout(PyObject *seconds, void *milliseconds);

/** As pier_py_timeout(), for calls without a default: None is refused. */
int pier_py_deadline(PyObject *seconds, void *milliseconds);

/**
 * Find the name that an argument must have.
 *
 * what   the argument, for the exception
 * names  NULL: the index has none
 *
 * Returns the index of the name, or -1 with TypeError or pier.Invalid.
 */
int pier_py_choose(PyObject *value, const char *what, const char *const *names,
		   int count);

/** [offset, offset + length), in bytes. */
struct pier_py_range {
	uint64_t offset;
	uint64_t length;
};

/**
 * Make the range of the arguments offset and length of a method.
 *
 * length  an int, or None or NULL for all that follows offset
 * total   the length of the object
 * name    of the object, for the exception
 *
 * Returns false with TypeError, OverflowError or pier.OutOfRange.
 */
bool pier_py_range_make(unsigned long long offset, PyObject *length, uint64_t total,
			const char *name, struct pier_py_range *ret_range);

/**
 * Make the range of a slice. Negative bounds count from the end, as everywhere in
 * Python, but a bound that is out of range is refused instead of shortened: a request of
 * fewer bytes than the program meant is an error that nobody sees.
 *
 * Returns false with TypeError (not a slice), ValueError (a step) or pier.OutOfRange.
 */
bool pier_py_range_slice(PyObject *slice, uint64_t total, const char *name,
			 struct pier_py_range *ret_range);

#endif
