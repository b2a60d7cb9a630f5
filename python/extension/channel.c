/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "channel.h"
#include "channel_attr.h"
#include "device.h"
#include "region.h"

#define NAME "channel"

PyTypeObject *pier_py_channel_type;

struct pier_py_channel *pier_py_channel_check(PyObject *object)
{
	if (PyObject_TypeCheck(object, pier_py_channel_type))
		return (struct pier_py_channel *)object;
	return pier_py_wrong_type(object, "a pier.Channel is needed");
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

	pier_channel_query(self->channel, &attr, sizeof(attr));
	self->timeout_ms = attr.timeout_ms;
	return 0;
}

static int create_channel(struct pier_py_channel *self, struct pier_py_pd *pd,
			  const struct pier_channel_attr *attr)
{
	if (PIER_PY_CALL(pier_channel_create(pd->pd, attr, &self->channel)))
		return -1;
	return remember_timeout(self);
}

static PyObject *new_channel(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "pd", NULL };
	struct pier_channel_attr attr;
	struct pier_py_channel *self = NULL;
	struct pier_py_pd *pd;
	PyObject *object, *others = keywords ? PyDict_Copy(keywords) : NULL;

	pier_channel_attr_init(&attr);
	if (pier_py_channel_attr_take(others, "pd", &attr) < 0 ||
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

static int destroy_channel(void *channel)
{
	return pier_channel_destroy(channel);
}

static void delete_channel(struct pier_py_channel *self)
{
	if (is_owner(self))
		pier_py_queue_delete(&self->own_queue, destroy_channel, self->channel);
	Py_XDECREF(self->parent);
	pier_py_delete(self);
}

static PyObject *close_channel(struct pier_py_channel *self, PyObject *Py_UNUSED(unused))
{
	if (!is_owner(self) && !self->queue->lock.closed)
		return pier_py_refuse(EBUSY,
				      "the channel belongs to a group: close that");
	return pier_py_queue_close(self->queue, "the channel is", destroy_channel,
				   self->channel);
}

static PyObject *connect_channel(struct pier_py_channel *self, PyObject *arguments,
				 PyObject *keywords)
{
	static char *names[] = { "endpoint", NULL };
	struct pier_endpoint endpoint;
	Py_buffer wire;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "y*:connect", names, &wire))
		return NULL;
	error = pier_py_check(
		pier_endpoint_unpack(wire.buf, (size_t)wire.len, &endpoint));
	PyBuffer_Release(&wire);
	if (error || !pier_py_queue_take(self->queue))
		return NULL;
	error = PIER_PY_BLOCKING(pier_channel_connect(self->channel, &endpoint));
	self->connected |= !error;
	pier_py_queue_release(self->queue);
	return error ? NULL : Py_NewRef(Py_None);
}

static PyObject *handshake(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "socket", "write_file", "timeout", NULL };
	PyObject *socket, *write_file = Py_None;
	int timeout_ms = PIER_TIMEOUT_DEFAULT, read_fd, write_fd, error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|O$O&:handshake", names,
					 &socket, &write_file, pier_py_timeout,
					 &timeout_ms))
		return NULL;
	read_fd = PyObject_AsFileDescriptor(socket);
	write_fd = read_fd < 0		   ? -1
		   : write_file == Py_None ? read_fd
					   : PyObject_AsFileDescriptor(write_file);
	if (write_fd < 0 || !pier_py_queue_take(self->queue))
		return NULL;
	error = PIER_PY_BLOCKING(
		pier_channel_handshake(self->channel, read_fd, write_fd, timeout_ms));
	self->connected |= !error;
	pier_py_queue_release(self->queue);
	return error ? NULL : Py_NewRef(Py_None);
}

/* A call that stops what is outstanding, and so ends waits. */
static PyObject *stop(struct pier_py_channel *self, int (*call)(struct pier_channel *))
{
	int error;

	if (!pier_py_queue_take(self->queue))
		return NULL;
	error = PIER_PY_CALL(call(self->channel));
	if (!error && call == pier_channel_reset)
		self->connected = false;
	pier_py_queue_release(self->queue);
	pier_py_queue_wake(self->queue, NULL);
	return error ? NULL : Py_NewRef(Py_None);
}

