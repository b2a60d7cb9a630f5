// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <string.h>

#include "buffer.h"
#include "error.h"
#include "memory.h"
#include "range.h"

#define NAME "buffer"

/*
 * The memory of an argument, which the CPU reads or writes: its items in C order.
 *
 * flags  PyBUF_SIMPLE or PyBUF_WRITABLE
 */
static int get_host_memory(PyObject *object, int flags, struct pier_py_memory *ret_memory)
{
	memset(ret_memory, 0, sizeof(*ret_memory));
	if (PyObject_CheckBuffer(object)) {
		if (PyObject_GetBuffer(object, &ret_memory->buffer, flags) < 0)
			return -1;
		ret_memory->address = ret_memory->buffer.buf;
		ret_memory->length = (size_t)ret_memory->buffer.len;
		return 0;
	}
	if (pier_py_memory_get(object, ret_memory) < 0)
		return -1;
	if (ret_memory->on_cpu && ret_memory->in_c_order &&
	    !(ret_memory->readonly && flags == PyBUF_WRITABLE))
		return 0;
	if (!ret_memory->on_cpu)
		pier_py_refuse(EOPNOTSUPP, "the array is in memory of a device: copy it "
					   "to the host first");
	else if (!ret_memory->in_c_order)
		pier_py_refuse(EINVAL, "the items of the array are not in C order: take "
				       "a contiguous copy");
	else
		pier_py_refuse(EACCES, "the array to copy into is read-only");
	pier_py_memory_release(ret_memory);
	return -1;
}

PyObject *pier_py_buffer_copy_to(struct pier_py_buffer *self, PyObject *arguments,
				 PyObject *keywords)
{
	static char *names[] = { "offset", "data", NULL };
	struct pier_py_memory data;
	unsigned long long offset;
	PyObject *object;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&O:copy_to", names,
					 pier_py_uint64, &offset, &object))
		return NULL;
	if (self->readonly)
		return pier_py_refuse(EACCES,
				      "the memory that the buffer wraps is read-only");
	if (get_host_memory(object, PyBUF_SIMPLE, &data) < 0)
		return NULL;
	if (!pier_py_use_begin(&self->use, NAME)) {
		pier_py_memory_release(&data);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	error = pier_buffer_copy_to(self->buffer, offset, data.address, data.length);
	Py_END_ALLOW_THREADS
	pier_py_use_end(&self->use);
	if (error)
		pier_py_fail(error);
	pier_py_memory_release(&data);
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
	struct pier_py_memory into;
	int error;

	if (get_host_memory(object, PyBUF_WRITABLE, &into) < 0)
		return NULL;
	error = copy_out(self, offset, into.address, into.length);
	pier_py_memory_release(&into);
	return error < 0 ? NULL : Py_NewRef(Py_None);
}

/* Arrays of any size can be an index, too: by their single element. */
static bool is_number(PyObject *object)
{
	PyObject *dlpack;

	if (!PyIndex_Check(object))
		return false;
	dlpack = PyObject_GetAttrString(object, "__dlpack__");
	PyErr_Clear();
	Py_XDECREF(dlpack);
	return !dlpack;
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
	if (!is_number(into))
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
