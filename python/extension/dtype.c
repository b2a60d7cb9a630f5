// SPDX-License-Identifier: BSD-3-Clause
#include <string.h>

#include "dtype.h"
#include "error.h"

/* The typestr has the byte order of the machine: "<" on those that pier runs on. */
static const struct pier_py_dtype dtypes[] = {
	{ "uint8", "B", "|u1", { DLPACK_UINT, 8, 1 }, 1 },
	{ "uint16", "H", "<u2", { DLPACK_UINT, 16, 1 }, 2 },
	{ "uint32", "I", "<u4", { DLPACK_UINT, 32, 1 }, 4 },
	{ "uint64", "Q", "<u8", { DLPACK_UINT, 64, 1 }, 8 },
	{ "int8", "b", "|i1", { DLPACK_INT, 8, 1 }, 1 },
	{ "int16", "h", "<i2", { DLPACK_INT, 16, 1 }, 2 },
	{ "int32", "i", "<i4", { DLPACK_INT, 32, 1 }, 4 },
	{ "int64", "q", "<i8", { DLPACK_INT, 64, 1 }, 8 },
	{ "float16", "e", "<f2", { DLPACK_FLOAT, 16, 1 }, 2 },
	{ "float32", "f", "<f4", { DLPACK_FLOAT, 32, 1 }, 4 },
	{ "float64", "d", "<f8", { DLPACK_FLOAT, 64, 1 }, 8 },
	{ "bfloat16", NULL, NULL, { DLPACK_BFLOAT, 16, 1 }, 2 },
	{ "float8_e4m3fn", NULL, NULL, { DLPACK_FLOAT8_E4M3FN, 8, 1 }, 1 },
	{ "float8_e4m3fnuz", NULL, NULL, { DLPACK_FLOAT8_E4M3FNUZ, 8, 1 }, 1 },
	{ "float8_e5m2", NULL, NULL, { DLPACK_FLOAT8_E5M2, 8, 1 }, 1 },
	{ "float8_e5m2fnuz", NULL, NULL, { DLPACK_FLOAT8_E5M2FNUZ, 8, 1 }, 1 },
	{ "float8_e8m0fnu", NULL, NULL, { DLPACK_FLOAT8_E8M0FNU, 8, 1 }, 1 },
	/* ml_dtypes has one item in a byte, PyTorch two. */
	{ "float4_e2m1fn", NULL, NULL, { DLPACK_FLOAT4_E2M1FN, 4, 1 }, 1 },
	{ "float4_e2m1fn_x2", NULL, NULL, { DLPACK_FLOAT4_E2M1FN, 4, 2 }, 1 },
	{ "complex64", "Zf", "<c8", { DLPACK_COMPLEX, 64, 1 }, 4 },
	{ "complex128", "Zd", "<c16", { DLPACK_COMPLEX, 128, 1 }, 8 },
	{ "bool", "?", "|b1", { DLPACK_BOOL, 8, 1 }, 1 },
};

const struct pier_py_dtype *const pier_py_dtype_uint8 = &dtypes[0];
const struct pier_py_dtype *const pier_py_dtype_uint16 = &dtypes[1];

enum {
	DTYPE_COUNT = sizeof(dtypes) / sizeof(dtypes[0])
};

/* "<f4", or "f4" in the byte order of the machine. */
static bool is_typestr(const struct pier_py_dtype *dtype, const char *text)
{
	return dtype->typestr && (strcmp(dtype->typestr, text) == 0 ||
				  strcmp(dtype->typestr + 1, text) == 0);
}

static void refuse_dtype(const char *name)
{
	PyObject *known = PyUnicode_FromString(dtypes[0].name), *longer;

	for (int i = 1; known && i < DTYPE_COUNT; i++) {
		longer = PyUnicode_FromFormat("%U, %s", known, dtypes[i].name);
		Py_DECREF(known);
		known = longer;
	}
	if (known)
		PyErr_Format(PyExc_ValueError, "unknown dtype \"%.80s\"; known are %U",
			     name, known);
	Py_XDECREF(known);
}

/*
 * The name of a dtype: numpy.dtype and those of JAX have one, the scalar types of NumPy
 * are classes, and PyTorch's print as "torch.float32". NULL: raised.
 */
static PyObject *name_dtype(PyObject *dtype)
{
	PyObject *type, *name;
	bool is_dtype;

	if (PyUnicode_Check(dtype))
		return Py_NewRef(dtype);
	name = PyObject_GetAttrString(dtype, PyType_Check(dtype) ? "__name__" : "name");
	if (name)
		return name;
	PyErr_Clear();
	type = PyType_GetName(Py_TYPE(dtype));
	is_dtype = type && PyUnicode_CompareWithASCIIString(type, "dtype") == 0;
	Py_XDECREF(type);
	if (is_dtype)
		return PyObject_Str(dtype);
	return pier_py_wrong_type(dtype, "dtype must be a name such as \"float32\", or a "
					 "dtype of NumPy, PyTorch or JAX");
}

/* Of numpy.dtype(">f4"), whose name is "float32". */
static bool is_swapped(PyObject *dtype)
{
	PyObject *native = PyObject_GetAttrString(dtype, "isnative");
	bool swapped = native == Py_False;

	PyErr_Clear();
	Py_XDECREF(native);
	return swapped;
}

const struct pier_py_dtype *pier_py_dtype_find(PyObject *dtype)
{
	const struct pier_py_dtype *found = NULL;
	PyObject *name = name_dtype(dtype);
	const char *text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;

	if (text && strncmp(text, "torch.", 6) == 0)
		text += 6;
	for (int i = 0; text && i < DTYPE_COUNT && !found; i++) {
		if (strcmp(dtypes[i].name, text) == 0 || is_typestr(&dtypes[i], text))
			found = &dtypes[i];
	}
	if (text && !found)
		refuse_dtype(text);
	if (found && is_swapped(dtype)) {
		PyErr_Format(PyExc_ValueError,
			     "dtype %s has another byte order than this "
			     "machine",
			     text);
		found = NULL;
	}
	Py_XDECREF(name);
	return found;
}
