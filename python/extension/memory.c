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
	return pier_py_refuse(EINVAL, "the typestr %.80R of the array has no size",
			      typestr);
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
	struct array_layout layout = { 0, sizes, NULL };
	Py_ssize_t count = shape && strides ? PySequence_Size(shape) : -1;
	uint64_t item;

	if (count < 0 || !read_item_size(interface, &item))
		return false;
	if (count > PyBUF_MAX_NDIM)
		return pier_py_refuse(EINVAL,
				      "the array has %zd dimensions, more than %d", count,
				      PyBUF_MAX_NDIM);
	layout.dimensions = (int)count;
	if (!read_numbers(shape, layout.dimensions, sizes))
		return false;
	if (strides != Py_None) {
		if (!read_numbers(strides, layout.dimensions, steps))
			return false;
		layout.strides = steps;
	}
	return measure_span(&layout, item, ret_span) == 0;
}

static bool read_data(PyObject *interface, struct pier_py_memory *memory)
{
	PyObject *data = find_item(interface, "data");
	unsigned long long address;
	int readonly;

	if (!data)
		return false;
	if (!PyTuple_Check(data))
		return pier_py_wrong_type(data, "\"data\" of the array must be a tuple");
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

/* Version 2 or 3 (numba's documentation, "CUDA Array Interface"). */
static int memory_from_cai(PyObject *object, struct pier_py_memory *ret_memory)
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

/*
 * Without a stream: a registration reads no bytes, and None makes every producer assume
 * its default stream.
 */
static PyObject *request_capsule(PyObject *object)
{
	PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
	PyObject *none = PyTuple_New(0);
	PyObject *version = Py_BuildValue("{s(ii)}", "max_version", DLPACK_MAJOR,
					  DLPACK_MINOR);
	PyObject *capsule = NULL;

	if (method && none && version) {
		capsule = PyObject_Call(method, none, version);
		/* Producers of before 2024 do not have the argument. */
		if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
			PyErr_Clear();
			capsule = PyObject_CallObject(method, NULL);
		}
	}
	Py_XDECREF(method);
	Py_XDECREF(none);
	Py_XDECREF(version);
	return capsule;
}

/*
 * PyTorch frees the memory of a tensor when its storage is resized, whoever else uses it.
 * It refuses that once the storage was given to NumPy (set_resizable in
 * torch/csrc/utils/tensor_numpy.cpp); an empty view of any type does. Without NumPy, and
 * for memory of a GPU, nothing prevents it.
 */
static void forbid_resizing(PyObject *object)
{
	PyObject *modules = PyImport_GetModuleDict(); /* borrowed */
	PyObject *torch = PyMapping_GetItemString(modules, "torch");
	PyObject *bytes = torch ? PyObject_GetAttrString(torch, "uint8") : NULL;
	PyObject *tensor = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
	PyObject *empty = NULL, *view = NULL, *array = NULL;

	if (bytes && tensor && PyObject_IsInstance(object, tensor) > 0)
		empty = PyObject_CallMethod(object, "as_strided", "((i)(i))", 0, 1);
	if (empty)
		view = PyObject_CallMethod(empty, "view", "O", bytes);
	if (view)
		array = PyObject_CallMethod(view, "numpy", NULL);
	PyErr_Clear();
	Py_XDECREF(array);
	Py_XDECREF(view);
	Py_XDECREF(empty);
	Py_XDECREF(tensor);
	Py_XDECREF(bytes);
	Py_XDECREF(torch);
}

static int memory_from_dlpack(PyObject *object, struct pier_py_memory *ret_memory)
{
	PyObject *capsule = request_capsule(object);
	int error;

	if (!capsule)
		return -1;
	if (PyCapsule_IsValid(capsule, DLPACK_VERSIONED))
		error = take_versioned(capsule, ret_memory);
	else
		error = take_managed(capsule, ret_memory);
	Py_DECREF(capsule);
	if (!error && ret_memory->on_cpu)
		forbid_resizing(object);
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
