/* SPDX-License-Identifier: BSD-3-Clause */
/* How the consumers of DLPack get the memory of a View. */
#include <stdlib.h>
#include <string.h>

#include "view.h"

/* A tensor that a consumer has, with its shape and strides behind it. */
struct exported_tensor {
	union {
		struct dlpack_managed managed;
		struct dlpack_versioned versioned;
	};
	struct pier_py_view *view;
	int64_t numbers[];
};

static bool find_device(struct pier_py_buffer *buffer, struct dlpack_device *ret_device)
{
	*ret_device = buffer->device;
	if (ret_device->type)
		return true;
	PyErr_Format(PyExc_BufferError, "memory of %s is on no device of DLPack",
		     buffer->backend);
	return false;
}

/* Called on any thread, with or without the GIL. */
static void delete_tensor(struct exported_tensor *tensor)
{
	PyObject *view = (PyObject *)tensor->view;

	free(tensor);
	pier_py_drop(view);
}

static void delete_managed(struct dlpack_managed *managed)
{
	delete_tensor((struct exported_tensor *)managed);
}

static void delete_versioned(struct dlpack_versioned *versioned)
{
	delete_tensor((struct exported_tensor *)versioned);
}

/* Of a capsule whose tensor no consumer took, which would have renamed it. */
static void delete_capsule(PyObject *capsule)
{
	const char *name = PyCapsule_GetName(capsule);

	if (name && (!strcmp(name, DLPACK_CAPSULE) || !strcmp(name, DLPACK_VERSIONED)))
		delete_tensor(PyCapsule_GetPointer(capsule, name));
}

static bool describe_tensor(struct exported_tensor *exported, struct dlpack_device device,
			    struct dlpack_tensor *tensor)
{
	struct pier_py_view *view = exported->view;
	int dimensions = pier_py_view_dimensions(view);
	void *pointer = NULL;

	if (device.type == DLPACK_CPU) {
		pointer = pier_py_buffer_map(view->buffer);
		if (!pointer)
			return false;
	}
	*tensor = (struct dlpack_tensor){
		.data = pointer ? (char *)pointer + view->offset
				: (void *)(uintptr_t)pier_py_view_address(view),
		.device = device,
		.dimensions = dimensions,
		.type = view->dtype->type,
		.shape = exported->numbers,
		.strides = exported->numbers + dimensions,
	};
	for (int i = 0; i < dimensions; i++) {
		tensor->shape[i] = view->shape[i];
		tensor->strides[i] = view->strides[i] /
				     (Py_ssize_t)pier_py_dtype_size(view->dtype);
	}
	return true;
}

static struct exported_tensor *export_tensor(struct pier_py_view *view,
					     struct dlpack_device device, bool versioned)
{
	size_t numbers = 2 * (size_t)pier_py_view_dimensions(view);
	struct exported_tensor *tensor = calloc(
		1, sizeof(*tensor) + numbers * sizeof(tensor->numbers[0]));

	if (!tensor) {
		PyErr_NoMemory();
		return NULL;
	}
	tensor->view = view;
	if (!describe_tensor(tensor, device,
			     versioned ? &tensor->versioned.tensor
				       : &tensor->managed.tensor)) {
		free(tensor);
		return NULL;
	}
	if (versioned) {
		tensor->versioned.major = DLPACK_MAJOR;
		tensor->versioned.minor = DLPACK_MINOR;
		tensor->versioned.deleter = delete_versioned;
		tensor->versioned.flags = view->buffer->readonly ? DLPACK_READ_ONLY : 0;
	} else {
		tensor->managed.deleter = delete_managed;
	}
	Py_INCREF((PyObject *)view);
	return tensor;
}

static PyObject *make_capsule(struct pier_py_view *view, struct dlpack_device device,
			      bool versioned)
{
	struct exported_tensor *tensor = export_tensor(view, device, versioned);
	PyObject *capsule;

	if (!tensor)
		return NULL;
	capsule = PyCapsule_New(tensor, versioned ? DLPACK_VERSIONED : DLPACK_CAPSULE,
				delete_capsule);
	if (!capsule)
		delete_tensor(tensor);
	return capsule;
}

/* The arguments of __dlpack__() in the Python array API standard, 2023.12 and later. */
struct export_request {
	PyObject *stream;
	PyObject *max_version;
	PyObject *dl_device;
	PyObject *copy;
};

