/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "channel.h"
#include "region.h"
#include "remote.h"

/** The rails of a transfer. While it runs, their channels and regions cannot be closed.
 */
struct rails {
	struct pier_rail *list;
	uint32_t count;
	uint64_t length;	       /* of the shortest local memory */
	PyObject *channels;	       /* a list, by rail */
	PyObject *regions;	       /* a list of Regions, each with a user */
	PyObject *remotes;	       /* a list, which keeps the parts of the rails */
	struct pier_py_queue **queues; /* each once, in the order of locking */
	uint32_t queue_count;
	bool in_use; /* the queues have a user */
};

static bool is_rail(PyObject *object)
{
	return PyTuple_Check(object) && PyTuple_Size(object) == 3 &&
	       PyObject_TypeCheck(PyTuple_GetItem(object, 0), pier_py_channel_type);
}

/* Also releases the user of the region if that cannot be kept. */
static int keep_objects(struct rails *rails, struct pier_py_channel *channel,
			struct pier_py_region *region, struct pier_py_remote *remote)
{
	if (PyList_Append(rails->regions, (PyObject *)region) < 0) {
		pier_py_use_end(&region->use);
		return -1;
	}
	if (PyList_Append(rails->channels, (PyObject *)channel) < 0)
		return -1;
	return PyList_Append(rails->remotes, (PyObject *)remote);
}

static int add_rail(struct rails *rails, PyObject *object)
{
	struct pier_py_channel *channel;
	struct pier_py_region *region;
	struct pier_py_remote *remote;
	struct pier_py_range range;

	if (!is_rail(object)) {
		pier_py_wrong_type(object, "a transfer takes pier.Rail(channel, local, "
					   "remote), or a list of them");
		return -1;
	}
	channel = (struct pier_py_channel *)PyTuple_GetItem(object, 0);
	remote = pier_py_remote_check(PyTuple_GetItem(object, 2));
	region = remote ? pier_py_local_begin(PyTuple_GetItem(object, 1), &range) : NULL;
	if (!region || keep_objects(rails, channel, region, remote) < 0)
		return -1;
	/* The channel is filled in when its lock is held. */
	rails->list[rails->count++] = (struct pier_rail){
		.mr = region->mr,
		.offset = range.offset,
		.parts = remote->parts,
		.count = pier_py_remote_count(remote),
	};
	if (range.length < rails->length)
		rails->length = range.length;
	return 0;
}

static struct pier_py_channel *channel_of(const struct rails *rails, uint32_t i)
{
	return (struct pier_py_channel *)PyList_GetItem(rails->channels, (Py_ssize_t)i);
}

static int allocate_rails(struct rails *rails, size_t count)
{
	rails->list = calloc(count + 1, sizeof(*rails->list));
	rails->queues = calloc(count + 1, sizeof(struct pier_py_queue *));
	rails->channels = PyList_New(0);
	rails->regions = PyList_New(0);
	rails->remotes = PyList_New(0);
	if (!rails->list || !rails->queues) {
		PyErr_NoMemory();
		return -1;
	}
	return rails->channels && rails->regions && rails->remotes ? 0 : -1;
}

/**
 * Make rails of an argument: a Rail, or a sequence of Rails.
 *
 * Returns 0, or -1 with TypeError, ValueError (something is closed) or pier.Invalid. Give
 * them to rails_free() in any case.
 */
static int rails_make(PyObject *object, struct rails *ret_rails)
{
	PyObject *tuple = is_rail(object) ? PyTuple_Pack(1, object)
					  : PySequence_Tuple(object);
	Py_ssize_t count = tuple ? PyTuple_Size(tuple) : 0;
	int result = -1;

	*ret_rails = (struct rails){ .length = UINT64_MAX };
	if (tuple && (count == 0 || count > PIER_RAILS_MAX))
		pier_py_refuse(EINVAL, "%zd rails; a transfer has 1 to %d", count,
			       PIER_RAILS_MAX);
	else if (tuple)
		result = allocate_rails(ret_rails, (size_t)count);
	for (Py_ssize_t i = 0; i < count && result == 0; i++)
		result = add_rail(ret_rails, PyTuple_GetItem(tuple, i));
	for (uint32_t i = 0; result == 0 && i < ret_rails->count; i++)
		ret_rails->queues[i] = channel_of(ret_rails, i)->queue;
	if (result == 0)
		ret_rails->queue_count = pier_py_queues_sort(ret_rails->queues,
							     ret_rails->count);
	Py_XDECREF(tuple);
	return result;
}

