// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "remote.h"

#define NAME "remote region"

PyTypeObject *pier_py_remote_type;

PyObject *pier_py_remote_new(const struct pier_remote *parts, uint32_t count)
{
	allocfunc allocate = (allocfunc)PyType_GetSlot(pier_py_remote_type, Py_tp_alloc);
	struct pier_py_remote *self;
	uint32_t none;
	/* Only checks the parts. */
	int error = pier_remote_vec_sub(parts, count, 0, 0, NULL, 0, &none);

	if (error)
		return pier_py_fail(error);
	self = (struct pier_py_remote *)allocate(pier_py_remote_type, count);
	if (!self)
		return NULL;
	self->length = 0;
	for (uint32_t i = 0; i < count; i++)
		self->length += parts[i].length;
	if (count)
		memcpy(self->parts, parts, count * sizeof(*parts));
	return (PyObject *)self;
}

struct pier_py_remote *pier_py_remote_check(PyObject *object)
{
	if (PyObject_TypeCheck(object, pier_py_remote_type))
		return (struct pier_py_remote *)object;
	return pier_py_wrong_type(object, "remote must be a pier.Remote: the peer sends "
					  "Region.remote");
}

static bool read_part(PyObject *object, struct pier_remote *ret_part)
{
	unsigned long long addr, length, rkey;
	PyObject *part = PySequence_Tuple(object);
	bool valid;

	if (!part)
		return false;
	/* "K" would not refuse what does not fit into 64 bits. */
	valid = PyArg_ParseTuple(part, "O&O&O&:part", pier_py_uint64, &addr,
				 pier_py_uint64, &length, pier_py_uint64, &rkey);
	Py_DECREF(part);
	if (valid && rkey > UINT32_MAX) {
		PyErr_Format(PyExc_OverflowError, "the rkey %llu has more than 32 bits",
			     rkey);
		valid = false;
	}
	if (valid)
		*ret_part = (struct pier_remote){ addr, length, (uint32_t)rkey };
	return valid;
}

static PyObject *new_remote(PyTypeObject *Py_UNUSED(type), PyObject *arguments,
			    PyObject *keywords)
{
	static char *names[] = { "parts", NULL };
	struct pier_remote parts[PIER_MR_PARTS_MAX];
	PyObject *sequence, *tuple, *result = NULL;
	Py_ssize_t count, i = 0;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:Remote", names,
					 &sequence))
		return NULL;
	tuple = PySequence_Tuple(sequence);
	if (!tuple)
		return NULL;
	count = PyTuple_Size(tuple);
	if (count > PIER_MR_PARTS_MAX)
		pier_py_refuse(E2BIG, "%zd parts are more than %d", count,
			       PIER_MR_PARTS_MAX);
	else
		while (i < count && read_part(PyTuple_GetItem(tuple, i), &parts[i]))
			i++;
	if (i == count)
		result = pier_py_remote_new(parts, (uint32_t)count);
	Py_DECREF(tuple);
	return result;
}

static PyObject *from_bytes(PyObject *Py_UNUSED(type), PyObject *wire)
{
	struct pier_remote parts[PIER_MR_PARTS_MAX];
	uint32_t count = 1;
	Py_buffer bytes;
	int error;

	if (PyObject_GetBuffer(wire, &bytes, PyBUF_SIMPLE) < 0)
		return NULL;
	/* No vector has the size of a single remote region (16 + 24 * parts). */
	if (bytes.len == PIER_REMOTE_WIRE_SIZE)
		error = pier_remote_unpack(bytes.buf, PIER_REMOTE_WIRE_SIZE, parts);
	else
		error = pier_remote_vec_unpack(bytes.buf, (size_t)bytes.len, parts,
					       PIER_MR_PARTS_MAX, &count);
	pier_py_check(error);
	PyBuffer_Release(&bytes);
	return error ? NULL : pier_py_remote_new(parts, count);
}

static PyObject *from_text(PyObject *Py_UNUSED(type), PyObject *argument)
{
	struct pier_remote parts[PIER_MR_PARTS_MAX];
	const char *text = PyUnicode_AsUTF8AndSize(argument, NULL);
	uint32_t count = 1;
	int error;

	if (!text)
		return NULL;
	if (strstr(text, "pier-remote:"))
		error = pier_remote_from_text(text, parts);
	else
		error = pier_remote_vec_from_text(text, parts, PIER_MR_PARTS_MAX, &count);
	return error ? pier_py_fail(error) : pier_py_remote_new(parts, count);
}

