/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "extension.h"

PyObject *pier_py_error;
static PyObject *types_module, *methods_module; /* pier._types, pier._methods */

/* A subclass of pier.Error. `builtin` is its second base. */
struct error_kind {
	const char *name;
	PyObject **builtin;
	const char *doc;
	int errors[16]; /* up to the first 0 */
};

static const struct error_kind error_kinds[] = {
	{ "pier.TimedOut",
	  &PyExc_TimeoutError,
	  "A wait reached its deadline.",
	  { ETIMEDOUT } },
	{ "pier.ConnectionLost",
	  &PyExc_ConnectionError,
	  "The peer is gone, cannot be reached, or broke the connection.",
	  { EPIPE, ECONNRESET, ECONNREFUSED, ECONNABORTED, ENOTCONN, EHOSTUNREACH,
	    EHOSTDOWN, ENETUNREACH, ENETDOWN, ESHUTDOWN, ECANCELED, EREMOTEIO } },
	{ "pier.Busy",
	  NULL,
	  "Something still uses the object, or another call has to come first.",
	  { EBUSY, EAGAIN, ENOBUFS } },
	{ "pier.NotSupported",
	  NULL,
	  "The device, the memory or the build does not support the request.",
	  { EOPNOTSUPP } },
	{ "pier.AccessDenied",
	  &PyExc_PermissionError,
	  "The caller or the region does not have the right.",
	  { EACCES, EPERM } },
	{ "pier.OutOfRange",
	  &PyExc_ValueError,
	  "A range is not inside its buffer, region or remote vector.",
	  { ERANGE } },
	{ "pier.Invalid",
	  &PyExc_ValueError,
	  "An argument has a value that is not possible.",
	  { EINVAL, E2BIG, EMSGSIZE } },
	{ "pier.BadMessage",
	  NULL,
	  "Bytes of a peer do not have the form that they must have.",
	  { EBADMSG, EPROTONOSUPPORT, EPROTO } },
	{ "pier.Forked",
	  &PyExc_ChildProcessError,
	  "The object belongs to the parent of this process.",
	  { ECHILD } },
	{ "pier.NoDevice",
	  NULL,
	  "There is no such device or backend.",
	  { ENODEV, ENOENT, ENXIO } },
	{ "pier.NoMemory",
	  &PyExc_MemoryError,
	  "Memory, or what may be locked of it, is exhausted.",
	  { ENOMEM } },
};

#define KIND_COUNT (sizeof(error_kinds) / sizeof(error_kinds[0]))

static PyObject *kind_classes[KIND_COUNT];

static PyObject *error_class(int error)
{
	for (size_t kind = 0; kind < KIND_COUNT; kind++) {
		for (const int *known = error_kinds[kind].errors; *known; known++) {
			if (*known == error)
				return kind_classes[kind];
		}
	}
	return pier_py_error;
}

/* Steals the sentence. */
static void *raise_error(int error, PyObject *sentence)
{
	PyObject *arguments;

	if (!sentence)
		return NULL;
	arguments = Py_BuildValue("(iN)", error, sentence);
	if (arguments) {
		PyErr_SetObject(error_class(error), arguments);
		Py_DECREF(arguments);
	}
	return NULL;
}

void *pier_py_fail(int error)
{
	const char *message = pier_error_message();

	/* A message can contain names and text of peers, in any encoding. */
	return raise_error(-error,
			   PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message),
						"backslashreplace"));
}

void *pier_py_refuse(int error, const char *format, ...)
{
	PyObject *sentence;
	va_list arguments;

	va_start(arguments, format);
	sentence = PyUnicode_FromFormatV(format, arguments);
	va_end(arguments);
	return raise_error(error, sentence);
}

void *pier_py_wrong_type(PyObject *object, const char *format, ...)
{
	PyObject *type = PyType_GetName(Py_TYPE(object)), *sentence;
	va_list arguments;

	va_start(arguments, format);
	sentence = PyUnicode_FromFormatV(format, arguments);
	va_end(arguments);
	if (type && sentence)
		PyErr_Format(PyExc_TypeError, "%U, not %U", sentence, type);
	Py_XDECREF(type);
	Py_XDECREF(sentence);
	return NULL;
}

int pier_py_check(int result)
{
	if (result < 0)
		pier_py_fail(result);
	return result;
}