static void rails_end_use(struct rails *rails)
{
	PyObject *regions = rails->regions;

	for (uint32_t i = 0; i < rails->queue_count && rails->in_use; i++)
		rails->queues[i]->users--;
	rails->in_use = false;
	rails->regions = NULL;
	pier_py_regions_release(regions);
}

/** Rails that are in use are released; then no thread may have the locks. */
static void rails_free(struct rails *rails)
{
	rails_end_use(rails);
	free(rails->list);
	free(rails->queues);
	rails->list = NULL;
	rails->queues = NULL;
	rails->queue_count = rails->count = 0;
	Py_CLEAR(rails->channels);
	Py_CLEAR(rails->remotes);
}

/** Take the locks of all queues. Returns false with an exception. */
static bool rails_take(struct rails *rails)
{
	if (!pier_py_queues_take(rails->queues, rails->queue_count))
		return false;
	for (uint32_t i = 0; i < rails->count; i++)
		rails->list[i].channel = channel_of(rails, i)->channel;
	return true;
}

static void rails_release(struct rails *rails)
{
	pier_py_queues_release(rails->queues, rails->queue_count);
}

/** Begin or end the use of the queues; ending also releases the regions. With the locks.
 */
static void rails_begin_use(struct rails *rails)
{
	for (uint32_t i = 0; i < rails->queue_count; i++)
		rails->queues[i]->users++;
	rails->in_use = true;
}

#define NAME	   "transfer"
#define FOREVER_MS (INT64_C(1) << 40)

enum {
	/* How long close() has the locks of the rails at a time. */
	SLICE_MS = 20,
	/* How long to wait for the chunks in flight of a transfer that nobody has. */
	LAST_WAIT_MS = 1000,
};

/* pier.Transfer */
struct transfer {
	PyObject ob_base;
	struct pier_py_lock lock;
	struct pier_transfer *transfer;
	struct rails rails;
	PyObject *progress; /* NULL, or a function */
	uint64_t reported;  /* to it: done; UINT64_MAX: nothing yet */
};

/* The arguments of Transfer() that are no attributes as they are; NULL: missing. */
struct arguments {
	PyObject *rails, *length, *notify;
	int announce, digest, fail_fast;
	PyObject *progress, *state_object;
	Py_buffer state;
};

/* "O&" of PyArg_ParseTupleAndKeywords(). */
static int convert_direction(PyObject *object, void *ret_direction)
{
	static const char *const names[] = {
		[PIER_TRANSFER_WRITE] = "write",
		[PIER_TRANSFER_READ] = "read",
	};
	int found = pier_py_choose(object, "direction", names, PIER_TRANSFER_READ + 1);

	*(enum pier_transfer_direction *)ret_direction =
		(enum pier_transfer_direction)found;
	return found >= 0;
}

static int parse(PyObject *arguments, PyObject *keywords, struct arguments *ret_parsed,
		 struct pier_transfer_attr *ret_attr)
{
	static char *names[] = { "rails",     "direction", "length",   "chunk",
				 "window",    "stall",	   "notify",   "announce",
				 "fail_fast", "digest",	   "progress", "state",
				 NULL };

	*ret_parsed = (struct arguments){ .rails = NULL };
	pier_transfer_attr_init(ret_attr);
	return PyArg_ParseTupleAndKeywords(
		arguments, keywords, "O|$O&OO&O&O&OpppOO:Transfer", names,
		&ret_parsed->rails, convert_direction, &ret_attr->direction,
		&ret_parsed->length, pier_py_uint32, &ret_attr->chunk, pier_py_uint32,
		&ret_attr->window, pier_py_timeout, &ret_attr->stall_ms,
		&ret_parsed->notify, &ret_parsed->announce, &ret_parsed->fail_fast,
		&ret_parsed->digest, &ret_parsed->progress, &ret_parsed->state_object);
}

