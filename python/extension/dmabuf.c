// SPDX-License-Identifier: BSD-3-Clause
#include "buffer.h"
#include "error.h"

#define NAME "dma-buf"

PyTypeObject *pier_py_dmabuf_type;

PyObject *pier_py_dmabuf_export(struct pier_py_buffer *buffer, uint64_t offset,
				uint64_t length)
{
	struct pier_py_dmabuf *self = pier_py_new(pier_py_dmabuf_type);
	int error;

	if (!self)
		return NULL;
	self->dmabuf.fd = -1;
	self->buffer = (struct pier_py_buffer *)Py_NewRef((PyObject *)buffer);
	Py_BEGIN_ALLOW_THREADS
	error = pier_dmabuf_export(buffer->buffer, offset, length, &self->dmabuf);
	Py_END_ALLOW_THREADS
	if (!error)
		return (PyObject *)self;
	pier_py_fail(error);
	Py_DECREF((PyObject *)self);
	return NULL;
}

static int destroy_dmabuf(void *dmabuf)
{
	pier_dmabuf_close(dmabuf);
	return 0;
}

static PyObject *close_dmabuf(struct pier_py_dmabuf *self, PyObject *unused)
{
	(void)unused;
	if (pier_py_use_close(&self->use, NAME, destroy_dmabuf, &self->dmabuf) < 0)
		return NULL;
	Py_RETURN_NONE;
}

static void delete_dmabuf(struct pier_py_dmabuf *self)
{
	PyObject_GC_UnTrack(self);
	pier_py_use_delete(&self->use, destroy_dmabuf, &self->dmabuf);
	Py_XDECREF((PyObject *)self->buffer);
	pier_py_delete(self);
}

static int traverse_dmabuf(struct pier_py_dmabuf *self, visitproc visit, void *arg)
{
	Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
	Py_VISIT((PyObject *)self->buffer);
	return 0;
}

static PyObject *get_fd(struct pier_py_dmabuf *self, PyObject *unused)
{
	int fd;

	(void)unused;
	if (!pier_py_use_begin(&self->use, NAME))
		return NULL;
	fd = self->dmabuf.fd;
	pier_py_use_end(&self->use);
	return PyLong_FromLong(fd);
}

static PyObject *get_number(struct pier_py_dmabuf *self, void *member)
{
	return PyLong_FromUnsignedLongLong(
		*(uint64_t *)((char *)&self->dmabuf + (size_t)member));
}

static PyMethodDef dmabuf_methods[] = {
	{ "fileno", PIER_PY_METHOD(get_fd), METH_NOARGS,
	  "fileno($self)\n--\n\n"
	  "Return the fd, which belongs to this object." },
	{ "close", PIER_PY_METHOD(close_dmabuf), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Close the fd. Regions and other holders of the dma-buf keep it. Again at any "
	  "time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef dmabuf_properties[] = {
	{ "offset", (getter)get_number, NULL,
	  "The offset of the range's first byte in the dma-buf, in bytes.",
	  (void *)offsetof(struct pier_dmabuf, offset) },
	{ "length", (getter)get_number, NULL, "The length of the range in bytes.",
	  (void *)offsetof(struct pier_dmabuf, length) },
	{ "iova", (getter)get_number, NULL,
	  "The address of the range, for a registration.",
	  (void *)offsetof(struct pier_dmabuf, iova) },
	PIER_PY_CLOSED_PROPERTY(pier_py_dmabuf),
	{ NULL },
};

static PyType_Slot dmabuf_slots[] = {
	{ Py_tp_doc, "A range of a Buffer as a dma-buf, from Buffer.export(). It covers "
		     "whole pages of the\n"
		     "host; offset is where the range begins in it." },
	{ Py_tp_dealloc, (void *)delete_dmabuf },
	{ Py_tp_traverse, (void *)traverse_dmabuf },
	{ Py_tp_methods, dmabuf_methods },
	{ Py_tp_getset, dmabuf_properties },
	{ 0, NULL },
};

static PyType_Spec dmabuf_spec = {
	.name = "pier.Dmabuf",
	.basicsize = sizeof(struct pier_py_dmabuf),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = dmabuf_slots,
};

int pier_py_add_dmabuf(PyObject *module)
{
	return pier_py_add_type(module, &dmabuf_spec, &pier_py_dmabuf_type);
}
