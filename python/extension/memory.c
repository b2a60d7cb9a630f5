// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <string.h>

#include "cai.h"
#include "error.h"
#include "memory.h"

int pier_py_layout_span(const struct pier_py_layout *layout, uint64_t item,
			uint64_t *ret_span)
{
	uint64_t bytes = item, span = item, reach;

	for (int i = 0; i < layout->dimensions; i++) {
		int64_t size = layout->shape[i];

		if (size == 0) {
			*ret_span = 0;
			return 0;
		}
		if (size < 0 || __builtin_mul_overflow(bytes, (uint64_t)size, &bytes))
			goto invalid;
		if (!layout->strides || size == 1)
			continue;
		if (layout->strides[i] < 0 ||
		    __builtin_mul_overflow((uint64_t)(size - 1),
					   (uint64_t)layout->strides[i], &reach) ||
		    __builtin_add_overflow(span, reach, &span))
			goto invalid;
	}
	*ret_span = bytes;
	if (!layout->strides || span == bytes)
		return 0;
invalid:
	pier_py_refuse(
		EINVAL,
		"the array is not contiguous: take a contiguous copy, or the array "
		"that it is a part of");
	return -1;
}

static bool buffer_is_dense(const Py_buffer *buffer, uint64_t *ret_span)
{
	struct pier_py_layout layout = { buffer->ndim, NULL, NULL };
	int64_t shape[PyBUF_MAX_NDIM], strides[PyBUF_MAX_NDIM];

	if (buffer->suboffsets) {
		pier_py_refuse(EINVAL,
			       "the buffer has suboffsets: its memory is in many places");
		return false;
	}
	for (int i = 0; buffer->shape && i < buffer->ndim; i++) {
		shape[i] = buffer->shape[i];
		strides[i] = buffer->strides ? buffer->strides[i] : 0;
	}
	*ret_span = (uint64_t)buffer->len;
	if (!buffer->shape)
		return true;
	layout.shape = shape;
	layout.strides = buffer->strides ? strides : NULL;
	return pier_py_layout_span(&layout, (uint64_t)buffer->itemsize, ret_span) == 0;
}

/* Whether a format as in PEP 3118 has references to Python's objects. */
static bool format_has_objects(const char *format)
{
	bool in_name = false;

	for (; format && *format; format++) {
		if (*format == ':')
			in_name = !in_name;
		else if (*format == 'O' && !in_name)
			return true;
	}
	return false;
}

/* A peer would read and write addresses of this process. */
static bool refuse_objects(PyObject *object)
{
	Py_buffer buffer;
	bool found;

	if (PyObject_GetBuffer(object, &buffer, PyBUF_FULL_RO) < 0) {
		PyErr_Clear();
		return false;
	}
	found = format_has_objects(buffer.format);
	PyBuffer_Release(&buffer);
	if (found)
		pier_py_refuse(EINVAL, "the memory has references to Python objects, "
				       "which mean nothing to a peer");
	return found;
}

static int get_buffer(PyObject *object, struct pier_py_memory *ret_memory)
{
	uint64_t span;

	if (refuse_objects(object))
		return -1;
	/* Without the format, which NumPy does not have for every type. */
	if (PyObject_GetBuffer(object, &ret_memory->buffer, PyBUF_INDIRECT) < 0)
		return -1;
	if (!buffer_is_dense(&ret_memory->buffer, &span)) {
		PyBuffer_Release(&ret_memory->buffer);
		return -1;
	}
	ret_memory->address = ret_memory->buffer.buf;
	ret_memory->length = span;
	ret_memory->readonly = ret_memory->buffer.readonly;
	return 0;
}

/* Returns 1 if the object has the attribute, 0 if not, -1: raised. */
static int has_attribute(PyObject *object, const char *name)
{
	PyObject *value = PyObject_GetAttrString(object, name);

	if (value) {
		Py_DECREF(value);
		return 1;
	}
	if (!PyErr_ExceptionMatches(PyExc_AttributeError))
		return -1;
	PyErr_Clear();
	return 0;
}

/*
 * The buffer protocol comes first: NumPy's exports more types than its DLPack. JAX's
 * exports fewer. PyTorch offers the CUDA array interface for fewer types than DLPack.
 */
int pier_py_memory_get(PyObject *object, struct pier_py_memory *ret_memory)
{
	int found;

	memset(ret_memory, 0, sizeof(*ret_memory));
	found = has_attribute(object, "__dlpack__");
	if (found < 0)
		return -1;
	if (PyObject_CheckBuffer(object)) {
		if (get_buffer(object, ret_memory) == 0)
			return 0;
		if (!found || !PyErr_ExceptionMatches(PyExc_BufferError))
			return -1;
		PyErr_Clear();
	}
	if (found)
		return pier_py_memory_from_dlpack(object, ret_memory);
	found = has_attribute(object, "__cuda_array_interface__");
	if (found < 0)
		return -1;
	if (found)
		return pier_py_memory_from_cai(object, ret_memory);
	pier_py_wrong_type(object,
			   "memory must have the buffer protocol, __dlpack__() or "
			   "__cuda_array_interface__");
	return -1;
}

/* PyTorch calls Intel's GPUs xpu, and those of AMD cuda. */
static PyObject *name_torch_device(PyObject *device)
{
	PyObject *version = PyImport_ImportModule("torch.version");
	PyObject *hip = version ? PyObject_GetAttrString(version, "hip") : NULL;
	PyObject *name = PyObject_Str(device), *renamed = NULL;
	const char *text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;

	PyErr_Clear();
	if (text && strcmp(text, "cpu") == 0)
		renamed = PyUnicode_FromString("host");
	else if (text && strncmp(text, "xpu", 3) == 0)
		renamed = PyUnicode_FromFormat("level_zero%s", text + 3);
	else if (text && hip && hip != Py_None && strncmp(text, "cuda", 4) == 0)
		renamed = PyUnicode_FromFormat("hip%s", text + 4);
	else if (text)
		renamed = Py_NewRef(name);
	else
		PyErr_NoMemory();
	Py_XDECREF(name);
	Py_XDECREF(hip);
	Py_XDECREF(version);
	return renamed;
}

int pier_py_memory_name(PyObject *memory, void *ret_name)
{
	PyObject *type = PyType_GetName(Py_TYPE(memory)), *name;
	int done;

	if (!type)
		return 0;
	if (PyUnicode_Check(memory))
		name = Py_NewRef(memory);
	else if (PyUnicode_CompareWithASCIIString(type, "device") == 0)
		name = name_torch_device(memory);
	else
		name = pier_py_wrong_type(memory, "memory must be a name such as "
						  "\"cuda:0\", or a torch.device");
	Py_DECREF(type);
	if (!name)
		return 0;
	done = PyUnicode_FSConverter(name, ret_name);
	Py_DECREF(name);
	return done != 0;
}

void pier_py_memory_release(struct pier_py_memory *memory)
{
	struct pier_py_memory released = *memory;

	/* First forgotten: what runs below may come here again. */
	memset(memory, 0, sizeof(*memory));
	if (released.buffer.obj)
		PyBuffer_Release(&released.buffer);
	if (released.delete_tensor)
		released.delete_tensor(released.tensor);
	Py_XDECREF(released.object);
}

int pier_py_memory_traverse(struct pier_py_memory *memory, visitproc visit, void *arg)
{
	Py_VISIT(memory->buffer.obj);
	Py_VISIT(memory->object);
	return 0;
}
