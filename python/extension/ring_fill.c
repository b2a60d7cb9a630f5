/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "remote.h"
#include "ring.h"
#include "view.h"

enum {
	WORDS = 4, /* of a read: offset, remote offset, length, source */
};

static PyTypeObject *sources_type, *slot_type;

static void add_channel(struct pier_py_sources *self, struct pier_py_channel *channel)
{
	for (uint32_t i = 0; i < self->channel_count; i++) {
		if (self->channels[i] == channel)
			return;
	}
	self->channels[self->channel_count++] = channel;
}

static bool read_pair(struct pier_py_sources *self, PyObject *pair)
{
	struct pier_py_channel *channel;
	struct pier_py_remote *remote;

	if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2)
		return pier_py_wrong_type(pair, "a source is a tuple (Channel, Remote)");
	channel = pier_py_channel_check(PyTuple_GetItem(pair, 0));
	remote = channel ? pier_py_remote_check(PyTuple_GetItem(pair, 1)) : NULL;
	if (!remote)
		return false;
	add_channel(self, channel);
	self->list[self->count++] = (struct pier_ring_source){
		.channel = channel->channel,
		.parts = remote->parts,
		.count = pier_py_remote_count(remote),
	};
	return true;
}

static bool read_pairs(struct pier_py_sources *self)
{
	Py_ssize_t count = PyTuple_Size(self->pairs);

	self->list = calloc((size_t)count + 1, sizeof(*self->list));
	self->channels = calloc((size_t)count + 1, sizeof(struct pier_py_channel *));
	if (!self->list || !self->channels || count > UINT32_MAX)
		return PyErr_NoMemory();
	for (Py_ssize_t i = 0; i < count; i++) {
		if (!read_pair(self, PyTuple_GetItem(self->pairs, i)))
			return false;
	}
	return true;
}

static PyObject *make_sources(PyObject *Py_UNUSED(ring), PyObject *pairs)
{
	struct pier_py_sources *self = pier_py_new(sources_type);

	if (!self)
		return NULL;
	self->pairs = PySequence_Tuple(pairs);
	if (self->pairs && read_pairs(self))
		return (PyObject *)self;
	Py_DECREF((PyObject *)self);
	return NULL;
}

static void delete_sources(struct pier_py_sources *self)
{
	free(self->list);
	free(self->channels);
	Py_XDECREF(self->pairs);
	pier_py_delete(self);
}

static Py_ssize_t get_length(PyObject *object)
{
	return ((struct pier_py_sources *)object)->count;
}

static PyType_Slot sources_slots[] = {
	{ Py_tp_doc, "Memory of peers that a ring reads from: Ring.sources()." },
	{ Py_tp_dealloc, (void *)delete_sources },
	{ Py_mp_length, (void *)get_length },
	{ 0, NULL },
};

/* pier.RingSlot */
struct slot {
	PyObject ob_base;
	PyObject *weak_references;
	struct pier_py_ring *ring;
	struct pier_py_buffer *buffer;
	struct pier_ring_slot slot;
};

/* The ring exists until the slot is released, also if another thread closes it now. */
static void release_slot(struct pier_py_ring *ring, const struct pier_ring_slot *slot)
{
	unsigned long long ticket = slot->sequence + 1;

	if (atomic_compare_exchange_strong(&ring->tickets[slot->number], &ticket, 0))
		pier_ring_release(ring->ring, slot);
}

static PyObject *make_slot(struct pier_py_ring *ring, const struct pier_ring_slot *slot)
{
	struct slot *self = pier_py_new(slot_type);

	atomic_store(&ring->tickets[slot->number], slot->sequence + 1);
	if (!self) {
		release_slot(ring, slot);
		return NULL;
	}
	self->ring = (struct pier_py_ring *)Py_NewRef((PyObject *)ring);
	self->buffer = (struct pier_py_buffer *)Py_NewRef((PyObject *)ring->buffer);
	self->slot = *slot;
	return (PyObject *)self;
}

