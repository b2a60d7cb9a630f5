// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "dlpack_producer.h"
#include "error.h"
#include "view.h"

PyTypeObject *pier_py_view_type;

static struct pier_py_view *allocate_view(const struct pier_py_window *window,
					  const struct pier_py_dtype *dtype,
					  Py_ssize_t dimensions)
{
	struct pier_py_buffer *buffer = window->buffer;
	allocfunc allocate = (allocfunc)PyType_GetSlot(pier_py_view_type, Py_tp_alloc);
	struct pier_py_view *self;

	if (!pier_py_use_begin(&buffer->use, "buffer"))
		return NULL;
	self = (struct pier_py_view *)allocate(pier_py_view_type, dimensions);
	if (!self) {
		pier_py_use_end(&buffer->use);
		return NULL;
	}
	self->buffer = (struct pier_py_buffer *)Py_NewRef((PyObject *)buffer);
	self->keeper = Py_XNewRef(window->keeper);
	self->dtype = dtype;
	self->strides = self->shape + dimensions;
	return self;
}

/* Sets the strides and the length. Returns false with an exception. */
static bool measure_view(struct pier_py_view *self, uint64_t offset, uint64_t total)
{
	uint64_t length = pier_py_dtype_size(self->dtype);

	for (int i = pier_py_view_dimensions(self) - 1; i >= 0; i--) {
		self->strides[i] = (Py_ssize_t)length;
		if (__builtin_mul_overflow(length, (uint64_t)self->shape[i], &length) ||
		    length > PY_SSIZE_T_MAX)
			goto out_of_range;
	}
	self->length = length;
	if (offset <= total && length <= total - offset)
		return true;
out_of_range:
	pier_py_refuse(ERANGE, "a view of %s at offset %llu is not inside the %llu bytes",
		       self->dtype->name, (unsigned long long)offset,
		       (unsigned long long)total);
	return false;
}

/* The dimension `unknown` gets the items that follow offset, divided by the others. */
static bool take_rest(struct pier_py_view *self, int unknown, uint64_t offset,
		      uint64_t total)
{
	uint64_t size = pier_py_dtype_size(self->dtype);

	for (int i = 0; i < pier_py_view_dimensions(self); i++) {
		if (i != unknown &&
		    __builtin_mul_overflow(size, (uint64_t)self->shape[i], &size))
			size = 0;
	}
	if (offset > total || size == 0 || (total - offset) % size) {
		pier_py_refuse(ERANGE,
			       "the rest of %llu bytes at offset %llu is no whole number "
			       "of rows of %llu bytes: give the whole shape",
			       (unsigned long long)total, (unsigned long long)offset,
			       (unsigned long long)size);
		return false;
	}
	self->shape[unknown] = (Py_ssize_t)((total - offset) / size);
	return true;
}

/* Sets the index of the dimension that is -1, or -1: none is. */
static bool read_shape(struct pier_py_view *self, PyObject *shape, int *ret_unknown)
{
	*ret_unknown = -1;
	for (int i = 0; i < pier_py_view_dimensions(self); i++) {
		PyObject *item = PyTuple_GetItem(shape, i);

		self->shape[i] = PyNumber_AsSsize_t(item, PyExc_OverflowError);
		if (self->shape[i] == -1 && PyErr_Occurred())
			return false;
		if (self->shape[i] >= 0)
			continue;
		if (self->shape[i] < -1 || *ret_unknown >= 0) {
			pier_py_refuse(EINVAL,
				       "a dimension of the shape is %zd: it must "
				       "be 0 or more, and one can be -1",
				       self->shape[i]);
			return false;
		}
		*ret_unknown = i;
	}
	return true;
}

static bool set_shape(struct pier_py_view *self, PyObject *shape, uint64_t offset,
		      uint64_t total)
{
	int unknown = 0;

	if (shape && !read_shape(self, shape, &unknown))
		return false;
	return unknown < 0 || take_rest(self, unknown, offset, total);
}