static bool read_version(PyObject *max_version, bool *ret_versioned)
{
	int major = 0, minor;

	if (max_version != Py_None) {
		if (!PyTuple_Check(max_version))
			return pier_py_wrong_type(max_version,
						  "max_version must be a tuple");
		if (!PyArg_ParseTuple(max_version, "ii:max_version", &major, &minor))
			return false;
	}
	*ret_versioned = major >= DLPACK_MAJOR;
	return true;
}

static bool check_device(PyObject *dl_device, struct dlpack_device device)
{
	int type, id;

	if (dl_device == Py_None)
		return true;
	if (!PyTuple_Check(dl_device))
		return pier_py_wrong_type(dl_device, "dl_device must be a tuple");
	if (!PyArg_ParseTuple(dl_device, "ii:dl_device", &type, &id))
		return false;
	if (type == device.type && id == device.id)
		return true;
	PyErr_Format(PyExc_BufferError,
		     "the memory is on device (%d, %d) of DLPack, not (%d, %d), and pier "
		     "copies "
		     "nothing for DLPack",
		     (int)device.type, (int)device.id, type, id);
	return false;
}

/*
 * No stream has to wait: the memory has no work of pier in progress when its user hands
 * it out. A CPU has no streams.
 */
static bool check_stream(PyObject *stream, struct dlpack_device device)
{
	if (stream == Py_None || (PyLong_Check(stream) && device.type != DLPACK_CPU))
		return true;
	if (!PyLong_Check(stream))
		pier_py_wrong_type(stream, "stream must be an int");
	else
		PyErr_SetString(PyExc_BufferError,
				"a CPU has no streams: stream must be None");
	return false;
}

static bool check_request(struct pier_py_view *view, const struct export_request *request,
			  struct dlpack_device device, bool *ret_versioned)
{
	uint64_t address = pier_py_view_address(view);

	if (!read_version(request->max_version, ret_versioned) ||
	    !check_device(request->dl_device, device) ||
	    !check_stream(request->stream, device))
		return false;
	if (request->copy == Py_True)
		PyErr_SetString(PyExc_BufferError, "pier copies nothing for DLPack");
	else if (view->buffer->readonly && !*ret_versioned)
		PyErr_SetString(PyExc_BufferError,
				"the memory is read-only, which DLPack before "
				"1.0 cannot express");
	else if (view->dtype->type.bits * view->dtype->type.lanes < 8)
		PyErr_Format(PyExc_BufferError,
			     "%s has one item in each byte, and DLPack has two: use "
			     "float4_e2m1fn_x2, or numpy.asarray()",
			     view->dtype->name);
	else if (address % view->dtype->alignment)
		PyErr_Format(PyExc_BufferError,
			     "the address %llu is not aligned for %s: copy it",
			     (unsigned long long)address, view->dtype->name);
	else
		return true;
	return false;
}

static PyObject *export_dlpack(struct pier_py_view *view, PyObject *arguments,
			       PyObject *keywords)
{
	static char *names[] = { "stream", "max_version", "dl_device", "copy", NULL };
	struct export_request request = { Py_None, Py_None, Py_None, Py_None };
	struct dlpack_device device;
	bool versioned = false;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|$OOOO:__dlpack__", names,
					 &request.stream, &request.max_version,
					 &request.dl_device, &request.copy) ||
	    !find_device(view->buffer, &device) ||
	    !check_request(view, &request, device, &versioned))
		return NULL;
	return make_capsule(view, device, versioned);
}

static PyObject *get_dlpack_device(struct pier_py_view *view, PyObject *Py_UNUSED(unused))
{
	struct dlpack_device device;

	if (!find_device(view->buffer, &device))
		return NULL;
	return Py_BuildValue("(ii)", (int)device.type, (int)device.id);
}

static PyMethodDef view_methods[] = {
	{ "__dlpack__", PIER_PY_METHOD(export_dlpack), METH_VARARGS | METH_KEYWORDS,
	  "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, "
	  "copy=None)\n--\n\n"
	  "Export the memory for from_dlpack() of an array library, without a copy.\n"
	  "BufferError: it cannot be done so." },
	{ "__dlpack_device__", PIER_PY_METHOD(get_dlpack_device), METH_NOARGS,
	  "__dlpack_device__($self)\n--\n\n"
	  "Return the type and the number of the device, as in DLPack." },
	{ NULL },
};

int pier_py_add_view_export(PyObject *Py_UNUSED(module))
{
	return pier_py_add_methods(pier_py_view_type, view_methods);
}
