/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "ring.h"

#define NAME "ring"

PyTypeObject *pier_py_ring_type;

/* The channels of a ring: while fills use them, they cannot be closed. */

/* Room for those of the sources, so that a fill that has begun can record its own. */
static bool reserve_channels(struct pier_py_ring *ring,
			     const struct pier_py_sources *sources)
{
	uint32_t room = ring->channel_count + (sources ? sources->channel_count : 0);
	struct pier_py_channel **channels;
	struct pier_py_queue **queues;

	if (room <= ring->channel_room)
		return true;
	channels = realloc(ring->channels, room * sizeof(struct pier_py_channel *));
	if (channels)
		ring->channels = channels;
	queues = realloc(ring->queues, room * sizeof(struct pier_py_queue *));
	if (queues)
		ring->queues = queues;
	if (channels && queues) {
		ring->channel_room = room;
		return true;
	}
	PyErr_NoMemory();
	return false;
}

static void list_queues(struct pier_py_ring *ring, const struct pier_py_sources *sources)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < ring->channel_count; i++)
		ring->queues[count++] = ring->channels[i]->queue;
	for (uint32_t i = 0; sources && i < sources->channel_count; i++)
		ring->queues[count++] = sources->channels[i]->queue;
	ring->queue_count = pier_py_queues_sort(ring->queues, count);
}

static bool take_channels(struct pier_py_ring *ring, struct pier_py_sources *sources)
{
	if (!reserve_channels(ring, sources))
		return false;
	list_queues(ring, sources);
	return pier_py_queues_take(ring->queues, ring->queue_count);
}

bool pier_py_ring_take(struct pier_py_ring *ring, struct pier_py_sources *sources)
{
	if (!pier_py_lock_take(&ring->lock, NAME))
		return false;
	if (take_channels(ring, sources))
		return true;
	pier_py_lock_release(&ring->lock);
	return false;
}

static void add_channel(struct pier_py_ring *ring, struct pier_py_channel *channel)
{
	for (uint32_t i = 0; i < ring->channel_count; i++) {
		if (ring->channels[i] == channel)
			return;
	}
	Py_INCREF((PyObject *)channel);
	ring->channels[ring->channel_count++] = channel;
	channel->queue->users++;
}

/* Forget the channels that no fill uses. The caller drops the references. */
static uint32_t remove_channels(struct pier_py_ring *ring)
{
	uint32_t count = ring->channel_count;

	for (uint32_t i = count; i > 0; i--) {
		struct pier_py_channel *channel = ring->channels[i - 1];

		if (pier_ring_uses(ring->ring, channel->channel))
			continue;
		channel->queue->users--;
		ring->channels[i - 1] = ring->channels[--ring->channel_count];
		ring->channels[ring->channel_count] = channel;
	}
	return count;
}

static void leave_channels(struct pier_py_ring *ring, struct pier_py_sources *sources,
			   bool waited)
{
	uint32_t count;

	for (uint32_t i = 0; sources && i < sources->channel_count; i++) {
		if (pier_ring_uses(ring->ring, sources->channels[i]->channel))
			add_channel(ring, sources->channels[i]);
	}
	count = remove_channels(ring);
	pier_py_queues_release(ring->queues, ring->queue_count);
	if (waited)
		pier_py_queues_wake(ring->queues, ring->queue_count);
	/* Nobody has their locks any more, so they may be deleted. */
	for (uint32_t i = ring->channel_count; i < count; i++)
		Py_DECREF((PyObject *)ring->channels[i]);
}

void pier_py_ring_leave(struct pier_py_ring *ring, struct pier_py_sources *sources,
			bool waited)
{
	leave_channels(ring, sources, waited);
	pier_py_lock_release(&ring->lock);
}

/* The Buffer of the slots: one that was given, or a new one. */
static bool make_buffer(struct pier_py_ring *self, PyObject *memory)
{
	uint64_t length;

	if (PyObject_TypeCheck(memory, pier_py_buffer_type)) {
		self->buffer = (struct pier_py_buffer *)Py_NewRef(memory);
		return true;
	}
	if (__builtin_mul_overflow(self->attr.slot_size, (uint64_t)self->attr.slots,
				   &length))
		return pier_py_refuse(ERANGE, "%u slots of %llu bytes exceed 64 bits",
				      self->attr.slots,
				      (unsigned long long)self->attr.slot_size);
	self->buffer = (struct pier_py_buffer *)PyObject_CallFunction(
		(PyObject *)pier_py_buffer_type, "OK", memory,
		(unsigned long long)length);
	return self->buffer;
}

/* pd.register(buffer, access=LOCAL_WRITE, policy=policy) */
static bool register_buffer(struct pier_py_ring *self, PyObject *pd, const char *policy)
{
	PyObject *arguments = Py_BuildValue("(O)", (PyObject *)self->buffer);
	PyObject *keywords = Py_BuildValue("{siss}", "access", PIER_ACCESS_LOCAL_WRITE,
					   "policy", policy);

	if (arguments && keywords)
		self->region = (struct pier_py_region *)pier_py_region_register(
			(struct pier_py_pd *)pd, arguments, keywords);
	Py_XDECREF(arguments);
	Py_XDECREF(keywords);
	return self->region;
}

