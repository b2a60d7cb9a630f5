// SPDX-License-Identifier: BSD-3-Clause
#include "error.h"
#include "region.h"

#define NAME "span"

PyTypeObject *pier_py_span_type;

PyObject *pier_py_span_new(struct pier_py_region *region, struct pier_py_range range)
{
	struct pier_py_span *self = pier_py_new(pier_py_span_type);

	if (!self)
		return NULL;
	self->region = (struct pier_py_region *)Py_NewRef((PyObject *)region);
	self->range = range;
	return (PyObject *)self;
}

static void delete_span(struct pier_py_span *self)
{
	PyObject_GC_UnTrack(self);
	Py_XDECREF((PyObject *)self->region);
	pier_py_delete(self);
}

static int traverse_span(struct pier_py_span *self, visitproc visit, void *arg)
{
	Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
	Py_VISIT((PyObject *)self->region);
	return 0;
}

static Py_ssize_t get_length(struct pier_py_span *self)
{
	return (Py_ssize_t)self->range.length;
}

static PyObject *get_slice(struct pier_py_span *self, PyObject *slice)
{
	struct pier_py_range range;

	if (!pier_py_range_slice(slice, self->range.length, NAME, &range))
		return NULL;
	range.offset += self->range.offset;
	return pier_py_span_new(self->region, range);
}

static PyObject *get_region(struct pier_py_span *self, void *unused)
{
	(void)unused;
	return Py_NewRef((PyObject *)self->region);
}

static PyObject *get_number(struct pier_py_span *self, void *member)
{
	return PyLong_FromUnsignedLongLong(
		*(uint64_t *)((char *)&self->range + (size_t)member));
}

static PyObject *describe_span(struct pier_py_span *self)
{
	return PyUnicode_FromFormat("<pier.Span of %llu bytes at offset %llu of %R>",
				    (unsigned long long)self->range.length,
				    (unsigned long long)self->range.offset,
				    (PyObject *)self->region);
}

static PyGetSetDef span_properties[] = {
	{ "region", (getter)get_region, NULL, "The Region.", NULL },
	{ "offset", (getter)get_number, NULL, "Its first byte in the region.",
	  (void *)offsetof(struct pier_py_range, offset) },
	{ "length", (getter)get_number, NULL, "Its length in bytes.",
	  (void *)offsetof(struct pier_py_range, length) },
	{ NULL },
};

static PyType_Slot span_slots[] = {
	{ Py_tp_doc, "A range of a Region, as a slice of it: region[a:b]. Slices of a "
		     "span are spans." },
	{ Py_tp_dealloc, (void *)delete_span },
	{ Py_tp_traverse, (void *)traverse_span },
	{ Py_tp_repr, (void *)describe_span },
	{ Py_tp_getset, span_properties },
	{ Py_mp_length, (void *)get_length },
	{ Py_mp_subscript, (void *)get_slice },
	{ 0, NULL },
};

static PyType_Spec span_spec = {
	.name = "pier.Span",
	.basicsize = sizeof(struct pier_py_span),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = span_slots,
};

int pier_py_add_span(PyObject *module)
{
	return pier_py_add_type(module, &span_spec, &pier_py_span_type);
}
