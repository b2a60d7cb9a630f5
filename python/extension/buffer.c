// SPDX-License-Identifier: BSD-3-Clause
#include "buffer.h"
#include "dlpack_producer.h"
#include "error.h"
#include "range.h"

#define NAME "buffer"

PyTypeObject *pier_py_buffer_type;

/*
 * Ends every constructor, with the result of the library's call. Looks up once the facts
 * that every view needs.
 */
static PyObject *complete_buffer(struct pier_py_buffer *self, int error)
{
	struct pier_buffer_info info;

	if (error) {
		pier_py_fail(error);
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	if (!pier_buffer_query(self->buffer, &info))
		self->device = pier_py_dlpack_device(&info);
	if (pier_buffer_map(self->buffer, &self->host))
		self->host = NULL;
	Py_END_ALLOW_THREADS
	self->readonly = self->memory.readonly;
	return (PyObject *)self;
}

static PyObject *new_buffer(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "memory", "length", NULL };
	struct pier_py_buffer *self;
	PyObject *memory, *name = NULL;
	unsigned long long length;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO&:Buffer", names,
					 &memory, pier_py_uint64, &length) ||
	    !pier_py_memory_name(memory, &name))
		return NULL;
	self = pier_py_new(type);
	if (!self) {
		Py_DECREF(name);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	error = pier_buffer_alloc(PyBytes_AsString(name), length, &self->buffer);
	Py_END_ALLOW_THREADS
	Py_DECREF(name);
	return complete_buffer(self, error);
}

static PyObject *from_dmabuf(PyObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "fd", "offset", "length", NULL };
	unsigned long long offset, length;
	struct pier_py_buffer *self;
	PyObject *file;
	int fd, error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO&O&:from_dmabuf", names,
					 &file, pier_py_uint64, &offset, pier_py_uint64,
					 &length))
		return NULL;
	fd = PyObject_AsFileDescriptor(file);
	self = fd < 0 ? NULL : pier_py_new((PyTypeObject *)type);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = pier_buffer_wrap_dmabuf(fd, offset, length, &self->buffer);
	Py_END_ALLOW_THREADS
	return complete_buffer(self, error);
}

static PyObject *wrap_object(PyObject *type, PyObject *object)
{
	struct pier_py_buffer *self = pier_py_new((PyTypeObject *)type);
	int error;

	if (!self)
		return NULL;
	if (pier_py_memory_get(object, &self->memory) < 0) {
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	error = pier_buffer_wrap(self->memory.address, self->memory.length,
				 &self->buffer);
	Py_END_ALLOW_THREADS
	return complete_buffer(self, error);
}

static int destroy_buffer(void *buffer)
{
	return pier_buffer_free(buffer);
}

static PyObject *close_buffer(struct pier_py_buffer *self, PyObject *unused)
{
	int closed = pier_py_use_close(&self->use, NAME, destroy_buffer, self->buffer);

	(void)unused;
	if (closed < 0)
		return NULL;
	/* Otherwise another thread may still be closing it. */
	if (closed)
		pier_py_memory_release(&self->memory);
	Py_RETURN_NONE;
}

static void delete_buffer(struct pier_py_buffer *self)
{
	PyObject_GC_UnTrack(self);
	/*
	 * In a child of fork(), a buffer with regions lasts until the child exits
	 * (EBUSY), and so does the memory that it wraps.
	 */
	if (pier_py_use_delete(&self->use, destroy_buffer, self->buffer))
		pier_py_memory_release(&self->memory);
	pier_py_delete(self);
}

static int traverse_buffer(struct pier_py_buffer *self, visitproc visit, void *arg)
{
	Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
	return pier_py_memory_traverse(&self->memory, visit, arg);
}

void *pier_py_buffer_map(struct pier_py_buffer *self)
{
	void *pointer;

	/* If it fails again, there is a sentence of this thread. */
	if (!self->host && pier_buffer_map(self->buffer, &pointer))
		PyErr_Format(PyExc_BufferError, "%s", pier_error_message());
	return self->host;
}

static int export_buffer(struct pier_py_buffer *self, Py_buffer *view, int flags)
{
	void *pointer;
	int error;

	view->obj = NULL;
	if (!pier_py_use_begin(&self->use, NAME))
		return -1;
	pointer = pier_py_buffer_map(self);
	if (pointer) {
		error = PyBuffer_FillInfo(view, (PyObject *)self, pointer,
					  (Py_ssize_t)pier_buffer_length(self->buffer),
					  self->readonly, flags);
		if (!error)
			return 0;
	}
	pier_py_use_end(&self->use);
	return -1;
}

static void release_export(struct pier_py_buffer *self, Py_buffer *view)
{
	(void)view;
	pier_py_use_end(&self->use);
}

static PyObject *export_dmabuf(struct pier_py_buffer *self, PyObject *arguments,
			       PyObject *keywords)
{
	static char *names[] = { "offset", "length", NULL };
	unsigned long long offset = 0;
	struct pier_py_range range;
	PyObject *length = NULL, *dmabuf = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&O:export", names,
					 pier_py_uint64, &offset, &length) ||
	    !pier_py_use_begin(&self->use, NAME))
		return NULL;
	if (pier_py_range_make(offset, length, pier_buffer_length(self->buffer), NAME,
			       &range))
		dmabuf = pier_py_dmabuf_export(self, range.offset, range.length);
	pier_py_use_end(&self->use);
	return dmabuf;
}