static bool create_ring(struct pier_py_ring *self)
{
	struct pier_py_pd *pd = self->region->pd;
	int error;

	if (!pier_py_use_begin(&self->region->use, "region"))
		return false;
	self->attr.mr = self->region->mr;
	error = pier_py_check(pier_ring_create(pd->pd, &self->attr, &self->ring));
	pier_py_use_end(&self->region->use);
	return !error;
}

static bool allocate_tickets(struct pier_py_ring *self)
{
	self->tickets = calloc(self->attr.slots, sizeof(*self->tickets));
	if (!self->tickets)
		PyErr_NoMemory();
	return self->tickets;
}

static PyObject *new_ring(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "pd",	   "slots",   "slot_size", "memory",
				 "policy", "timeout", "stall",	   NULL };
	PyObject *pd, *memory = NULL;
	struct pier_py_ring *self = pier_py_new(type);
	unsigned long long slot_size;
	const char *policy = "direct";

	if (!self)
		return NULL;
	pier_ring_attr_init(&self->attr);
	slot_size = self->attr.slot_size;
	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$O&O&OsO&O&:Ring", names,
					 &pd, pier_py_uint32, &self->attr.slots,
					 pier_py_uint64, &slot_size, &memory, &policy,
					 pier_py_deadline, &self->attr.timeout_ms,
					 pier_py_timeout, &self->attr.stall_ms))
		goto free_ring;
	self->attr.slot_size = slot_size;
	memory = memory ? Py_NewRef(memory) : PyUnicode_FromString("host");
	if (memory && pier_py_lock_init(&self->lock) == 0 && make_buffer(self, memory) &&
	    register_buffer(self, pd, policy) && create_ring(self) &&
	    allocate_tickets(self)) {
		Py_DECREF(memory);
		return (PyObject *)self;
	}
	Py_XDECREF(memory);
free_ring:
	Py_DECREF((PyObject *)self);
	return NULL;
}

/* Slots that are held keep the memory: release them, so that the ring can go. */
static void release_all(struct pier_py_ring *self)
{
	for (uint32_t i = 0; self->tickets && i < self->attr.slots; i++) {
		unsigned long long ticket = atomic_exchange(&self->tickets[i], 0);
		struct pier_ring_slot slot = { .number = i, .sequence = ticket - 1 };

		if (ticket)
			pier_ring_release(self->ring, &slot);
	}
}

/*
 * Without the GIL. No wake() is in progress, and none begins. Busy: another thread is
 * just making or deleting a RingSlot.
 */
static int destroy_ring(struct pier_py_ring *self)
{
	int64_t none = 0;
	int error;

	while (!atomic_compare_exchange_weak(&self->use.count, &none, -1)) {
		none = 0;
		sched_yield();
	}
	do {
		release_all(self);
		error = pier_ring_destroy(self->ring);
	} while (error == -EBUSY);
	return error;
}

/*
 * With the lock. The reads in flight are awaited, on each channel until it stalls.
 *
 * Returns 0, or -1 with an exception.
 */
static int end_ring(struct pier_py_ring *self)
{
	int error;

	if (!take_channels(self, NULL))
		return -1;
	error = PIER_PY_CALL(pier_ring_cancel(self->ring));
	leave_channels(self, NULL, true);
	if (error || PIER_PY_CALL(destroy_ring(self)))
		return -1;
	self->ring = NULL;
	return 0;
}

static PyObject *close_ring(struct pier_py_ring *self, PyObject *Py_UNUSED(unused))
{
	int error = 0;

	if (!pier_py_lock_take_any(&self->lock, NAME))
		return NULL;
	if (self->ring)
		error = end_ring(self);
	if (!error) {
		self->lock.closed = true;
		Py_CLEAR(self->buffer);
	}
	pier_py_lock_release(&self->lock);
	return error ? NULL
		     : PyObject_CallMethod((PyObject *)self->region, "close", NULL);
}

/* Errors, such as those of a child of fork(2), have nowhere to go. */
static void delete_ring(struct pier_py_ring *self)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (self->ring)
		end_ring(self);
	PyErr_Restore(type, value, traceback);
	if (!self->ring) {
		for (uint32_t i = 0; i < self->channel_count; i++)
			Py_DECREF((PyObject *)self->channels[i]);
		Py_XDECREF((PyObject *)self->region);
		Py_XDECREF((PyObject *)self->buffer);
	}
	pier_py_lock_destroy(&self->lock);
	free(self->channels);
	free(self->queues);
	free(self->reads);
	free(self->tickets);
	pier_py_delete(self);
}