static int set_attributes(const struct arguments *parsed, const struct rails *rails,
			  struct pier_transfer_attr *attr)
{
	unsigned long long length = rails->length;
	int notify = pier_py_optional_uint32(parsed->notify, &attr->immediate);

	if (notify < 0 || (parsed->length && parsed->length != Py_None &&
			   !pier_py_uint64(parsed->length, &length)))
		return -1;
	attr->rails = rails->list;
	attr->rail_count = rails->count;
	attr->length = length;
	attr->flags = (notify ? PIER_TRANSFER_NOTIFY : 0) |
		      (parsed->announce ? PIER_TRANSFER_ANNOUNCE : 0) |
		      (parsed->digest ? PIER_TRANSFER_DIGEST : 0) |
		      (parsed->fail_fast ? PIER_TRANSFER_FAIL_FAST : 0);
	attr->state = parsed->state.buf;
	attr->state_size = (size_t)parsed->state.len;
	return 0;
}

static int begin(struct transfer *self, const struct arguments *parsed,
		 struct pier_transfer_attr *attr)
{
	int error;

	if (pier_py_lock_init(&self->lock) < 0 ||
	    rails_make(parsed->rails, &self->rails) < 0 ||
	    set_attributes(parsed, &self->rails, attr) < 0 || !rails_take(&self->rails))
		return -1;
	error = pier_py_check(pier_transfer_create(attr, &self->transfer));
	if (!error)
		rails_begin_use(&self->rails);
	rails_release(&self->rails);
	return error;
}

static PyObject *new_transfer(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	struct transfer *self = NULL;
	struct pier_transfer_attr attr;
	struct arguments parsed;

	if (!parse(arguments, keywords, &parsed, &attr) ||
	    (parsed.state_object && parsed.state_object != Py_None &&
	     PyObject_GetBuffer(parsed.state_object, &parsed.state, PyBUF_SIMPLE) < 0))
		return NULL;
	self = pier_py_new(type);
	if (self) {
		self->reported = UINT64_MAX;
		if (parsed.progress && parsed.progress != Py_None)
			self->progress = Py_NewRef(parsed.progress);
		if (begin(self, &parsed, &attr) < 0) {
			Py_DECREF((PyObject *)self);
			self = NULL;
		}
	}
	if (parsed.state.obj)
		PyBuffer_Release(&parsed.state);
	return (PyObject *)self;
}

static bool has_ended(const struct transfer *self)
{
	struct pier_transfer_status status;

	pier_transfer_query(self->transfer, &status, sizeof(status));
	return status.ended;
}

/*
 * With the lock of the transfer. Without rails in use it has ended, and touches none.
 * Returns 1 when it has ended, 0 if it has not, or -1 with an exception.
 */
static int drive_slice(struct transfer *self, int timeout_ms)
{
	struct rails *rails = &self->rails;
	bool in_use = rails->in_use;
	int result;

	if (in_use && !rails_take(rails))
		return -1;
	result = PIER_PY_WITHOUT_GIL(pier_transfer_wait(self->transfer, timeout_ms));
	result = result == -ETIMEDOUT ? 0 : pier_py_check(result);
	if (in_use)
		rails_release(rails);
	return result;
}

/*
 * Release what a transfer that has ended does not use any more. Keeps an exception. With
 * the lock of the transfer.
 */
static void settle_transfer(struct transfer *self)
{
	PyObject *type, *value, *traceback;

	if (!self->rails.in_use || !has_ended(self))
		return;
	PyErr_Fetch(&type, &value, &traceback);
	if (rails_take(&self->rails)) {
		rails_end_use(&self->rails);
		rails_release(&self->rails);
	}
	PyErr_Restore(type, value, traceback);
}

/* Without the lock: the function may use the transfer. Returns 0, or -1: raised. */
static int report(struct transfer *self, const struct pier_transfer_status *status)
{
	PyObject *result;
	int cancels;

	if (!self->progress || status->done == self->reported)
		return 0;
	self->reported = status->done;
	result = PyObject_CallFunction(self->progress, "KK",
				       (unsigned long long)status->done,
				       (unsigned long long)status->length);
	cancels = result ? PyObject_IsTrue(result) : -1;
	Py_XDECREF(result);
	if (cancels > 0 && pier_py_lock_take(&self->lock, NAME)) {
		pier_transfer_cancel(self->transfer);
		pier_py_lock_release(&self->lock);
	}
	return cancels < 0 ? -1 : 0;
}