static PyObject *cancel_channel(struct pier_py_channel *self, PyObject *Py_UNUSED(unused))
{
	return stop(self, pier_channel_cancel);
}

static PyObject *reset_channel(struct pier_py_channel *self, PyObject *Py_UNUSED(unused))
{
	return stop(self, pier_channel_reset);
}

static PyObject *poll_channel(struct pier_py_channel *self, PyObject *Py_UNUSED(unused))
{
	int count;

	if (!pier_py_queue_take(self->queue))
		return NULL;
	count = pier_channel_poll(self->channel);
	pier_py_queue_release(self->queue);
	return count < 0 ? pier_py_fail(count) : Py_NewRef(Py_None);
}

static PyObject *get_fd(struct pier_py_channel *self, PyObject *Py_UNUSED(unused))
{
	int fd;

	if (!pier_py_queue_take(self->queue))
		return NULL;
	fd = pier_channel_fd(self->channel);
	pier_py_queue_release(self->queue);
	return PyLong_FromLong(fd);
}

/*
 * While a thread sleeps, the queue is armed, and arming it again would make that thread
 * miss its completion.
 */
static PyObject *arm_for(struct pier_py_channel *self, PyObject *wake)
{
	int count = 0;

	if (!pier_py_queue_take(self->queue))
		return NULL;
	if (!self->queue->has_sleeper)
		count = pier_channel_arm(self->channel);
	pier_py_queue_release(self->queue);
	if (count < 0)
		return pier_py_fail(count);
	pier_py_queue_wake(self->queue, wake);
	return PyBool_FromLong(count > 0);
}

static PyObject *arm_channel(struct pier_py_channel *self, PyObject *Py_UNUSED(unused))
{
	return arm_for(self, NULL);
}

static PyObject *next_poll(struct pier_py_channel *self, PyObject *Py_UNUSED(unused))
{
	int next_ms;

	if (!pier_py_queue_take(self->queue))
		return NULL;
	next_ms = pier_channel_next_ms(self->channel);
	pier_py_queue_release(self->queue);
	return next_ms < 0 ? Py_NewRef(Py_None) : PyFloat_FromDouble(next_ms / 1e3);
}

static PyObject *change_watchers(struct pier_py_channel *self, PyObject *wake,
				 int (*change)(struct pier_py_queue *, PyObject *))
{
	int result;

	/* Also for a closed channel. */
	if (!pier_py_lock_take_any(&self->queue->lock, self->queue->name))
		return NULL;
	result = change(self->queue, wake);
	pier_py_queue_release(self->queue);
	return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *watch(struct pier_py_channel *self, PyObject *wake)
{
	return change_watchers(self, wake, pier_py_queue_watch);
}

static PyObject *unwatch(struct pier_py_channel *self, PyObject *wake)
{
	return change_watchers(self, wake, pier_py_queue_unwatch);
}

static PyObject *set_waiting(struct pier_py_channel *self, PyObject *arguments,
			     PyObject *keywords)
{
	static char *names[] = { "waiting", "spin", NULL };
	struct pier_channel_attr attr = { .spin_us = 50 };
	PyObject *waiting, *spin = NULL, *both;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$O:set_waiting", names,
					 &waiting, &spin))
		return NULL;
	/* Converted as those of a new channel. */
	both = Py_BuildValue(spin ? "{sOsO}" : "{sO}", "waiting", waiting, "spin", spin);
	error = both ? pier_py_channel_attr_take(both, "", &attr) : -1;
	Py_XDECREF(both);
	if (error || !pier_py_queue_take(self->queue))
		return NULL;
	error = pier_channel_set_waiting(self->channel, attr.waiting, attr.spin_us);
	pier_py_queue_release(self->queue);
	return pier_py_result(error);
}

