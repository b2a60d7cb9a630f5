/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"

#define NAME	    "buffer"
#define DMABUF_NAME "dma-buf"

PyTypeObject *pier_py_buffer_type;
PyTypeObject *pier_py_dmabuf_type;

/* Its type is 0 if DLPack has none for the memory. */
static struct dlpack_device choose_dlpack_device(const struct pier_buffer_info *info)
{
	int32_t unit = (int32_t)strtol(info->unit, NULL, 10);
	bool host = strstr(info->kind, "host");

	/* DLPack numbers the devices of page-locked and of managed memory 0. */
	if (strcmp(info->backend, "cuda") == 0) {
		if (strstr(info->kind, "managed"))
			return (struct dlpack_device){ DLPACK_CUDA_MANAGED, 0 };
		return host ? (struct dlpack_device){ DLPACK_CUDA_HOST, 0 }
			    : (struct dlpack_device){ DLPACK_CUDA, unit };
	}
	if (strcmp(info->backend, "hip") == 0)
		return host ? (struct dlpack_device){ DLPACK_ROCM_HOST, 0 }
			    : (struct dlpack_device){ DLPACK_ROCM, unit };
	if (strcmp(info->backend, "level_zero") == 0)
		return (struct dlpack_device){ DLPACK_ONEAPI, unit };
	return (struct dlpack_device){ info->mappable ? DLPACK_CPU : 0, 0 };
}

/*
 * Ends every constructor, with the result of the library's call; its exception is set.
 * Looks up once the facts that every view needs.
 */
static PyObject *complete_buffer(struct pier_py_buffer *self, int error)
{
	struct pier_buffer_info info;

	if (error) {
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	if (!pier_buffer_query(self->buffer, &info, sizeof(info))) {
		self->device = choose_dlpack_device(&info);
		memcpy(self->backend, info.backend, sizeof(self->backend));
	}
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
	error = PIER_PY_CALL(
		pier_buffer_alloc(PyBytes_AsString(name), length, &self->buffer));
	Py_DECREF(name);
	return complete_buffer(self, error);
}

static PyObject *from_dmabuf(PyObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "fd", "offset", "length", NULL };
	unsigned long long offset, length;
	struct pier_py_buffer *self;
	PyObject *file;
	int fd;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO&O&:from_dmabuf", names,
					 &file, pier_py_uint64, &offset, pier_py_uint64,
					 &length))
		return NULL;
	fd = PyObject_AsFileDescriptor(file);
	self = fd < 0 ? NULL : pier_py_new((PyTypeObject *)type);
	if (!self)
		return NULL;
	return complete_buffer(self, PIER_PY_CALL(pier_buffer_wrap_dmabuf(
					     fd, offset, length, &self->buffer)));
}

