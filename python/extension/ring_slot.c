/* SPDX-License-Identifier: BSD-3-Clause */
#include <stddef.h>

#include "error.h"
#include "ring.h"
#include "view.h"

PyTypeObject *pier_py_ring_slot_type;

/* The ring exists until the slot is released, also if another thread closes it now. */
void pier_py_ring_release(struct pier_py_ring *ring, const struct pier_ring_slot *slot)
{
	unsigned long long ticket = slot->sequence + 1;

	if (atomic_compare_exchange_strong(&ring->tickets[slot->number], &ticket, 0))
		pier_ring_release(ring->ring, slot);
}

PyObject *pier_py_ring_slot_new(struct pier_py_ring *ring,
				const struct pier_ring_slot *slot)
{
	struct pier_py_ring_slot *self = pier_py_new(pier_py_ring_slot_type);

	atomic_store(&ring->tickets[slot->number], slot->sequence + 1);
	if (!self) {
		pier_py_ring_release(ring, slot);
		return NULL;
	}
	self->ring = (struct pier_py_ring *)Py_NewRef((PyObject *)ring);
	self->buffer = (struct pier_py_buffer *)Py_NewRef((PyObject *)ring->buffer);
	self->slot = *slot;
	return (PyObject *)self;
}

static void delete_slot(struct pier_py_ring_slot *self)
{
	if (self->weak_references)
		PyObject_ClearWeakRefs((PyObject *)self);
	pier_py_ring_release(self->ring, &self->slot);
	Py_DECREF((PyObject *)self->buffer);
	Py_DECREF((PyObject *)self->ring);
	pier_py_delete(self);
}

static PyObject *make_view(struct pier_py_ring_slot *self, PyObject *arguments,
			   PyObject *keywords)
{
	const struct pier_py_window window = {
		.buffer = self->buffer,
		.range = { self->slot.offset, self->slot.length },
		.keeper = (PyObject *)self,
	};

	return pier_py_window_view(&window, arguments, keywords);
}

static PyObject *copy_from(struct pier_py_ring_slot *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "offset", "length", NULL };
	unsigned long long offset = 0;
	struct pier_py_range range;
	PyObject *length = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&O:copy_from", names,
					 pier_py_uint64, &offset, &length) ||
	    !pier_py_range_make(offset, length, self->slot.length, "slot", &range))
		return NULL;
	return PyObject_CallMethod((PyObject *)self->buffer, "copy_from", "KK",
				   (unsigned long long)(self->slot.offset + range.offset),
				   (unsigned long long)range.length);
}

static PyObject *describe_slot(struct pier_py_ring_slot *self)
{
	return PyUnicode_FromFormat("<pier.RingSlot %u, fill %llu of %llu bytes>",
				    self->slot.number,
				    (unsigned long long)self->slot.sequence,
				    (unsigned long long)self->slot.length);
}

static PyMethodDef slot_methods[] = {
	{ "view", PIER_PY_METHOD(make_view), METH_VARARGS | METH_KEYWORDS,
	  "view($self, shape=None, dtype='uint8', offset=0)\n--\n\n"
	  "Return a View of a part of the slot, as Buffer.view() does. It holds the "
	  "slot." },
	{ "copy_from", PIER_PY_METHOD(copy_from), METH_VARARGS | METH_KEYWORDS,
	  "copy_from($self, offset=0, length=None)\n--\n\n"
	  "Copy bytes of the slot to the host, and return them." },
	{ NULL },
};

#define SLOT_MEMBER(type, field, text)                                                  \
	{                                                                               \
#field, type, offsetof(struct pier_py_ring_slot, slot.field), READONLY, \
			text                                                            \
	}

static PyMemberDef slot_members[] = {
	{ "__weaklistoffset__", T_PYSSIZET,
	  offsetof(struct pier_py_ring_slot, weak_references), READONLY, NULL },
	SLOT_MEMBER(T_UINT, number, "The number of the slot, from 0."),
	SLOT_MEMBER(T_ULONGLONG, sequence, "The number of fills that began before it."),
	SLOT_MEMBER(T_ULONGLONG, offset, "Its first byte in the buffer of the ring."),
	SLOT_MEMBER(T_ULONGLONG, length,
		    "From its beginning to the end of the last read, in bytes."),
	{ "buffer", T_OBJECT_EX, offsetof(struct pier_py_ring_slot, buffer), READONLY,
	  "The Buffer of the ring." },
	{ NULL },
};

static PyType_Slot slot_slots[] = {
	{ Py_tp_doc, "A filled slot of a ring: Ring.next(). It is free again when this "
		     "object is gone, and\n"
		     "with it all views of the slot, and whatever uses their memory." },
	{ Py_tp_dealloc, (void *)delete_slot },
	{ Py_tp_repr, (void *)describe_slot },
	{ Py_tp_methods, slot_methods },
	{ Py_tp_members, slot_members },
	{ 0, NULL },
};

static PyType_Spec slot_spec = {
	.name = "pier.RingSlot",
	.basicsize = sizeof(struct pier_py_ring_slot),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = slot_slots,
};

int pier_py_add_ring_slot(PyObject *module)
{
	return pier_py_add_type(module, &slot_spec, &pier_py_ring_slot_type);
}
