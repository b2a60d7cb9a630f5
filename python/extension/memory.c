/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dlpack.h"
#include "memory.h"

/* The dimensions of an array: strides in the unit of the result, or NULL if in C order.
 */
struct array_layout {
	int dimensions;
	const int64_t *shape;
	const int64_t *strides;
};

/*
 * Compute the span of an array from its first byte to its last, if it is dense: in any
 * order of the dimensions, without gaps.
 *
 * item  the size of an item, in the unit of the strides
 */
static int measure_span(const struct array_layout *layout, uint64_t item,
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
	struct array_layout layout = { buffer->ndim, NULL, NULL };
	int64_t shape[PyBUF_MAX_NDIM], strides[PyBUF_MAX_NDIM];

	if (buffer->suboffsets)
		return pier_py_refuse(
			EINVAL,
			"the buffer has suboffsets: its memory is in many places");
	for (int i = 0; buffer->shape && i < buffer->ndim; i++) {
		shape[i] = buffer->shape[i];
		strides[i] = buffer->strides ? buffer->strides[i] : 0;
	}
	*ret_span = (uint64_t)buffer->len;
	if (!buffer->shape)
		return true;
	layout.shape = shape;
	layout.strides = buffer->strides ? strides : NULL;
	return measure_span(&layout, (uint64_t)buffer->itemsize, ret_span) == 0;
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

static bool read_numbers(PyObject *tuple, int count, int64_t *ret_numbers)
{
	for (int i = 0; i < count; i++) {
		PyObject *item = PyTuple_GetItem(tuple, i);

		ret_numbers[i] = item ? PyLong_AsLongLong(item) : -1;
		if (ret_numbers[i] == -1 && PyErr_Occurred())
			return false;
	}
	return true;
}

static bool read_span(PyObject *shape, PyObject *strides, uint64_t item,
		      uint64_t *ret_span)
{
	int64_t sizes[PyBUF_MAX_NDIM], steps[PyBUF_MAX_NDIM];
	Py_ssize_t count = PyTuple_Size(shape);
	struct array_layout layout = { (int)count, sizes, NULL };

	if (count > PyBUF_MAX_NDIM)
		return pier_py_refuse(EINVAL,
				      "the array has %zd dimensions, more than %d", count,
				      PyBUF_MAX_NDIM);
	if (!read_numbers(shape, layout.dimensions, sizes))
		return false;
	if (strides != Py_None) {
		if (!read_numbers(strides, layout.dimensions, steps))
			return false;
		layout.strides = steps;
	}
	return measure_span(&layout, item, ret_span) == 0;
}

static int memory_from_cai(PyObject *object, struct pier_py_memory *ret_memory)
{
	PyObject *interface = pier_py_call("pier._arrays", "read_interface", "(O)",
					   object);
	unsigned long long address, item;
	PyObject *shape, *strides;
	int readonly;
	bool done;

	if (!interface)
		return -1;
	done = PyArg_ParseTuple(interface, "(O&p)O&OO", pier_py_uint64, &address,
				&readonly, pier_py_uint64, &item, &shape, &strides) &&
	       read_span(shape, strides, item, &ret_memory->length);
	Py_DECREF(interface);
	if (!done)
		return -1;
	ret_memory->address = (void *)(uintptr_t)address;
	ret_memory->readonly = readonly;
	ret_memory->object = Py_NewRef(object);
	return 0;
}

static bool is_known_device(int32_t type)
{
	switch (type) {
	case DLPACK_CPU:
	case DLPACK_CUDA:
	case DLPACK_CUDA_HOST:
	case DLPACK_ROCM:
	case DLPACK_ROCM_HOST:
	case DLPACK_CUDA_MANAGED:
	case DLPACK_ONEAPI:
		return true;
	default:
		pier_py_refuse(
			EOPNOTSUPP,
			"the array is on a device of DLPack type %d: pier uses those of "
			"CPUs, CUDA, ROCm and oneAPI",
			(int)type);
		return false;
	}
}

static bool is_in_c_order(const struct array_layout *layout)
{
	int64_t stride = 1;

	for (int i = layout->dimensions - 1; layout->strides && i >= 0; i--) {
		if (layout->shape[i] != 1 && layout->strides[i] != stride)
			return false;
		stride *= layout->shape[i];
	}
	return true;
}

/* In bits, because an item can be shorter than a byte. */
static int describe_tensor(const struct dlpack_tensor *tensor, uint64_t flags,
			   struct pier_py_memory *memory)
{
	struct array_layout layout = { tensor->dimensions, tensor->shape,
				       tensor->strides };
	uint64_t item = (uint64_t)tensor->type.bits * tensor->type.lanes;
	uint64_t span;

	if (!is_known_device(tensor->device.type))
		return -1;
	/* An item of 8 bits or more takes whole bytes, and so does a padded one. */
	if (item >= 8 || flags & DLPACK_PADDED)
		item = (item + 7) / 8 * 8;
	/* The strides count items. */
	if (measure_span(&layout, 1, &span) < 0)
		return -1;
	if (__builtin_mul_overflow(span, item, &span)) {
		pier_py_refuse(EINVAL, "the array has more than 64 bits can count");
		return -1;
	}
	memory->address = (char *)tensor->data + tensor->byte_offset;
	memory->length = span / 8 + (span % 8 != 0);
	memory->readonly = flags & DLPACK_READ_ONLY;
	memory->in_c_order = is_in_c_order(&layout);
	memory->on_cpu = tensor->device.type == DLPACK_CPU;
	return 0;
}

static void delete_managed(void *tensor)
{
	struct dlpack_managed *managed = tensor;

	if (managed->deleter)
		managed->deleter(managed);
}

static void delete_versioned(void *tensor)
{
	struct dlpack_versioned *versioned = tensor;

	if (versioned->deleter)
		versioned->deleter(versioned);
}

static int take_managed(PyObject *capsule, struct pier_py_memory *memory)
{
	struct dlpack_managed *managed = PyCapsule_GetPointer(capsule, DLPACK_CAPSULE);

	if (!managed || describe_tensor(&managed->tensor, 0, memory) < 0 ||
	    PyCapsule_SetName(capsule, DLPACK_USED_CAPSULE) < 0)
		return -1;
	memory->tensor = managed;
	memory->delete_tensor = delete_managed;
	return 0;
}

static int take_versioned(PyObject *capsule, struct pier_py_memory *memory)
{
	struct dlpack_versioned *versioned = PyCapsule_GetPointer(capsule,
								  DLPACK_VERSIONED);

	if (!versioned)
		return -1;
	/* Of another major version only the deleter may be used: the capsule calls it. */
	if (versioned->major != DLPACK_MAJOR) {
		pier_py_refuse(EOPNOTSUPP, "the array offers DLPack %u.%u, not %d",
			       versioned->major, versioned->minor, DLPACK_MAJOR);
		return -1;
	}
	if (describe_tensor(&versioned->tensor, versioned->flags, memory) < 0 ||
	    PyCapsule_SetName(capsule, DLPACK_USED_VERSIONED) < 0)
		return -1;
	memory->tensor = versioned;
	memory->delete_tensor = delete_versioned;
	return 0;
}

static int memory_from_dlpack(PyObject *object, struct pier_py_memory *ret_memory)
{
	PyObject *capsule = pier_py_call("pier._arrays", "request_capsule", "(O)",
					 object);
	int error;

	if (!capsule)
		return -1;
	if (PyCapsule_IsValid(capsule, DLPACK_VERSIONED))
		error = take_versioned(capsule, ret_memory);
	else
		error = take_managed(capsule, ret_memory);
	Py_DECREF(capsule);
	return error;
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
		return memory_from_dlpack(object, ret_memory);
	found = has_attribute(object, "__cuda_array_interface__");
	if (found < 0)
		return -1;
	if (found)
		return memory_from_cai(object, ret_memory);
	pier_py_wrong_type(object,
			   "memory must have the buffer protocol, __dlpack__() or "
			   "__cuda_array_interface__");
	return -1;
}

int pier_py_memory_name(PyObject *memory, void *ret_name)
{
	PyObject *name = PyUnicode_Check(memory)
				 ? Py_NewRef(memory)
				 : pier_py_call("pier._arrays", "memory_name", "(O)",
						memory);
	int done = name && PyUnicode_FSConverter(name, ret_name);

	Py_XDECREF(name);
	return done;
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