static Py_ssize_t get_length(struct pier_py_buffer *self)
{
	Py_ssize_t length;

	if (!pier_py_use_begin(&self->use, NAME))
		return -1;
	length = (Py_ssize_t)pier_buffer_length(self->buffer);
	pier_py_use_end(&self->use);
	return length;
}

static PyObject *get_address(struct pier_py_buffer *self, void *unused)
{
	uint64_t address;

	(void)unused;
	if (!pier_py_use_begin(&self->use, NAME))
		return NULL;
	address = pier_buffer_address(self->buffer);
	pier_py_use_end(&self->use);
	return PyLong_FromUnsignedLongLong(address);
}

static bool query_buffer(struct pier_py_buffer *self, struct pier_buffer_info *ret_info)
{
	int error;

	if (!pier_py_use_begin(&self->use, NAME))
		return false;
	Py_BEGIN_ALLOW_THREADS
	error = pier_buffer_query(self->buffer, ret_info);
	Py_END_ALLOW_THREADS
	pier_py_use_end(&self->use);
	if (error)
		pier_py_fail(error);
	return !error;
}

static PyObject *get_info(struct pier_py_buffer *self, void *unused)
{
	struct pier_buffer_info info;

	(void)unused;
	if (!query_buffer(self, &info))
		return NULL;
	return pier_py_record(
		"BufferInfo", "(sssssiNNKK)", info.backend, info.unit, info.kind,
		info.no_export, info.pci, info.numa_node, PyBool_FromLong(info.mappable),
		PyBool_FromLong(info.wrapped), (unsigned long long)info.allocation,
		(unsigned long long)info.allocation_length);
}

static PyObject *get_memory(struct pier_py_buffer *self, void *unused)
{
	struct pier_buffer_info info;

	(void)unused;
	if (!query_buffer(self, &info))
		return NULL;
	return PyUnicode_FromFormat("%s%s%s", info.backend, info.unit[0] ? ":" : "",
				    info.unit);
}

static PyObject *get_cai(struct pier_py_buffer *self, void *unused)
{
	struct pier_py_view *view = pier_py_view_all(self);
	PyObject *interface = NULL;

	(void)unused;
	if (view)
		interface = PyObject_GetAttrString((PyObject *)view,
						   "__cuda_array_interface__");
	Py_XDECREF((PyObject *)view);
	return interface;
}

static PyObject *describe_buffer(struct pier_py_buffer *self)
{
	PyObject *text;

	if (!pier_py_use_try(&self->use))
		return PyUnicode_FromString("<pier.Buffer, closed>");
	text = PyUnicode_FromFormat("<pier.Buffer of %zu bytes, %s>",
				    pier_buffer_length(self->buffer),
				    pier_buffer_backend(self->buffer));
	pier_py_use_end(&self->use);
	return text;
}

