// SPDX-License-Identifier: BSD-3-Clause
/*
 * The header of a member of a tar archive: pier/data/tar.py, which names the
 * descriptions of the format, reads one for each file of a data set.
 */
#include "extension.h"

enum {
	BLOCK = 512,
	NAME_SIZE = 100,
	SIZE = 124,
	SIZE_SIZE = 12,
	CHECKSUM = 148,
	CHECKSUM_SIZE = 8,
	KIND = 156,
	MAGIC = 257,
	PREFIX = 345,
	PREFIX_SIZE = 155,
};

/* GNU's base 256. -1: negative, or too large for any file. */
static int64_t parse_base_256(const uint8_t *field, size_t size)
{
	uint64_t number = 0;

	if (field[0] != 0x80)
		return -1;
	for (size_t i = 1; i < size; i++) {
		if (number >> 55)
			return -1;
		number = number << 8 | field[i];
	}
	return (int64_t)number;
}

/* Octal digits between blanks, up to a NUL; none are 0. -1: it is no number. */
static int64_t parse_number(const uint8_t *field, size_t size)
{
	size_t end = strnlen((const char *)field, size), i = 0;
	int64_t number = 0;

	if (field[0] & 0x80)
		return parse_base_256(field, size);
	while (i < end && field[i] == ' ')
		i++;
	while (end > i && field[end - 1] == ' ')
		end--;
	for (; i < end; i++) {
		if (field[i] < '0' || field[i] > '7')
			return -1;
		number = number << 3 | (field[i] - '0');
	}
	return number;
}

/* The sum of all bytes, with those of the checksum taken as blanks. */
static int64_t checksum_of(const uint8_t *header)
{
	int64_t sum = CHECKSUM_SIZE * ' ';

	for (size_t i = 0; i < BLOCK; i++)
		sum += header[i];
	for (size_t i = 0; i < CHECKSUM_SIZE; i++)
		sum -= header[CHECKSUM + i];
	return sum;
}

static PyObject *name_of(const uint8_t *header)
{
	const char *name = (const char *)header, *prefix = name + PREFIX;
	size_t name_length = strnlen(name, NAME_SIZE);
	size_t prefix_length = strnlen(prefix, PREFIX_SIZE);
	char both[PREFIX_SIZE + 1 + NAME_SIZE];

	/* Only POSIX has a prefix. GNU's magic is "ustar  ", and times are in its place.
	 */
	if (memcmp(header + MAGIC, "ustar", 6) != 0 || prefix_length == 0)
		return PyBytes_FromStringAndSize(name, (Py_ssize_t)name_length);
	memcpy(both, prefix, prefix_length);
	both[prefix_length] = '/';
	memcpy(both + prefix_length + 1, name, name_length);
	return PyBytes_FromStringAndSize(both,
					 (Py_ssize_t)(prefix_length + 1 + name_length));
}

static PyObject *parse_header(const uint8_t *header)
{
	static const uint8_t zeros[BLOCK];
	int64_t size = parse_number(header + SIZE, SIZE_SIZE);

	if (memcmp(header, zeros, BLOCK) == 0)
		return Py_BuildValue("(y#iy#)", "", (Py_ssize_t)0, 0, "", (Py_ssize_t)0);
	if (size < 0 ||
	    parse_number(header + CHECKSUM, CHECKSUM_SIZE) != checksum_of(header))
		Py_RETURN_NONE;
	return Py_BuildValue("(y#LN)", header + KIND, (Py_ssize_t)1, (long long)size,
			     name_of(header));
}

static PyObject *tar_header(PyObject *module, PyObject *arguments)
{
	PyObject *result = NULL;
	Py_buffer archive;
	Py_ssize_t offset;

	(void)module;
	if (!PyArg_ParseTuple(arguments, "y*n:_tar_header", &archive, &offset))
		return NULL;
	if (offset < 0 || offset > archive.len || archive.len - offset < BLOCK)
		PyErr_SetString(PyExc_ValueError, "no header is there");
	else
		result = parse_header((const uint8_t *)archive.buf + offset);
	PyBuffer_Release(&archive);
	return result;
}

static PyMethodDef tar_functions[] = {
	{ "_tar_header", tar_header, METH_VARARGS,
	  "_tar_header(archive, offset, /)\n--\n\n"
	  "Return the type, the size and the name in the header at an offset of a tar\n"
	  "archive; an empty type if all of it is zero, None if it is malformed." },
	{ NULL },
};

int pier_py_add_tar(PyObject *module)
{
	return PyModule_AddFunctions(module, tar_functions);
}
