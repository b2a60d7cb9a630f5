/* SPDX-License-Identifier: BSD-3-Clause */
#include "channel.h"
#include "channel_attr.h"
#include "error.h"

static PyObject *poll_channel(struct pier_py_channel *self, PyObject *unused)
{
	int count;

	(void)unused;
	if (!pier_py_channel_take(self))
		return NULL;
	count = pier_channel_poll(self->channel);
	pier_py_channel_release(self);
	return count < 0 ? pier_py_fail(count) : Py_NewRef(Py_None);
}

static PyObject *get_fd(struct pier_py_channel *self, PyObject *unused)
{
	int fd;

	(void)unused;
	if (!pier_py_channel_take(self))
		return NULL;
	fd = pier_channel_fd(self->channel);
	pier_py_channel_release(self);
	return PyLong_FromLong(fd);
}

/*
 * While a thread sleeps, the queue is armed, and arming it again would make that thread
 * miss its completion.
 */
static PyObject *arm_for(struct pier_py_channel *self, PyObject *wake)
{
	int count = 0;

	if (!pier_py_channel_take(self))
		return NULL;
	if (!self->queue->has_sleeper)
		count = pier_channel_arm(self->channel);
	pier_py_channel_release(self);
	if (count < 0)
		return pier_py_fail(count);
	pier_py_queue_wake(self->queue, wake);
	return PyBool_FromLong(count > 0);
}

static PyObject *arm_channel(struct pier_py_channel *self, PyObject *unused)
{
	(void)unused;
	return arm_for(self, NULL);
}

static PyObject *next_poll(struct pier_py_channel *self, PyObject *unused)
{
	int next_ms;

	(void)unused;
	if (!pier_py_channel_take(self))
		return NULL;
	next_ms = pier_channel_next_ms(self->channel);
	pier_py_channel_release(self);
	return next_ms < 0 ? Py_NewRef(Py_None) : PyFloat_FromDouble(next_ms / 1e3);
}

static PyObject *change_watchers(struct pier_py_channel *self, PyObject *wake,
				 int (*change)(struct pier_py_queue *, PyObject *))
{
	int result;

	/* Also for a closed channel. */
	if (!pier_py_lock_take_any(&self->queue->lock, self->queue->name, -1))
		return NULL;
	result = change(self->queue, wake);
	pier_py_channel_release(self);
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

/* The attributes of these two names, converted as those of a new channel. */
static int take_waiting(PyObject *waiting, PyObject *spin, struct pier_channel_attr *attr)
{
	static char *names[] = { NULL };
	PyObject *keywords = PyDict_New();
	int result = keywords ? PyDict_SetItemString(keywords, "waiting", waiting) : -1;

	if (result == 0 && spin)
		result = PyDict_SetItemString(keywords, "spin", spin);
	if (result == 0)
		result = pier_py_channel_attr_take(keywords, names, attr);
	Py_XDECREF(keywords);
	return result;
}

static PyObject *set_waiting(struct pier_py_channel *self, PyObject *arguments,
			     PyObject *keywords)
{
	static char *names[] = { "waiting", "spin", NULL };
	struct pier_channel_attr attr;
	PyObject *waiting, *spin = NULL;
	int error;

	pier_channel_attr_init(&attr);
	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$O:set_waiting", names,
					 &waiting, &spin) ||
	    take_waiting(waiting, spin, &attr) < 0 || !pier_py_channel_take(self))
		return NULL;
	error = pier_channel_set_waiting(self->channel, attr.waiting, attr.spin_us);
	pier_py_channel_release(self);
	return pier_py_result(error);
}

PyMethodDef pier_py_event_methods[] = {
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
	  "Set how waits spend their time: \"adaptive\" polls for `spin` seconds and "
	  "then\n"
	  "sleeps, \"poll\" never sleeps, \"event\" sleeps at once." },
	{ "_arm", PIER_PY_METHOD(arm_for), METH_O,
	  "arm() of an event loop, which need not wake itself." },
	{ "_watch", PIER_PY_METHOD(watch), METH_O,
	  "Call a function whenever another thread has armed the channel." },
	{ "_unwatch", PIER_PY_METHOD(unwatch), METH_O, "Undo _watch()." },
	{ NULL },
};
