// SPDX-License-Identifier: BSD-3-Clause
#include "error.h"
#include "region.h"
#include "remote.h"

#define NAME "region"

PyTypeObject *pier_py_region_type;

struct pier_py_region *pier_py_local_begin(PyObject *local,
					   struct pier_py_range *ret_range)
{
	struct pier_py_region *region = (struct pier_py_region *)local;
	bool span = PyObject_TypeCheck(local, pier_py_span_type);

	if (span)
		region = ((struct pier_py_span *)local)->region;
	else if (!PyObject_TypeCheck(local, pier_py_region_type))
		return pier_py_wrong_type(
			local, "register memory first, with "
			       "ProtectionDomain.register(): a request takes a "
			       "pier.Region or a slice of one");
	if (!pier_py_use_begin(&region->use, NAME))
		return NULL;
	if (span)
		*ret_range = ((struct pier_py_span *)local)->range;
	else
		*ret_range = (struct pier_py_range){ 0, pier_mr_length(region->mr) };
	return region;
}

static void release_memory(struct pier_py_region *self)
{
	PyObject *object = self->object;

	self->object = NULL;
	pier_py_memory_release(&self->memory);
	Py_XDECREF(object);
}

static int destroy_mr(void *mr)
{
	return pier_dereg_mr(mr);
}

static PyObject *close_region(struct pier_py_region *self, PyObject *unused)
{
	int closed = pier_py_use_close(&self->use, NAME, destroy_mr, self->mr);

	(void)unused;
	if (closed < 0)
		return NULL;
	/* Otherwise another thread may still be closing it. */
	if (closed)
		release_memory(self);
	Py_RETURN_NONE;
}

static void delete_region(struct pier_py_region *self)
{
	PyObject_GC_UnTrack(self);
	/* Memory that a NIC may still use is never released. */
	if (pier_py_use_delete(&self->use, destroy_mr, self->mr))
		release_memory(self);
	Py_XDECREF((PyObject *)self->pd);
	pier_py_delete(self);
}

static int traverse_region(struct pier_py_region *self, visitproc visit, void *arg)
{
	Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
	Py_VISIT((PyObject *)self->pd);
	Py_VISIT(self->object);
	return pier_py_memory_traverse(&self->memory, visit, arg);
}

static PyObject *sync_region(struct pier_py_region *self, PyObject *arguments,
			     PyObject *keywords,
			     int (*sync)(struct pier_mr *, uint64_t, uint64_t))
{
	static char *names[] = { "offset", "length", NULL };
	unsigned long long offset = 0;
	struct pier_py_range range;
	PyObject *length = NULL;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&O", names,
					 pier_py_uint64, &offset, &length) ||
	    !pier_py_use_begin(&self->use, NAME))
		return NULL;
	if (!pier_py_range_make(offset, length, pier_mr_length(self->mr), NAME, &range)) {
		pier_py_use_end(&self->use);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	error = sync(self->mr, range.offset, range.length);
	Py_END_ALLOW_THREADS
	pier_py_use_end(&self->use);
	return pier_py_result(error);
}

static PyObject *sync_for_nic(struct pier_py_region *self, PyObject *arguments,
			      PyObject *keywords)
{
	return sync_region(self, arguments, keywords, pier_mr_sync_for_nic);
}

static PyObject *sync_for_device(struct pier_py_region *self, PyObject *arguments,
				 PyObject *keywords)
{
	return sync_region(self, arguments, keywords, pier_mr_sync_for_device);
}

static Py_ssize_t get_length(struct pier_py_region *self)
{
	Py_ssize_t length;

	if (!pier_py_use_begin(&self->use, NAME))
		return -1;
	length = (Py_ssize_t)pier_mr_length(self->mr);
	pier_py_use_end(&self->use);
	return length;
}

static PyObject *get_slice(struct pier_py_region *self, PyObject *slice)
{
	Py_ssize_t length = get_length(self);
	struct pier_py_range range;

	if (length < 0 || !pier_py_range_slice(slice, (uint64_t)length, NAME, &range))
		return NULL;
	return pier_py_span_new(self, range);
}

static PyObject *describe_address(struct pier_mr *mr)
{
	return PyLong_FromUnsignedLongLong(pier_mr_iova(mr));
}

static PyObject *describe_access(struct pier_mr *mr)
{
	struct pier_mr_info info;

	pier_mr_query(mr, &info, sizeof(info));
	return pier_py_record("Access", "(i)", info.access);
}

static PyObject *describe_path(struct pier_mr *mr)
{
	return PyUnicode_FromString(pier_path_name(pier_mr_path(mr)));
}

static PyObject *describe_reason(struct pier_mr *mr)
{
	return PyUnicode_DecodeFSDefault(pier_mr_reason(mr));
}