static void delete_slot(struct slot *self)
{
	if (self->weak_references)
		PyObject_ClearWeakRefs((PyObject *)self);
	release_slot(self->ring, &self->slot);
	Py_DECREF((PyObject *)self->buffer);
	Py_DECREF((PyObject *)self->ring);
	pier_py_delete(self);
}

static PyObject *make_view(struct slot *self, PyObject *arguments, PyObject *keywords)
{
	const struct pier_py_window window = {
		.buffer = self->buffer,
		.range = { self->slot.offset, self->slot.length },
		.keeper = (PyObject *)self,
	};

	return pier_py_window_view(&window, arguments, keywords);
}

static PyObject *copy_from(struct slot *self, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "offset", "length", NULL };
	unsigned long long offset = 0;
	struct pier_py_range range;
	PyObject *length = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&O:copy_from", names,
					 pier_py_uint64, &offset, &length) ||
	    !pier_py_range_make(offset, length, self->slot.length, "slot", &range))
		return NULL;
	return PyObject_CallMethod((PyObject *)self->buffer, "copy_from", "KK",
				   (unsigned long long)(self->slot.offset + range.offset),
				   (unsigned long long)range.length);
}

static PyObject *describe_slot(struct slot *self)
{
	return PyUnicode_FromFormat("<pier.RingSlot %u, fill %llu of %llu bytes>",
				    self->slot.number,
				    (unsigned long long)self->slot.sequence,
				    (unsigned long long)self->slot.length);
}

static PyMethodDef slot_methods[] = {
	{ "view", PIER_PY_METHOD(make_view), METH_VARARGS | METH_KEYWORDS,
	  "view($self, shape=None, dtype='uint8', offset=0)\n--\n\n"
	  "Return a View of a part of the slot, as Buffer.view() does. It holds the "
	  "slot." },
	{ "copy_from", PIER_PY_METHOD(copy_from), METH_VARARGS | METH_KEYWORDS,
	  "copy_from($self, offset=0, length=None)\n--\n\n"
	  "Copy bytes of the slot to the host, and return them." },
	{ NULL },
};

#define SLOT_MEMBER(type, field, text)                                          \
	{                                                                       \
#field, type, offsetof(struct slot, slot.field), READONLY, text \
	}

static PyMemberDef slot_members[] = {
	{ "__weaklistoffset__", T_PYSSIZET, offsetof(struct slot, weak_references),
	  READONLY, NULL },
	SLOT_MEMBER(T_UINT, number, "The number of the slot, from 0."),
	SLOT_MEMBER(T_ULONGLONG, sequence, "The number of fills that began before it."),
	SLOT_MEMBER(T_ULONGLONG, offset, "Its first byte in the buffer of the ring."),
	SLOT_MEMBER(T_ULONGLONG, length,
		    "From its beginning to the end of the last read, in bytes."),
	{ "buffer", T_OBJECT_EX, offsetof(struct slot, buffer), READONLY,
	  "The Buffer of the ring." },
	{ NULL },
};

static PyType_Slot slot_slots[] = {
	{ Py_tp_doc,
	  "A filled slot of a ring: Ring.next(). It is free again when this object is\n"
	  "gone, and with it all views of the slot, and whatever uses their memory." },
	{ Py_tp_dealloc, (void *)delete_slot },
	{ Py_tp_repr, (void *)describe_slot },
	{ Py_tp_methods, slot_methods },
	{ Py_tp_members, slot_members },
	{ 0, NULL },
};

static struct pier_py_sources *check_sources(PyObject *object)
{
	if (PyObject_TypeCheck(object, sources_type))
		return (struct pier_py_sources *)object;
	return pier_py_wrong_type(object, "sources must be those of Ring.sources()");
}

static bool reserve_reads(struct pier_py_ring *self, size_t count)
{
	struct pier_ring_read *reads;

	if (count <= self->read_room)
		return true;
	reads = count > UINT32_MAX ? NULL
				   : realloc(self->reads, count * sizeof(*self->reads));
	if (!reads)
		return PyErr_NoMemory();
	self->reads = reads;
	self->read_room = (uint32_t)count;
	return true;
}

