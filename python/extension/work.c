/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "region.h"
#include "request.h"
#include "work.h"

static PyTypeObject *work_type;

struct pier_py_work *pier_py_work_new(struct pier_py_channel *channel)
{
	struct pier_py_work *self = pier_py_new(work_type);

	if (self)
		self->channel = (struct pier_py_channel *)Py_NewRef((PyObject *)channel);
	return self;
}

static void delete_work(struct pier_py_work *self)
{
	if (self->posted && !self->channel->queue->lock.closed)
		pier_py_queue_drop(self->channel->queue, self->channel->channel,
				   self->work, self->regions);
	else
		pier_py_regions_release(self->regions);
	Py_XDECREF(self->result);
	Py_XDECREF(self->error);
	Py_XDECREF((PyObject *)self->channel);
	pier_py_delete(self);
}

/* The result is known: a Result, or the exception that is set. */
static void conclude(struct pier_py_work *self)
{
	PyObject *type, *traceback, *regions = self->regions;

	if (!self->result) {
		PyErr_Fetch(&type, &self->error, &traceback);
		PyErr_NormalizeException(&type, &self->error, &traceback);
		Py_XDECREF(type);
		Py_XDECREF(traceback);
	}
	self->regions = NULL;
	self->posted = false;
	pier_py_regions_release(regions);
}

/* The handle is used up. Call it before any other call of the library. */
static void settle(struct pier_py_work *self, const struct pier_result *result)
{
	if (result->error)
		pier_py_fail(result->error);
	else
		self->result = pier_py_result_record(result);
	conclude(self);
}

static PyObject *get_result(struct pier_py_work *self)
{
	if (self->result)
		return Py_NewRef(self->result);
	PyErr_SetObject((PyObject *)Py_TYPE(self->error), self->error);
	return NULL;
}

/* One wait of a thread for a request. */
struct work_wait {
	struct pier_py_work *work;
	struct pier_result result;
};

/* Another thread may have got the result. */
static int check_work(void *subject)
{
	struct work_wait *wait = subject;
	struct pier_py_work *work = wait->work;

	if (!work->posted)
		return 1;
	return pier_work_poll(work->channel->channel, work->work, &wait->result);
}

/*
 * Stop the channel, so that the memory is safe to reuse. The request may have completed
 * at the last moment.
 */
static struct pier_result stop_channel(struct pier_py_work *self)
{
	struct pier_result result;

	pier_channel_cancel(self->channel->channel);
	if (pier_work_poll(self->channel->channel, self->work, &result) != 1)
		result = (struct pier_result){ .error = -EIO };
	return result;
}

static void expire(struct pier_py_work *self, int timeout_ms)
{
	struct pier_result result = stop_channel(self);

	if (result.error == 0) {
		settle(self, &result);
		return;
	}
	pier_py_refuse(ETIMEDOUT,
		       "the request did not complete within %d ms; everything "
		       "outstanding on the channel was stopped",
		       timeout_ms);
	conclude(self);
}

/* The exception of the signal handler is set, and stays. */
static void stop_interrupted(struct pier_py_work *self)
{
	PyObject *type, *value, *traceback;
	struct pier_result result;

	PyErr_Fetch(&type, &value, &traceback);
	result = stop_channel(self);
	settle(self, &result);
	PyErr_Restore(type, value, traceback);
}

/* named_ms: of the sentence at the timeout */
static PyObject *finish(struct pier_py_work *work, int timeout_ms, int named_ms,
			bool blocking)
{
	struct pier_py_channel *channel = work->channel;
	struct work_wait wait = { .work = work };
	int state;

	state = pier_py_queue_wait(channel->queue, channel->channel, check_work, &wait,
				   timeout_ms);
	if (state < 0) {
		if (blocking && work->posted && !channel->queue->lock.closed)
			stop_interrupted(work);
		return NULL;
	}
	if (work->posted && state > 0)
		settle(work, &wait.result);
	else if (work->posted && blocking)
		expire(work, named_ms);
	else if (work->posted) {
		pier_py_refuse(ETIMEDOUT,
			       "the request did not complete within %d ms; it is still "
			       "outstanding",
			       named_ms);
		return NULL;
	}
	return get_result(work);
}

