/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_DLPACK_PRODUCER_H
#define PIER_PY_DLPACK_PRODUCER_H

#include "view.h"

/** Choose the device for a description of memory; its type is 0 if DLPack has none. */
struct dlpack_device pier_py_dlpack_device(const struct pier_buffer_info *info);

/** The methods __dlpack__() and __dlpack_device__() of View and Buffer. */
PyObject *pier_py_view_dlpack(struct pier_py_view *view, PyObject *arguments,
			      PyObject *keywords);
PyObject *pier_py_view_dlpack_device(struct pier_py_view *view, PyObject *unused);
PyObject *pier_py_buffer_dlpack(struct pier_py_buffer *buffer, PyObject *arguments,
				PyObject *keywords);
PyObject *pier_py_buffer_dlpack_device(struct pier_py_buffer *buffer, PyObject *unused);

#define PIER_PY_DLPACK_METHODS(dlpack, dlpack_device)                                  \
	{ "__dlpack__", PIER_PY_METHOD(dlpack), METH_VARARGS | METH_KEYWORDS,          \
	  "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, "       \
	  "copy=None)\n"                                                               \
	  "--\n\n"                                                                     \
	  "Export the memory for from_dlpack() of an array library, without a copy.\n" \
	  "BufferError: it cannot be done so." },                                      \
	{                                                                              \
		"__dlpack_device__", PIER_PY_METHOD(dlpack_device), METH_NOARGS,       \
			"__dlpack_device__($self)\n--\n\n"                             \
			"Return the type and the number of the device, as in DLPack."  \
	}

#endif