static PyObject *get_endpoint(struct pier_py_channel *self, void *Py_UNUSED(unused))
{
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];
	struct pier_endpoint endpoint;
	int size;

	if (!pier_py_queue_take(self->queue))
		return NULL;
	size = pier_channel_endpoint(self->channel, &endpoint);
	if (size == 0)
		size = pier_endpoint_pack(&endpoint, wire, sizeof(wire));
	pier_py_queue_release(self->queue);
	if (size < 0)
		return pier_py_fail(size);
	return PyBytes_FromStringAndSize((const char *)wire, size);
}

static PyObject *get_attributes(struct pier_py_channel *self, void *Py_UNUSED(unused))
{
	struct pier_channel_attr attr;

	if (!pier_py_queue_take(self->queue))
		return NULL;
	pier_channel_query(self->channel, &attr, sizeof(attr));
	pier_py_queue_release(self->queue);
	return pier_py_channel_attr_record(&attr);
}

static PyObject *get_failure(struct pier_py_channel *self, void *Py_UNUSED(unused))
{
	struct pier_channel_failure failure;
	int error;

	if (!pier_py_queue_take(self->queue))
		return NULL;
	error = pier_channel_error(self->channel, &failure, sizeof(failure));
	pier_py_queue_release(self->queue);
	return error ? PyUnicode_FromString(failure.sentence) : Py_NewRef(Py_None);
}

static PyObject *get_connected(struct pier_py_channel *self, void *Py_UNUSED(unused))
{
	bool connected;

	if (!pier_py_lock_take_any(&self->queue->lock, NAME))
		return NULL;
	connected = !self->queue->lock.closed && self->connected &&
		    pier_channel_error(self->channel, NULL, 0) == 0;
	pier_py_queue_release(self->queue);
	return PyBool_FromLong(connected);
}

static PyObject *get_closed(struct pier_py_channel *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(self->queue->lock.closed);
}

static PyObject *get_outstanding(struct pier_py_channel *self, void *Py_UNUSED(unused))
{
	uint32_t count;

	if (!pier_py_queue_take(self->queue))
		return NULL;
	count = pier_channel_outstanding(self->channel);
	pier_py_queue_release(self->queue);
	return PyLong_FromUnsignedLong(count);
}

static PyObject *get_timeout(struct pier_py_channel *self, void *Py_UNUSED(unused))
{
	return PyFloat_FromDouble(self->timeout_ms / 1e3);
}

