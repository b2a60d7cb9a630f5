/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_EXTENSION_H
#define PIER_PY_EXTENSION_H

/*
 * Declarations that every class of the extension needs.
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
#include <stdint.h>

#include <pier/pier.h>

/** A function of METH_KEYWORDS or METH_NOARGS as a PyCFunction. */
#define PIER_PY_METHOD(function) ((PyCFunction)(void (*)(void))(function))

/* The types, created once in a process, and never destroyed. */
extern PyTypeObject *pier_py_device_type;
extern PyTypeObject *pier_py_pd_type;

/* Each creates its types and adds them, and its functions, to the module. -1: raised. */
int pier_py_add_errors(PyObject *module);
int pier_py_add_device(PyObject *module);
int pier_py_add_pd(PyObject *module);
int pier_py_add_backends(PyObject *module);
int pier_py_add_order(PyObject *module);
int pier_py_add_tar(PyObject *module);

/**
 * Create a class and add it to the module.
 *
 * ret_type  a reference for ever
 *
 * Returns 0, or -1 with an exception.
 */
int pier_py_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **ret_type);

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

/** Convert an int of at most 64 bits, for "O&" of PyArg_ParseTuple(), with a check. */
int pier_py_uint64(PyObject *object, void *number);

/** As pier_py_uint64(), for a uint32_t. */
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
 * Join tables of methods, each ended by an entry without a name.
 *
 * tables   ended by NULL
 * ret_all  all zero, with room for all and one more
 *
 * Returns ret_all.
 */
PyMethodDef *pier_py_join_methods(PyMethodDef *const *tables, PyMethodDef *ret_all);

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

#endif