static PyObject *wrap_object(PyObject *type, PyObject *object)
{
	struct pier_py_buffer *self = pier_py_new((PyTypeObject *)type);

	if (!self)
		return NULL;
	if (pier_py_memory_get(object, &self->memory) < 0) {
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	return complete_buffer(
		self, PIER_PY_CALL(pier_buffer_wrap(self->memory.address,
						    self->memory.length, &self->buffer)));
}

static int destroy_buffer(void *buffer)
{
	return pier_buffer_free(buffer);
}

static PyObject *close_buffer(struct pier_py_buffer *self, PyObject *Py_UNUSED(unused))
{
	int closed = pier_py_use_close(&self->use, NAME, destroy_buffer, self->buffer);

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

static void release_export(struct pier_py_buffer *self, Py_buffer *Py_UNUSED(view))
{
	pier_py_use_end(&self->use);
}

/*
 * The memory of an argument, which the CPU reads or writes: its items in C order.
 *
 * flags  PyBUF_SIMPLE or PyBUF_WRITABLE
 */
static int get_host_memory(PyObject *object, int flags, struct pier_py_memory *ret_memory)
{
	memset(ret_memory, 0, sizeof(*ret_memory));
	if (PyObject_CheckBuffer(object)) {
		if (PyObject_GetBuffer(object, &ret_memory->buffer, flags) < 0)
			return -1;
		ret_memory->address = ret_memory->buffer.buf;
		ret_memory->length = (size_t)ret_memory->buffer.len;
		return 0;
	}
	if (pier_py_memory_get(object, ret_memory) < 0)
		return -1;
	if (ret_memory->on_cpu && ret_memory->in_c_order &&
	    !(ret_memory->readonly && flags == PyBUF_WRITABLE))
		return 0;
	if (!ret_memory->on_cpu)
		pier_py_refuse(EOPNOTSUPP, "the array is in memory of a device: copy it "
					   "to the host first");
	else if (!ret_memory->in_c_order)
		pier_py_refuse(EINVAL, "the items of the array are not in C order: take "
				       "a contiguous copy");
	else
		pier_py_refuse(EACCES, "the array to copy into is read-only");
	pier_py_memory_release(ret_memory);
	return -1;
}

static PyObject *copy_to(struct pier_py_buffer *self, PyObject *arguments,
			 PyObject *keywords)
{
	static char *names[] = { "offset", "data", NULL };
	struct pier_py_memory data;
	unsigned long long offset;
	PyObject *object;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&O:copy_to", names,
					 pier_py_uint64, &offset, &object))
		return NULL;
	if (self->readonly)
		return pier_py_refuse(EACCES,
				      "the memory that the buffer wraps is read-only");
	if (get_host_memory(object, PyBUF_SIMPLE, &data) < 0)
		return NULL;
	if (!pier_py_use_begin(&self->use, NAME)) {
		pier_py_memory_release(&data);
		return NULL;
	}
	error = PIER_PY_CALL(
		pier_buffer_copy_to(self->buffer, offset, data.address, data.length));
	pier_py_use_end(&self->use);
	pier_py_memory_release(&data);
	return error ? NULL : Py_NewRef(Py_None);
}

static int copy_out(struct pier_py_buffer *self, uint64_t offset, void *into,
		    size_t length)
{
	int error;

	if (!pier_py_use_begin(&self->use, NAME))
		return -1;
	error = PIER_PY_CALL(pier_buffer_copy_from(self->buffer, offset, into, length));
	pier_py_use_end(&self->use);
	return error;
}

static PyObject *copy_into(struct pier_py_buffer *self, uint64_t offset, PyObject *object)
{
	struct pier_py_memory into;
	int error;

	if (get_host_memory(object, PyBUF_WRITABLE, &into) < 0)
		return NULL;
	error = copy_out(self, offset, into.address, into.length);
	pier_py_memory_release(&into);
	return error < 0 ? NULL : Py_NewRef(Py_None);
}

/* Arrays of any size can be an index, too: by their single element. */
static bool is_number(PyObject *object)
{
	PyObject *dlpack;

	if (!PyIndex_Check(object))
		return false;
	dlpack = PyObject_GetAttrString(object, "__dlpack__");
	PyErr_Clear();
	Py_XDECREF(dlpack);
	return !dlpack;
}

static PyObject *copy_from(struct pier_py_buffer *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "offset", "into", NULL };
	unsigned long long offset, length;
	struct pier_py_range range;
	PyObject *into, *bytes;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&O:copy_from", names,
					 pier_py_uint64, &offset, &into))
		return NULL;
	if (!is_number(into))
		return copy_into(self, offset, into);
	/* Checked before so much memory is allocated. */
	if (!pier_py_uint64(into, &length) || !pier_py_use_begin(&self->use, NAME))
		return NULL;
	bytes = NULL;
	if (pier_py_range_make(offset, into, pier_buffer_length(self->buffer), NAME,
			       &range))
		bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
	if (bytes && copy_out(self, offset, PyBytes_AsString(bytes), length) < 0)
		Py_CLEAR(bytes);
	pier_py_use_end(&self->use);
	return bytes;
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

static PyObject *describe_address(struct pier_py_buffer *self)
{
	return PyLong_FromUnsignedLongLong(pier_buffer_address(self->buffer));
}