static struct pier_py_view *make_view(const struct pier_py_window *window,
				      PyObject *shape, const struct pier_py_dtype *dtype,
				      uint64_t offset)
{
	Py_ssize_t dimensions = shape ? PyTuple_Size(shape) : 1;
	uint64_t total = window->range.length;
	struct pier_py_view *self;

	if (dimensions > PyBUF_MAX_NDIM) {
		pier_py_refuse(EINVAL, "%zd dimensions are more than %d", dimensions,
			       PyBUF_MAX_NDIM);
		return NULL;
	}
	self = allocate_view(window, dtype, dimensions);
	if (!self)
		return NULL;
	if (set_shape(self, shape, offset, total) && measure_view(self, offset, total)) {
		self->offset = window->range.offset + offset;
		return self;
	}
	Py_DECREF((PyObject *)self);
	return NULL;
}

PyObject *pier_py_window_view(const struct pier_py_window *window, PyObject *arguments,
			      PyObject *keywords)
{
	static char *names[] = { "shape", "dtype", "offset", NULL };
	const struct pier_py_dtype *dtype = pier_py_dtype_uint8;
	PyObject *shape = Py_None, *type = NULL;
	unsigned long long offset = 0;
	struct pier_py_view *view;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|OOO&:view", names, &shape,
					 &type, pier_py_uint64, &offset))
		return NULL;
	if (type)
		dtype = pier_py_dtype_find(type);
	if (!dtype)
		return NULL;
	if (shape == Py_None)
		return (PyObject *)make_view(window, NULL, dtype, offset);
	shape = PyLong_Check(shape) ? PyTuple_Pack(1, shape) : PySequence_Tuple(shape);
	if (!shape)
		return NULL;
	view = make_view(window, shape, dtype, offset);
	Py_DECREF(shape);
	return (PyObject *)view;
}

static struct pier_py_window window_of_buffer(struct pier_py_buffer *buffer)
{
	return (struct pier_py_window){ buffer,
					{ 0, pier_buffer_length(buffer->buffer) } };
}

PyObject *pier_py_view_make(struct pier_py_buffer *buffer, PyObject *arguments,
			    PyObject *keywords)
{
	struct pier_py_window window;
	PyObject *view;

	if (!pier_py_use_begin(&buffer->use, "buffer"))
		return NULL;
	window = window_of_buffer(buffer);
	view = pier_py_window_view(&window, arguments, keywords);
	pier_py_use_end(&buffer->use);
	return view;
}

struct pier_py_view *pier_py_view_all(struct pier_py_buffer *buffer)
{
	struct pier_py_window window;
	struct pier_py_view *view;

	if (!pier_py_use_begin(&buffer->use, "buffer"))
		return NULL;
	window = window_of_buffer(buffer);
	view = make_view(&window, NULL, pier_py_dtype_uint8, 0);
	pier_py_use_end(&buffer->use);
	return view;
}

/* Sets what an item of a key takes of a dimension. Returns false with an exception. */
static bool read_index(PyObject *item, Py_ssize_t size, Py_ssize_t *ret_start,
		       Py_ssize_t *ret_count)
{
	Py_ssize_t stop, step, given;

	if (PySlice_Check(item)) {
		if (PySlice_Unpack(item, ret_start, &stop, &step) < 0)
			return false;
		*ret_count = PySlice_AdjustIndices(size, ret_start, &stop, step);
		if (step == 1)
			return true;
		pier_py_refuse(EINVAL, "the step of a slice of a view is %zd, not 1",
			       step);
		return false;
	}
	if (!PyIndex_Check(item)) {
		pier_py_wrong_type(item, "a view is indexed by int and slice");
		return false;
	}
	given = PyNumber_AsSsize_t(item, PyExc_IndexError);
	if (given == -1 && PyErr_Occurred())
		return false;
	*ret_start = given < 0 ? given + size : given;
	*ret_count = 1;
	if (*ret_start >= 0 && *ret_start < size)
		return true;
	PyErr_Format(PyExc_IndexError, "index %zd is not inside the dimension of %zd",
		     given, size);
	return false;
}

