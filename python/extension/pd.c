// SPDX-License-Identifier: BSD-3-Clause
#include "device.h"
#include "error.h"
#include "region.h"

#define NAME "protection domain"

PyTypeObject *pier_py_pd_type;

struct pier_py_pd *pier_py_pd_begin(PyObject *pd)
{
	struct pier_py_pd *self = (struct pier_py_pd *)pd;

	if (!PyObject_TypeCheck(pd, pier_py_pd_type))
		return pier_py_wrong_type(pd, "pd must be a pier.ProtectionDomain");
	return pier_py_use_begin(&self->use, NAME) ? self : NULL;
}

/* A new reference to the device of the constructor's argument. */
static struct pier_py_device *find_device(PyObject *device, bool *ret_owned)
{
	const char *name = NULL;

	if (PyObject_TypeCheck(device, pier_py_device_type))
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
	return pier_py_device_open(pier_py_device_type, name);
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
	if (!self->device || !pier_py_use_begin(&self->device->use, "device"))
		goto delete_self;
	Py_BEGIN_ALLOW_THREADS
	error = pier_alloc_pd(self->device->device, &self->pd);
	Py_END_ALLOW_THREADS
	pier_py_use_end(&self->device->use);
	if (!error)
		return (PyObject *)self;
	pier_py_fail(error);
delete_self:
	Py_DECREF((PyObject *)self);
	return NULL;
}

static int destroy_pd(void *pd)
{
	return pier_dealloc_pd(pd);
}

static void delete_pd(struct pier_py_pd *self)
{
	pier_py_use_delete(&self->use, destroy_pd, self->pd);
	Py_XDECREF((PyObject *)self->device);
	pier_py_delete(self);
}

static PyObject *close_pd(struct pier_py_pd *self, PyObject *unused)
{
	(void)unused;
	if (pier_py_use_close(&self->use, NAME, destroy_pd, self->pd) < 0)
		return NULL;
	if (self->owns_device && pier_py_device_close(self->device) < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *get_device(struct pier_py_pd *self, void *unused)
{
	(void)unused;
	return Py_NewRef((PyObject *)self->device);
}

static PyObject *describe_pd(struct pier_py_pd *self)
{
	return PyUnicode_FromFormat("<pier.ProtectionDomain of %R%s>",
				    (PyObject *)self->device,
				    pier_py_use_closed(&self->use) ? ", closed" : "");
}

static PyMethodDef pd_methods[] = {
	{ "register", PIER_PY_METHOD(pier_py_region_register),
	  METH_VARARGS | METH_KEYWORDS, pier_py_region_register_doc },
	{ "close", PIER_PY_METHOD(close_pd), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Deallocate the domain, and close its device if the constructor opened it. "
	  "Raises\n"
	  "Busy while it has regions or channels. Again at any time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef pd_properties[] = {
	{ "device", (getter)get_device, NULL, "The device of the domain.", NULL },
	PIER_PY_CLOSED_PROPERTY(pier_py_pd),
	{ NULL },
};

static PyType_Slot pd_slots[] = {
	{ Py_tp_doc,
	  "ProtectionDomain(device=None)\n--\n\n"
	  "A protection domain. Only regions and channels of the same one work "
	  "together.\n\n"
	  "device: a Device; or a name or None for Device(), which the domain then "
	  "closes\n"
	  "with itself.\n\n"
	  "Any thread may use it. A child of fork() must create its own (Forked)." },
	{ Py_tp_new, (void *)new_pd },
	{ Py_tp_dealloc, (void *)delete_pd },
	{ Py_tp_repr, (void *)describe_pd },
	{ Py_tp_methods, pd_methods },
	{ Py_tp_getset, pd_properties },
	{ 0, NULL },
};

static PyType_Spec pd_spec = {
	.name = "pier.ProtectionDomain",
	.basicsize = sizeof(struct pier_py_pd),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = pd_slots,
};

int pier_py_add_pd(PyObject *module)
{
	return pier_py_add_type(module, &pd_spec, &pier_py_pd_type);
}
