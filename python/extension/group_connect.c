/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "blocking.h"
#include "error.h"
#include "group.h"
#include "time.h"

static PyObject *endpoints(struct pier_py_group *self, PyObject *unused)
{
	size_t size = (size_t)self->size * PIER_GROUP_BLOB_SIZE;
	PyObject *blobs = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
	int error;

	(void)unused;
	if (!blobs || !pier_py_queue_take(&self->queue, -1)) {
		Py_XDECREF(blobs);
		return NULL;
	}
	error = pier_group_endpoints(self->group, PyBytes_AsString(blobs), size);
	pier_py_queue_release(&self->queue);
	if (!error)
		return blobs;
	Py_DECREF(blobs);
	return pier_py_fail(error);
}

static PyObject *connect_group(struct pier_py_group *self, PyObject *arguments,
			       PyObject *keywords)
{
	static char *names[] = { "blobs", "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT, error = -1;
	struct pier_py_blocking blocking;
	Py_buffer blobs;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "y*|O&:connect", names,
					 &blobs, pier_py_timeout, &timeout_ms))
		return NULL;
	if (pier_py_queue_take(&self->queue, -1)) {
		pier_py_blocking_begin(&blocking);
		error = pier_group_connect(self->group, blobs.buf, (size_t)blobs.len,
					   timeout_ms);
		error = pier_py_blocking_end(&blocking, error);
		self->connected |= !error;
		pier_py_queue_release(&self->queue);
	}
	PyBuffer_Release(&blobs);
	return error ? NULL : Py_NewRef(Py_None);
}

/* The fd of this rank is ignored, and may be None. */
static int find_fds(const struct pier_py_group *self, PyObject *sockets, int *ret_fds)
{
	int result = 0;

	for (uint32_t rank = 0; rank < self->size && result == 0; rank++) {
		PyObject *socket = PySequence_GetItem(sockets, (Py_ssize_t)rank);

		if (!socket)
			return -1;
		ret_fds[rank] = -1;
		if (rank != self->rank)
			ret_fds[rank] = PyObject_AsFileDescriptor(socket);
		if (rank != self->rank && ret_fds[rank] < 0)
			result = -1;
		Py_DECREF(socket);
	}
	return result;
}

static int shake_hands(struct pier_py_group *self, const int *fds, int timeout_ms)
{
	struct pier_py_blocking blocking;
	int error;

	if (!pier_py_queue_take(&self->queue, -1))
		return -1;
	pier_py_blocking_begin(&blocking);
	error = pier_group_handshake(self->group, fds, timeout_ms);
	error = pier_py_blocking_end(&blocking, error);
	self->connected |= !error;
	pier_py_queue_release(&self->queue);
	return error;
}

static PyObject *handshake(struct pier_py_group *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "sockets", "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT, error = -1;
	PyObject *sockets;
	Py_ssize_t count;
	int *fds;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|O&:handshake", names,
					 &sockets, pier_py_timeout, &timeout_ms))
		return NULL;
	count = PySequence_Size(sockets);
	if (count < 0)
		return NULL;
	if (count != (Py_ssize_t)self->size)
		return pier_py_refuse(EINVAL,
				      "%zd sockets for a group of %u: one by rank", count,
				      self->size);
	fds = calloc(self->size, sizeof(*fds));
	if (!fds)
		return PyErr_NoMemory();
	if (find_fds(self, sockets, fds) == 0)
		error = shake_hands(self, fds, timeout_ms);
	free(fds);
	return error ? NULL : Py_NewRef(Py_None);
}

PyMethodDef pier_py_group_connect_methods[] = {
	{ "endpoints", PIER_PY_METHOD(endpoints), METH_NOARGS,
	  "endpoints($self)\n--\n\n"
	  "Return the blobs that the other members need: len(result) // size bytes for "
	  "each\n"
	  "rank, in their order. With soft0 they have secrets: send them over trusted\n"
	  "connections only." },
	{ "connect", PIER_PY_METHOD(connect_group), METH_VARARGS | METH_KEYWORDS,
	  "connect($self, blobs, timeout=None)\n--\n\n"
	  "Connect to all other members, which do the same, and wait until all are "
	  "connected.\n\n"
	  "blobs: the blob that each rank made for this one, in the order of ranks\n\n"
	  "Raises TimedOut, ConnectionLost, BadMessage, Invalid: failed_rank names the "
	  "rank." },
	{ "handshake", PIER_PY_METHOD(handshake), METH_VARARGS | METH_KEYWORDS,
	  "handshake($self, sockets, timeout=None)\n--\n\n"
	  "Exchange blobs over one trusted stream socket for each other rank, and "
	  "connect.\n\n"
	  "sockets: by rank; that of this rank is ignored, and may be None" },
	{ NULL },
};