static PyObject *to_bytes(struct pier_py_remote *self, PyObject *Py_UNUSED(unused))
{
	uint32_t count = pier_py_remote_count(self);
	size_t size = PIER_REMOTE_VEC_WIRE_SIZE((size_t)count);
	PyObject *wire = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
	int written;

	if (!wire)
		return NULL;
	written = pier_remote_vec_pack(self->parts, count, PyBytes_AsString(wire), size);
	if (written >= 0)
		return wire;
	Py_DECREF(wire);
	return pier_py_fail(written);
}

static PyObject *to_text(struct pier_py_remote *self)
{
	char text[PIER_REMOTE_VEC_TEXT_SIZE(PIER_MR_PARTS_MAX)];
	int error = pier_remote_vec_to_text(self->parts, pier_py_remote_count(self), text,
					    sizeof(text));

	return error < 0 ? pier_py_fail(error) : PyUnicode_FromString(text);
}

static PyObject *get_parts(struct pier_py_remote *self, void *Py_UNUSED(unused))
{
	uint32_t count = pier_py_remote_count(self);
	PyObject *tuple = PyTuple_New(count);

	for (uint32_t i = 0; tuple && i < count; i++) {
		const struct pier_remote *part = &self->parts[i];
		PyObject *item = Py_BuildValue("(KKI)", (unsigned long long)part->addr,
					       (unsigned long long)part->length,
					       part->rkey);

		if (!item || PyTuple_SetItem(tuple, i, item) < 0)
			Py_CLEAR(tuple);
	}
	return tuple;
}

static Py_ssize_t get_length(struct pier_py_remote *self)
{
	if (self->length <= PY_SSIZE_T_MAX)
		return (Py_ssize_t)self->length;
	PyErr_SetString(PyExc_OverflowError,
			"len() has 63 bits: add the lengths of parts");
	return -1;
}

static PyObject *get_slice(struct pier_py_remote *self, PyObject *slice)
{
	struct pier_remote parts[PIER_MR_PARTS_MAX];
	struct pier_py_range range;
	uint32_t count;
	int error;

	if (!pier_py_range_slice(slice, self->length, NAME, &range))
		return NULL;
	error = pier_remote_vec_sub(self->parts, pier_py_remote_count(self), range.offset,
				    range.length, parts, PIER_MR_PARTS_MAX, &count);
	return error ? pier_py_fail(error) : pier_py_remote_new(parts, count);
}

static PyMethodDef remote_methods[] = {
	{ "to_bytes", PIER_PY_METHOD(to_bytes), METH_NOARGS,
	  "to_bytes($self)\n--\n\n"
	  "Return the wire form (docs/wire.md), 16 + 24 * len(parts) bytes." },
	{ "from_bytes", from_bytes, METH_O | METH_CLASS,
	  "from_bytes($type, wire, /)\n--\n\n"
	  "Read the wire form of a remote region or vector, which may be hostile.\n\n"
	  "Raises Invalid (its length is none that the form has) and BadMessage." },
	{ "from_text", from_text, METH_O | METH_CLASS,
	  "from_text($type, text, /)\n--\n\n"
	  "Read the text form, as str() writes it, of a remote region or vector." },
	{ NULL },
};

static PyGetSetDef remote_properties[] = {
	{ "parts", (getter)get_parts, NULL,
	  "Its parts, as tuples (address, length, rkey).", NULL },
	{ NULL },
};

static PyType_Slot remote_slots[] = {
	{ Py_tp_doc,
	  "Remote(parts)\n--\n\n"
	  "Describes memory for a peer that reads or writes it: a value, which can be\n"
	  "compared, hashed and pickled. remote[a:b] is a part of it; a slice that is\n"
	  "out of range raises OutOfRange. str() is a text form for files and command\n"
	  "lines.\n\n"
	  "parts: tuples (address, length, rkey), in the order of the memory.\n\n"
	  "A peer with it and with a channel into the protection domain of the region\n"
	  "can use the memory as the access rights of the region allow." },
	{ Py_tp_new, (void *)new_remote },
	{ Py_tp_dealloc, (void *)pier_py_delete },
	{ Py_tp_str, (void *)to_text },
	{ Py_tp_methods, remote_methods },
	{ Py_tp_getset, remote_properties },
	{ Py_mp_length, (void *)get_length },
	{ Py_mp_subscript, (void *)get_slice },
	{ 0, NULL },
};

static PyType_Spec remote_spec = {
	.name = "pier.Remote",
	.basicsize = offsetof(struct pier_py_remote, parts),
	.itemsize = sizeof(struct pier_remote),
	.slots = remote_slots,
};

int pier_py_add_remote(PyObject *module)
{
	return pier_py_add_spec(module, &remote_spec, &pier_py_remote_type);
}