/* With the lock. */
static bool read_reads(struct pier_py_ring *self, const Py_buffer *view,
		       uint32_t *ret_count)
{
	size_t size = WORDS * sizeof(uint64_t), count = (size_t)view->len / size;
	const char *bytes = view->buf;

	if ((size_t)view->len % size)
		return pier_py_refuse(
			EINVAL,
			"reads of %zd bytes: each has %zu, four numbers of 64 "
			"bits",
			view->len, size);
	if (!reserve_reads(self, count))
		return false;
	for (size_t i = 0; i < count; i++) {
		uint64_t words[WORDS];

		memcpy(words, bytes + i * size, size);
		if (words[2] > UINT32_MAX || words[3] > UINT32_MAX)
			return pier_py_refuse(
				ERANGE,
				"read %zu: length %llu and source %llu: each has "
				"32 bits",
				i, (unsigned long long)words[2],
				(unsigned long long)words[3]);
		self->reads[i] = (struct pier_ring_read){
			.offset = words[0],
			.remote_offset = words[1],
			.length = (uint32_t)words[2],
			.source = (uint32_t)words[3],
		};
	}
	*ret_count = (uint32_t)count;
	return true;
}

/* With the locks. -1: raised. */
static int begin_locked(struct pier_py_ring *self, struct pier_py_sources *sources,
			const Py_buffer *view, uint32_t *ret_number)
{
	uint32_t count = 0;

	if (!read_reads(self, view, &count))
		return -1;
	return PIER_PY_CALL(pier_ring_fill(self->ring, sources->list, sources->count,
					   self->reads, count, ret_number));
}

static PyObject *begin(struct pier_py_ring *self, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "sources", "reads", NULL };
	struct pier_py_sources *sources;
	PyObject *first, *reads;
	uint32_t number = 0;
	int result = -1;
	Py_buffer view;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO:begin", names, &first,
					 &reads))
		return NULL;
	sources = check_sources(first);
	if (!sources || PyObject_GetBuffer(reads, &view, PyBUF_SIMPLE) < 0)
		return NULL;
	if (pier_py_ring_take(self, sources)) {
		result = begin_locked(self, sources, &view, &number);
		pier_py_ring_leave(self, sources, false);
	}
	PyBuffer_Release(&view);
	return result < 0 ? NULL : PyLong_FromUnsignedLong(number);
}

static PyObject *retry(struct pier_py_ring *self, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "number", "sources", NULL };
	struct pier_py_sources *sources;
	PyObject *second;
	uint32_t number;
	int error;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&O:retry", names,
					 pier_py_uint32, &number, &second))
		return NULL;
	sources = check_sources(second);
	if (!sources || !pier_py_ring_take(self, sources))
		return NULL;
	error = PIER_PY_WITHOUT_GIL(
		pier_ring_retry(self->ring, number, sources->list, sources->count));
	if (error && error != -EALREADY)
		pier_py_fail(error);
	pier_py_ring_leave(self, sources, false);
	if (error && error != -EALREADY)
		return NULL;
	return PyBool_FromLong(!error);
}

static PyObject *cancel(struct pier_py_ring *self, PyObject *argument)
{
	struct pier_py_sources *sources = check_sources(argument);

	if (!sources || !pier_py_ring_take(self, sources))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	for (uint32_t i = 0; i < sources->channel_count; i++)
		pier_channel_cancel(sources->channels[i]->channel);
	pier_ring_progress(self->ring);
	Py_END_ALLOW_THREADS
	pier_py_ring_leave(self, sources, true);
	Py_RETURN_NONE;
}

static PyObject *progress(struct pier_py_ring *self, PyObject *Py_UNUSED(unused))
{
	int result;

	if (!pier_py_ring_take(self, NULL))
		return NULL;
	result = PIER_PY_CALL(pier_ring_progress(self->ring));
	pier_py_ring_leave(self, NULL, false);
	return result < 0 ? NULL : PyBool_FromLong(result);
}

