/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "view.h"

/* The typestr has the byte order of the machine: "<" on those that pier runs on. */
static const struct pier_py_dtype dtypes[] = {
	{ "uint8", "B", "|u1", { DLPACK_UINT, 8, 1 }, 1 },
	{ "uint16", "H", "<u2", { DLPACK_UINT, 16, 1 }, 2 },
	{ "uint32", "I", "<u4", { DLPACK_UINT, 32, 1 }, 4 },
	{ "uint64", "Q", "<u8", { DLPACK_UINT, 64, 1 }, 8 },
	{ "int8", "b", "|i1", { DLPACK_INT, 8, 1 }, 1 },
	{ "int16", "h", "<i2", { DLPACK_INT, 16, 1 }, 2 },
	{ "int32", "i", "<i4", { DLPACK_INT, 32, 1 }, 4 },
	{ "int64", "q", "<i8", { DLPACK_INT, 64, 1 }, 8 },
	{ "float16", "e", "<f2", { DLPACK_FLOAT, 16, 1 }, 2 },
	{ "float32", "f", "<f4", { DLPACK_FLOAT, 32, 1 }, 4 },
	{ "float64", "d", "<f8", { DLPACK_FLOAT, 64, 1 }, 8 },
	{ "bfloat16", NULL, NULL, { DLPACK_BFLOAT, 16, 1 }, 2 },
	{ "float8_e4m3fn", NULL, NULL, { DLPACK_FLOAT8_E4M3FN, 8, 1 }, 1 },
	{ "float8_e4m3fnuz", NULL, NULL, { DLPACK_FLOAT8_E4M3FNUZ, 8, 1 }, 1 },
	{ "float8_e5m2", NULL, NULL, { DLPACK_FLOAT8_E5M2, 8, 1 }, 1 },
	{ "float8_e5m2fnuz", NULL, NULL, { DLPACK_FLOAT8_E5M2FNUZ, 8, 1 }, 1 },
	{ "float8_e8m0fnu", NULL, NULL, { DLPACK_FLOAT8_E8M0FNU, 8, 1 }, 1 },
	/* ml_dtypes has one item in a byte, PyTorch two. */
	{ "float4_e2m1fn", NULL, NULL, { DLPACK_FLOAT4_E2M1FN, 4, 1 }, 1 },
	{ "float4_e2m1fn_x2", NULL, NULL, { DLPACK_FLOAT4_E2M1FN, 4, 2 }, 1 },
	{ "complex64", "Zf", "<c8", { DLPACK_COMPLEX, 64, 1 }, 4 },
	{ "complex128", "Zd", "<c16", { DLPACK_COMPLEX, 128, 1 }, 8 },
	{ "bool", "?", "|b1", { DLPACK_BOOL, 8, 1 }, 1 },
};

static const struct pier_py_dtype *const dtype_uint8 = &dtypes[0];
static const struct pier_py_dtype *const dtype_uint16 = &dtypes[1];

enum {
	DTYPE_COUNT = sizeof(dtypes) / sizeof(dtypes[0])
};

/* "<f4", or "f4" in the byte order of the machine. */
static bool is_typestr(const struct pier_py_dtype *dtype, const char *text)
{
	return dtype->typestr && (strcmp(dtype->typestr, text) == 0 ||
				  strcmp(dtype->typestr + 1, text) == 0);
}

static void refuse_dtype(const char *name)
{
	PyObject *known = PyUnicode_FromString(dtypes[0].name), *longer;

	for (int i = 1; known && i < DTYPE_COUNT; i++) {
		longer = PyUnicode_FromFormat("%U, %s", known, dtypes[i].name);
		Py_DECREF(known);
		known = longer;
	}
	if (known)
		PyErr_Format(PyExc_ValueError, "unknown dtype \"%.80s\"; known are %U",
			     name, known);
	Py_XDECREF(known);
}

/*
 * Find a type by its name, such as "float32", a typestr of NumPy, such as "<f4", or the
 * dtype of NumPy, PyTorch or JAX. NULL with TypeError or ValueError.
 */
static const struct pier_py_dtype *find_dtype(PyObject *dtype)
{
	const struct pier_py_dtype *found = NULL;
	PyObject *name = PyUnicode_Check(dtype)
				 ? Py_NewRef(dtype)
				 : pier_py_call("pier._arrays", "dtype_name", "(O)",
						dtype);
	const char *text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;

	if (text && strncmp(text, "torch.", 6) == 0)
		text += 6;
	for (int i = 0; text && i < DTYPE_COUNT && !found; i++) {
		if (strcmp(dtypes[i].name, text) == 0 || is_typestr(&dtypes[i], text))
			found = &dtypes[i];
	}
	if (text && !found)
		refuse_dtype(text);
	Py_XDECREF(name);
	return found;
}

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
	return pier_py_refuse(
		ERANGE, "a view of %s at offset %llu is not inside the %llu bytes",
		self->dtype->name, (unsigned long long)offset, (unsigned long long)total);
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
	if (offset > total || size == 0 || (total - offset) % size)
		return pier_py_refuse(
			ERANGE,
			"the rest of %llu bytes at offset %llu is no whole number "
			"of rows of %llu bytes: give the whole shape",
			(unsigned long long)total, (unsigned long long)offset,
			(unsigned long long)size);
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
		if (self->shape[i] < -1 || *ret_unknown >= 0)
			return pier_py_refuse(EINVAL,
					      "a dimension of the shape is %zd: it must "
					      "be 0 or more, and one can be -1",
					      self->shape[i]);
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

	if (dimensions > PyBUF_MAX_NDIM)
		return pier_py_refuse(EINVAL, "%zd dimensions are more than %d",
				      dimensions, PyBUF_MAX_NDIM);
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
	const struct pier_py_dtype *dtype = dtype_uint8;
	PyObject *shape = Py_None, *type = NULL;
	unsigned long long offset = 0;
	struct pier_py_view *view;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|OOO&:view", names, &shape,
					 &type, pier_py_uint64, &offset))
		return NULL;
	if (type)
		dtype = find_dtype(type);
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

