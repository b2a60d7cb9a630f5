/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "extension.h"
#include "memory.h"

static PyObject *describe_device(const void *list, size_t index)
{
	const struct pier_device_info *info = (const struct pier_device_info *)list +
					      index;

	return pier_py_record("DeviceInfo", "(ss)", info->name, info->provider);
}

static PyObject *list_devices(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
	struct pier_device_info *list;
	PyObject *result;
	uint32_t count;

	if (PIER_PY_CALL(pier_device_list(&list, &count, sizeof(*list))))
		return NULL;
	result = pier_py_list(count, describe_device, list);
	free(list);
	return result;
}

static PyObject *describe_backend(const void *list, size_t index)
{
	const struct pier_backend_info *info = (const struct pier_backend_info *)list +
					       index;

	return pier_py_record("BackendInfo", "(ssNNsO&)", info->name, info->description,
			      PyBool_FromLong(info->available),
			      PyBool_FromLong(info->dmabuf), info->detail,
			      PyUnicode_DecodeFSDefault, info->origin);
}

static PyObject *list_backends(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
	struct pier_backend_info *list;
	PyObject *result;
	uint32_t count;

	if (PIER_PY_CALL(pier_backend_list(&list, &count, sizeof(*list))))
		return NULL;
	result = pier_py_list(count, describe_backend, list);
	free(list);
	return result;
}

static PyObject *warm_up(PyObject *Py_UNUSED(module), PyObject *arguments,
			 PyObject *keywords)
{
	static char *names[] = { "memory", NULL };
	PyObject *memory, *name = NULL;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:warm_up", names,
					 &memory) ||
	    !pier_py_memory_name(memory, &name))
		return NULL;
	error = PIER_PY_WITHOUT_GIL(pier_backend_warm_up(PyBytes_AsString(name)));
	Py_DECREF(name);
	return pier_py_result(error);
}

static PyObject *count_objects(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
	PyObject *counts = PyDict_New();

	for (int kind = 0; counts; kind++) {
		size_t count = pier_object_count((enum pier_object_kind)kind);
		const char *name = pier_object_kind_name((enum pier_object_kind)kind);
		PyObject *number = NULL;

		if (strcmp(name, "unknown") == 0)
			break;
		number = count ? PyLong_FromSize_t(count) : NULL;

		if (count && (!number || PyDict_SetItemString(counts, name, number) < 0))
			Py_CLEAR(counts);
		Py_XDECREF(number);
	}
	return counts;
}

static PyMethodDef module_functions[] = {
	{ "devices", PIER_PY_METHOD(list_devices), METH_NOARGS,
	  "devices()\n--\n\n"
	  "List the devices of this machine as DeviceInfo: those of libibverbs, then\n"
	  "soft0." },
	{ "backends", PIER_PY_METHOD(list_backends), METH_NOARGS,
	  "backends()\n--\n\n"
	  "List the allocator backends as BackendInfo: which work here, and why others\n"
	  "do not." },
	{ "warm_up", PIER_PY_METHOD(warm_up), METH_VARARGS | METH_KEYWORDS,
	  "warm_up(memory)\n--\n\n"
	  "Do now what the first use of a unit of memory (\"cuda:0\") would do: open\n"
	  "its driver and set up its context. Call it before another thread launches\n"
	  "kernels." },
	{ "live_objects", PIER_PY_METHOD(count_objects), METH_NOARGS,
	  "live_objects()\n--\n\n"
	  "Count the objects of the library that this process has not closed, by kind:\n"
	  "{\"device\": 1, \"region\": 2}. For tests, and to find leaks." },
	{ NULL },
};

/* clang-format off */
static int (*const additions[])(PyObject *) = {
	pier_py_add_base,
	pier_py_add_threads,
	pier_py_add_device,
	pier_py_add_remote,
	pier_py_add_buffer,
	pier_py_add_view,
	pier_py_add_view_export,
	pier_py_add_region,
	pier_py_add_channel,
	pier_py_add_post,
	pier_py_add_transfer,
	pier_py_add_group,
	pier_py_add_ring,
	pier_py_add_ring_fill,
	pier_py_add_data,
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
	.m_methods = module_functions,
	.m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__pier(void);

PyMODINIT_FUNC PyInit__pier(void)
{
	return PyModuleDef_Init(&module_definition);
}
