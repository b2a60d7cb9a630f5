/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "error.h"
#include "time.h"
#include "transfer.h"

#define NAME "transfer"

static PyTypeObject *transfer_type;

static PyObject *advance(struct pier_py_transfer *self, PyObject *unused)
{
	int result = pier_py_transfer_drive(self, 0);

	(void)unused;
	return result < 0 ? NULL : PyBool_FromLong(result);
}

static PyObject *wait_for_transfer(struct pier_py_transfer *self, PyObject *arguments,
				   PyObject *keywords)
{
	static char *names[] = { "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT, result;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&:wait", names,
					 pier_py_timeout, &timeout_ms))
		return NULL;
	/* Without a timeout, the transfer ends when it stalls. */
	do {
		result = pier_py_transfer_drive(self,
						timeout_ms < 0 ? 1000000 : timeout_ms);
	} while (result == 0 && timeout_ms < 0);
	if (result < 0)
		return NULL;
	if (result == 0)
		return pier_py_refuse(
			ETIMEDOUT,
			"the transfer did not end within %d ms; it is still "
			"in progress",
			timeout_ms);
	Py_RETURN_NONE;
}

static PyObject *cancel(struct pier_py_transfer *self, PyObject *unused)
{
	int error;

	(void)unused;
	if (!pier_py_lock_take(&self->lock, NAME, -1))
		return NULL;
	error = pier_transfer_cancel(self->transfer);
	pier_py_lock_release(&self->lock);
	return error == -EALREADY ? Py_NewRef(Py_None) : pier_py_result(error);
}

static PyObject *pack(struct pier_py_transfer *self, PyObject *unused)
{
	PyObject *state = NULL;
	int size;

	(void)unused;
	if (!pier_py_lock_take(&self->lock, NAME, -1))
		return NULL;
	size = pier_transfer_pack(self->transfer, NULL, 0);
	if (size >= 0)
		state = PyBytes_FromStringAndSize(NULL, size);
	if (state)
		size = pier_transfer_pack(self->transfer, PyBytes_AsString(state),
					  (size_t)size);
	if (size < 0) {
		Py_CLEAR(state);
		pier_py_fail(size);
	}
	pier_py_lock_release(&self->lock);
	return state;
}

static PyObject *get_status(struct pier_py_transfer *self, void *unused)
{
	struct pier_transfer_status status;

	(void)unused;
	if (!pier_py_lock_take(&self->lock, NAME, -1))
		return NULL;
	pier_transfer_query(self->transfer, &status);
	pier_py_lock_release(&self->lock);
	return pier_py_record(
		"TransferStatus", "(KKIIINi)", (unsigned long long)status.length,
		(unsigned long long)status.done, status.rails, status.working_rails,
		status.in_flight, PyBool_FromLong(status.ended), -status.error);
}

static PyObject *rail_status(struct pier_py_transfer *self, PyObject *argument)
{
	struct pier_rail_status status;
	unsigned long long index;
	int error;

	if (!pier_py_uint64(argument, &index) ||
	    !pier_py_lock_take(&self->lock, NAME, -1))
		return NULL;
	error = index > UINT32_MAX ? -ERANGE
				   : pier_transfer_query_rail(self->transfer,
							      (uint32_t)index, &status);
	pier_py_lock_release(&self->lock);
	if (error) {
		PyErr_Format(PyExc_IndexError, "the transfer has no rail %llu", index);
		return NULL;
	}
	return pier_py_record("RailStatus", "(KIis)", (unsigned long long)status.done,
			      status.in_flight, -status.error, status.sentence);
}

static PyObject *get_channels(struct pier_py_transfer *self, void *unused)
{
	(void)unused;
	return self->rails.channels ? PyList_AsTuple(self->rails.channels)
				    : PyTuple_New(0);
}

static PyObject *get_closed(struct pier_py_transfer *self, void *unused)
{
	(void)unused;
	return PyBool_FromLong(self->lock.closed);
}

static PyObject *close_transfer(struct pier_py_transfer *self, PyObject *unused)
{
	int error;

	(void)unused;
	if (!pier_py_lock_take_any(&self->lock, NAME, -1))
		return NULL;
	error = self->lock.closed ? 0 : pier_py_transfer_end(self);
	pier_py_transfer_settle(self);
	if (!error && !self->lock.closed) {
		error = pier_transfer_destroy(self->transfer);
		if (error)
			pier_py_fail(error);
		else
			self->lock.closed = true;
	}
	pier_py_lock_release(&self->lock);
	return error ? NULL : Py_NewRef(Py_None);
}

static void delete_transfer(struct pier_py_transfer *self)
{
	PyObject *type, *value, *traceback;

	PyObject_GC_UnTrack(self);
	PyErr_Fetch(&type, &value, &traceback);
	if (self->transfer && !self->lock.closed && !self->rails.in_use)
		pier_transfer_destroy(self->transfer);
	else if (self->transfer && !self->lock.closed &&
		 pier_py_rails_take(&self->rails)) {
		pier_py_transfer_abandon(self);
		pier_py_rails_end_use(&self->rails);
		pier_py_rails_release(&self->rails);
	}
	PyErr_Restore(type, value, traceback);
	pier_py_rails_free(&self->rails);
	pier_py_lock_destroy(&self->lock);
	Py_XDECREF(self->progress);
	pier_py_delete(self);
}