/* Remember which fill failed, and store its number in the exception. */
static void note_failure(struct pier_py_ring *self, const struct pier_ring_slot *slot)
{
	PyObject *type, *value, *traceback, *number;

	if (!slot->error)
		return;
	self->failed = *slot;
	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	number = PyLong_FromUnsignedLong(slot->number);
	if (!number || PyObject_SetAttrString(value, "slot", number) < 0)
		PyErr_Clear();
	Py_XDECREF(number);
	PyErr_Restore(type, value, traceback);
}

/* A wait of next(), or, without ret_slot, of wait(). */
struct ring_wait {
	struct pier_py_ring *ring;
	PyObject **ret_slot;
};

/* A slice of pier_py_wait_in_slices(). */
static int wait_slice(void *subject, int timeout_ms)
{
	const struct ring_wait *wait = subject;
	struct pier_py_ring *self = wait->ring;
	struct pier_py_blocking blocking;
	struct pier_ring_slot slot;
	int result;

	if (!pier_py_ring_take(self, NULL))
		return -1;
	pier_py_blocking_begin(&blocking);
	result = wait->ret_slot ? pier_ring_next(self->ring, timeout_ms, &slot)
				: pier_ring_wait(self->ring, timeout_ms);
	result = pier_py_blocking_end(&blocking, result == -ETIMEDOUT ? 0 : result);
	if (result < 0 && wait->ret_slot)
		note_failure(self, &slot);
	if (result > 0 && wait->ret_slot)
		*wait->ret_slot = make_slot(self, &slot);
	pier_py_ring_leave(self, NULL, timeout_ms > 0);
	return result;
}

/* Returns 1, 0 after timeout_ms, or -1 with an exception. */
static int wait_for_ring(struct pier_py_ring *self, int timeout_ms, PyObject **ret_slot)
{
	struct ring_wait wait = { self, ret_slot };

	return pier_py_wait_in_slices(
		wait_slice, &wait, timeout_ms < 0 ? self->attr.timeout_ms : timeout_ms);
}

static PyObject *next(struct pier_py_ring *self, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT, result;
	PyObject *slot = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&:next", names,
					 pier_py_timeout, &timeout_ms))
		return NULL;
	result = wait_for_ring(self, timeout_ms, &slot);
	return result ? slot : Py_NewRef(Py_None);
}

static PyObject *wait(struct pier_py_ring *self, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT, result;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&:wait", names,
					 pier_py_timeout, &timeout_ms))
		return NULL;
	result = wait_for_ring(self, timeout_ms, NULL);
	return result < 0 ? NULL : PyBool_FromLong(result);
}

static PyObject *give_up(struct pier_py_ring *self, PyObject *Py_UNUSED(unused))
{
	int error;

	if (!pier_py_ring_take(self, NULL))
		return NULL;
	error = self->failed.error ? pier_ring_release(self->ring, &self->failed)
				   : -ESTALE;
	self->failed.error = 0;
	pier_py_ring_leave(self, NULL, false);
	if (error)
		return pier_py_refuse(ENOENT, "next() has raised the error of no fill "
					      "that was not continued since");
	Py_RETURN_NONE;
}

static PyObject *describe_index(const void *indices, size_t i)
{
	return PyLong_FromUnsignedLong(((const uint32_t *)indices)[i]);
}

static PyObject *missing(struct pier_py_ring *self, PyObject *argument)
{
	unsigned long number = PyLong_AsUnsignedLong(argument);
	PyObject *list = NULL;
	uint32_t *indices;
	int count;

	if (PyErr_Occurred() || !pier_py_ring_take(self, NULL))
		return NULL;
	if (number > UINT32_MAX)
		number = UINT32_MAX;
	count = pier_ring_missing(self->ring, (uint32_t)number, NULL, 0);
	indices = calloc(count > 0 ? (size_t)count : 1, sizeof(*indices));
	if (count < 0) {
		pier_py_fail(count);
	} else if (!indices) {
		PyErr_NoMemory();
	} else {
		pier_ring_missing(self->ring, (uint32_t)number, indices, (uint32_t)count);
		list = pier_py_list((size_t)count, describe_index, indices);
	}
	free(indices);
	pier_py_ring_leave(self, NULL, false);
	return list;
}

