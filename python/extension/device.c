/* SPDX-License-Identifier: BSD-3-Clause */
#include "device.h"

#define NAME	"device"
#define PD_NAME "protection domain"

static PyTypeObject *device_type;

static struct pier_py_device *open_device(PyTypeObject *type, const char *name)
{
	struct pier_py_device *self = pier_py_new(type);

	if (!self)
		return NULL;
	if (!PIER_PY_CALL(pier_device_open(name, &self->device)))
		return self;
	Py_DECREF((PyObject *)self);
	return NULL;
}

static int destroy_device(void *device)
{
	return pier_device_close(device);
}

static PyObject *new_device(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "name", NULL };
	const char *name = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|z:Device", names, &name))
		return NULL;
	return (PyObject *)open_device(type, name);
}

static void delete_device(struct pier_py_device *self)
{
	pier_py_use_delete(&self->use, destroy_device, self->device);
	pier_py_delete(self);
}

static PyObject *close_device(struct pier_py_device *self, PyObject *Py_UNUSED(unused))
{
	if (pier_py_use_close(&self->use, NAME, destroy_device, self->device) < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *query_port(struct pier_py_device *self, PyObject *arguments,
			    PyObject *keywords)
{
	static const char *const layers[] = { "unspecified", "infiniband", "ethernet" };
	static char *names[] = { "number", NULL };
	struct pier_port_attr port;
	uint32_t number = 1;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&:port", names,
					 pier_py_uint32, &number) ||
	    !pier_py_use_begin(&self->use, NAME))
		return NULL;
	error = PIER_PY_CALL(
		pier_device_query_port(self->device, number, &port, sizeof(port)));
	pier_py_use_end(&self->use);
	if (error)
		return NULL;
	return pier_py_record(
		"PortAttributes", "(NsIIIII)", PyBool_FromLong(port.active),
		layers[port.link_layer > PIER_LINK_ETHERNET ? 0 : port.link_layer],
		(unsigned int)port.lid, port.active_mtu, port.max_mtu, port.max_msg_size,
		port.gid_count);
}

static PyObject *describe_attributes(struct pier_py_device *self)
{
	struct pier_device_attr attr;

	if (PIER_PY_CALL(pier_device_query(self->device, &attr, sizeof(attr))))
		return NULL;
	return pier_py_record(
		"DeviceAttributes", "(sssKKIIIIINNNNNNII)", attr.name, attr.provider,
		attr.firmware, (unsigned long long)attr.max_mr_size,
		(unsigned long long)attr.page_sizes, attr.max_qp_wr, attr.max_sge,
		attr.max_cqe, attr.port_count, (unsigned int)attr.max_rd_atomic,
		PyBool_FromLong(attr.dmabuf), PyBool_FromLong(attr.memfd_as_dmabuf),
		PyBool_FromLong(attr.atomics), PyBool_FromLong(attr.memory_windows),
		PyBool_FromLong(attr.on_demand), PyBool_FromLong(attr.counters),
		attr.max_requested_key, attr.max_joined_ranges);
}

static PyObject *describe_name(struct pier_py_device *self)
{
	return PyUnicode_DecodeFSDefault(pier_device_name(self->device));
}

static PyObject *describe_device(struct pier_py_device *self)
{
	if (pier_py_use_closed(&self->use))
		return PyUnicode_FromString("<pier.Device, closed>");
	return PyUnicode_FromFormat("<pier.Device %s>", pier_device_name(self->device));
}

static PyMethodDef device_methods[] = {
	{ "port", PIER_PY_METHOD(query_port), METH_VARARGS | METH_KEYWORDS,
	  "port($self, number=1)\n--\n\n"
	  "Return the state and the limits of a port as PortAttributes. Ports are\n"
	  "numbered from 1." },
	{ "close", PIER_PY_METHOD(close_device), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Close the device. Raises Busy while it has protection domains. Again at any\n"
	  "time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef device_properties[] = {
	{ "name", pier_py_use_get, NULL, "Its name: \"mlx5_0\", \"soft0\".",
	  PIER_PY_PROPERTY(pier_py_device, NAME, describe_name) },
	{ "attributes", pier_py_use_get, NULL,
	  "Its limits and capabilities, DeviceAttributes.",
	  PIER_PY_PROPERTY(pier_py_device, NAME, describe_attributes) },
	PIER_PY_CLOSED_PROPERTY(pier_py_device),
	{ NULL },
};

static PyType_Slot device_slots[] = {
	{ Py_tp_doc,
	  "Device(name=None)\n--\n\n"
	  "An RDMA NIC, or \"soft0\", the software NIC.\n\n"
	  "name: from devices(), or with a plan of faults, \"fault:PLAN:NAME\". None:\n"
	  "the device that the environment variable PIER_DEVICE names, or the first\n"
	  "NIC with an active port, but never soft0.\n\n"
	  "Any thread may use it. A child of fork() must open its own (Forked)." },
	{ Py_tp_new, (void *)new_device },
	{ Py_tp_dealloc, (void *)delete_device },
	{ Py_tp_repr, (void *)describe_device },
	{ Py_tp_methods, device_methods },
	{ Py_tp_getset, device_properties },
	{ 0, NULL },
};

PyTypeObject *pier_py_pd_type;

struct pier_py_pd *pier_py_pd_begin(PyObject *pd)
{
	struct pier_py_pd *self = (struct pier_py_pd *)pd;

	if (!PyObject_TypeCheck(pd, pier_py_pd_type))
		return pier_py_wrong_type(pd, "pd must be a pier.ProtectionDomain");
	return pier_py_use_begin(&self->use, PD_NAME) ? self : NULL;
}

/* A new reference to the device of the constructor's argument. */
static struct pier_py_device *find_device(PyObject *device, bool *ret_owned)
{
	const char *name = NULL;

	if (PyObject_TypeCheck(device, device_type))
		return (struct pier_py_device *)Py_NewRef(device);
	if (device != Py_None) {
		name = PyUnicode_AsUTF8AndSize(device, NULL);
		if (!name) {
			if (PyErr_ExceptionMatches(PyExc_TypeError))
				pier_py_wrong_type(device, "device must be a "
							   "pier.Device, a name or None");
			return NULL;
		}
	}
	*ret_owned = true;
	return open_device(device_type, name);
}

static PyObject *new_pd(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "device", NULL };
	PyObject *device = Py_None;
	struct pier_py_pd *self;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:ProtectionDomain",
					 names, &device))
		return NULL;
	self = pier_py_new(type);
	if (!self)
		return NULL;
	self->device = find_device(device, &self->owns_device);
	if (!self->device || !pier_py_use_begin(&self->device->use, NAME))
		goto delete_self;
	error = PIER_PY_CALL(pier_pd_alloc(self->device->device, &self->pd));
	pier_py_use_end(&self->device->use);
	if (!error)
		return (PyObject *)self;
