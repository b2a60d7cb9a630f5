// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "buffer.h"
#include "error.h"
#include "range.h"

#define NAME "buffer"

PyObject *pier_py_buffer_copy_to(struct pier_py_buffer *self, PyObject *arguments,
				 PyObject *keywords)
{
	static char *names[] = { "offset", "data", NULL };
	unsigned long long offset;
	Py_buffer data;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&y*:copy_to", names,
					 pier_py_uint64, &offset, &data))
		return NULL;
	if (self->readonly) {
		PyBuffer_Release(&data);
		return pier_py_refuse(EACCES,
				      "the memory that the buffer wraps is read-only");
	}
	if (!pier_py_use_begin(&self->use, NAME)) {
		PyBuffer_Release(&data);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	error = pier_buffer_copy_to(self->buffer, offset, data.buf, (size_t)data.len);
	Py_END_ALLOW_THREADS
	pier_py_use_end(&self->use);
	if (error)
		pier_py_fail(error);
	PyBuffer_Release(&data);
	return error ? NULL : Py_NewRef(Py_None);
}

static int copy_out(struct pier_py_buffer *self, uint64_t offset, void *into,
		    size_t length)
{
	int error;

	if (!pier_py_use_begin(&self->use, NAME))
		return -1;
	Py_BEGIN_ALLOW_THREADS
	error = pier_buffer_copy_from(self->buffer, offset, into, length);
	Py_END_ALLOW_THREADS
	pier_py_use_end(&self->use);
	if (!error)
		return 0;
	pier_py_fail(error);
	return -1;
}

static PyObject *copy_into(struct pier_py_buffer *self, uint64_t offset, PyObject *object)
{
	Py_buffer into;
	int error;

	if (PyObject_GetBuffer(object, &into, PyBUF_WRITABLE) < 0)
		return NULL;
	error = copy_out(self, offset, into.buf, (size_t)into.len);
	PyBuffer_Release(&into);
	return error < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *pier_py_buffer_copy_from(struct pier_py_buffer *self, PyObject *arguments,
				   PyObject *keywords)
{
	static char *names[] = { "offset", "into", NULL };
	unsigned long long offset, length;
	struct pier_py_range range;
	PyObject *into, *bytes;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&O:copy_from", names,
					 pier_py_uint64, &offset, &into))
		return NULL;
	if (!PyIndex_Check(into))
		return copy_into(self, offset, into);
	/* Checked before so much memory is allocated. */
	if (!pier_py_uint64(into, &length) || !pier_py_use_begin(&self->use, NAME))
		return NULL;
	bytes = NULL;
	if (pier_py_range_make(offset, into, pier_buffer_length(self->buffer), NAME,
			       &range))
		bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
	if (bytes && copy_out(self, offset, PyBytes_AsString(bytes), length) < 0)
		Py_CLEAR(bytes);
	pier_py_use_end(&self->use);
	return bytes;
}
