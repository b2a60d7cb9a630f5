/* SPDX-License-Identifier: BSD-3-Clause */
#include "blocking.h"
#include "channel.h"
#include "error.h"
#include "time.h"

static PyObject *connect_to(struct pier_py_channel *self,
			    const struct pier_endpoint *endpoint)
{
	struct pier_py_blocking blocking;
	int error;

	if (!pier_py_channel_take(self))
		return NULL;
	pier_py_blocking_begin(&blocking);
	error = pier_channel_connect(self->channel, endpoint);
	error = pier_py_blocking_end(&blocking, error);
	if (!error)
		self->connected = true;
	pier_py_channel_release(self);
	return error ? NULL : Py_NewRef(Py_None);
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
	error = pier_endpoint_unpack(wire.buf, (size_t)wire.len, &endpoint);
	PyBuffer_Release(&wire);
	return error ? pier_py_fail(error) : connect_to(self, &endpoint);
}

static PyObject *shake_hands(struct pier_py_channel *self, int read_fd, int write_fd,
			     int timeout_ms)
{
	struct pier_py_blocking blocking;
	int error;

	if (!pier_py_channel_take(self))
		return NULL;
	pier_py_blocking_begin(&blocking);
	error = pier_channel_handshake(self->channel, read_fd, write_fd, timeout_ms);
	error = pier_py_blocking_end(&blocking, error);
	if (!error)
		self->connected = true;
	pier_py_channel_release(self);
	return error ? NULL : Py_NewRef(Py_None);
}

static PyObject *handshake(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "socket", "write_file", "timeout", NULL };
	PyObject *socket, *write_file = Py_None;
	int timeout_ms = PIER_TIMEOUT_DEFAULT, read_fd, write_fd;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|O$O&:handshake", names,
					 &socket, &write_file, pier_py_timeout,
					 &timeout_ms))
		return NULL;
	read_fd = PyObject_AsFileDescriptor(socket);
	write_fd = read_fd < 0		   ? -1
		   : write_file == Py_None ? read_fd
					   : PyObject_AsFileDescriptor(write_file);
	return write_fd < 0 ? NULL : shake_hands(self, read_fd, write_fd, timeout_ms);
}

/* A call that stops what is outstanding, and so ends waits. */
static PyObject *stop(struct pier_py_channel *self, int (*call)(struct pier_channel *))
{
	PyThreadState *state;
	int error;

	if (!pier_py_channel_take(self))
		return NULL;
	state = PyEval_SaveThread();
	error = call(self->channel);
	PyEval_RestoreThread(state);
	if (!error && call == pier_channel_reset)
		self->connected = false;
	if (error)
		pier_py_fail(error);
	pier_py_channel_release(self);
	pier_py_queue_wake(self->queue, NULL);
	return error ? NULL : Py_NewRef(Py_None);
}

static PyObject *cancel_channel(struct pier_py_channel *self, PyObject *unused)
{
	(void)unused;
	return stop(self, pier_channel_cancel);
}

static PyObject *reset_channel(struct pier_py_channel *self, PyObject *unused)
{
	(void)unused;
	return stop(self, pier_channel_reset);
}

PyMethodDef pier_py_connect_methods[] = {
	{ "connect", PIER_PY_METHOD(connect_channel), METH_VARARGS | METH_KEYWORDS,
	  "connect($self, endpoint)\n--\n\n"
	  "Connect to the peer that has this endpoint. The peer must connect to the "
	  "endpoint\n"
	  "of this channel. Does not wait until the peer is ready; handshake() does.\n\n"
	  "endpoint: the bytes of Channel.endpoint of the peer\n\n"
	  "Raises Invalid (the length is not that of an endpoint), BadMessage (no "
	  "endpoint),\n"
	  "ConnectionLost, TimedOut, or Error with EISCONN (connected before) or ESTALE "
	  "(the\n"
	  "endpoint is from before a reset)." },
	{ "handshake", PIER_PY_METHOD(handshake), METH_VARARGS | METH_KEYWORDS,
	  "handshake($self, socket, write_file=None, *, timeout=None)\n--\n\n"
	  "Exchange endpoints with the peer, which does the same, and connect.\n\n"
	  "socket: a connected stream socket; or what to read from, such as a pipe\n"
	  "write_file: what to write to, if it is not the same\n"
	  "timeout: seconds for the whole call; None: the timeout of the channel\n\n"
	  "Both are files or fds, and are left as they were. The endpoints of soft0 "
	  "have\n"
	  "secrets: the connection must be trusted.\n\n"
	  "Raises TimedOut, ConnectionLost, BadMessage. The channel can then only be "
	  "reset\n"
	  "or closed." },
	{ "cancel", PIER_PY_METHOD(cancel_channel), METH_NOARGS,
	  "cancel($self)\n--\n\n"
	  "Stop everything that is outstanding. Afterwards nothing is in flight, and "
	  "the\n"
	  "channel is broken until reset(). Requests end with ConnectionLost "
	  "(ECANCELED)." },
	{ "reset", PIER_PY_METHOD(reset_channel), METH_NOARGS,
	  "reset($self)\n--\n\n"
	  "Stop everything that is outstanding, and return to the state of a new "
	  "channel,\n"
	  "with a new endpoint. The peer has to do the same. Raises Busy for a channel "
	  "of a\n"
	  "group." },
	{ NULL },
};