PyObject *pier_py_work_finish(struct pier_py_work *work, int timeout_ms, bool blocking)
{
	if (timeout_ms == PIER_TIMEOUT_DEFAULT)
		timeout_ms = work->channel->timeout_ms;
	return finish(work, timeout_ms, timeout_ms, blocking);
}

static PyObject *wait_for_work(struct pier_py_work *self, PyObject *arguments,
			       PyObject *keywords)
{
	static char *names[] = { "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT;
	PyObject *result;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&:wait", names,
					 pier_py_timeout, &timeout_ms))
		return NULL;
	if (!self->posted)
		return get_result(self);
	if (!pier_py_channel_take(self->channel))
		return NULL;
	result = pier_py_work_finish(self, timeout_ms, false);
	pier_py_channel_release(self->channel);
	if (!result)
		pier_py_queue_wake(self->channel->queue, NULL);
	return result;
}

/* The channel's timeout has passed elsewhere: in pier/_waiting.py. */
static PyObject *end_wait(struct pier_py_work *self, PyObject *Py_UNUSED(unused))
{
	PyObject *result;

	if (!self->posted)
		return get_result(self);
	if (!pier_py_channel_take(self->channel))
		return NULL;
	result = finish(self, 0, self->channel->timeout_ms, false);
	pier_py_channel_release(self->channel);
	if (!result)
		pier_py_queue_wake(self->channel->queue, NULL);
	return result;
}

static PyObject *is_done(struct pier_py_work *self, PyObject *Py_UNUSED(unused))
{
	struct pier_result result;
	int state = 1;

	if (!self->posted)
		Py_RETURN_TRUE;
	if (!pier_py_channel_take(self->channel))
		return NULL;
	if (self->posted)
		state = pier_work_poll(self->channel->channel, self->work, &result);
	if (self->posted && state > 0)
		settle(self, &result);
	pier_py_channel_release(self->channel);
	return state < 0 ? pier_py_fail(state) : PyBool_FromLong(state);
}

/* pier/_waiting.py */
static PyObject *await_work(struct pier_py_work *self)
{
	return pier_py_call("pier._waiting", "await_work", (PyObject *)self);
}

static PyObject *describe_work(struct pier_py_work *self)
{
	return PyUnicode_FromFormat("<pier.Work%s>", self->posted   ? ", outstanding"
						     : self->result ? ", done"
								    : ", failed");
}

static PyMethodDef work_methods[] = {
	{ "_end_wait", PIER_PY_METHOD(end_wait), METH_NOARGS,
	  "_end_wait($self)\n--\n\nAs wait(0), after the timeout of the channel." },
	{ "done", PIER_PY_METHOD(is_done), METH_NOARGS,
	  "done($self)\n--\n\n"
	  "Return whether the request has completed, also if it failed. Never waits." },
	{ "wait", PIER_PY_METHOD(wait_for_work), METH_VARARGS | METH_KEYWORDS,
	  "wait($self, timeout=None)\n--\n\n"
	  "Wait until the request has completed, and return its Result. Again at any\n"
	  "time.\n\n"
	  "timeout: in seconds; None: the timeout of the channel\n\n"
	  "At the timeout, TimedOut, and after Ctrl-C, the request is still\n"
	  "outstanding: wait again, or call cancel() of the channel. A request that\n"
	  "failed raises its\n"
	  "error: ConnectionLost, AccessDenied and others." },
	{ NULL },
};

static PyMemberDef work_members[] = {
	{ "channel", T_OBJECT_EX, offsetof(struct pier_py_work, channel), READONLY,
	  "The channel of the request." },
	{ NULL },
};

static PyType_Slot work_slots[] = {
	{ Py_tp_doc,
	  "A request that was posted on a channel: wait for it, or await it.\n\n"
	  "It keeps its regions open until the request has completed, also if the Work\n"
	  "is gone before. To cancel an await leaves the request outstanding; at the\n"
	  "timeout of the channel an await ends as wait() does. Any thread may use it." },
	{ Py_tp_dealloc, (void *)delete_work },
	{ Py_tp_repr, (void *)describe_work },
	{ Py_tp_methods, work_methods },
	{ Py_tp_members, work_members },
	{ Py_am_await, (void *)await_work },
	{ 0, NULL },
};

int pier_py_add_work(PyObject *module)
{
	return pier_py_add_type(module, "pier.Work", sizeof(struct pier_py_work),
				work_slots, &work_type);
}
