/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "buffer.h"
#include "region.h"
#include "remote.h"
#include "view.h"

#define SPAN_NAME "span"
#define NAME	  "region"
#define WRITES \
	(PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_REMOTE_ATOMIC)
#define REMOTE_ACCESS \
	(PIER_ACCESS_REMOTE_READ | PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_REMOTE_ATOMIC)

/* pier.Span: a range of a region, which never changes. */
struct span {
	PyObject ob_base;
	struct pier_py_region *region;
	struct pier_py_range range;
};

PyTypeObject *pier_py_region_type;
static PyTypeObject *span_type;

static PyObject *make_span(struct pier_py_region *region, struct pier_py_range range)
{
	struct span *self = pier_py_new(span_type);

	if (!self)
		return NULL;
	self->region = (struct pier_py_region *)Py_NewRef((PyObject *)region);
	self->range = range;
	return (PyObject *)self;
}

static void delete_span(struct span *self)
{
	PyObject_GC_UnTrack(self);
	Py_XDECREF((PyObject *)self->region);
	pier_py_delete(self);
}

static int traverse_span(struct span *self, visitproc visit, void *arg)
{
	Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
	Py_VISIT((PyObject *)self->region);
	return 0;
}

static Py_ssize_t get_span_length(struct span *self)
{
	return (Py_ssize_t)self->range.length;
}

static PyObject *get_span_slice(struct span *self, PyObject *slice)
{
	struct pier_py_range range;

	if (!pier_py_range_slice(slice, self->range.length, SPAN_NAME, &range))
		return NULL;
	range.offset += self->range.offset;
	return make_span(self->region, range);
}

static PyMemberDef span_members[] = {
	{ "region", T_OBJECT_EX, offsetof(struct span, region), READONLY, "The Region." },
	{ "offset", T_ULONGLONG, offsetof(struct span, range.offset), READONLY,
	  "Its first byte in the region." },
	{ "length", T_ULONGLONG, offsetof(struct span, range.length), READONLY,
	  "Its length in bytes." },
	{ NULL },
};

static PyType_Slot span_slots[] = {
	{ Py_tp_doc, "A range of a Region, as a slice of it: region[a:b]. Slices of a "
		     "span are spans." },
	{ Py_tp_dealloc, (void *)delete_span },
	{ Py_tp_traverse, (void *)traverse_span },
	{ Py_tp_members, span_members },
	{ Py_mp_length, (void *)get_span_length },
	{ Py_mp_subscript, (void *)get_span_slice },
	{ 0, NULL },
};

struct pier_py_region *pier_py_local_begin(PyObject *local,
					   struct pier_py_range *ret_range)
{
	struct pier_py_region *region = (struct pier_py_region *)local;
	bool span = PyObject_TypeCheck(local, span_type);

	if (span)
		region = ((struct span *)local)->region;
	else if (!PyObject_TypeCheck(local, pier_py_region_type))
		return pier_py_wrong_type(
			local, "register memory first, with "
			       "ProtectionDomain.register(): a request takes a "
			       "pier.Region or a slice of one");
	if (!pier_py_use_begin(&region->use, NAME))
		return NULL;
	*ret_range = region->window;
	if (span) {
		ret_range->offset += ((struct span *)local)->range.offset;
		ret_range->length = ((struct span *)local)->range.length;
	}
	return region;
}

void pier_py_regions_release(PyObject *regions)
{
	Py_ssize_t count = regions ? PyList_Size(regions) : 0;

	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *region = PyList_GetItem(regions, i);

		pier_py_use_end(&((struct pier_py_region *)region)->use);
	}
	Py_XDECREF(regions);
}

static void release_memory(struct pier_py_region *self)
{
	PyObject *object = self->object;

	self->object = NULL;
	pier_py_memory_release(&self->memory);
	Py_XDECREF(object);
}

static int destroy_mr(void *object)
{
	struct pier_py_region *self = object;

	if (!self->cache)
		return pier_mr_dereg(self->mr);
	/* After an error it is returned, too, but the NIC may still use the memory. */
	self->put_error = pier_mr_cache_put(self->cache, self->mr);
	return 0;
}

