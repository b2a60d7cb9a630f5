/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_VIEW_H
#define PIER_PY_VIEW_H

#include "buffer.h"

/** A type of items, with its names in each of the interfaces. */
struct pier_py_dtype {
	const char *name;    /**< in NumPy, PyTorch and JAX */
	const char *format;  /**< of the module struct; NULL: it has none */
	const char *typestr; /**< of the CUDA array interface; NULL: none */
	struct dlpack_type type;
	size_t alignment;
};

/** In bytes, of which each item has at least one. */
static inline size_t pier_py_dtype_size(const struct pier_py_dtype *dtype)
{
	return ((size_t)dtype->type.bits * dtype->type.lanes + 7) / 8;
}

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

/** Where views are made: a range of a buffer, such as a slot of a ring. */
struct pier_py_window {
	struct pier_py_buffer *buffer;
	struct pier_py_range range;
	PyObject *keeper; /* every view holds a reference to it; or NULL */
};

/** The method view(shape, dtype, offset) of an object that has a window. */
PyObject *pier_py_window_view(const struct pier_py_window *window, PyObject *arguments,
			      PyObject *keywords);

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