/* A part in C order. The keys are as many as the dimensions, or fewer. */
static struct pier_py_view *take_part(struct pier_py_view *self, PyObject *keys,
				      Py_ssize_t key_count)
{
	const struct pier_py_window window = { self->buffer, { 0, 0 }, self->keeper };
	Py_ssize_t shape[PyBUF_MAX_NDIM], start, count, dimensions = 0;
	struct pier_py_view *part;
	bool follows = false; /* a dimension of several items */
	uint64_t offset = 0;

	for (int i = 0; i < pier_py_view_dimensions(self); i++) {
		PyObject *item = i < key_count ? PyTuple_GetItem(keys, i) : NULL;

		start = 0;
		count = self->shape[i];
		if (item && !read_index(item, self->shape[i], &start, &count))
			return NULL;
		if (follows && count && count != self->shape[i]) {
			pier_py_refuse(EINVAL, "the part is not contiguous: index "
					       "numpy.asarray(view) or "
					       "torch.from_dlpack(view)");
			return NULL;
		}
		offset += (uint64_t)start * (uint64_t)self->strides[i];
		if (!item || PySlice_Check(item)) {
			shape[dimensions++] = count;
			follows = follows || count > 1;
		}
	}
	part = allocate_view(&window, self->dtype, dimensions);
	if (!part)
		return NULL;
	memcpy(part->shape, shape, (size_t)dimensions * sizeof(shape[0]));
	if (measure_view(part, offset, self->length)) {
		part->offset = self->offset + offset;
		return part;
	}
	Py_DECREF((PyObject *)part);
	return NULL;
}

static PyObject *get_part(struct pier_py_view *self, PyObject *key)
{
	PyObject *keys = PyTuple_Check(key) ? Py_NewRef(key) : PyTuple_Pack(1, key);
	Py_ssize_t count = keys ? PyTuple_Size(keys) : 0;
	struct pier_py_view *part = NULL;

	if (count > 0 && PyTuple_GetItem(keys, count - 1) == Py_Ellipsis)
		count--; /* all of the other dimensions */
	if (keys && count > pier_py_view_dimensions(self))
		PyErr_Format(PyExc_IndexError, "the view has %d dimensions, not %zd",
			     pier_py_view_dimensions(self), count);
	else if (keys)
		part = take_part(self, keys, count);
	Py_XDECREF(keys);
	return (PyObject *)part;
}

/* The same memory as items of a type that the buffer protocol has. */
static PyObject *view_as_integers(struct pier_py_view *self)
{
	const struct pier_py_window window = { self->buffer, { 0, 0 }, self->keeper };
	bool bytes = pier_py_dtype_size(self->dtype) == 1;
	struct pier_py_view *integers;

	if (self->dtype->format)
		return Py_NewRef((PyObject *)self);
	integers = allocate_view(&window,
				 bytes ? pier_py_dtype_uint8 : pier_py_dtype_uint16,
				 pier_py_view_dimensions(self));
	if (!integers)
		return NULL;
	memcpy(integers->shape, self->shape,
	       2 * sizeof(self->shape[0]) * (size_t)pier_py_view_dimensions(self));
	integers->offset = self->offset;
	integers->length = self->length;
	return (PyObject *)integers;
}

/* The dtype of a type that NumPy itself lacks. NULL: raised. */
static PyObject *find_ml_dtype(const struct pier_py_dtype *dtype)
{
	PyObject *module = PyImport_ImportModule("ml_dtypes");
	PyObject *found = module ? PyObject_GetAttrString(module, dtype->name) : NULL;

	if (!found && (PyErr_ExceptionMatches(PyExc_ImportError) ||
		       PyErr_ExceptionMatches(PyExc_AttributeError)))
		PyErr_Format(PyExc_TypeError,
			     "NumPy has no %s%s: use DLPack, or a view of the dtype %s",
			     dtype->name, module ? "" : " without the package ml_dtypes",
			     pier_py_dtype_size(dtype) == 1 ? "uint8" : "uint16");
	Py_XDECREF(module);
	return found;
}