static PyObject *describe_info(struct pier_py_buffer *self)
{
	struct pier_buffer_info info;

	if (PIER_PY_CALL(pier_buffer_query(self->buffer, &info, sizeof(info))))
		return NULL;
	return pier_py_record(
		"BufferInfo", "(sssssiNNKK)", info.backend, info.unit, info.kind,
		info.no_export, info.pci, info.numa_node, PyBool_FromLong(info.mappable),
		PyBool_FromLong(info.wrapped), (unsigned long long)info.allocation,
		(unsigned long long)info.allocation_length);
}

static PyObject *describe_buffer(struct pier_py_buffer *self)
{
	PyObject *text;

	if (!pier_py_use_try(&self->use))
		return PyUnicode_FromString("<pier.Buffer, closed>");
	text = PyUnicode_FromFormat("<pier.Buffer of %zu bytes, %s>",
				    pier_buffer_length(self->buffer), self->backend);
	pier_py_use_end(&self->use);
	return text;
}

static PyObject *make_dmabuf(struct pier_py_buffer *buffer, uint64_t offset,
			     uint64_t length)
{
	struct pier_py_dmabuf *self = pier_py_new(pier_py_dmabuf_type);

	if (!self)
		return NULL;
	self->dmabuf.fd = -1;
	self->buffer = (struct pier_py_buffer *)Py_NewRef((PyObject *)buffer);
	if (!PIER_PY_CALL(pier_dmabuf_export(buffer->buffer, offset, length,
					     PIER_MAPPING_AUTO, &self->dmabuf)))
		return (PyObject *)self;
	Py_DECREF((PyObject *)self);
	return NULL;
}

static int destroy_dmabuf(void *dmabuf)
{
	pier_dmabuf_close(dmabuf);
	return 0;
}

