/* SPDX-License-Identifier: BSD-3-Clause */
#include "extension.h"

/*
 * The order of a shuffled epoch, without a table of it, and the reads of its batches.
 *
 * A Feistel network over the smallest power of two that holds all samples, with cycle
 * walking: a result past the last sample is permuted again until it is a sample (J. Black
 * and P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Each position is
 * computed by itself, so an epoch of any size takes no memory and can be resumed
 * anywhere. The numbers are the same on every machine and must stay so, because saved
 * states rely on them: tests/test_order.py computes them again in Python.
 */

enum {
	ROUNDS = 8,
};

struct permutation {
	uint64_t count;
	unsigned bits;	    /* of the domain, at least 2 */
	unsigned left_bits; /* the others are the right half */
	uint64_t keys[ROUNDS];
};

/* The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, variant 13). */
static uint64_t mix_bits(uint64_t value)
{
	value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
	return value ^ (value >> 31);
}

static void permutation_init(struct permutation *permutation, uint64_t count,
			     uint64_t seed, uint64_t epoch)
{
	uint64_t state = mix_bits(mix_bits(seed) + epoch);

	permutation->count = count;
	permutation->bits = count <= 4 ? 2 : 64 - (unsigned)__builtin_clzll(count - 1);
	permutation->left_bits = permutation->bits / 2;
	for (int round = 0; round < ROUNDS; round++) {
		state += UINT64_C(0x9e3779b97f4a7c15);
		permutation->keys[round] = mix_bits(state);
	}
}

static uint64_t permute_once(const struct permutation *permutation, uint64_t value)
{
	unsigned right_bits = permutation->bits - permutation->left_bits;
	uint64_t left_mask = (UINT64_C(1) << permutation->left_bits) - 1;
	uint64_t right_mask = (UINT64_C(1) << right_bits) - 1;
	uint64_t left = value >> right_bits;
	uint64_t right = value & right_mask;

	for (int round = 0; round < ROUNDS; round += 2) {
		left ^= mix_bits(right + permutation->keys[round]) & left_mask;
		right ^= mix_bits(left + permutation->keys[round + 1]) & right_mask;
	}
	return left << right_bits | right;
}

static uint64_t permute_position(const struct permutation *permutation, uint64_t position)
{
	do
		position = permute_once(permutation, position);
	while (position >= permutation->count);
	return position;
}

/* Whether start + i * step is a position of the epoch for each i less than length. */
static bool positions_fit(uint64_t count, uint64_t start, uint64_t step, uint64_t length)
{
	uint64_t last;

	return !length || (!__builtin_mul_overflow(length - 1, step, &last) &&
			   !__builtin_add_overflow(last, start, &last) && last < count);
}

static PyObject *permute(PyObject *Py_UNUSED(module), PyObject *arguments)
{
	unsigned long long count, seed, epoch, start, step;
	struct permutation permutation;
	Py_buffer out;
	uint64_t *samples, length;
	bool fits;

	if (!PyArg_ParseTuple(arguments, "w*KKKKK:_permute", &out, &count, &seed, &epoch,
			      &start, &step))
		return NULL;
	samples = out.buf;
	length = (uint64_t)out.len / sizeof(*samples);
	fits = out.len % sizeof(*samples) == 0 &&
	       (uintptr_t)samples % _Alignof(uint64_t) == 0 &&
	       positions_fit(count, start, step, length);
	if (fits && length) {
		permutation_init(&permutation, count, seed, epoch);
		for (uint64_t i = 0; i < length; i++)
			samples[i] = permute_position(&permutation, start + i * step);
	}
	PyBuffer_Release(&out);
	if (fits)
		Py_RETURN_NONE;
	PyErr_Format(PyExc_ValueError,
		     "%llu positions from %llu in steps of %llu are not 64-bit numbers "
		     "below %llu",
		     (unsigned long long)length, start, step, count);
	return NULL;
}

/* One row of the list of reads that Ring.begin() takes. */
struct planned_read {
	uint64_t offset; /* in the slot */
	uint64_t remote_offset;
	uint64_t length;
	uint64_t source;
};

/* One row of the index: where a sample of the dataset is. */
struct sample_place {
	uint64_t shard;
	uint64_t offset;
	uint64_t length;
};

static bool plan_rows(struct planned_read *rows, const Py_buffer *samples,
		      const Py_buffer *table, uint64_t align)
{
	const struct sample_place *places = table->buf;
	const uint64_t *numbers = samples->buf;
	uint64_t known = (uint64_t)table->len / sizeof(*places);
	uint64_t end = 0;

	for (uint64_t i = 0; i < (uint64_t)samples->len / sizeof(*numbers); i++) {
		uint64_t gap = (align - end % align) % align;
		const struct sample_place *place;

		if (numbers[i] >= known || __builtin_add_overflow(end, gap, &end))
			return false;
		place = &places[numbers[i]];
		rows[i] = (struct planned_read){ .offset = end,
						 .remote_offset = place->offset,
						 .length = place->length,
						 .source = place->shard };
		if (__builtin_add_overflow(end, place->length, &end))
			return false;
	}
	return true;
}

static bool is_uint64(const Py_buffer *buffer)
{
	return (uintptr_t)buffer->buf % _Alignof(uint64_t) == 0 &&
	       buffer->len % (Py_ssize_t)sizeof(uint64_t) == 0;
}

static PyObject *plan_bytes(const Py_buffer *samples, const Py_buffer *table,
			    uint64_t align)
{
	Py_ssize_t count = samples->len / (Py_ssize_t)sizeof(uint64_t);
	PyObject *rows;

	rows = PyBytes_FromStringAndSize(NULL,
					 count * (Py_ssize_t)sizeof(struct planned_read));
	/* The contents of a bytes object are aligned as its header is: to a pointer. */
	if (rows && !(align && is_uint64(samples) && is_uint64(table) &&
		      plan_rows((struct planned_read *)PyBytes_AsString(rows), samples,
				table, align))) {
		Py_CLEAR(rows);
		PyErr_SetString(PyExc_ValueError,
				"a sample is not in the table, an argument is no "
				"array of uint64, or align is 0");
	}
	return rows;
}

static PyObject *plan_reads(PyObject *Py_UNUSED(module), PyObject *arguments)
{
	Py_buffer samples, table;
	unsigned long long align;
	PyObject *rows;

	if (!PyArg_ParseTuple(arguments, "y*y*K:_plan_reads", &samples, &table, &align))
		return NULL;
	rows = plan_bytes(&samples, &table, align);
	PyBuffer_Release(&samples);
	PyBuffer_Release(&table);
	return rows;
}

/*
 * The header of a member of a tar archive: pier/data/tar.py, which names the
 * descriptions of the format, reads one for each file of a data set.
 */

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

static PyMethodDef data_functions[] = {
	{ "_permute", permute, METH_VARARGS,
	  "_permute(out, count, seed, epoch, start, step, /)\n--\n\n"
	  "Write the samples at the positions start, start + step, ... of a shuffled\n"
	  "epoch of count samples into an array of uint64." },
	{ "_plan_reads", plan_reads, METH_VARARGS,
	  "_plan_reads(samples, table, align, /)\n--\n\n"
	  "Return the reads of these samples for Ring.begin(), packed into a slot in\n"
	  "this order, each at a multiple of align. All arrays are of uint64; a row of\n"
	  "the table is the shard, offset and length of a sample of the dataset." },
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

int pier_py_add_data(PyObject *module)
{
	return PyModule_AddFunctions(module, data_functions);
}