static PyObject *get_owner(struct pier_py_channel *self, void *Py_UNUSED(unused))
{
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

static PyMethodDef channel_methods[] = {
	{ "connect", PIER_PY_METHOD(connect_channel), METH_VARARGS | METH_KEYWORDS,
	  "connect($self, endpoint)\n--\n\n"
	  "Connect to the peer that has this endpoint. The peer must connect to the\n"
	  "endpoint of this channel. Does not wait until the peer is ready;\n"
	  "handshake() does.\n\n"
	  "endpoint: the bytes of Channel.endpoint of the peer\n\n"
	  "Raises Invalid (the length is not that of an endpoint), BadMessage (no\n"
	  "endpoint), ConnectionLost, TimedOut, or Error with EISCONN (connected\n"
	  "before) or ESTALE (the endpoint is from before a reset)." },
	{ "handshake", PIER_PY_METHOD(handshake), METH_VARARGS | METH_KEYWORDS,
	  "handshake($self, socket, write_file=None, *, timeout=None)\n--\n\n"
	  "Exchange endpoints with the peer, which does the same, and connect.\n\n"
	  "socket: a connected stream socket; or what to read from, such as a pipe\n"
	  "write_file: what to write to, if it is not the same\n"
	  "timeout: seconds for the whole call; None: the timeout of the channel\n\n"
	  "Both are files or fds, and are left as they were. The endpoints of soft0 "
	  "have\n"
	  "secrets: the connection must be trusted.\n\n"
	  "Raises TimedOut, ConnectionLost, BadMessage. The channel can then only be\n"
	  "reset or closed." },
	{ "cancel", PIER_PY_METHOD(cancel_channel), METH_NOARGS,
	  "cancel($self)\n--\n\n"
	  "Stop everything that is outstanding. Afterwards nothing is in flight, and\n"
	  "the channel is broken until reset(). Requests end with ConnectionLost\n"
	  "(ECANCELED)." },
	{ "reset", PIER_PY_METHOD(reset_channel), METH_NOARGS,
	  "reset($self)\n--\n\n"
	  "Stop everything that is outstanding, and return to the state of a new\n"
	  "channel, with a new endpoint. The peer has to do the same. Raises Busy for\n"
	  "a channel of a group." },
	{ "fileno", PIER_PY_METHOD(get_fd), METH_NOARGS,
	  "fileno($self)\n--\n\n"
	  "Return the fd for event loops. After arm() it becomes readable at the next\n"
	  "completion. The channel owns it: do not read or close it." },
	{ "arm", PIER_PY_METHOD(arm_channel), METH_NOARGS,
	  "arm($self)\n--\n\n"
	  "Make fileno() readable at the next completion. Return whether completions "
	  "were\n"
	  "there: then check the requests before sleeping." },
	{ "poll", PIER_PY_METHOD(poll_channel), METH_NOARGS,
	  "poll($self)\n--\n\n"
	  "Collect completions, and send a keepalive if one is due." },
	{ "next_poll", PIER_PY_METHOD(next_poll), METH_NOARGS,
	  "next_poll($self)\n--\n\n"
	  "Return the seconds after which an event loop must call poll() or arm() for\n"
	  "keepalives, or None." },
	{ "set_waiting", PIER_PY_METHOD(set_waiting), METH_VARARGS | METH_KEYWORDS,
	  "set_waiting($self, waiting, *, spin=5e-05)\n--\n\n"
	  "Set how waits spend their time: \"adaptive\" polls for `spin` seconds and\n"
	  "then sleeps, \"poll\" never sleeps, \"event\" sleeps at once." },
	{ "_arm", PIER_PY_METHOD(arm_for), METH_O,
	  "arm() of an event loop, which need not wake itself." },
	{ "_watch", PIER_PY_METHOD(watch), METH_O,
	  "Call a function whenever another thread has armed the channel." },
	{ "_unwatch", PIER_PY_METHOD(unwatch), METH_O, "Undo _watch()." },
	{ "close", PIER_PY_METHOD(close_channel), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Stop everything that is outstanding, and destroy the channel. Again at any\n"
	  "time. Raises Busy for a channel of a group, or while a transfer or a ring\n"
	  "uses it." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef channel_properties[] = {
	{ "endpoint", (getter)get_endpoint, NULL,
	  "The bytes that the peer needs for connect(). With soft0 they have a secret:\n"
	  "send them over a trusted connection only.",
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

static PyType_Slot channel_slots[] = {
	{ Py_tp_doc,
	  "Channel(pd, **attributes)\n--\n\n"
	  "A reliable connection to another process.\n\n"
	  "pd: the ProtectionDomain of its regions\n"
	  "attributes: the fields of ChannelAttributes as keywords, and options: text\n"
	  "such as \"tc=106,gid=3\" (pier_channel_attr_parse(3))\n\n"
	  "Any thread may use it: calls of several threads take turns, and a wait lets\n"
	  "others in while it sleeps. A child of fork() must create its own (Forked)." },
	{ Py_tp_new, (void *)new_channel },
	{ Py_tp_dealloc, (void *)delete_channel },
	{ Py_tp_repr, (void *)describe_channel },
	{ Py_tp_methods, channel_methods },
	{ Py_tp_getset, channel_properties },
	{ 0, NULL },
};

int pier_py_add_channel(PyObject *module)
{
	return pier_py_add_type(module, "pier.Channel", sizeof(struct pier_py_channel),
				channel_slots, &pier_py_channel_type);
}