delete_self:
	Py_DECREF((PyObject *)self);
	return NULL;
}

struct pier_mr_cache *pier_py_pd_cache(struct pier_py_pd *self, enum pier_policy policy)
{
	struct pier_mr_cache *found = NULL, *cache = atomic_load(&self->caches[policy]);
	struct pier_mr_cache_attr attr;

	if (cache)
		return cache;
	pier_mr_cache_attr_init(&attr);
	attr.policy = policy;
	if (PIER_PY_CALL(pier_mr_cache_create(self->pd, &attr, &cache)))
		return NULL;
	if (atomic_compare_exchange_strong(&self->caches[policy], &found, cache))
		return cache;
	/* Another thread was faster. */
	pier_mr_cache_destroy(cache);
	return found;
}

static int destroy_pd(void *object)
{
	struct pier_py_pd *self = object;

	for (int i = 0; i <= PIER_POLICY_BOUNCE; i++) {
		int error = pier_mr_cache_destroy(self->caches[i]);

		if (error)
			return error;
		self->caches[i] = NULL;
	}
	return pier_pd_dealloc(self->pd);
}

static void delete_pd(struct pier_py_pd *self)
{
	pier_py_use_delete(&self->use, destroy_pd, self);
	Py_XDECREF((PyObject *)self->device);
	pier_py_delete(self);
}

static PyObject *close_pd(struct pier_py_pd *self, PyObject *Py_UNUSED(unused))
{
	if (pier_py_use_close(&self->use, PD_NAME, destroy_pd, self) < 0)
		return NULL;
	if (self->owns_device &&
	    pier_py_use_close(&self->device->use, NAME, destroy_device,
			      self->device->device) < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *get_device_of_pd(struct pier_py_pd *self, void *Py_UNUSED(unused))
{
	return Py_NewRef((PyObject *)self->device);
}

static PyObject *describe_pd(struct pier_py_pd *self)
{
	return PyUnicode_FromFormat("<pier.ProtectionDomain of %R%s>",
				    (PyObject *)self->device,
				    pier_py_use_closed(&self->use) ? ", closed" : "");
}

static PyMethodDef pd_methods[] = {
	{ "close", PIER_PY_METHOD(close_pd), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Deallocate the domain, and close its device if the constructor opened it.\n"
	  "Raises Busy while it has regions or channels. Again at any time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef pd_properties[] = {
	{ "device", (getter)get_device_of_pd, NULL, "The device of the domain.", NULL },
	PIER_PY_CLOSED_PROPERTY(pier_py_pd),
	{ NULL },
};

static PyType_Slot pd_slots[] = {
	{ Py_tp_doc,
	  "ProtectionDomain(device=None)\n--\n\n"
	  "A protection domain. Only regions and channels of the same one work "
	  "together.\n\n"
	  "device: a Device; or a name or None for Device(), which the domain then\n"
	  "closes with itself.\n\n"
	  "Any thread may use it. A child of fork() must create its own (Forked)." },
	{ Py_tp_new, (void *)new_pd },
	{ Py_tp_dealloc, (void *)delete_pd },
	{ Py_tp_repr, (void *)describe_pd },
	{ Py_tp_methods, pd_methods },
	{ Py_tp_getset, pd_properties },
	{ 0, NULL },
};

int pier_py_add_device(PyObject *module)
{
	if (pier_py_add_type(module, "pier.Device", sizeof(struct pier_py_device),
			     device_slots, &device_type) < 0)
		return -1;
	return pier_py_add_type(module, "pier.ProtectionDomain",
				sizeof(struct pier_py_pd), pd_slots, &pier_py_pd_type);
}
