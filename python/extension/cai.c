// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <stdlib.h>

#include "cai.h"
#include "error.h"

/* An item of the dictionary, borrowed; None if it is missing. NULL: raised. */
static PyObject *find_item(PyObject *interface, const char *name)
{
	PyObject *key = PyUnicode_FromString(name);
	PyObject *value = key ? PyDict_GetItemWithError(interface, key) : NULL;

	Py_XDECREF(key);
	return value || PyErr_Occurred() ? value : Py_None;
}

/* "<f4" has items of 4 bytes; "V12" and others as well (numpy's __array_interface__). */
static bool read_item_size(PyObject *interface, uint64_t *ret_size)
{
	PyObject *typestr = find_item(interface, "typestr");
	const char *text = typestr ? PyUnicode_AsUTF8AndSize(typestr, NULL) : NULL;

	if (!text)
		return false;
	while (*text && (*text < '0' || *text > '9'))
		text++;
	*ret_size = strtoul(text, NULL, 10);
	if (*ret_size)
		return true;
	pier_py_refuse(EINVAL, "the typestr %.80R of the array has no size", typestr);
	return false;
}

static bool read_numbers(PyObject *sequence, int count, int64_t *ret_numbers)
{
	for (int i = 0; i < count; i++) {
		PyObject *item = PySequence_GetItem(sequence, i);

		if (!item)
			return false;
		ret_numbers[i] = PyLong_AsLongLong(item);
		Py_DECREF(item);
		if (ret_numbers[i] == -1 && PyErr_Occurred())
			return false;
	}
	return true;
}

static bool read_span(PyObject *interface, uint64_t *ret_span)
{
	int64_t sizes[PyBUF_MAX_NDIM], steps[PyBUF_MAX_NDIM];
	PyObject *shape = find_item(interface, "shape");
	PyObject *strides = find_item(interface, "strides");
	struct pier_py_layout layout = { 0, sizes, NULL };
	Py_ssize_t count = shape && strides ? PySequence_Size(shape) : -1;
	uint64_t item;

	if (count < 0 || !read_item_size(interface, &item))
		return false;
	if (count > PyBUF_MAX_NDIM) {
		pier_py_refuse(EINVAL, "the array has %zd dimensions, more than %d",
			       count, PyBUF_MAX_NDIM);
		return false;
	}
	layout.dimensions = (int)count;
	if (!read_numbers(shape, layout.dimensions, sizes))
		return false;
	if (strides != Py_None) {
		if (!read_numbers(strides, layout.dimensions, steps))
			return false;
		layout.strides = steps;
	}
	return pier_py_layout_span(&layout, item, ret_span) == 0;
}

static bool read_data(PyObject *interface, struct pier_py_memory *memory)
{
	PyObject *data = find_item(interface, "data");
	unsigned long long address;
	int readonly;

	if (!data)
		return false;
	if (!PyTuple_Check(data)) {
		pier_py_wrong_type(data, "\"data\" of the array must be a tuple");
		return false;
	}
	if (!PyArg_ParseTuple(data, "O&p:data", pier_py_uint64, &address, &readonly))
		return false;
	memory->address = (void *)(uintptr_t)address;
	memory->readonly = readonly;
	return true;
}

static int read_interface(PyObject *interface, struct pier_py_memory *memory)
{
	PyObject *mask;
	uint64_t span;

	if (!PyDict_Check(interface)) {
		pier_py_wrong_type(interface, "__cuda_array_interface__ must be a dict");
		return -1;
	}
	mask = find_item(interface, "mask");
	if (!mask)
		return -1;
	if (mask != Py_None) {
		pier_py_refuse(EOPNOTSUPP, "the array has a mask: use its data alone");
		return -1;
	}
	if (!read_data(interface, memory) || !read_span(interface, &span))
		return -1;
	memory->length = span;
	return 0;
}

int pier_py_memory_from_cai(PyObject *object, struct pier_py_memory *ret_memory)
{
	PyObject *interface = PyObject_GetAttrString(object, "__cuda_array_interface__");
	int error;

	if (!interface)
		return -1;
	error = read_interface(interface, ret_memory);
	Py_DECREF(interface);
	if (!error)
		ret_memory->object = Py_NewRef(object);
	return error;
}