static PyMethodDef buffer_methods[] = {
	{ "from_dmabuf", PIER_PY_METHOD(from_dmabuf),
	  METH_VARARGS | METH_KEYWORDS | METH_CLASS,
	  "from_dmabuf($type, fd, offset, length)\n--\n\n"
	  "Make a buffer of a range of a dma-buf of another library or process, or of a "
	  "memfd.\n"
	  "fd: an int or an object with fileno(); the buffer has a duplicate of it." },
	{ "wrap", wrap_object, METH_O | METH_CLASS,
	  "wrap($type, obj, /)\n--\n\n"
	  "Make a buffer of the memory of an object, which it keeps until it is closed: "
	  "of any\n"
	  "contiguous object that ProtectionDomain.register() takes." },
	{ "copy_to", PIER_PY_METHOD(pier_py_buffer_copy_to), METH_VARARGS | METH_KEYWORDS,
	  "copy_to($self, offset, data)\n--\n\n"
	  "Copy bytes of the host into the buffer, at an offset in bytes. data: an "
	  "object "
	  "with\n"
	  "the buffer protocol, or a tensor of the CPU. Does not wait for code of the "
	  "device:\n"
	  "synchronise its stream first." },
	{ "copy_from", PIER_PY_METHOD(pier_py_buffer_copy_from),
	  METH_VARARGS | METH_KEYWORDS,
	  "copy_from($self, offset, into)\n--\n\n"
	  "Copy bytes of the buffer to the host. into: an object as for copy_to(), which "
	  "is\n"
	  "filled; or a number of bytes, which are returned." },
	{ "view", PIER_PY_METHOD(pier_py_view_make), METH_VARARGS | METH_KEYWORDS,
	  "view($self, shape=None, dtype='uint8', offset=0)\n--\n\n"
	  "Return a View, an array in C order, of a part of the buffer.\n\n"
	  "shape: in items; one can be -1: what follows offset. None: as -1.\n"
	  "dtype: of the items: a name (\"uint8\", \"float32\", \"bfloat16\", "
	  "\"<f4\"), or the\n"
	  "dtype of NumPy, PyTorch or JAX.\n"
	  "offset: of the first item, in bytes." },
	{ "export", PIER_PY_METHOD(export_dmabuf), METH_VARARGS | METH_KEYWORDS,
	  "export($self, offset=0, length=None)\n--\n\n"
	  "Export a range of the buffer as a Dmabuf. Close it before the buffer." },
	{ "close", PIER_PY_METHOD(close_buffer), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Free the buffer and, unless it was wrapped, its memory. Raises Busy while it "
	  "has\n"
	  "views, regions or exported dma-bufs. Again at any time." },
	PIER_PY_ARRAY_METHOD(pier_py_buffer_array),
	PIER_PY_DLPACK_METHODS(pier_py_buffer_dlpack, pier_py_buffer_dlpack_device),
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef buffer_properties[] = {
	{ "address", (getter)get_address, NULL,
	  "The address of its first byte, for the CPU or for the GPU that has it.",
	  NULL },
	{ "memory", (getter)get_memory, NULL, "Where it is: \"memfd\", \"cuda:0\".",
	  NULL },
	{ "info", (getter)get_info, NULL, "A description of its memory, BufferInfo.",
	  NULL },
	{ "__cuda_array_interface__", (getter)get_cai, NULL,
	  "The memory for CuPy, numba and others, if it is of CUDA.", NULL },
	PIER_PY_CLOSED_PROPERTY(pier_py_buffer),
	{ NULL },
};

static PyType_Slot buffer_slots[] = {
	{ Py_tp_doc, "Buffer(memory, length)\n--\n\n"
		     "Memory of an allocator backend, zeroed, or of another object.\n\n"
		     "memory: \"NAME\" or \"NAME:UNIT\" (backends()): \"host\", "
		     "\"memfd\", \"udmabuf\",\n"
		     "\"cuda:0\"; or a torch.device.\n"
		     "length: in bytes, more than 0.\n\n"
		     "It has the buffer protocol if the CPU can reach it, and DLPack: "
		     "numpy.from_dlpack(),\n"
		     "torch.from_dlpack(). Any thread may use it. A child of fork() has "
		     "a copy of memory\n"
		     "\"host\", and shares memory that has an fd." },
	{ Py_tp_new, (void *)new_buffer },
	{ Py_tp_dealloc, (void *)delete_buffer },
	{ Py_tp_traverse, (void *)traverse_buffer },
	{ Py_tp_repr, (void *)describe_buffer },
	{ Py_tp_methods, buffer_methods },
	{ Py_tp_getset, buffer_properties },
	{ Py_mp_length, (void *)get_length },
	{ Py_bf_getbuffer, (void *)export_buffer },
	{ Py_bf_releasebuffer, (void *)release_export },
	{ 0, NULL },
};

static PyType_Spec buffer_spec = {
	.name = "pier.Buffer",
	.basicsize = sizeof(struct pier_py_buffer),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.slots = buffer_slots,
};

int pier_py_add_buffer(PyObject *module)
{
	return pier_py_add_type(module, &buffer_spec, &pier_py_buffer_type);
}
