// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "dlpack.h"
#include "error.h"
#include "memory.h"

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

static bool is_in_c_order(const struct pier_py_layout *layout)
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
	struct pier_py_layout layout = { tensor->dimensions, tensor->shape,
					 tensor->strides };
	uint64_t item = (uint64_t)tensor->type.bits * tensor->type.lanes;
	uint64_t span;

	if (!is_known_device(tensor->device.type))
		return -1;
	/* An item of 8 bits or more takes whole bytes, and so does a padded one. */
	if (item >= 8 || flags & DLPACK_PADDED)
		item = (item + 7) / 8 * 8;
	/* The strides count items. */
	if (pier_py_layout_span(&layout, 1, &span) < 0)
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

int pier_py_memory_from_dlpack(PyObject *object, struct pier_py_memory *ret_memory)
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
