// SPDX-License-Identifier: BSD-3-Clause
#include <stdarg.h>

#include "buffer.h"
#include "channel.h"
#include "error.h"
#include "group.h"
#include "process.h"
#include "region.h"
#include "remote.h"
#include "ring.h"
#include "transfer.h"
#include "view.h"
#include "work.h"

static PyObject *types_module; /* pier._types */

int pier_py_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **ret_type)
{
	PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);

	if (!type)
		return -1;
	*ret_type = (PyTypeObject *)type;
	return PyModule_AddType(module, *ret_type);
}

void *pier_py_new(PyTypeObject *type)
{
	allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);

	return allocate(type, 0);
}

void pier_py_delete(void *object)
{
	PyTypeObject *type = Py_TYPE(object);
	freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);

	free_object(object);
	/* An object of a heap type holds its type. */
	Py_DECREF((PyObject *)type);
}

PyObject *pier_py_record(const char *name, const char *format, ...)
{
	PyObject *class = PyObject_GetAttrString(types_module, name);
	PyObject *fields, *record = NULL;
	va_list arguments;

	if (!class)
		return NULL;
	va_start(arguments, format);
	fields = Py_VaBuildValue(format, arguments);
	va_end(arguments);
	if (fields)
		record = PyObject_CallObject(class, fields);
	Py_XDECREF(fields);
	Py_DECREF(class);
	return record;
}

int pier_py_uint64(PyObject *object, void *number)
{
	unsigned long long value;
	PyObject *index = PyNumber_Index(object);

	if (!index)
		return 0;
	value = PyLong_AsUnsignedLongLong(index);
	Py_DECREF(index);
	if (value == (unsigned long long)-1 && PyErr_Occurred())
		return 0;
	*(unsigned long long *)number = value;
	return 1;
}

int pier_py_uint32(PyObject *object, void *number)
{
	unsigned long long value;

	if (!pier_py_uint64(object, &value))
		return 0;
	if (value > UINT32_MAX) {
		PyErr_Format(PyExc_OverflowError, "%R has more than 32 bits", object);
		return 0;
	}
	*(uint32_t *)number = (uint32_t)value;
	return 1;
}

int pier_py_optional_uint32(PyObject *object, uint32_t *ret_number)
{
	if (!object || object == Py_None)
		return 0;
	return pier_py_uint32(object, ret_number) ? 1 : -1;
}

PyMethodDef *pier_py_join_methods(PyMethodDef *const *tables, PyMethodDef *ret_all)
{
	PyMethodDef *next = ret_all;

	for (; *tables; tables++) {
		for (PyMethodDef *method = *tables; method->ml_name; method++)
			*next++ = *method;
	}
	return ret_all;
}

PyObject *pier_py_enter(PyObject *self, PyObject *unused)
{
	(void)unused;
	return Py_NewRef(self);
}

PyObject *pier_py_exit(PyObject *self, PyObject *arguments)
{
	bool raised = PyTuple_Size(arguments) > 1 &&
		      PyTuple_GetItem(arguments, 1) != Py_None;
	PyObject *result = PyObject_CallMethod(self, "close", NULL);

	/* An interrupt is no error of close(). */
	if (result || !raised || !PyErr_ExceptionMatches(pier_py_error))
		return result;
	PyErr_Clear();
	Py_RETURN_NONE;
}

/* clang-format off */
static int (*const additions[])(PyObject *) = {
	pier_py_add_errors,
	pier_py_add_process,
	pier_py_add_device,
	pier_py_add_pd,
	pier_py_add_backends,
	pier_py_add_remote,
	pier_py_add_buffer,
	pier_py_add_dmabuf,
	pier_py_add_view,
	pier_py_add_region,
	pier_py_add_span,
	pier_py_add_channel,
	pier_py_add_work,
	pier_py_add_transfer,
	pier_py_add_group,
	pier_py_add_ring,
	pier_py_add_order,
	pier_py_add_tar,
};
/* clang-format on */

/* The types are global, so one interpreter can have them, and have them once. */
static int execute_module(PyObject *module)
{
	static atomic_flag loaded = ATOMIC_FLAG_INIT;

	if (atomic_flag_test_and_set(&loaded)) {
		PyErr_SetString(
			PyExc_ImportError,
			"pier._pier was loaded before: one interpreter of a process can "
			"use it, once");
		return -1;
	}
	types_module = PyImport_ImportModule("pier._types");
	if (!types_module)
		return -1;
	for (size_t i = 0; i < sizeof(additions) / sizeof(additions[0]); i++) {
		if (additions[i](module) < 0)
			return -1;
	}
	return PyModule_AddStringConstant(module, "__version__", PIER_VERSION);
}

static PyModuleDef_Slot module_slots[] = {
	{ Py_mod_exec, (void *)execute_module },
#ifdef Py_GIL_DISABLED
	{ Py_mod_gil, Py_MOD_GIL_NOT_USED },
#endif
	{ 0, NULL },
};

static struct PyModuleDef module_definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "pier._pier",
	.m_doc = "The C extension of pier. Import pier instead.",
	.m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__pier(void);

PyMODINIT_FUNC PyInit__pier(void)
{
	return PyModuleDef_Init(&module_definition);
}