static PyObject *close_region(struct pier_py_region *self, PyObject *Py_UNUSED(unused))
{
	int closed = pier_py_use_close(&self->use, NAME, destroy_mr, self);

	if (closed < 0)
		return NULL;
	/* Otherwise another thread may still be closing it. */
	if (closed && self->put_error)
		return pier_py_fail(self->put_error);
	if (closed)
		release_memory(self);
	Py_RETURN_NONE;
}

static void delete_region(struct pier_py_region *self)
{
	PyObject_GC_UnTrack(self);
	/* Memory that a NIC may still use is never released. */
	if (pier_py_use_delete(&self->use, destroy_mr, self) && !self->put_error)
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
	if (!pier_py_range_make(offset, length, self->window.length, NAME, &range)) {
		pier_py_use_end(&self->use);
		return NULL;
	}
	error = PIER_PY_WITHOUT_GIL(
		sync(self->mr, self->window.offset + range.offset, range.length));
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
	length = (Py_ssize_t)self->window.length;
	pier_py_use_end(&self->use);
	return length;
}

static PyObject *get_slice(struct pier_py_region *self, PyObject *slice)
{
	Py_ssize_t length = get_length(self);
	struct pier_py_range range;

	if (length < 0 || !pier_py_range_slice(slice, (uint64_t)length, NAME, &range))
		return NULL;
	return make_span(self, range);
}

static PyObject *describe_address(struct pier_py_region *self)
{
	return PyLong_FromUnsignedLongLong(pier_mr_iova(self->mr) + self->window.offset);
}

static PyObject *describe_access(struct pier_py_region *self)
{
	return pier_py_record("Access", "(i)", self->access);
}

static PyObject *describe_path(struct pier_py_region *self)
{
	return PyUnicode_FromString(pier_path_name(pier_mr_path(self->mr)));
}

static PyObject *describe_reason(struct pier_py_region *self)
{
	return PyUnicode_DecodeFSDefault(pier_mr_reason(self->mr));
}

static PyObject *describe_parts(struct pier_py_region *self)
{
	return PyLong_FromUnsignedLong(pier_mr_parts(self->mr));
}

static PyObject *describe_remote(struct pier_py_region *self)
{
	struct pier_remote all[PIER_MR_PARTS_MAX], parts[PIER_MR_PARTS_MAX];
	uint32_t count;
	int error;

	if (self->cache && !(self->access & REMOTE_ACCESS))
		return pier_py_refuse(EACCES, "the region has no remote access: register "
					      "it with access=REMOTE_READ or another");
	error = pier_mr_remote_vec(self->mr, all, PIER_MR_PARTS_MAX, &count);
	if (!error)
		error = pier_remote_vec_sub(all, count, self->window.offset,
					    self->window.length, parts, PIER_MR_PARTS_MAX,
					    &count);
	return error ? pier_py_fail(error) : pier_py_remote_new(parts, count);
}

static PyObject *get_pd(struct pier_py_region *self, void *Py_UNUSED(unused))
{
	return Py_NewRef((PyObject *)self->pd);
}

