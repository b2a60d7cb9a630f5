/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "channel.h"
#include "channel_attr.h"
#include "device.h"
#include "error.h"
#include "region.h"

#define NAME "channel"

PyTypeObject *pier_py_channel_type;

struct pier_py_channel *pier_py_channel_check(PyObject *object)
{
	if (PyObject_TypeCheck(object, pier_py_channel_type))
		return (struct pier_py_channel *)object;
	return pier_py_wrong_type(object, "a pier.Channel is needed");
}

bool pier_py_channel_take(struct pier_py_channel *channel)
{
	return pier_py_queue_take(channel->queue, -1);
}

static struct pier_py_channel *allocate_channel(PyTypeObject *type, PyObject *parent,
						struct pier_py_queue *queue)
{
	struct pier_py_channel *self = pier_py_new(type);

	if (!self)
		return NULL;
	self->parent = Py_NewRef(parent);
	self->queue = queue ? queue : &self->own_queue;
	if (queue || pier_py_queue_init(&self->own_queue, NAME) == 0)
		return self;
	Py_DECREF((PyObject *)self);
	return NULL;
}

static int remember_timeout(struct pier_py_channel *self)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	pier_channel_query(self->channel, &attr);
	self->timeout_ms = attr.timeout_ms;
	return 0;
}

static int create_channel(struct pier_py_channel *self, struct pier_py_pd *pd,
			  const struct pier_channel_attr *attr)
{
	PyThreadState *state = PyEval_SaveThread();
	int error = pier_channel_create(pd->pd, attr, &self->channel);

	PyEval_RestoreThread(state);
	if (!error)
		return remember_timeout(self);
	pier_py_fail(error);
	return -1;
}

static PyObject *new_channel(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "pd", NULL };
	struct pier_channel_attr attr;
	struct pier_py_channel *self = NULL;
	struct pier_py_pd *pd;
	PyObject *object, *others = keywords ? PyDict_Copy(keywords) : NULL;

	pier_channel_attr_init(&attr);
	if (pier_py_channel_attr_take(others, names, &attr) < 0 ||
	    !PyArg_ParseTupleAndKeywords(arguments, others, "O:Channel", names, &object))
		goto free_others;
	pd = pier_py_pd_begin(object);
	if (!pd)
		goto free_others;
	self = allocate_channel(type, object, NULL);
	if (self && create_channel(self, pd, &attr) < 0) {
		Py_DECREF((PyObject *)self);
		self = NULL;
	}
	pier_py_use_end(&pd->use);
free_others:
	Py_XDECREF(others);
	return (PyObject *)self;
}

PyObject *pier_py_channel_of_group(PyObject *group, struct pier_py_queue *queue,
				   struct pier_channel *channel, bool connected)
{
	struct pier_py_channel *self = allocate_channel(pier_py_channel_type, group,
							queue);

	if (!self)
		return NULL;
	self->channel = channel;
	self->connected = connected;
	remember_timeout(self);
	return (PyObject *)self;
}

static bool is_owner(const struct pier_py_channel *self)
{
	return self->queue == &self->own_queue;
}

/* Channels of a group have no inline data. */
bool pier_py_channel_accepts(struct pier_py_channel *channel, PyObject *regions)
{
	Py_ssize_t count = regions && is_owner(channel) ? PyList_Size(regions) : 0;

	for (Py_ssize_t i = 0; i < count; i++) {
		struct pier_py_region *region = (struct pier_py_region *)PyList_GetItem(
			regions, i);

		if ((PyObject *)region->pd == channel->parent)
			continue;
		pier_py_refuse(EINVAL, "the region is in another protection domain than "
				       "the channel: register the memory with that of "
				       "the channel");
		return false;
	}
	return true;
}

static int destroy_channel(struct pier_py_channel *self)
{
	PyThreadState *state = PyEval_SaveThread();
	int error = pier_channel_destroy(self->channel);

	PyEval_RestoreThread(state);
	return error;
}

/* Errors, such as those of a child of fork(2), have nowhere to go. */
static void delete_channel(struct pier_py_channel *self)
{
	if (self->channel && is_owner(self))
		destroy_channel(self);
	if (is_owner(self))
		pier_py_queue_destroy(&self->own_queue);
	Py_XDECREF(self->parent);
	pier_py_delete(self);
}

/* With the lock. */
static PyObject *close_locked(struct pier_py_channel *self)
{
	int error;

	if (self->queue->lock.closed)
		Py_RETURN_NONE;
	if (!is_owner(self))
		return pier_py_refuse(EBUSY,
				      "the channel belongs to a group: close that");
	if (self->queue->users)
		return pier_py_refuse(EBUSY,
				      "the channel is in use by %u transfers or rings: "
				      "close them first",
				      self->queue->users);
	error = destroy_channel(self);
	if (error)
		return pier_py_fail(error);
	self->channel = NULL;
	self->queue->lock.closed = true;
	Py_RETURN_NONE;
}

static PyObject *close_channel(struct pier_py_channel *self, PyObject *unused)
{
	PyObject *result;

	(void)unused;
	if (!pier_py_lock_take_any(&self->queue->lock, NAME, -1))
		return NULL;
	result = close_locked(self);
	pier_py_channel_release(self);
	if (result && is_owner(self)) {
		pier_py_queue_forget(self->queue);
		pier_py_queue_wake(self->queue, NULL);
	}
	return result;
}