/* NumPy calls this if the buffer protocol fails, which it otherwise hides. */
static PyObject *make_array(struct pier_py_view *self, PyObject *numpy)
{
	PyObject *integers = view_as_integers(self), *memory = NULL, *array = NULL;
	PyObject *dtype = NULL, *typed = NULL;

	if (integers)
		memory = PyMemoryView_FromObject(integers);
	if (memory)
		array = PyObject_CallMethod(numpy, "asarray", "O", memory);
	if (array && self->dtype->format)
		typed = Py_NewRef(array);
	else if (array)
		dtype = find_ml_dtype(self->dtype);
	if (dtype)
		typed = PyObject_CallMethod(array, "view", "O", dtype);
	Py_XDECREF(dtype);
	Py_XDECREF(array);
	Py_XDECREF(memory);
	Py_XDECREF(integers);
	return typed;
}

PyObject *pier_py_view_array(struct pier_py_view *self, PyObject *arguments,
			     PyObject *keywords)
{
	static char *names[] = { "dtype", "copy", NULL };
	PyObject *dtype = Py_None, *copy = Py_None, *array, *result = NULL;
	PyObject *numpy, *convert = NULL, *given = NULL, *options = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|OO:__array__", names,
					 &dtype, &copy))
		return NULL;
	numpy = PyImport_ImportModule("numpy");
	array = numpy ? make_array(self, numpy) : NULL;
	if (array) {
		convert = PyObject_GetAttrString(numpy, "array");
		given = PyTuple_Pack(1, array);
		/* None: only if needed, as False before NumPy 2. */
		options = Py_BuildValue("{sOsO}", "dtype", dtype, "copy", copy);
	}
	if (convert && given && options)
		result = PyObject_Call(convert, given, options);
	Py_XDECREF(options);
	Py_XDECREF(given);
	Py_XDECREF(convert);
	Py_XDECREF(array);
	Py_XDECREF(numpy);
	return result;
}

PyObject *pier_py_view_call(struct pier_py_buffer *buffer, pier_py_view_method *method,
			    PyObject *arguments, PyObject *keywords)
{
	struct pier_py_view *view = pier_py_view_all(buffer);
	PyObject *result;

	if (!view)
		return NULL;
	result = method(view, arguments, keywords);
	Py_DECREF((PyObject *)view);
	return result;
}

PyObject *pier_py_buffer_array(struct pier_py_buffer *buffer, PyObject *arguments,
			       PyObject *keywords)
{
	return pier_py_view_call(buffer, pier_py_view_array, arguments, keywords);
}

static void delete_view(struct pier_py_view *self)
{
	PyObject_GC_UnTrack(self);
	if (self->weak_references)
		PyObject_ClearWeakRefs((PyObject *)self);
	pier_py_use_end(&self->buffer->use);
	Py_DECREF((PyObject *)self->buffer);
	Py_XDECREF(self->keeper);
	pier_py_delete(self);
}

static int traverse_view(struct pier_py_view *self, visitproc visit, void *arg)
{
	Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
	Py_VISIT((PyObject *)self->buffer);
	Py_VISIT(self->keeper);
	return 0;
}