/*
 * Without the lock: a watcher, or another thread, may resume the transfer with other
 * rails meanwhile.
 *
 * channels  those of the rails, a reference that is dropped
 */
static void wake_waiters(PyObject *channels)
{
	Py_ssize_t count = channels ? PyList_Size(channels) : 0;

	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *channel = PyList_GetItem(channels, i);

		pier_py_queue_wake(((struct pier_py_channel *)channel)->queue, NULL);
	}
	Py_XDECREF(channels);
}

/* A slice of pier_py_wait_in_slices(). */
static int drive_and_report(void *subject, int timeout_ms)
{
	struct transfer *self = subject;
	struct pier_transfer_status status;
	PyObject *channels;
	int result;

	if (!pier_py_lock_take(&self->lock, NAME))
		return -1;
	result = drive_slice(self, timeout_ms);
	settle_transfer(self);
	pier_transfer_query(self->transfer, &status, sizeof(status));
	channels = Py_XNewRef(self->rails.channels);
	pier_py_lock_release(&self->lock);
	wake_waiters(channels);
	if (result >= 0 && report(self, &status) < 0)
		return -1;
	return result;
}

/*
 * Cancel a transfer, and wait for the chunks in flight until its rails stall. With the
 * lock of the transfer. Returns 0, or -1 with an exception.
 */
static int end_transfer(struct transfer *self)
{
	while (!has_ended(self)) {
		pier_transfer_cancel(self->transfer);
		if (drive_slice(self, SLICE_MS) < 0 && !has_ended(self))
			return -1;
		if (PyErr_CheckSignals() < 0)
			return -1;
	}
	PyErr_Clear();
	return 0;
}

/*
 * Destroy a transfer that nobody has any more: chunks that do not complete soon are
 * stopped with their channels. With the locks of the rails.
 */
static void abandon_transfer(struct transfer *self)
{
	PyThreadState *state = PyEval_SaveThread();

	pier_transfer_cancel(self->transfer);
	pier_transfer_wait(self->transfer, LAST_WAIT_MS);
	for (uint32_t i = 0; i < self->rails.count && !has_ended(self); i++)
		pier_channel_cancel(self->rails.list[i].channel);
	pier_transfer_destroy(self->transfer);
	PyEval_RestoreThread(state);
}

/* With the lock of the transfer. */
static int resume_with(struct transfer *self, struct rails *rails)
{
	int error;

	if (!rails_take(rails))
		return -1;
	error = pier_py_check(
		pier_transfer_resume(self->transfer, rails->list, rails->count));
	if (!error)
		rails_begin_use(rails);
	rails_release(rails);
	return error;
}

static PyObject *resume_transfer(struct transfer *self, PyObject *object)
{
	struct rails rails, before = { 0 };
	int error = -1;

	if (rails_make(object, &rails) == 0 && pier_py_lock_take(&self->lock, NAME)) {
		error = resume_with(self, &rails);
		if (!error) {
			before = self->rails;
			self->rails = rails;
		}
		pier_py_lock_release(&self->lock);
	}
	rails_free(error ? &rails : &before);
	return error ? NULL : Py_NewRef(Py_None);
}

static PyObject *advance(struct transfer *self, PyObject *Py_UNUSED(unused))
{
	int result = drive_and_report(self, 0);

	return result < 0 ? NULL : PyBool_FromLong(result);
}

static PyObject *wait_for_transfer(struct transfer *self, PyObject *arguments,
				   PyObject *keywords)
{
	static char *names[] = { "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT, result;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&:wait", names,
					 pier_py_timeout, &timeout_ms))
		return NULL;
	/* Without a timeout, the transfer ends when it stalls. */
	result = pier_py_wait_in_slices(drive_and_report, self,
					timeout_ms < 0 ? FOREVER_MS : timeout_ms);
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