static PyObject *describe_parts(struct pier_mr *mr)
{
	return PyLong_FromUnsignedLong(pier_mr_parts(mr));
}

static PyObject *describe_remote(struct pier_mr *mr)
{
	struct pier_remote parts[PIER_MR_PARTS_MAX];
	uint32_t count;
	int error = pier_mr_remote_vec(mr, parts, PIER_MR_PARTS_MAX, &count);

	return error ? pier_py_fail(error) : pier_py_remote_new(parts, count);
}

/* A property of an open region. */
struct region_property {
	PyObject *(*describe)(struct pier_mr *mr);
};

static PyObject *get_property(struct pier_py_region *self, void *property)
{
	PyObject *value;

	if (!pier_py_use_begin(&self->use, NAME))
		return NULL;
	value = ((const struct region_property *)property)->describe(self->mr);
	pier_py_use_end(&self->use);
	return value;
}

static PyObject *get_pd(struct pier_py_region *self, void *unused)
{
	(void)unused;
	return Py_NewRef((PyObject *)self->pd);
}

static PyObject *describe_region(struct pier_py_region *self)
{
	PyObject *text;

	if (!pier_py_use_try(&self->use))
		return PyUnicode_FromString("<pier.Region, closed>");
	text = PyUnicode_FromFormat("<pier.Region of %zu bytes, %s>",
				    pier_mr_length(self->mr),
				    pier_path_name(pier_mr_path(self->mr)));
	pier_py_use_end(&self->use);
	return text;
}

static PyMethodDef region_methods[] = {
	{ "sync_for_nic", PIER_PY_METHOD(sync_for_nic), METH_VARARGS | METH_KEYWORDS,
	  "sync_for_nic($self, offset=0, length=None)\n--\n\n"
	  "Make bytes that code of the device wrote visible to the NIC, before a request "
	  "reads\n"
	  "them. Wait for the stream of that code first." },
	{ "sync_for_device", PIER_PY_METHOD(sync_for_device),
	  METH_VARARGS | METH_KEYWORDS,
	  "sync_for_device($self, offset=0, length=None)\n--\n\n"
	  "Make bytes that the NIC wrote visible to code of the device that starts "
	  "later. Wait\n"
	  "for the completion first." },
	{ "close", PIER_PY_METHOD(close_region), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Deregister the memory: the NIC no longer accesses it, and its object is "
	  "released.\n"
	  "Raises Busy while requests use the region. Again at any time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

#define PROPERTY(function)                      \
	(void *)&(const struct region_property) \
	{                                       \
		function                        \
	}

static PyGetSetDef region_properties[] = {
	{ "address", (getter)get_property, NULL,
	  "Its first address, for elements and peers.", PROPERTY(describe_address) },
	{ "access", (getter)get_property, NULL, "Its access rights, Access.",
	  PROPERTY(describe_access) },
	{ "path", (getter)get_property, NULL,
	  "How the NIC reaches it: \"host\", \"dma-buf\", \"peermem\", \"bounce\" or "
	  "\"mixed\".",
	  PROPERTY(describe_path) },
	{ "reason", (getter)get_property, NULL, "Why it has no better path, or \"\".",
	  PROPERTY(describe_reason) },
	{ "parts", (getter)get_property, NULL, "The number of its parts, each with keys.",
	  PROPERTY(describe_parts) },
	{ "remote", (getter)get_property, NULL,
	  "Its Remote, which a peer needs to access it. Raises AccessDenied without "
	  "remote "
	  "access.",
	  PROPERTY(describe_remote) },
	{ "pd", (getter)get_pd, NULL, "Its protection domain.", NULL },
	PIER_PY_CLOSED_PROPERTY(pier_py_region),
	{ NULL },
};

static PyType_Slot region_slots[] = {
	{ Py_tp_doc, "Memory that a NIC may use, from ProtectionDomain.register(). "
		     "region[a:b] is a Span of\n"
		     "it; a slice that is out of range raises OutOfRange.\n\n"
		     "It keeps the object whose memory it is until it is closed. Any "
		     "thread may use it. A\n"
		     "child of fork() has no use for it (Forked)." },
	{ Py_tp_dealloc, (void *)delete_region },
	{ Py_tp_traverse, (void *)traverse_region },
	{ Py_tp_repr, (void *)describe_region },
	{ Py_tp_methods, region_methods },
	{ Py_tp_getset, region_properties },
	{ Py_mp_length, (void *)get_length },
	{ Py_mp_subscript, (void *)get_slice },
	{ 0, NULL },
};

static PyType_Spec region_spec = {
	.name = "pier.Region",
	.basicsize = sizeof(struct pier_py_region),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = region_slots,
};

int pier_py_add_region(PyObject *module)
{
	return pier_py_add_type(module, &region_spec, &pier_py_region_type);
}
