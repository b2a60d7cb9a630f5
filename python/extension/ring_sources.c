/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "error.h"
#include "remote.h"
#include "ring.h"

PyTypeObject *pier_py_sources_type;

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

	if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
		pier_py_wrong_type(pair, "a source is a tuple (Channel, Remote)");
		return false;
	}
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
	if (!self->list || !self->channels || count > UINT32_MAX) {
		PyErr_NoMemory();
		return false;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		if (!read_pair(self, PyTuple_GetItem(self->pairs, i)))
			return false;
	}
	return true;
}

PyObject *pier_py_sources_new(PyObject *pairs)
{
	struct pier_py_sources *self = pier_py_new(pier_py_sources_type);

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

static PyType_Spec sources_spec = {
	.name = "pier.RingSources",
	.basicsize = sizeof(struct pier_py_sources),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = sources_slots,
};

int pier_py_add_sources(PyObject *module)
{
	return pier_py_add_type(module, &sources_spec, &pier_py_sources_type);
}