static PyObject *view_buffer(struct pier_py_buffer *buffer, PyObject *arguments,
			     PyObject *keywords)
{
	struct pier_py_window window;
	PyObject *view;

	if (!pier_py_use_begin(&buffer->use, "buffer"))
		return NULL;
	window = (struct pier_py_window){ buffer,
					  { 0, pier_buffer_length(buffer->buffer) } };
	view = pier_py_window_view(&window, arguments, keywords);
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
	if (!PyIndex_Check(item))
		return pier_py_wrong_type(item, "a view is indexed by int and slice");
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
		if (follows && count && count != self->shape[i])
			return pier_py_refuse(EINVAL, "the part is not contiguous: index "
						      "numpy.asarray(view) or "
						      "torch.from_dlpack(view)");
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

static PyObject *as_integers(struct pier_py_view *self, PyObject *Py_UNUSED(unused))
{
	const struct pier_py_window window = { self->buffer, { 0, 0 }, self->keeper };
	bool bytes = pier_py_dtype_size(self->dtype) == 1;
	struct pier_py_view *integers;

	if (self->dtype->format)
		return Py_NewRef((PyObject *)self);
	integers = allocate_view(&window, bytes ? dtype_uint8 : dtype_uint16,
				 pier_py_view_dimensions(self));
	if (!integers)
		return NULL;
	memcpy(integers->shape, self->shape,
	       2 * sizeof(self->shape[0]) * (size_t)pier_py_view_dimensions(self));
	integers->offset = self->offset;
	integers->length = self->length;
	return (PyObject *)integers;
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

static PyObject *get_shape(struct pier_py_view *self, void *Py_UNUSED(unused))
{
	return make_tuple(self->shape, pier_py_view_dimensions(self));
}

static PyObject *get_strides(struct pier_py_view *self, void *Py_UNUSED(unused))
{
	return make_tuple(self->strides, pier_py_view_dimensions(self));
}

static PyObject *get_dtype(struct pier_py_view *self, void *Py_UNUSED(unused))
{
	return PyUnicode_FromString(self->dtype->name);
}

static PyObject *get_address(struct pier_py_view *self, void *Py_UNUSED(unused))
{
	return PyLong_FromUnsignedLongLong(pier_py_view_address(self));
}

/* The CUDA array interface, version 3, of numba's documentation. */
static PyObject *get_cai(struct pier_py_view *self, void *Py_UNUSED(unused))
{
	int32_t device = self->buffer->device.type;

	if (!self->dtype->typestr ||
	    (device != DLPACK_CUDA && device != DLPACK_CUDA_HOST &&
	     device != DLPACK_CUDA_MANAGED))
		return PyErr_Format(
			PyExc_AttributeError,
			"%s of %s has no __cuda_array_interface__: use DLPack",
			self->dtype->name, self->buffer->backend);
	/* Without a stream: whatever wrote the memory has completed. */
	return Py_BuildValue("{sNsss(KN)sOsOsi}", "shape", get_shape(self, NULL),
			     "typestr", self->dtype->typestr, "data",
			     (unsigned long long)pier_py_view_address(self),
			     PyBool_FromLong(self->buffer->readonly), "strides", Py_None,
			     "stream", Py_None, "version", 3);
}

static Py_ssize_t get_length(struct pier_py_view *self)
{
	if (pier_py_view_dimensions(self) > 0)
		return self->shape[0];
	PyErr_SetString(PyExc_TypeError, "a view without dimensions has no len()");
	return -1;
}

static PyMethodDef view_methods[] = {
	{ "_as_integers", PIER_PY_METHOD(as_integers), METH_NOARGS,
	  "_as_integers($self)\n--\n\n"
	  "Return a View of the same memory as items of a type that the buffer protocol\n"
	  "has." },
	{ NULL },
};

static PyMemberDef view_members[] = {
	{ "__weaklistoffset__", T_PYSSIZET,
	  offsetof(struct pier_py_view, weak_references), READONLY, NULL },
	{ "buffer", T_OBJECT_EX, offsetof(struct pier_py_view, buffer), READONLY,
	  "The Buffer." },
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
	  "Every user of its memory keeps the view, so a weak reference to it tells\n"
	  "when the last consumer is gone. The buffer cannot be closed before." },
	{ Py_tp_dealloc, (void *)delete_view },
	{ Py_tp_traverse, (void *)traverse_view },
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
	.slots = view_slots,
};

static PyMethodDef buffer_methods[] = {
	{ "view", PIER_PY_METHOD(view_buffer), METH_VARARGS | METH_KEYWORDS,
	  "view($self, shape=None, dtype='uint8', offset=0)\n--\n\n"
	  "Return a View, an array in C order, of a part of the buffer.\n\n"
	  "shape: in items; one can be -1: what follows offset. None: as -1.\n"
	  "dtype: of the items: a name (\"uint8\", \"float32\", \"bfloat16\",\n"
	  "\"<f4\"), or the dtype of NumPy, PyTorch or JAX.\n"
	  "offset: of the first item, in bytes." },
	{ NULL },
};

int pier_py_add_view(PyObject *module)
{
	if (pier_py_add_spec(module, &view_spec, &pier_py_view_type) < 0)
		return -1;
	return pier_py_add_methods(pier_py_buffer_type, buffer_methods);
}