static PyObject *close_dmabuf(struct pier_py_dmabuf *self, PyObject *Py_UNUSED(unused))
{
	if (pier_py_use_close(&self->use, DMABUF_NAME, destroy_dmabuf, &self->dmabuf) < 0)
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

static PyObject *get_dmabuf_fd(struct pier_py_dmabuf *self, PyObject *Py_UNUSED(unused))
{
	int fd;

	if (!pier_py_use_begin(&self->use, DMABUF_NAME))
		return NULL;
	fd = self->dmabuf.fd;
	pier_py_use_end(&self->use);
	return PyLong_FromLong(fd);
}

static PyMethodDef dmabuf_methods[] = {
	{ "fileno", PIER_PY_METHOD(get_dmabuf_fd), METH_NOARGS,
	  "fileno($self)\n--\n\n"
	  "Return the fd, which belongs to this object." },
	{ "close", PIER_PY_METHOD(close_dmabuf), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Close the fd. Regions and other holders of the dma-buf keep it. Again at\n"
	  "any time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyMemberDef dmabuf_members[] = {
	{ "offset", T_ULONGLONG, offsetof(struct pier_py_dmabuf, dmabuf.offset), READONLY,
	  "The offset of the range's first byte in the dma-buf, in bytes." },
	{ "length", T_ULONGLONG, offsetof(struct pier_py_dmabuf, dmabuf.length), READONLY,
	  "The length of the range in bytes." },
	{ "iova", T_ULONGLONG, offsetof(struct pier_py_dmabuf, dmabuf.iova), READONLY,
	  "The address of the range, for a registration." },
	{ NULL },
};

static PyGetSetDef dmabuf_properties[] = {
	PIER_PY_CLOSED_PROPERTY(pier_py_dmabuf),
	{ NULL },
};

static PyType_Slot dmabuf_slots[] = {
	{ Py_tp_doc,
	  "A range of a Buffer as a dma-buf, from Buffer.export(). It covers whole\n"
	  "pages of the host; offset is where the range begins in it." },
	{ Py_tp_dealloc, (void *)delete_dmabuf },
	{ Py_tp_traverse, (void *)traverse_dmabuf },
	{ Py_tp_methods, dmabuf_methods },
	{ Py_tp_members, dmabuf_members },
	{ Py_tp_getset, dmabuf_properties },
	{ 0, NULL },
};

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
		dmabuf = make_dmabuf(self, range.offset, range.length);
	pier_py_use_end(&self->use);
	return dmabuf;
}

static PyMethodDef buffer_methods[] = {
	{ "from_dmabuf", PIER_PY_METHOD(from_dmabuf),
	  METH_VARARGS | METH_KEYWORDS | METH_CLASS,
	  "from_dmabuf($type, fd, offset, length)\n--\n\n"
	  "Make a buffer of a range of a dma-buf of another library or process, or of\n"
	  "a memfd.\n"
	  "fd: an int or an object with fileno(); the buffer has a duplicate of it." },
	{ "wrap", wrap_object, METH_O | METH_CLASS,
	  "wrap($type, obj, /)\n--\n\n"
	  "Make a buffer of the memory of an object, which it keeps until it is\n"
	  "closed: of any contiguous object that ProtectionDomain.register() takes." },
	{ "copy_to", PIER_PY_METHOD(copy_to), METH_VARARGS | METH_KEYWORDS,
	  "copy_to($self, offset, data)\n--\n\n"
	  "Copy bytes of the host into the buffer, at an offset in bytes. data: an\n"
	  "object with the buffer protocol, or a tensor of the CPU. Does not wait for\n"
	  "code of the device: synchronise its stream first." },
	{ "copy_from", PIER_PY_METHOD(copy_from), METH_VARARGS | METH_KEYWORDS,
	  "copy_from($self, offset, into)\n--\n\n"
	  "Copy bytes of the buffer to the host. into: an object as for copy_to(),\n"
	  "which is filled; or a number of bytes, which are returned." },
	{ "export", PIER_PY_METHOD(export_dmabuf), METH_VARARGS | METH_KEYWORDS,
	  "export($self, offset=0, length=None)\n--\n\n"
	  "Export a range of the buffer as a Dmabuf. Close it before the buffer." },
	{ "close", PIER_PY_METHOD(close_buffer), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Free the buffer and, unless it was wrapped, its memory. Raises Busy while\n"
	  "it has views, regions or exported dma-bufs. Again at any time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef buffer_properties[] = {
	{ "address", pier_py_use_get, NULL,
	  "The address of its first byte, for the CPU or for the GPU that has it.",
	  PIER_PY_PROPERTY(pier_py_buffer, NAME, describe_address) },
	{ "info", pier_py_use_get, NULL, "A description of its memory, BufferInfo.",
	  PIER_PY_PROPERTY(pier_py_buffer, NAME, describe_info) },
	PIER_PY_CLOSED_PROPERTY(pier_py_buffer),
	{ NULL },
};

static PyType_Slot buffer_slots[] = {
	{ Py_tp_doc,
	  "Buffer(memory, length)\n--\n\n"
	  "Memory of an allocator backend, zeroed, or of another object.\n\n"
	  "memory: \"NAME\" or \"NAME:UNIT\" (backends()): \"host\", \"memfd\",\n"
	  "\"udmabuf\", \"cuda:0\"; or a torch.device.\n"
	  "length: in bytes, more than 0.\n\n"
	  "It has the buffer protocol if the CPU can reach it, and DLPack:\n"
	  "numpy.from_dlpack(), torch.from_dlpack(). Any thread may use it. A child of\n"
	  "fork() has a copy of memory \"host\", and shares memory that has an fd." },
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

int pier_py_add_buffer(PyObject *module)
{
	if (pier_py_add_type(module, "pier.Buffer", sizeof(struct pier_py_buffer),
			     buffer_slots, &pier_py_buffer_type) < 0)
		return -1;
	return pier_py_add_type(module, "pier.Dmabuf", sizeof(struct pier_py_dmabuf),
				dmabuf_slots, &pier_py_dmabuf_type);
}
