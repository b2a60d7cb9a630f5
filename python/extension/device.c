// SPDX-License-Identifier: BSD-3-Clause
#include "device.h"
#include "error.h"

#define NAME "device"

PyTypeObject *pier_py_device_type;

struct pier_py_device *pier_py_device_open(PyTypeObject *type, const char *name)
{
	struct pier_py_device *self = pier_py_new(type);
	int error;

	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = pier_open_device(name, &self->device);
	Py_END_ALLOW_THREADS
	if (!error)
		return self;
	pier_py_fail(error);
	Py_DECREF((PyObject *)self);
	return NULL;
}

static int destroy_device(void *device)
{
	return pier_close_device(device);
}

int pier_py_device_close(struct pier_py_device *self)
{
	return pier_py_use_close(&self->use, NAME, destroy_device, self->device);
}

static PyObject *new_device(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "name", NULL };
	const char *name = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|z:Device", names, &name))
		return NULL;
	return (PyObject *)pier_py_device_open(type, name);
}

static void delete_device(struct pier_py_device *self)
{
	pier_py_use_delete(&self->use, destroy_device, self->device);
	pier_py_delete(self);
}

static PyObject *close_device(struct pier_py_device *self, PyObject *unused)
{
	(void)unused;
	if (pier_py_device_close(self) < 0)
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
	Py_BEGIN_ALLOW_THREADS
	error = pier_query_port(self->device, number, &port);
	Py_END_ALLOW_THREADS
	pier_py_use_end(&self->use);
	if (error)
		return pier_py_fail(error);
	return pier_py_record(
		"PortAttributes", "(NsIIIII)", PyBool_FromLong(port.active),
		layers[port.link_layer > PIER_LINK_ETHERNET ? 0 : port.link_layer],
		(unsigned int)port.lid, port.active_mtu, port.max_mtu, port.max_msg_size,
		port.gid_count);
}

static PyObject *get_attributes(struct pier_py_device *self, void *unused)
{
	struct pier_device_attr attr;
	int error;

	(void)unused;
	if (!pier_py_use_begin(&self->use, NAME))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = pier_query_device(self->device, &attr);
	Py_END_ALLOW_THREADS
	pier_py_use_end(&self->use);
	if (error)
		return pier_py_fail(error);
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

static PyObject *get_name(struct pier_py_device *self, void *unused)
{
	PyObject *name;

	(void)unused;
	if (!pier_py_use_begin(&self->use, NAME))
		return NULL;
	name = PyUnicode_DecodeFSDefault(pier_device_name(self->device));
	pier_py_use_end(&self->use);
	return name;
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
	  "Return the state and the limits of a port as PortAttributes. Ports are "
	  "numbered\n"
	  "from 1." },
	{ "close", PIER_PY_METHOD(close_device), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Close the device. Raises Busy while it has protection domains. Again at any "
	  "time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef device_properties[] = {
	{ "name", (getter)get_name, NULL, "Its name: \"mlx5_0\", \"soft0\".", NULL },
	{ "attributes", (getter)get_attributes, NULL,
	  "Its limits and capabilities, DeviceAttributes.", NULL },
	PIER_PY_CLOSED_PROPERTY(pier_py_device),
	{ NULL },
};

static PyType_Slot device_slots[] = {
	{ Py_tp_doc,
	  "Device(name=None)\n--\n\n"
	  "An RDMA NIC, or \"soft0\", the software NIC.\n\n"
	  "name: from devices(), or with a plan of faults, \"fault:PLAN:NAME\". None: "
	  "the\n"
	  "device that the environment variable PIER_DEVICE names, or the first NIC with "
	  "an\n"
	  "active port, but never soft0.\n\n"
	  "Any thread may use it. A child of fork() must open its own (Forked)." },
	{ Py_tp_new, (void *)new_device },
	{ Py_tp_dealloc, (void *)delete_device },
	{ Py_tp_repr, (void *)describe_device },
	{ Py_tp_methods, device_methods },
	{ Py_tp_getset, device_properties },
	{ 0, NULL },
};

static PyType_Spec device_spec = {
	.name = "pier.Device",
	.basicsize = sizeof(struct pier_py_device),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = device_slots,
};

int pier_py_add_device(PyObject *module)
{
	return pier_py_add_type(module, &device_spec, &pier_py_device_type);
}
