// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "error.h"

PyObject *pier_py_error;

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

PyObject *pier_py_result(int error)
{
	if (error < 0)
		return pier_py_fail(error);
	Py_RETURN_NONE;
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

int pier_py_add_errors(PyObject *module)
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
	return 0;
}
