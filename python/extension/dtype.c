// SPDX-License-Identifier: BSD-3-Clause
#include <string.h>

#include "dtype.h"

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
	{ "float8_e5m2", NULL, NULL, { DLPACK_FLOAT8_E5M2, 8, 1 }, 1 },
	{ "complex64", "Zf", "<c8", { DLPACK_COMPLEX, 64, 1 }, 4 },
	{ "complex128", "Zd", "<c16", { DLPACK_COMPLEX, 128, 1 }, 8 },
	{ "bool", "?", "|b1", { DLPACK_BOOL, 8, 1 }, 1 },
};

const struct pier_py_dtype *pier_py_dtype_find(const char *name)
{
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		if (strcmp(dtypes[i].name, name) == 0)
			return &dtypes[i];
	}
	PyErr_Format(PyExc_ValueError,
		     "unknown dtype \"%s\": use a name such as \"uint8\", \"float32\" or "
		     "\"bfloat16\"",
		     name);
	return NULL;
}
