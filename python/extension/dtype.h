/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_DTYPE_H
#define PIER_PY_DTYPE_H

#include "dlpack.h"
#include "extension.h"

/** A type of items, with its names in each of the interfaces. */
struct pier_py_dtype {
	const char *name;    /**< in NumPy, PyTorch and JAX */
	const char *format;  /**< of the module struct; NULL: it has none */
	const char *typestr; /**< of the CUDA array interface; NULL: none */
	struct dlpack_type type;
	size_t alignment;
};

/**
 * Find a type by its name, such as "float32", a typestr of NumPy, such as "<f4", or the
 * dtype of NumPy, PyTorch or JAX. NULL with TypeError or ValueError.
 */
const struct pier_py_dtype *pier_py_dtype_find(PyObject *dtype);

extern const struct pier_py_dtype *const pier_py_dtype_uint8;
extern const struct pier_py_dtype *const pier_py_dtype_uint16;

/** In bytes, of which each item has at least one. */
static inline size_t pier_py_dtype_size(const struct pier_py_dtype *dtype)
{
	return ((size_t)dtype->type.bits * dtype->type.lanes + 7) / 8;
}

#endif