static PyObject *get_endpoint(struct pier_py_channel *self, void *unused)
{
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];
	struct pier_endpoint endpoint;
	int size;

	(void)unused;
	if (!pier_py_channel_take(self))
		return NULL;
	size = pier_channel_endpoint(self->channel, &endpoint);
	if (size == 0)
		size = pier_endpoint_pack(&endpoint, wire, sizeof(wire));
	pier_py_channel_release(self);
	if (size < 0)
		return pier_py_fail(size);
	return PyBytes_FromStringAndSize((const char *)wire, size);
}

static PyObject *get_attributes(struct pier_py_channel *self, void *unused)
{
	struct pier_channel_attr attr;

	(void)unused;
	pier_channel_attr_init(&attr);
	if (!pier_py_channel_take(self))
		return NULL;
	pier_channel_query(self->channel, &attr);
	pier_py_channel_release(self);
	return pier_py_channel_attr_record(&attr);
}

static PyObject *get_failure(struct pier_py_channel *self, void *unused)
{
	struct pier_channel_failure failure;
	int error;

	(void)unused;
	if (!pier_py_channel_take(self))
		return NULL;
	error = pier_channel_error(self->channel, &failure);
	pier_py_channel_release(self);
	return error ? PyUnicode_FromString(failure.sentence) : Py_NewRef(Py_None);
}

static PyObject *get_connected(struct pier_py_channel *self, void *unused)
{
	bool connected;

	(void)unused;
	if (!pier_py_lock_take_any(&self->queue->lock, NAME, -1))
		return NULL;
	connected = !self->queue->lock.closed && self->connected &&
		    pier_channel_error(self->channel, NULL) == 0;
	pier_py_channel_release(self);
	return PyBool_FromLong(connected);
}

static PyObject *get_closed(struct pier_py_channel *self, void *unused)
{
	(void)unused;
	return PyBool_FromLong(self->queue->lock.closed);
}

static PyObject *get_outstanding(struct pier_py_channel *self, void *unused)
{
	uint32_t count;

	(void)unused;
	if (!pier_py_channel_take(self))
		return NULL;
	count = pier_channel_outstanding(self->channel);
	pier_py_channel_release(self);
	return PyLong_FromUnsignedLong(count);
}

static PyObject *get_timeout(struct pier_py_channel *self, void *unused)
{
	(void)unused;
	return PyFloat_FromDouble(self->timeout_ms / 1e3);
}

static PyObject *get_owner(struct pier_py_channel *self, void *unused)
{
	(void)unused;
	return Py_NewRef(is_owner(self) ? (PyObject *)self : self->parent);
}

static PyObject *describe_channel(struct pier_py_channel *self)
{
	return PyUnicode_FromFormat("<pier.Channel%s%s>",
				    is_owner(self) ? "" : " of a group",
				    self->queue->lock.closed ? ", closed"
				    : self->connected	     ? ", connected"
							     : "");
}

static PyMethodDef close_methods[] = {
	{ "close", PIER_PY_METHOD(close_channel), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Stop everything that is outstanding, and destroy the channel. Again at any "
	  "time.\n"
	  "Raises Busy for a channel of a group, or while a transfer or a ring uses "
	  "it." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef channel_properties[] = {
	{ "endpoint", (getter)get_endpoint, NULL,
	  "The bytes that the peer needs for connect(). With soft0 they have a secret: "
	  "send\n"
	  "them over a trusted connection only.",
	  NULL },
	{ "attributes", (getter)get_attributes, NULL,
	  "The effective ChannelAttributes, after defaults and clamping.", NULL },
	{ "connected", (getter)get_connected, NULL,
	  "Whether the channel is connected, as far as this end knows.", NULL },
	{ "failure", (getter)get_failure, NULL,
	  "The sentence of the first error of a broken channel, or None.", NULL },
	{ "outstanding", (getter)get_outstanding, NULL,
	  "The number of requests that are posted and not completed.", NULL },
	{ "closed", (getter)get_closed, NULL, "Whether close() has closed it.", NULL },
	{ "_timeout", (getter)get_timeout, NULL, "attributes.timeout", NULL },
	{ "_owner", (getter)get_owner, NULL,
	  "The owner of the completion queue: the channel or its group.", NULL },
	{ NULL },
};

int pier_py_add_channel(PyObject *module)
{
	static PyMethodDef methods[48];
	PyMethodDef *const tables[] = { close_methods, pier_py_connect_methods,
					pier_py_event_methods, pier_py_post_methods,
					NULL };
	PyType_Slot slots[] = {
		{ Py_tp_doc, "Channel(pd, **attributes)\n--\n\n"
			     "A reliable connection to another process.\n\n"
			     "pd: the ProtectionDomain of its regions\n"
			     "attributes: the fields of ChannelAttributes as keywords, "
			     "and options: text\n"
			     "such as \"tc=106,gid=3\" (pier_channel_attr_parse(3))\n\n"
			     "Any thread may use it: calls of several threads take "
			     "turns, and a wait lets\n"
			     "others in while it sleeps. A child of fork() must create "
			     "its own (Forked)." },
		{ Py_tp_new, (void *)new_channel },
		{ Py_tp_dealloc, (void *)delete_channel },
		{ Py_tp_repr, (void *)describe_channel },
		{ Py_tp_methods, pier_py_join_methods(tables, methods) },
		{ Py_tp_getset, channel_properties },
		{ 0, NULL },
	};
	PyType_Spec spec = {
		.name = "pier.Channel",
		.basicsize = sizeof(struct pier_py_channel),
		.flags = Py_TPFLAGS_DEFAULT,
		.slots = slots,
	};

	return pier_py_add_type(module, &spec, &pier_py_channel_type);
}
