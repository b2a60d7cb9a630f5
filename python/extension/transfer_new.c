/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "error.h"
#include "time.h"
#include "transfer.h"

#define NAME "transfer"

/* The arguments of Transfer(). */
struct arguments {
	PyObject *rails;
	const char *direction;
	PyObject *length;
	uint32_t chunk, window;
	int stall_ms, timeout_ms;
	PyObject *notify;
	int announce, fail_fast;
	PyObject *progress, *state_object;
	Py_buffer state;
};

static int parse(PyObject *arguments, PyObject *keywords, struct arguments *ret_parsed)
{
	static char *names[] = { "rails",    "direction", "length",   "chunk",
				 "window",   "stall",	  "timeout",  "notify",
				 "announce", "fail_fast", "progress", "state",
				 NULL };

	*ret_parsed = (struct arguments){
		.direction = "write",
		.stall_ms = PIER_TIMEOUT_DEFAULT,
		.timeout_ms = PIER_TIMEOUT_DEFAULT,
	};
	return PyArg_ParseTupleAndKeywords(
		arguments, keywords, "O|$sOO&O&O&O&OppOO:Transfer", names,
		&ret_parsed->rails, &ret_parsed->direction, &ret_parsed->length,
		pier_py_uint32, &ret_parsed->chunk, pier_py_uint32, &ret_parsed->window,
		pier_py_timeout, &ret_parsed->stall_ms, pier_py_timeout,
		&ret_parsed->timeout_ms, &ret_parsed->notify, &ret_parsed->announce,
		&ret_parsed->fail_fast, &ret_parsed->progress, &ret_parsed->state_object);
}

static int set_direction(const char *direction, struct pier_transfer_attr *attr)
{
	PyObject *name = PyUnicode_FromString(direction);
	int error = 0;

	if (!name)
		return -1;
	if (PyUnicode_CompareWithASCIIString(name, "read") == 0)
		attr->direction = PIER_TRANSFER_READ;
	else if (PyUnicode_CompareWithASCIIString(name, "write") != 0)
		error = -1;
	Py_DECREF(name);
	if (error)
		PyErr_Format(PyExc_ValueError,
			     "direction \"%s\" is not \"write\" or \"read\"", direction);
	return error;
}

static int set_numbers(const struct arguments *parsed, struct pier_transfer_attr *attr)
{
	unsigned long long length;
	int notify = pier_py_optional_uint32(parsed->notify, &attr->immediate);

	if (notify > 0)
		attr->flags |= PIER_TRANSFER_NOTIFY;
	if (notify < 0 || !parsed->length || parsed->length == Py_None)
		return notify < 0 ? -1 : 0;
	if (!pier_py_uint64(parsed->length, &length))
		return -1;
	attr->length = length;
	return 0;
}

static int set_attributes(const struct arguments *parsed, struct pier_py_rails *rails,
			  struct pier_transfer_attr *attr)
{
	pier_transfer_attr_init(attr);
	attr->rails = rails->list;
	attr->rail_count = rails->count;
	attr->length = rails->length;
	attr->chunk = parsed->chunk;
	attr->window = parsed->window;
	attr->stall_ms = parsed->stall_ms;
	attr->timeout_ms = parsed->timeout_ms;
	attr->flags = (parsed->announce ? PIER_TRANSFER_ANNOUNCE : 0) |
		      (parsed->fail_fast ? PIER_TRANSFER_FAIL_FAST : 0);
	attr->state = parsed->state.buf;
	attr->state_size = (size_t)parsed->state.len;
	if (set_direction(parsed->direction, attr) < 0)
		return -1;
	return set_numbers(parsed, attr);
}

static int begin(struct pier_py_transfer *self, const struct arguments *parsed)
{
	struct pier_transfer_attr attr;
	int error;

	if (pier_py_lock_init(&self->lock) < 0 ||
	    pier_py_rails_make(parsed->rails, &self->rails) < 0 ||
	    set_attributes(parsed, &self->rails, &attr) < 0 ||
	    !pier_py_rails_take(&self->rails))
		return -1;
	error = pier_transfer_begin(&attr, &self->transfer);
	if (error)
		pier_py_fail(error);
	else
		pier_py_rails_begin_use(&self->rails);
	pier_py_rails_release(&self->rails);
	return error ? -1 : 0;
}

PyObject *pier_py_transfer_new(PyTypeObject *type, PyObject *arguments,
			       PyObject *keywords)
{
	struct pier_py_transfer *self = NULL;
	struct arguments parsed;

	if (!parse(arguments, keywords, &parsed) ||
	    (parsed.state_object && parsed.state_object != Py_None &&
	     PyObject_GetBuffer(parsed.state_object, &parsed.state, PyBUF_SIMPLE) < 0))
		return NULL;
	self = pier_py_new(type);
	if (self) {
		self->reported = UINT64_MAX;
		if (parsed.progress && parsed.progress != Py_None)
			self->progress = Py_NewRef(parsed.progress);
		if (begin(self, &parsed) < 0) {
			Py_DECREF((PyObject *)self);
			self = NULL;
		}
	}
	if (parsed.state.obj)
		PyBuffer_Release(&parsed.state);
	return (PyObject *)self;
}

/* With the lock of the transfer. */
static int resume_with(struct pier_py_transfer *self, struct pier_py_rails *rails)
{
	int error;

	if (!pier_py_rails_take(rails))
		return -1;
	error = pier_transfer_resume(self->transfer, rails->list, rails->count);
	if (error)
		pier_py_fail(error);
	else
		pier_py_rails_begin_use(rails);
	pier_py_rails_release(rails);
	return error;
}

PyObject *pier_py_transfer_resume(struct pier_py_transfer *self, PyObject *object)
{
	struct pier_py_rails rails, before = { 0 };
	int error = -1;

	if (pier_py_rails_make(object, &rails) == 0 &&
	    pier_py_lock_take(&self->lock, NAME, -1)) {
		error = resume_with(self, &rails);
		if (!error) {
			before = self->rails;
			self->rails = rails;
		}
		pier_py_lock_release(&self->lock);
	}
	pier_py_rails_free(error ? &rails : &before);
	return error ? NULL : Py_NewRef(Py_None);
}
