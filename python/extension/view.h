/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_VIEW_H
#define PIER_PY_VIEW_H

#include "buffer.h"
#include "dtype.h"
#include "range.h"

/** pier.View: a typed window of a buffer, in C order. It is a user of the buffer. */
struct pier_py_view {
	PyVarObject ob_base; /* its size is the number of dimensions */
	PyObject *weak_references;
	struct pier_py_buffer *buffer;
	PyObject *keeper; /* what else the view holds, or NULL */
	const struct pier_py_dtype *dtype;
	uint64_t offset;     /* in the buffer */
	uint64_t length;     /* in bytes */
	Py_ssize_t *strides; /* in bytes; behind the shape */
	Py_ssize_t shape[];
};

extern PyTypeObject *pier_py_view_type;

int pier_py_add_view(PyObject *module);

/** Where views are made: a range of a buffer, such as a slot of a ring. */
struct pier_py_window {
	struct pier_py_buffer *buffer;
	struct pier_py_range range;
	PyObject *keeper; /* every view holds a reference to it; or NULL */
};

/** The method view(shape, dtype, offset) of an object that has a window. */
PyObject *pier_py_window_view(const struct pier_py_window *window, PyObject *arguments,
			      PyObject *keywords);

/** The method view() of Buffer. */
PyObject *pier_py_view_make(struct pier_py_buffer *buffer, PyObject *arguments,
			    PyObject *keywords);

/** Make a View of all bytes of a buffer. NULL: raised. */
struct pier_py_view *pier_py_view_all(struct pier_py_buffer *buffer);

typedef PyObject *pier_py_view_method(struct pier_py_view *view, PyObject *arguments,
				      PyObject *keywords);

/** Call a method for a View of all bytes of a buffer. */
PyObject *pier_py_view_call(struct pier_py_buffer *buffer, pier_py_view_method *method,
			    PyObject *arguments, PyObject *keywords);

/** The method __array__(dtype, copy) of NumPy's protocol, of View and Buffer. */
PyObject *pier_py_view_array(struct pier_py_view *view, PyObject *arguments,
			     PyObject *keywords);
PyObject *pier_py_buffer_array(struct pier_py_buffer *buffer, PyObject *arguments,
			       PyObject *keywords);

#define PIER_PY_ARRAY_METHOD(function)                                               \
	{                                                                            \
		"__array__", PIER_PY_METHOD(function), METH_VARARGS | METH_KEYWORDS, \
			"__array__($self, dtype=None, copy=None)\n--\n\n"            \
			"Return the memory as an array of NumPy, with a dtype of "   \
			"ml_dtypes for types\n"                                      \
			"that NumPy lacks. numpy.asarray() calls it."                \
	}

static inline int pier_py_view_dimensions(struct pier_py_view *view)
{
	return (int)Py_SIZE((PyObject *)view);
}

/** Return the address of a view's first byte in its memory. */
static inline uint64_t pier_py_view_address(struct pier_py_view *view)
{
	return pier_buffer_address(view->buffer->buffer) + view->offset;
}

#endif