PyObject *pier_py_result(int error)
{
	return pier_py_check(error) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *add_class(PyObject *module, const char *name, PyObject *base,
			   PyObject *builtin, const char *doc)
{
	PyObject *bases = builtin ? PyTuple_Pack(2, base, builtin)
				  : PyTuple_Pack(1, base);
	PyObject *class = NULL;

	if (bases)
		class = PyErr_NewExceptionWithDoc(name, doc, bases, NULL);
	Py_XDECREF(bases);
	if (class && PyModule_AddObjectRef(module, strchr(name, '.') + 1, class) < 0)
		Py_CLEAR(class);
	return class;
}

int pier_py_add_base(PyObject *module)
{
	pier_py_error = add_class(
		module, "pier.Error", PyExc_OSError, NULL,
		"A call of the library failed: errno is the reason, and\n"
		"strerror names the step, the values and the remedy.");
	if (!pier_py_error)
		return -1;
	for (size_t i = 0; i < KIND_COUNT; i++) {
		const struct error_kind *kind = &error_kinds[i];

		kind_classes[i] = add_class(module, kind->name, pier_py_error,
					    kind->builtin ? *kind->builtin : NULL,
					    kind->doc);
		if (!kind_classes[i])
			return -1;
	}
	types_module = PyImport_ImportModule("pier._types");
	methods_module = PyImport_ImportModule("pier._methods");
	return types_module && methods_module ? 0 : -1;
}

static bool has_slot(const PyType_Slot *slot, int number)
{
	while (slot->slot && slot->slot != number)
		slot++;
	return slot->slot;
}

int pier_py_add_spec(PyObject *module, const PyType_Spec *spec, PyTypeObject **ret_type)
{
	PyType_Spec flagged = *spec;
	PyObject *base, *type;

	flagged.flags |= Py_TPFLAGS_DEFAULT;
	if (!has_slot(spec->slots, Py_tp_new))
		flagged.flags |= Py_TPFLAGS_DISALLOW_INSTANTIATION;
	if (has_slot(spec->slots, Py_tp_traverse))
		flagged.flags |= Py_TPFLAGS_HAVE_GC;
	base = PyObject_GetAttrString(methods_module, strrchr(spec->name, '.') + 1);
	if (!base)
		PyErr_Clear();
	type = PyType_FromModuleAndSpec(module, &flagged, base);
	Py_XDECREF(base);
	if (!type)
		return -1;
	*ret_type = (PyTypeObject *)type;
	return PyModule_AddType(module, *ret_type);
}

int pier_py_add_type(PyObject *module, const char *name, size_t size, PyType_Slot *slots,
		     PyTypeObject **ret_type)
{
	const PyType_Spec spec = { .name = name, .basicsize = (int)size, .slots = slots };

	return pier_py_add_spec(module, &spec, ret_type);
}

int pier_py_add_methods(PyTypeObject *type, PyMethodDef *methods)
{
	for (; methods->ml_name; methods++) {
		PyObject *method = PyDescr_NewMethod(type, methods);
		int error = method ? PyObject_SetAttrString((PyObject *)type,
							    methods->ml_name, method)
				   : -1;

		Py_XDECREF(method);
		if (error)
			return -1;
	}
	return 0;
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

static PyObject *call_attribute(PyObject *module, const char *name, const char *format,
				va_list values)
{
	PyObject *function = PyObject_GetAttrString(module, name);
	PyObject *arguments = function ? Py_VaBuildValue(format, values) : NULL;
	PyObject *result = arguments ? PyObject_CallObject(function, arguments) : NULL;

	Py_XDECREF(arguments);
	Py_XDECREF(function);
	return result;
}

PyObject *pier_py_record(const char *name, const char *format, ...)
{
	PyObject *record;
	va_list fields;

	va_start(fields, format);
	record = call_attribute(types_module, name, format, fields);
	va_end(fields);
	return record;
}

PyObject *pier_py_call(const char *module, const char *function, const char *format, ...)
{
	PyObject *imported = PyImport_ImportModule(module), *result;
	va_list arguments;

	if (!imported)
		return NULL;
	va_start(arguments, format);
	result = call_attribute(imported, function, format, arguments);
	va_end(arguments);
	Py_DECREF(imported);
	return result;
}

PyObject *pier_py_list(size_t count,
		       PyObject *(*describe)(const void *subject, size_t index),
		       const void *subject)
{
	PyObject *list = PyList_New((Py_ssize_t)count);

	for (size_t i = 0; list && i < count; i++) {
		PyObject *item = describe(subject, i);

		if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0)
			Py_CLEAR(list);
	}
	return list;
}

PyObject *pier_py_enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
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

int pier_py_timeout(PyObject *seconds, void *milliseconds)
{
	if (seconds == Py_None) {
		*(int *)milliseconds = PIER_TIMEOUT_DEFAULT;
		return 1;
	}
	return pier_py_deadline(seconds, milliseconds);
}

int pier_py_deadline(PyObject *seconds, void *milliseconds)
{
	double value = PyFloat_AsDouble(seconds);

	if (value == -1.0 && PyErr_Occurred())
		return 0;
	/* The negated test also refuses what is not a number. */
	if (!(value >= 0 && ceil(value * 1e3) <= INT_MAX)) {
		PyErr_Format(PyExc_ValueError,
			     "timeout %R is not between 0 and %d seconds: no wait is "
			     "unlimited",
			     seconds, INT_MAX / 1000);
		return 0;
	}
	*(int *)milliseconds = (int)ceil(value * 1e3);
	return 1;
}

int pier_py_choose(PyObject *value, const char *what, const char *const *names, int count)
{
	char known[128] = "";
	size_t used = 0;

	if (!PyUnicode_Check(value)) {
		pier_py_wrong_type(value, "%s must be a str", what);
		return -1;
	}
	for (int i = 0; i < count; i++) {
		if (!names[i])
			continue;
		if (PyUnicode_CompareWithASCIIString(value, names[i]) == 0)
			return i;
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s\"%s\"",
					 used == 0	 ? ""
					 : i < count - 1 ? ", "
							 : " or ",
					 names[i]);
	}
	pier_py_refuse(EINVAL, "%s %.80R is not %s", what, value, known);
	return -1;
}