static int export_view(struct pier_py_view *self, Py_buffer *view, int flags)
{
	void *pointer;

	view->obj = NULL;
	if (!self->dtype->format) {
		PyErr_Format(PyExc_BufferError,
			     "the buffer protocol has no format for %s: use "
			     "DLPack",
			     self->dtype->name);
		return -1;
	}
	if ((flags & PyBUF_WRITABLE) && self->buffer->readonly) {
		PyErr_SetString(PyExc_BufferError, "the memory is read-only");
		return -1;
	}
	if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS &&
	    pier_py_view_dimensions(self) > 1) {
		PyErr_SetString(PyExc_BufferError, "the view is in C order");
		return -1;
	}
	pointer = pier_py_buffer_map(self->buffer);
	if (!pointer)
		return -1;
	*view = (Py_buffer){
		.buf = (char *)pointer + self->offset,
		.obj = Py_NewRef((PyObject *)self),
		.len = (Py_ssize_t)self->length,
		.itemsize = (Py_ssize_t)pier_py_dtype_size(self->dtype),
		.readonly = self->buffer->readonly,
		.ndim = pier_py_view_dimensions(self),
		.format = flags & PyBUF_FORMAT ? (char *)self->dtype->format : NULL,
		.shape = flags & PyBUF_ND ? self->shape : NULL,
		.strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides
								    : NULL,
	};
	return 0;
}

static PyObject *make_tuple(const Py_ssize_t *numbers, int count)
{
	PyObject *tuple = PyTuple_New(count);

	for (int i = 0; tuple && i < count; i++) {
		PyObject *number = PyLong_FromSsize_t(numbers[i]);

		if (!number || PyTuple_SetItem(tuple, i, number) < 0)
			Py_CLEAR(tuple);
	}
	return tuple;
}

static PyObject *get_shape(struct pier_py_view *self, void *unused)
{
	(void)unused;
	return make_tuple(self->shape, pier_py_view_dimensions(self));
}

static PyObject *get_strides(struct pier_py_view *self, void *unused)
{
	(void)unused;
	return make_tuple(self->strides, pier_py_view_dimensions(self));
}

static PyObject *get_dtype(struct pier_py_view *self, void *unused)
{
	(void)unused;
	return PyUnicode_FromString(self->dtype->name);
}

static PyObject *get_buffer(struct pier_py_view *self, void *unused)
{
	(void)unused;
	return Py_NewRef((PyObject *)self->buffer);
}

static PyObject *get_address(struct pier_py_view *self, void *unused)
{
	(void)unused;
	return PyLong_FromUnsignedLongLong(pier_py_view_address(self));
}

/* The CUDA array interface, version 3, of numba's documentation. */
static PyObject *get_cai(struct pier_py_view *self, void *unused)
{
	int32_t device = self->buffer->device.type;

	(void)unused;
	if (!self->dtype->typestr ||
	    (device != DLPACK_CUDA && device != DLPACK_CUDA_HOST &&
	     device != DLPACK_CUDA_MANAGED)) {
		PyErr_Format(PyExc_AttributeError,
			     "%s of %s has no __cuda_array_interface__: use DLPack",
			     self->dtype->name,
			     pier_buffer_backend(self->buffer->buffer));
		return NULL;
	}
	/* Without a stream: whatever wrote the memory has completed. */
	return Py_BuildValue("{sNsss(KN)sOsOsi}", "shape", get_shape(self, NULL),
			     "typestr", self->dtype->typestr, "data",
			     (unsigned long long)pier_py_view_address(self),
			     PyBool_FromLong(self->buffer->readonly), "strides", Py_None,
			     "stream", Py_None, "version", 3);
}

static PyObject *describe_view(struct pier_py_view *self)
{
	PyObject *shape = get_shape(self, NULL);
	PyObject *text = NULL;

	if (shape)
		text = PyUnicode_FromFormat("<pier.View %R of %s at offset %llu of %R>",
					    shape, self->dtype->name,
					    (unsigned long long)self->offset,
					    (PyObject *)self->buffer);
	Py_XDECREF(shape);
	return text;
}

static PyObject *to_bytes(struct pier_py_view *self, PyObject *unused)
{
	(void)unused;
	return PyObject_CallMethod((PyObject *)self->buffer, "copy_from", "KK",
				   (unsigned long long)self->offset,
				   (unsigned long long)self->length);
}