static PyObject *cancel(struct transfer *self, PyObject *Py_UNUSED(unused))
{
	int error;

	if (!pier_py_lock_take(&self->lock, NAME))
		return NULL;
	error = pier_transfer_cancel(self->transfer);
	pier_py_lock_release(&self->lock);
	return error == -EALREADY ? Py_NewRef(Py_None) : pier_py_result(error);
}

static PyObject *pack(struct transfer *self, PyObject *Py_UNUSED(unused))
{
	PyObject *state = NULL;
	int size;

	if (!pier_py_lock_take(&self->lock, NAME))
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

static PyObject *get_status(struct transfer *self, void *Py_UNUSED(unused))
{
	struct pier_transfer_status status;

	if (!pier_py_lock_take(&self->lock, NAME))
		return NULL;
	pier_transfer_query(self->transfer, &status, sizeof(status));
	pier_py_lock_release(&self->lock);
	return pier_py_record(
		"TransferStatus", "(KKIIINi)", (unsigned long long)status.length,
		(unsigned long long)status.done, status.rails, status.working_rails,
		status.in_flight, PyBool_FromLong(status.ended), -status.error);
}

static PyObject *rail_status(struct transfer *self, PyObject *argument)
{
	struct pier_rail_status status;
	unsigned long long index;
	int error;

	if (!pier_py_uint64(argument, &index) || !pier_py_lock_take(&self->lock, NAME))
		return NULL;
	error = index > UINT32_MAX
			? -ERANGE
			: pier_transfer_query_rail(self->transfer, (uint32_t)index,
						   &status, sizeof(status));
	pier_py_lock_release(&self->lock);
	if (error)
		return PyErr_Format(PyExc_IndexError, "the transfer has no rail %llu",
				    index);
	return pier_py_record("RailStatus", "(KIis)", (unsigned long long)status.done,
			      status.in_flight, -status.error, status.sentence);
}

static PyObject *get_channels(struct transfer *self, void *Py_UNUSED(unused))
{
	return self->rails.channels ? PyList_AsTuple(self->rails.channels)
				    : PyTuple_New(0);
}

static PyObject *close_transfer(struct transfer *self, PyObject *Py_UNUSED(unused))
{
	int error;

	if (!pier_py_lock_take_any(&self->lock, NAME))
		return NULL;
	error = self->lock.closed ? 0 : end_transfer(self);
	settle_transfer(self);
	if (!error && !self->lock.closed) {
		error = pier_py_check(pier_transfer_destroy(self->transfer));
		self->lock.closed = !error;
	}
	pier_py_lock_release(&self->lock);
	return error ? NULL : Py_NewRef(Py_None);
}

static void delete_transfer(struct transfer *self)
{
	PyObject *type, *value, *traceback;

	PyObject_GC_UnTrack(self);
	PyErr_Fetch(&type, &value, &traceback);
	if (self->transfer && !self->lock.closed && !self->rails.in_use)
		pier_transfer_destroy(self->transfer);
	else if (self->transfer && !self->lock.closed && rails_take(&self->rails)) {
		abandon_transfer(self);
		rails_end_use(&self->rails);
		rails_release(&self->rails);
	}
	PyErr_Restore(type, value, traceback);
	rails_free(&self->rails);
	pier_py_lock_destroy(&self->lock);
	Py_XDECREF(self->progress);
	pier_py_delete(self);
}

static int traverse_transfer(struct transfer *self, visitproc visit, void *arg)
{
	Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
	Py_VISIT(self->progress);
	Py_VISIT(self->rails.regions);
	return 0;
}

static int clear_transfer(struct transfer *self)
{
	Py_CLEAR(self->progress);
	return 0;
}

/* pier/_waiting.py */
static PyObject *await_transfer(struct transfer *self)
{
	return pier_py_call("pier._waiting", "await_transfer", "(O)", (PyObject *)self);
}

static PyMethodDef transfer_methods[] = {
	{ "advance", PIER_PY_METHOD(advance), METH_NOARGS,
	  "advance($self)\n--\n\n"
	  "Collect the chunks that have completed, and post others, without waiting.\n"
	  "Return whether all bytes have arrived. Raises the error of a transfer that\n"
	  "failed." },
	{ "wait", PIER_PY_METHOD(wait_for_transfer), METH_VARARGS | METH_KEYWORDS,
	  "wait($self, timeout=None)\n--\n\n"
	  "Drive the transfer until all bytes have arrived.\n\n"
	  "timeout: in seconds; None: until it has ended, which `stall` of\n"
	  "Transfer() bounds\n\n"
	  "Raises TimedOut if the time expires first: the transfer then goes on when\n"
	  "it is driven again. Raises ConnectionLost and others when no rail is left:\n"
	  "resume()." },
	{ "cancel", PIER_PY_METHOD(cancel), METH_NOARGS,
	  "cancel($self)\n--\n\n"
	  "Post no more chunks. Drive the transfer until those in flight have\n"
	  "completed: it then ends with ConnectionLost (ECANCELED)." },
	{ "resume", PIER_PY_METHOD(resume_transfer), METH_O,
	  "resume($self, rails)\n--\n\n"
	  "Continue a transfer that failed or was cancelled, with the same rails or\n"
	  "others. Raises Busy if it has not ended, and Error (EALREADY) if all bytes\n"
	  "have arrived." },
	{ "pack", PIER_PY_METHOD(pack), METH_NOARGS,
	  "pack($self)\n--\n\n"
	  "Return the state as bytes: a Transfer of the same bytes in another process\n"
	  "continues from it." },
	{ "rail_status", PIER_PY_METHOD(rail_status), METH_O,
	  "rail_status($self, index)\n--\n\nReturn the RailStatus of a rail, from 0." },
	{ "close", PIER_PY_METHOD(close_transfer), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Cancel the transfer, wait for the chunks in flight, and destroy it. Again\n"
	  "at any time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef transfer_properties[] = {
	{ "status", (getter)get_status, NULL, "The TransferStatus.", NULL },
	{ "channels", (getter)get_channels, NULL, "The channels of the rails.", NULL },
	{ NULL },
};

static PyMemberDef transfer_members[] = {
	PIER_PY_CLOSED_MEMBER(struct transfer, lock),
	{ NULL },
};

static PyType_Slot transfer_slots[] = {
	{ Py_tp_doc,
	  "Transfer(rails, *, direction=\"write\", length=None, chunk=0, window=0, "
	  "stall=None,\n"
	  "         notify=None, announce=False, fail_fast=False, digest=False,\n"
	  "         progress=None, state=None)\n--\n\n"
	  "Bytes moved to or from the memory of a peer, in chunks, over one or several\n"
	  "channels.\n\n"
	  "rails: a Rail, or a sequence of them\n"
	  "direction: \"write\" or \"read\"\n"
	  "length: in bytes; None: that of the local memory\n"
	  "chunk: the most bytes of a chunk; 0: 1 MiB\n"
	  "window: the most chunks in flight on each rail; 0: half of the send queue\n"
	  "stall: seconds without a completed chunk after which a rail has failed;\n"
	  "None: the timeout of its channel\n"
	  "notify: 32 bits for a receive of the peer when all bytes have arrived\n"
	  "announce: announce each chunk to a receiver of the peer\n"
	  "fail_fast: the first rail that fails ends the transfer\n"
	  "digest: compare the CRC-32C of each chunk's source with that of the bytes\n"
	  "that arrived (needs libisal)\n"
	  "progress: a function of (bytes that have arrived, length), called while the\n"
	  "transfer is driven; a true result cancels it\n"
	  "state: of pack(); only the missing bytes are moved\n\n"
	  "Nothing moves before advance(), wait() or await. Any thread may use it." },
	{ Py_tp_new, (void *)new_transfer },
	{ Py_tp_dealloc, (void *)delete_transfer },
	{ Py_tp_traverse, (void *)traverse_transfer },
	{ Py_tp_clear, (void *)clear_transfer },
	{ Py_tp_methods, transfer_methods },
	{ Py_tp_members, transfer_members },
	{ Py_tp_getset, transfer_properties },
	{ Py_am_await, (void *)await_transfer },
	{ 0, NULL },
};

int pier_py_add_transfer(PyObject *module)
{
	PyTypeObject *type;

	return pier_py_add_type(module, "pier.Transfer", sizeof(struct transfer),
				transfer_slots, &type);
}