static PyObject *wake(struct pier_py_ring *self, PyObject *Py_UNUSED(unused))
{
	/* A closed ring has no wait. */
	if (!pier_py_use_try(&self->use))
		Py_RETURN_NONE;
	pier_ring_wake(self->ring);
	pier_py_use_end(&self->use);
	Py_RETURN_NONE;
}

/* Only the lock of the ring: its slots and counts do not change then. */
static bool query_ring(struct pier_py_ring *self, struct pier_ring_status *ret_status)
{
	if (!pier_py_lock_take(&self->lock, NAME))
		return false;
	pier_ring_query(self->ring, ret_status, sizeof(*ret_status));
	pier_py_lock_release(&self->lock);
	return true;
}

static PyObject *get_status(struct pier_py_ring *self, void *Py_UNUSED(unused))
{
	struct pier_ring_status status;

	if (!query_ring(self, &status))
		return NULL;
	return pier_py_record(
		"RingStatus", "(IIIIIKKK)", status.free, status.filling, status.ended,
		status.held, status.in_flight, (unsigned long long)status.doorbells,
		(unsigned long long)status.reads, (unsigned long long)status.bytes);
}

static PyObject *get_free(struct pier_py_ring *self, void *Py_UNUSED(unused))
{
	struct pier_ring_status status;

	return query_ring(self, &status) ? PyLong_FromUnsignedLong(status.free) : NULL;
}

static PyObject *get_buffer(struct pier_py_ring *self, void *Py_UNUSED(unused))
{
	PyObject *buffer;

	if (!pier_py_lock_take(&self->lock, NAME))
		return NULL;
	buffer = Py_NewRef((PyObject *)self->buffer);
	pier_py_lock_release(&self->lock);
	return buffer;
}

static PyObject *get_fd(struct pier_py_ring *self, PyObject *Py_UNUSED(unused))
{
	int fd;

	if (!pier_py_lock_take(&self->lock, NAME))
		return NULL;
	fd = pier_ring_fd(self->ring);
	pier_py_lock_release(&self->lock);
	return PyLong_FromLong(fd);
}

static Py_ssize_t get_length(PyObject *object)
{
	return ((struct pier_py_ring *)object)->attr.slots;
}

static PyMethodDef ring_methods[] = {
	{ "wake", PIER_PY_METHOD(wake), METH_NOARGS,
	  "wake($self)\n--\n\n"
	  "End the current or the next wait(). Any thread, also while another waits." },
	{ "fileno", PIER_PY_METHOD(get_fd), METH_NOARGS,
	  "fileno($self)\n--\n\n"
	  "Return an fd that becomes readable when a slot is released, and by wake(),\n"
	  "until progress() or wait(). The ring owns it." },
	{ "close", PIER_PY_METHOD(close_ring), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Give up all fills, wait for the reads in flight, and destroy the ring.\n"
	  "Slots that are held stay valid: the memory lasts until the last of them is\n"
	  "gone. Again at any time." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef ring_properties[] = {
	{ "status", (getter)get_status, NULL, "The RingStatus.", NULL },
	{ "free", (getter)get_free, NULL, "The number of slots that begin() can take.",
	  NULL },
	{ "buffer", (getter)get_buffer, NULL, "The Buffer of the slots.", NULL },
	{ NULL },
};

static PyMemberDef ring_members[] = {
	{ "region", T_OBJECT_EX, offsetof(struct pier_py_ring, region), READONLY,
	  "The Region of the slots." },
	{ "slot_size", T_ULONGLONG, offsetof(struct pier_py_ring, attr.slot_size),
	  READONLY, "The size of a slot in bytes." },
	PIER_PY_CLOSED_MEMBER(struct pier_py_ring, lock),
	{ NULL },
};

static PyType_Slot ring_slots[] = {
	{ Py_tp_doc,
	  "Ring(pd, *, slots=4, slot_size=1048576, memory='host', policy='direct',\n"
	  "     timeout=30.0, stall=None)\n--\n\n"
	  "Slots of memory that are filled by lists of reads from the memory of peers,\n"
	  "and handed out in order.\n\n"
	  "memory: of the slots: \"memfd\", \"cuda:0\", or a Buffer\n"
	  "policy: for registering it: ProtectionDomain.register()\n"
	  "timeout: of waits, in seconds\n"
	  "stall: a channel on which no read completes for so long is broken; None: its\n"
	  "timeout\n\n"
	  "Any thread may use it: calls of several threads take turns. Slots are\n"
	  "released by any thread. While a fill uses a channel, closing the channel\n"
	  "raises Busy." },
	{ Py_tp_new, (void *)new_ring },
	{ Py_tp_dealloc, (void *)delete_ring },
	{ Py_tp_methods, ring_methods },
	{ Py_tp_members, ring_members },
	{ Py_tp_getset, ring_properties },
	{ Py_mp_length, (void *)get_length },
	{ 0, NULL },
};

int pier_py_add_ring(PyObject *module)
{
	return pier_py_add_type(module, "pier.Ring", sizeof(struct pier_py_ring),
				ring_slots, &pier_py_ring_type);
}