/*
 * jax.numpy.asarray() would otherwise pass the attribute `dtype`, a string, to NumPy,
 * which refuses it.
 */
static PyObject *to_jax(PyObject *self, PyObject *unused)
{
	PyObject *module = PyImport_ImportModule("jax.dlpack"), *array;

	(void)unused;
	if (!module)
		return NULL;
	array = PyObject_CallMethod(module, "from_dlpack", "O", self);
	Py_DECREF(module);
	return array;
}

static Py_ssize_t get_length(struct pier_py_view *self)
{
	if (pier_py_view_dimensions(self) > 0)
		return self->shape[0];
	PyErr_SetString(PyExc_TypeError, "a view without dimensions has no len()");
	return -1;
}

static PyMethodDef view_methods[] = {
	{ "tobytes", PIER_PY_METHOD(to_bytes), METH_NOARGS,
	  "tobytes($self)\n--\n\n"
	  "Return a copy of its bytes, also of those of a GPU." },
	PIER_PY_ARRAY_METHOD(pier_py_view_array),
	{ "__jax_array__", PIER_PY_METHOD(to_jax), METH_NOARGS,
	  "__jax_array__($self)\n--\n\n"
	  "The method of JAX: return jax.dlpack.from_dlpack(self)." },
	PIER_PY_DLPACK_METHODS(pier_py_view_dlpack, pier_py_view_dlpack_device),
	{ NULL },
};

static PyMemberDef view_members[] = {
	{ "__weaklistoffset__", T_PYSSIZET,
	  offsetof(struct pier_py_view, weak_references), READONLY, NULL },
	{ "offset", T_ULONGLONG, offsetof(struct pier_py_view, offset), READONLY,
	  "Its first byte in the buffer." },
	{ "nbytes", T_ULONGLONG, offsetof(struct pier_py_view, length), READONLY,
	  "Its length in bytes." },
	{ NULL },
};

static PyGetSetDef view_properties[] = {
	{ "shape", (getter)get_shape, NULL, "The size of each dimension, in items.",
	  NULL },
	{ "strides", (getter)get_strides, NULL, "The strides of C order, in bytes.",
	  NULL },
	{ "dtype", (getter)get_dtype, NULL, "The name of the type of its items.", NULL },
	{ "buffer", (getter)get_buffer, NULL, "The Buffer.", NULL },
	{ "address", (getter)get_address, NULL, "The address of its first byte.", NULL },
	{ "__cuda_array_interface__", (getter)get_cai, NULL,
	  "The memory for CuPy, numba and others, if it is of CUDA.", NULL },
	{ NULL },
};

static PyType_Slot view_slots[] = {
	{ Py_tp_doc,
	  "An array in a Buffer, from Buffer.view(). numpy.asarray(view) and\n"
	  "torch.from_dlpack(view) use its memory without a copy.\n\n"
	  "view[1], view[1, 2:4] and the like are Views of contiguous parts.\n\n"
	  "Every user of its memory keeps the view, so a weak reference to it "
	  "tells when the\n"
	  "last consumer is gone. The buffer cannot be closed before." },
	{ Py_tp_dealloc, (void *)delete_view },
	{ Py_tp_traverse, (void *)traverse_view },
	{ Py_tp_repr, (void *)describe_view },
	{ Py_tp_methods, view_methods },
	{ Py_tp_members, view_members },
	{ Py_tp_getset, view_properties },
	{ Py_bf_getbuffer, (void *)export_view },
	{ Py_mp_length, (void *)get_length },
	{ Py_mp_subscript, (void *)get_part },
	{ 0, NULL },
};

static PyType_Spec view_spec = {
	.name = "pier.View",
	.basicsize = offsetof(struct pier_py_view, shape),
	.itemsize = 2 * sizeof(Py_ssize_t),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = view_slots,
};

int pier_py_add_view(PyObject *module)
{
	return pier_py_add_type(module, &view_spec, &pier_py_view_type);
}
