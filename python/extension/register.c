// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <string.h>

#include "buffer.h"
#include "error.h"
#include "region.h"
#include "view.h"

#define WRITES \
	(PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_REMOTE_ATOMIC)

/* The memory of a registration: a range, and what the region has to keep. */
struct registration {
	struct pier_mr_range range;
	uint64_t iova; /* of a dma-buf */
	bool readonly;
	struct pier_py_use *use; /* of an object that must not close during the call */
};

static bool find_policy(const char *name, enum pier_policy *ret_policy)
{
	static const char *const names[] = { "direct", "peermem", "any", "bounce" };

	for (int i = 0; i < 4; i++) {
		if (strcmp(name, names[i]) == 0) {
			*ret_policy = (enum pier_policy)i;
			return true;
		}
	}
	pier_py_refuse(EINVAL,
		       "the policy \"%s\" is not \"direct\", \"peermem\", \"any\" or "
		       "\"bounce\"",
		       name);
	return false;
}

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
	pier_py_refuse(EACCES,
		       "the memory is read-only: register it with access=REMOTE_READ or "
		       "LOCAL_READ");
	return false;
}

static bool reg_mr(struct pier_py_region *region, const struct registration *registration,
		   struct pier_mr_attr *attr)
{
	int error;

	attr->ranges = &registration->range;
	attr->range_count = 1;
	Py_BEGIN_ALLOW_THREADS
	error = pier_reg_mr_attr(region->pd->pd, attr, &region->mr);
	Py_END_ALLOW_THREADS
	if (error)
		pier_py_fail(error);
	return !error;
}

const char pier_py_region_register_doc[] =
	"register($self, obj, *, offset=0, length=None, access=7, policy='any')\n--\n\n"
	"Register memory with the NIC, without a copy, and return its Region.\n\n"
	"obj: a Buffer, View or Dmabuf; or any contiguous object with the buffer\n"
	"protocol (bytearray, NumPy, mmap), DLPack (PyTorch, JAX, CuPy) or the CUDA\n"
	"array interface. The region keeps it. Read-only objects need an access without\n"
	"writes.\n"
	"offset, length: the part to register, in bytes; None: all that follows.\n"
	"access: Access flags; 7 is SHARED.\n"
	"policy: the paths to accept, each with those before it: \"direct\", "
	"\"peermem\",\n"
	"\"any\" (also host memory), \"bounce\" (also copies: call the sync methods).";

PyObject *pier_py_region_register(struct pier_py_pd *pd, PyObject *arguments,
				  PyObject *keywords)
{
	static char *names[] = { "obj", "offset", "length", "access", "policy", NULL };
	struct registration registration = { .use = NULL };
	unsigned long long offset = 0;
	const char *policy = "any";
	struct pier_py_region *self;
	PyObject *object, *length = NULL;
	struct pier_mr_attr attr;
	bool done;

	pier_mr_attr_init(&attr);
	attr.access = PIER_ACCESS_SHARED;
	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$O&Ois:register", names,
					 &object, pier_py_uint64, &offset, &length,
					 &attr.access, &policy) ||
	    !find_policy(policy, &attr.policy) || !pier_py_pd_begin((PyObject *)pd))
		return NULL;
	self = pier_py_new(pier_py_region_type);
	if (self)
		self->pd = (struct pier_py_pd *)Py_NewRef((PyObject *)pd);
	done = self && find_memory(object, self, &registration) &&
	       narrow_range(&registration, offset, length, &attr) &&
	       check_access(&registration, attr.access) &&
	       reg_mr(self, &registration, &attr);
	if (registration.use)
		pier_py_use_end(registration.use);
	pier_py_use_end(&pd->use);
	if (done)
		return (PyObject *)self;
	Py_XDECREF((PyObject *)self);
	return NULL;
}