static PyMethodDef region_methods[] = {
	{ "sync_for_nic", PIER_PY_METHOD(sync_for_nic), METH_VARARGS | METH_KEYWORDS,
	  "sync_for_nic($self, offset=0, length=None)\n--\n\n"
	  "Make bytes that code of the device wrote visible to the NIC, before a\n"
	  "request reads them. Wait for the stream of that code first." },
	{ "sync_for_device", PIER_PY_METHOD(sync_for_device),
	  METH_VARARGS | METH_KEYWORDS,
	  "sync_for_device($self, offset=0, length=None)\n--\n\n"
	  "Make bytes that the NIC wrote visible to code of the device that starts\n"
	  "later. Wait for the completion first." },
	{ "close", PIER_PY_METHOD(close_region), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Deregister the memory: the NIC no longer accesses it, and its object is\n"
	  "released. Raises Busy while requests use the region. Again at any time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef region_properties[] = {
	{ "address", pier_py_use_get, NULL, "Its first address, for elements and peers.",
	  PIER_PY_PROPERTY(pier_py_region, NAME, describe_address) },
	{ "access", pier_py_use_get, NULL, "Its access rights, Access.",
	  PIER_PY_PROPERTY(pier_py_region, NAME, describe_access) },
	{ "path", pier_py_use_get, NULL,
	  "How the NIC reaches it: \"host\", \"dma-buf\", \"peermem\", \"bounce\" or "
	  "\"mixed\".",
	  PIER_PY_PROPERTY(pier_py_region, NAME, describe_path) },
	{ "reason", pier_py_use_get, NULL, "Why it has no better path, or \"\".",
	  PIER_PY_PROPERTY(pier_py_region, NAME, describe_reason) },
	{ "parts", pier_py_use_get, NULL, "The number of its parts, each with keys.",
	  PIER_PY_PROPERTY(pier_py_region, NAME, describe_parts) },
	{ "remote", pier_py_use_get, NULL,
	  "Its Remote, which a peer needs to access it. Raises AccessDenied without "
	  "remote "
	  "access.",
	  PIER_PY_PROPERTY(pier_py_region, NAME, describe_remote) },
	{ "pd", (getter)get_pd, NULL, "Its protection domain.", NULL },
	PIER_PY_CLOSED_PROPERTY(pier_py_region),
	{ NULL },
};

static PyType_Slot region_slots[] = {
	{ Py_tp_doc,
	  "Memory that a NIC may use, from ProtectionDomain.register(). region[a:b] is\n"
	  "a Span of it; a slice that is out of range raises OutOfRange.\n\n"
	  "It keeps the object whose memory it is until it is closed. Any thread may\n"
	  "use it. A child of fork() has no use for it (Forked)." },
	{ Py_tp_dealloc, (void *)delete_region },
	{ Py_tp_traverse, (void *)traverse_region },
	{ Py_tp_methods, region_methods },
	{ Py_tp_getset, region_properties },
	{ Py_mp_length, (void *)get_length },
	{ Py_mp_subscript, (void *)get_slice },
	{ 0, NULL },
};

/* The memory of a registration: a range, and what the region has to keep. */
struct registration {
	struct pier_mr_range range;
	uint64_t iova; /* of a dma-buf */
	bool readonly;
	struct pier_py_use *use; /* of an object that must not close during the call */
};

static const char *const policy_names[] = {
	[PIER_POLICY_DIRECT] = "direct",
	[PIER_POLICY_PEERMEM] = "peermem",
	[PIER_POLICY_ANY] = "any",
	[PIER_POLICY_BOUNCE] = "bounce",
};

static const char *const tph_names[] = {
	[PIER_TPH_NONE] = "none",
	[PIER_TPH_BIDIRECTIONAL] = "bidirectional",
	[PIER_TPH_REQUESTER] = "requester",
	[PIER_TPH_TARGET] = "target",
	[PIER_TPH_TARGET_PRIORITY] = "target-priority",
};

enum {
	POLICY_COUNT = sizeof(policy_names) / sizeof(policy_names[0]),
	TPH_COUNT = sizeof(tph_names) / sizeof(tph_names[0])
};

static bool find_buffer(struct pier_py_buffer *buffer, uint64_t offset, uint64_t length,
			struct registration *ret)
{
	if (!pier_py_use_begin(&buffer->use, "buffer"))
		return false;
	if (length == UINT64_MAX)
		length = pier_buffer_length(buffer->buffer);
	ret->use = &buffer->use;
	ret->readonly = buffer->readonly;
	ret->range = pier_mr_range_buffer(buffer->buffer, offset, length);
	return true;
}

static bool find_dmabuf(struct pier_py_dmabuf *dmabuf, struct registration *ret)
{
	if (!pier_py_use_begin(&dmabuf->use, "dma-buf"))
		return false;
	ret->use = &dmabuf->use;
	ret->iova = dmabuf->dmabuf.iova;
	ret->range = pier_mr_range_dmabuf(dmabuf->dmabuf.fd, dmabuf->dmabuf.offset,
					  dmabuf->dmabuf.length);
	return true;
}

/* The object's whole memory. */
static bool find_memory(PyObject *object, struct pier_py_region *region,
			struct registration *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (PyObject_TypeCheck(object, pier_py_buffer_type)) {
		region->object = Py_NewRef(object);
		return find_buffer((struct pier_py_buffer *)object, 0, UINT64_MAX, ret);
	}
	if (PyObject_TypeCheck(object, pier_py_view_type)) {
		struct pier_py_view *view = (struct pier_py_view *)object;

		region->object = Py_NewRef(object);
		return find_buffer(view->buffer, view->offset, view->length, ret);
	}
	if (PyObject_TypeCheck(object, pier_py_dmabuf_type)) {
		region->object = Py_NewRef(object);
		return find_dmabuf((struct pier_py_dmabuf *)object, ret);
	}
	if (pier_py_memory_get(object, &region->memory) < 0)
		return false;
	ret->readonly = region->memory.readonly;
	ret->range = pier_mr_range_pointer(region->memory.address, region->memory.length);
	return true;
}

/* Only the part that the caller wants. */
static bool narrow_range(struct registration *registration, unsigned long long offset,
			 PyObject *length, struct pier_mr_attr *attr)
{
	struct pier_py_range part;

	if (!pier_py_range_make(offset, length, registration->range.length, "memory",
				&part))
		return false;
	if (registration->range.source == PIER_MR_POINTER)
		registration->range.addr = (char *)registration->range.addr + part.offset;
	else
		registration->range.offset += part.offset;
	registration->range.length = part.length;
	/* A dma-buf of pier has the addresses of its buffer. */
	if (registration->range.source == PIER_MR_DMABUF) {
		attr->addressing = PIER_ADDRESSING_IOVA;
		attr->iova = registration->iova + part.offset;
	}
	return true;
}

static bool check_access(const struct registration *registration, int access)
{
	if (!registration->readonly || !(access & WRITES))
		return true;
	return pier_py_refuse(
		EACCES, "the memory is read-only: register it with access=REMOTE_READ or "
			"LOCAL_READ");
}

/* The window is that of the request, in a region that can enclose it. */
static bool get_cached(struct pier_py_region *region,
		       const struct registration *registration,
		       const struct pier_mr_attr *attr)
{
	const struct pier_mr_range *range = &registration->range;
	struct pier_mr_cache *cache;
	uint64_t address;

	if (attr->tph != PIER_TPH_NONE)
		return pier_py_refuse(EINVAL, "tph and cached: the registrations that "
					      "a domain keeps have no hint");
	cache = pier_py_pd_cache(region->pd, attr->policy);
	if (!cache)
		return false;
	if (PIER_PY_CALL(pier_mr_cache_get(cache, range, attr->access, &region->mr)))
		return false;
	/* Of a pointer, offset is 0; a cached dma-buf has its offsets as addresses. */
	address = (uintptr_t)range->addr + range->offset;
	if (range->source == PIER_MR_BUFFER)
		address += pier_buffer_address(range->buffer);
	region->cache = cache;
	region->window = (struct pier_py_range){ address - pier_mr_iova(region->mr),
						 range->length };
	return true;
}

static bool reg_mr(struct pier_py_region *region, const struct registration *registration,
		   struct pier_mr_attr *attr)
{
	attr->ranges = &registration->range;
	attr->range_count = 1;
	if (PIER_PY_CALL(pier_mr_reg_attr(region->pd->pd, attr, &region->mr)))
		return false;
	region->window.length = pier_mr_length(region->mr);
	return true;
}

PyObject *pier_py_region_register(struct pier_py_pd *pd, PyObject *arguments,
				  PyObject *keywords)
{
	static char *names[] = { "obj",	   "offset", "length",	"access", "policy",
				 "cached", "tph",    "tph_cpu", NULL };
	struct registration registration = { .use = NULL };
	unsigned long long offset = 0;
	struct pier_py_region *self;
	PyObject *object, *length = NULL, *name = NULL, *hint = NULL;
	int cached = false, policy = PIER_POLICY_ANY, access = PIER_ACCESS_SHARED;
	int tph = PIER_TPH_NONE;
	struct pier_mr_attr attr;
	bool done;

	pier_mr_attr_init(&attr);
	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$O&OiOpOi:register",
					 names, &object, pier_py_uint64, &offset, &length,
					 &access, &name, &cached, &hint, &attr.tph_cpu))
		return NULL;
	attr.access = (uint32_t)access;
	if (name)
		policy = pier_py_choose(name, "policy", policy_names, POLICY_COUNT);
	if (policy >= 0 && hint)
		tph = pier_py_choose(hint, "tph", tph_names, TPH_COUNT);
	if (policy < 0 || tph < 0 || !pier_py_pd_begin((PyObject *)pd))
		return NULL;
	attr.policy = (enum pier_policy)policy;
	attr.tph = (enum pier_tph)tph;
	self = pier_py_new(pier_py_region_type);
	if (self) {
		self->pd = (struct pier_py_pd *)Py_NewRef((PyObject *)pd);
		self->access = attr.access;
	}
	done = self && find_memory(object, self, &registration) &&
	       narrow_range(&registration, offset, length, &attr) &&
	       check_access(&registration, attr.access) &&
	       (cached ? get_cached(self, &registration, &attr)
		       : reg_mr(self, &registration, &attr));
	if (registration.use)
		pier_py_use_end(registration.use);
	pier_py_use_end(&pd->use);
	if (done)
		return (PyObject *)self;
	Py_XDECREF((PyObject *)self);
	return NULL;
}