static int traverse_transfer(struct pier_py_transfer *self, visitproc visit, void *arg)
{
	Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
	Py_VISIT(self->progress);
	Py_VISIT(self->rails.regions);
	return 0;
}

static int clear_transfer(struct pier_py_transfer *self)
{
	Py_CLEAR(self->progress);
	return 0;
}

/* pier/_waiting.py */
static PyObject *await_transfer(struct pier_py_transfer *self)
{
	PyObject *module = PyImport_ImportModule("pier._waiting"), *result;

	if (!module)
		return NULL;
	result = PyObject_CallMethod(module, "await_transfer", "O", (PyObject *)self);
	Py_DECREF(module);
	return result;
}

static PyMethodDef transfer_methods[] = {
	{ "advance", PIER_PY_METHOD(advance), METH_NOARGS,
	  "advance($self)\n--\n\n"
	  "Collect the chunks that have completed, and post others, without waiting. "
	  "Return\n"
	  "whether all bytes have arrived. Raises the error of a transfer that failed." },
	{ "wait", PIER_PY_METHOD(wait_for_transfer), METH_VARARGS | METH_KEYWORDS,
	  "wait($self, timeout=None)\n--\n\n"
	  "Drive the transfer until all bytes have arrived.\n\n"
	  "timeout: in seconds; None: until it has ended, which `stall` and `timeout` "
	  "of\n"
	  "Transfer() bound\n\n"
	  "Raises TimedOut if the time expires first: the transfer then goes on when it "
	  "is\n"
	  "driven again. Raises ConnectionLost and others when no rail is left: "
	  "resume()." },
	{ "cancel", PIER_PY_METHOD(cancel), METH_NOARGS,
	  "cancel($self)\n--\n\n"
	  "Post no more chunks. Drive the transfer until those in flight have completed: "
	  "it\n"
	  "then ends with ConnectionLost (ECANCELED)." },
	{ "resume", PIER_PY_METHOD(pier_py_transfer_resume), METH_O,
	  "resume($self, rails)\n--\n\n"
	  "Continue a transfer that failed or was cancelled, with the same rails or "
	  "others.\n"
	  "Raises Busy if it has not ended, and Error (EALREADY) if all bytes have "
	  "arrived." },
	{ "pack", PIER_PY_METHOD(pack), METH_NOARGS,
	  "pack($self)\n--\n\n"
	  "Return the state as bytes: a Transfer of the same bytes in another process\n"
	  "continues from it." },
	{ "rail_status", PIER_PY_METHOD(rail_status), METH_O,
	  "rail_status($self, index)\n--\n\nReturn the RailStatus of a rail, from 0." },
	{ "close", PIER_PY_METHOD(close_transfer), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Cancel the transfer, wait for the chunks in flight, and destroy it. Again at "
	  "any\n"
	  "time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef transfer_properties[] = {
	{ "status", (getter)get_status, NULL, "The TransferStatus.", NULL },
	{ "channels", (getter)get_channels, NULL, "The channels of the rails.", NULL },
	{ "closed", (getter)get_closed, NULL, "Whether close() has closed it.", NULL },
	{ NULL },
};

static PyType_Slot transfer_slots[] = {
	{ Py_tp_doc,
	  "Transfer(rails, *, direction=\"write\", length=None, chunk=0, window=0, "
	  "stall=None,\n"
	  "         timeout=None, notify=None, announce=False, fail_fast=False,\n"
	  "         progress=None, state=None)\n--\n\n"
	  "Bytes moved to or from the memory of a peer, in chunks, over one or several "
	  "channels.\n\n"
	  "rails: a Rail, or a sequence of them\n"
	  "direction: \"write\" or \"read\"\n"
	  "length: in bytes; None: that of the local memory\n"
	  "chunk: the most bytes of a chunk; 0: 1 MiB\n"
	  "window: the most chunks in flight on each rail; 0: half of the send queue\n"
	  "stall: seconds without a completed chunk after which a rail has failed; None: "
	  "the\n"
	  "timeout of its channel\n"
	  "timeout: seconds for the whole transfer; None: only `stall`\n"
	  "notify: 32 bits for a receive of the peer when all bytes have arrived\n"
	  "announce: announce each chunk to a receiver of the peer\n"
	  "fail_fast: the first rail that fails ends the transfer\n"
	  "progress: a function of (bytes that have arrived, length), called while the\n"
	  "transfer is driven; a true result cancels it\n"
	  "state: of pack(); only the missing bytes are moved\n\n"
	  "Nothing moves before advance(), wait() or await. Any thread may use it." },
	{ Py_tp_new, (void *)pier_py_transfer_new },
	{ Py_tp_dealloc, (void *)delete_transfer },
	{ Py_tp_traverse, (void *)traverse_transfer },
	{ Py_tp_clear, (void *)clear_transfer },
	{ Py_tp_methods, transfer_methods },
	{ Py_tp_getset, transfer_properties },
	{ Py_am_await, (void *)await_transfer },
	{ 0, NULL },
};

static PyType_Spec transfer_spec = {
	.name = "pier.Transfer",
	.basicsize = sizeof(struct pier_py_transfer),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.slots = transfer_slots,
};

int pier_py_add_transfer(PyObject *module)
{
	return pier_py_add_type(module, &transfer_spec, &transfer_type);
}