bool pier_py_range_make(unsigned long long offset, PyObject *length, uint64_t total,
			const char *name, struct pier_py_range *ret_range)
{
	unsigned long long bytes = offset <= total ? total - offset : 0;

	if (length && length != Py_None && !pier_py_uint64(length, &bytes))
		return false;
	if (offset > total || bytes > total - offset)
		return pier_py_refuse(
			ERANGE,
			"%llu bytes at offset %llu are not inside the %s of "
			"%llu bytes",
			bytes, offset, name, (unsigned long long)total);
	*ret_range = (struct pier_py_range){ offset, bytes };
	return true;
}

/* Returns false if it is before the first byte or behind the last. */
static bool find_bound(Py_ssize_t bound, uint64_t total, uint64_t *ret_bound)
{
	uint64_t distance = bound < 0 ? -(uint64_t)bound : (uint64_t)bound;

	*ret_bound = bound < 0 ? total - distance : distance;
	return distance <= total;
}

/* A missing end and one of 64 bits and more both become PY_SSIZE_T_MAX. */
static bool lacks_end(PyObject *slice, Py_ssize_t stop)
{
	PyObject *end = NULL;

	if (stop == PY_SSIZE_T_MAX)
		end = PyObject_GetAttrString(slice, "stop");
	Py_XDECREF(end);
	return end == Py_None;
}

bool pier_py_range_slice(PyObject *slice, uint64_t total, const char *name,
			 struct pier_py_range *ret_range)
{
	Py_ssize_t start, stop, step;
	uint64_t from, to;

	if (!PySlice_Check(slice))
		return pier_py_wrong_type(slice, "a %s is indexed by slices", name);
	if (PySlice_Unpack(slice, &start, &stop, &step) < 0)
		return false;
	if (step != 1)
		return PyErr_Format(PyExc_ValueError,
				    "the step of a slice of a %s is %zd, not 1", name,
				    step);
	to = total;
	if (!find_bound(start, total, &from) ||
	    (!lacks_end(slice, stop) && !find_bound(stop, total, &to)) || from > to)
		return pier_py_refuse(ERANGE,
				      "the slice %R is not inside the %s of %llu bytes",
				      slice, name, (unsigned long long)total);
	*ret_range = (struct pier_py_range){ from, to - from };
	return true;
}