static PyMethodDef pd_methods[] = {
	{ "register", PIER_PY_METHOD(pier_py_region_register),
	  METH_VARARGS | METH_KEYWORDS,
	  "register($self, obj, *, offset=0, length=None, access=7, policy='any',\n"
	  "         cached=False, tph='none', tph_cpu=-1)\n--\n\n"
	  "Register memory with the NIC, without a copy, and return its Region.\n\n"
	  "obj: a Buffer, View or Dmabuf; or any contiguous object with the buffer\n"
	  "protocol (bytearray, NumPy, mmap), DLPack (PyTorch, JAX, CuPy) or the CUDA\n"
	  "array interface. The region keeps it. Read-only objects need an access\n"
	  "without writes.\n"
	  "offset, length: the part to register, in bytes; None: all that follows.\n"
	  "access: Access flags; 7 is SHARED.\n"
	  "policy: the paths to accept, each with those before it: \"direct\",\n"
	  "\"peermem\", \"any\" (also host memory), \"bounce\" (also copies: call the\n"
	  "sync methods).\n"
	  "cached: use a registration that the domain has kept for this memory, or\n"
	  "keep the new one after close(), until the memory or the domain is freed; for\n"
	  "a Dmabuf, until the domain is. A peer that has its Remote can then still\n"
	  "access the memory after close().\n"
	  "tph: a hint for PCI Express about who uses the bytes often:\n"
	  "\"bidirectional\", \"requester\" (the NIC), \"target\" (the CPU) or\n"
	  "\"target-priority\" (the CPU, and soon); tph_cpu: the CPU whose cache they\n"
	  "are for. Devices without such hints refuse them." },
	{ NULL },
};

int pier_py_add_region(PyObject *module)
{
	if (pier_py_add_type(module, "pier.Region", sizeof(struct pier_py_region),
			     region_slots, &pier_py_region_type) < 0 ||
	    pier_py_add_type(module, "pier.Span", sizeof(struct span), span_slots,
			     &span_type) < 0)
		return -1;
	return pier_py_add_methods(pier_py_pd_type, pd_methods);
}