static PyMethodDef fill_methods[] = {
	{ "sources", PIER_PY_METHOD(make_sources), METH_O,
	  "sources($self, pairs, /)\n--\n\n"
	  "Make RingSources of a sequence of (Channel, Remote): memory of peers to\n"
	  "read from, each through its channel. The channels are connected, in the\n"
	  "protection domain of the ring." },
	{ "begin", PIER_PY_METHOD(begin), METH_VARARGS | METH_KEYWORDS,
	  "begin($self, sources, reads)\n--\n\n"
	  "Take a free slot, and begin to fill it. Return the number of the slot, from "
	  "0.\n\n"
	  "reads: a buffer of numbers of 64 bits, such as array('Q') or a NumPy array\n"
	  "of uint64,\n"
	  "four for each read: the offset in the slot, the offset in the remote, the\n"
	  "length in bytes, and the index of the source.\n\n"
	  "Raises Busy if no slot is free; OutOfRange; ConnectionLost if a channel is\n"
	  "broken. No slot is taken then." },
	{ "next", PIER_PY_METHOD(next), METH_VARARGS | METH_KEYWORDS,
	  "next($self, timeout=None)\n--\n\n"
	  "Wait until the oldest fill has ended. Return its RingSlot, or None if the\n"
	  "time is over.\n\n"
	  "Raises the error of a fill that failed, with the number of its slot as\n"
	  "`slot`. The fill stays the oldest until retry() or give_up(). Error\n"
	  "(ENODATA): begin() first." },
	{ "retry", PIER_PY_METHOD(retry), METH_VARARGS | METH_KEYWORDS,
	  "retry($self, number, sources)\n--\n\n"
	  "Continue the fill of a slot that failed, whether next() has raised its\n"
	  "error or not. Only reads that are not known to have arrived are repeated.\n"
	  "Return False if all have.\n\n"
	  "sources: source n must have the same bytes as source n of begin().\n\n"
	  "Raises Busy if the fill has not ended." },
	{ "missing", PIER_PY_METHOD(missing), METH_O,
	  "missing($self, number, /)\n--\n\n"
	  "Return the indices of the reads of a fill that are not known to have "
	  "arrived." },
	{ "give_up", PIER_PY_METHOD(give_up), METH_NOARGS,
	  "give_up($self)\n--\n\n"
	  "Free the slot of the fill whose error next() has raised." },
	{ "cancel", PIER_PY_METHOD(cancel), METH_O,
	  "cancel($self, sources, /)\n--\n\n"
	  "Cancel everything that is outstanding on the channels of sources. These are\n"
	  "broken afterwards, and the fills that use them fail." },
	{ "progress", PIER_PY_METHOD(progress), METH_NOARGS,
	  "progress($self)\n--\n\n"
	  "Drive the fills, without waiting. Return whether next() would not wait." },
	{ "wait", PIER_PY_METHOD(wait), METH_VARARGS | METH_KEYWORDS,
	  "wait($self, timeout=None)\n--\n\n"
	  "Wait until the oldest fill has ended, a slot was released, or wake() was\n"
	  "called. Return False if the time is over." },
	{ NULL },
};

int pier_py_add_ring_fill(PyObject *module)
{
	if (pier_py_add_type(module, "pier.RingSources", sizeof(struct pier_py_sources),
			     sources_slots, &sources_type) < 0 ||
	    pier_py_add_type(module, "pier.RingSlot", sizeof(struct slot), slot_slots,
			     &slot_type) < 0)
		return -1;
	return pier_py_add_methods(pier_py_ring_type, fill_methods);
}
