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
	/* Of one call, which Python can interrupt afterwards. */
	MAX_FILES = 1024,
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

/* Returns the length of the name; `both` has room for a name with its prefix. */
static Py_ssize_t read_name(const uint8_t *header, char *both)
{
	const char *name = (const char *)header, *prefix = name + PREFIX;
	size_t name_length = strnlen(name, NAME_SIZE);
	size_t prefix_length = strnlen(prefix, PREFIX_SIZE);

	/* Only POSIX has a prefix. GNU's magic is "ustar  ", and times are in its place.
	 */
	if (memcmp(header + MAGIC, "ustar", 6) != 0 || prefix_length == 0) {
		memcpy(both, name, name_length);
		return (Py_ssize_t)name_length;
	}
	memcpy(both, prefix, prefix_length);
	both[prefix_length] = '/';
	memcpy(both + prefix_length + 1, name, name_length);
	return (Py_ssize_t)(prefix_length + 1 + name_length);
}

/* -1: the header is malformed. */
static int64_t read_size(const uint8_t *header)
{
	if (parse_number(header + CHECKSUM, CHECKSUM_SIZE) != checksum_of(header))
		return -1;
	return parse_number(header + SIZE, SIZE_SIZE);
}

static PyObject *parse_header(const uint8_t *header)
{
	static const uint8_t zeros[BLOCK];
	char name[PREFIX_SIZE + 1 + NAME_SIZE];
	int64_t size = read_size(header);

	if (memcmp(header, zeros, BLOCK) == 0)
		return Py_BuildValue("(y#iy#)", "", (Py_ssize_t)0, 0, "", (Py_ssize_t)0);
	if (size < 0)
		Py_RETURN_NONE;
	return Py_BuildValue("(y#Ly#)", header + KIND, (Py_ssize_t)1, (long long)size,
			     name, read_name(header, name));
}

/* Appends (name, offset, size). */
static bool append_file(PyObject *files, const uint8_t *header, Py_ssize_t offset,
			int64_t size)
{
	char name[PREFIX_SIZE + 1 + NAME_SIZE];
	Py_ssize_t length = read_name(header, name);
	PyObject *file = Py_BuildValue(
		"(NnL)", PyUnicode_DecodeUTF8(name, length, "surrogateescape"), offset,
		(long long)size);
	bool appended = file && PyList_Append(files, file) == 0;

	Py_XDECREF(file);
	return appended;
}

/* Returns the offset of the first header that is not a plain file's; -1 with an error. */
static Py_ssize_t append_files(PyObject *files, const Py_buffer *archive,
			       Py_ssize_t offset)
{
	for (int n = 0; n < MAX_FILES && archive->len - offset >= BLOCK; n++) {
		const uint8_t *header = (const uint8_t *)archive->buf + offset;
		Py_ssize_t room = (archive->len - offset) / BLOCK * BLOCK - BLOCK;
		int64_t size = header[KIND] == '0' ? read_size(header) : -1;

		if (size < 0 || size > room)
			break;
		if (!append_file(files, header, offset + BLOCK, size))
			return -1;
		offset += BLOCK + (Py_ssize_t)((size + BLOCK - 1) / BLOCK * BLOCK);
	}
	return offset;
}

static PyObject *tar_files(PyObject *Py_UNUSED(module), PyObject *arguments)
{
	PyObject *files = PyList_New(0);
	Py_ssize_t offset, end = -1;
	Py_buffer archive;

	if (files && PyArg_ParseTuple(arguments, "y*n:_tar_files", &archive, &offset)) {
		if (offset < 0 || offset > archive.len)
			PyErr_SetString(PyExc_ValueError, "the archive ends before");
		else
			end = append_files(files, &archive, offset);
		PyBuffer_Release(&archive);
	}
	if (end >= 0)
		return Py_BuildValue("(Nn)", files, end);
	Py_XDECREF(files);
	return NULL;
}

static PyObject *tar_header(PyObject *Py_UNUSED(module), PyObject *arguments)
{
	PyObject *result = NULL;
	Py_buffer archive;
	Py_ssize_t offset;

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
	{ "_tar_files", tar_files, METH_VARARGS,
	  "_tar_files(archive, offset, /)\n--\n\n"
	  "Return a list of (name, offset, size) of the files whose plain headers\n"
	  "follow each other from an offset, at most 1024, and the offset behind the\n"
	  "last one." },
	{ NULL },
};

int pier_py_add_tar(PyObject *module)
{
	return PyModule_AddFunctions(module, tar_functions);
}
