/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "blocking.h"
#include "channel_attr.h"
#include "device.h"
#include "error.h"
#include "group.h"
#include "time.h"

#define NAME "group"

static const char *const algorithm_names[] = {
	[PIER_BARRIER_CENTRAL] = "central",
	[PIER_BARRIER_BINARY_TREE] = "binary_tree",
	[PIER_BARRIER_DISSEMINATION] = "dissemination",
};

/* NULL: 0, which is the group's own. */
static int find_algorithm(const char *name, enum pier_barrier_algorithm *ret_algorithm)
{
	PyObject *text;
	int i = PIER_BARRIER_DISSEMINATION;

	*ret_algorithm = (enum pier_barrier_algorithm)0;
	if (!name)
		return 0;
	text = PyUnicode_FromString(name);
	if (!text)
		return -1;
	while (i > 0 && PyUnicode_CompareWithASCIIString(text, algorithm_names[i]) != 0)
		i--;
	Py_DECREF(text);
	*ret_algorithm = (enum pier_barrier_algorithm)i;
	if (i > 0)
		return 0;
	PyErr_Format(PyExc_ValueError,
		     "barrier \"%s\" is not \"central\", \"binary_tree\" or "
		     "\"dissemination\"",
		     name);
	return -1;
}

static int create_group(struct pier_py_group *self, struct pier_py_pd *pd,
			const struct pier_group_attr *attr)
{
	PyThreadState *state;
	int error;

	self->pd = Py_NewRef((PyObject *)pd);
	if (pier_py_queue_init(&self->queue, NAME) < 0)
		return -1;
	state = PyEval_SaveThread();
	error = pier_group_create(pd->pd, self->rank, self->size, attr, &self->group);
	PyEval_RestoreThread(state);
	if (!error)
		return 0;
	pier_py_fail(error);
	return -1;
}

static PyObject *new_group(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "pd", "rank", "size", "barrier", NULL };
	PyObject *object, *others = keywords ? PyDict_Copy(keywords) : NULL;
	const char *barrier = algorithm_names[PIER_BARRIER_DISSEMINATION];
	struct pier_channel_attr channel;
	struct pier_group_attr attr;
	struct pier_py_group *self = NULL;
	struct pier_py_pd *pd;
	uint32_t rank, size;

	pier_channel_attr_init(&channel);
	pier_group_attr_init(&attr);
	attr.channel = &channel;
	if (pier_py_channel_attr_take(others, names, &channel) < 0 ||
	    !PyArg_ParseTupleAndKeywords(arguments, others, "OO&O&|$s:Group", names,
					 &object, pier_py_uint32, &rank, pier_py_uint32,
					 &size, &barrier) ||
	    find_algorithm(barrier, &attr.barrier) < 0)
		goto free_others;
	pd = pier_py_pd_begin(object);
	if (!pd)
		goto free_others;
	self = pier_py_new(type);
	if (self) {
		self->rank = rank;
		self->size = size;
		if (create_group(self, pd, &attr) < 0) {
			Py_DECREF((PyObject *)self);
			self = NULL;
		}
	}
	pier_py_use_end(&pd->use);
free_others:
	Py_XDECREF(others);
	return (PyObject *)self;
}

static int destroy_group(struct pier_py_group *self)
{
	PyThreadState *state = PyEval_SaveThread();
	int error = pier_group_destroy(self->group);

	PyEval_RestoreThread(state);
	return error;
}

/* Errors, such as those of a child of fork(2), have nowhere to go. */
static void delete_group(struct pier_py_group *self)
{
	if (self->group)
		destroy_group(self);
	if (self->queue.name)
		pier_py_queue_destroy(&self->queue);
	Py_XDECREF(self->pd);
	pier_py_delete(self);
}

/* With the lock. */
static PyObject *close_locked(struct pier_py_group *self)
{
	int error;

	if (self->queue.users)
		return pier_py_refuse(EBUSY,
				      "the channels of the group are in use by %u "
				      "transfers or rings: close them first",
				      self->queue.users);
	error = destroy_group(self);
	if (error)
		return pier_py_fail(error);
	self->group = NULL;
	self->queue.lock.closed = true;
	Py_RETURN_NONE;
}

static PyObject *close_group(struct pier_py_group *self, PyObject *unused)
{
	PyObject *result;

	(void)unused;
	if (!pier_py_lock_take_any(&self->queue.lock, NAME, -1))
		return NULL;
	result = self->queue.lock.closed ? Py_NewRef(Py_None) : close_locked(self);
	pier_py_queue_release(&self->queue);
	if (result) {
		pier_py_queue_forget(&self->queue);
		pier_py_queue_wake(&self->queue, NULL);
	}
	return result;
}

static PyObject *run_barrier(struct pier_py_group *self,
			     enum pier_barrier_algorithm algorithm, const uint32_t *ranks,
			     uint32_t count, int timeout_ms)
{
	struct pier_py_blocking blocking;
	int error;

	if (!pier_py_queue_take(&self->queue, -1))
		return NULL;
	pier_py_blocking_begin(&blocking);
	error = pier_group_barrier_of(self->group, algorithm, ranks, count, timeout_ms);
	error = pier_py_blocking_end(&blocking, error);
	pier_py_queue_release(&self->queue);
	pier_py_queue_wake(&self->queue, NULL);
	return error ? NULL : Py_NewRef(Py_None);
}

static PyObject *barrier_of(struct pier_py_group *self,
			    enum pier_barrier_algorithm algorithm, PyObject *object,
			    int timeout_ms)
{
	PyObject *tuple = PySequence_Tuple(object), *result = NULL;
	Py_ssize_t count = tuple ? PyTuple_Size(tuple) : 0, i = 0;
	uint32_t *ranks = tuple ? calloc((size_t)count + 1, sizeof(*ranks)) : NULL;

	if (tuple && !ranks)
		PyErr_NoMemory();
	while (ranks && i < count && pier_py_uint32(PyTuple_GetItem(tuple, i), &ranks[i]))
		i++;
	if (ranks && i == count)
		result = run_barrier(self, algorithm, ranks, (uint32_t)count, timeout_ms);
	free(ranks);
	Py_XDECREF(tuple);
	return result;
}

static PyObject *barrier(struct pier_py_group *self, PyObject *arguments,
			 PyObject *keywords)
{
	static char *names[] = { "timeout", "ranks", "algorithm", NULL };
	enum pier_barrier_algorithm algorithm;
	int timeout_ms = PIER_TIMEOUT_DEFAULT;
	PyObject *ranks = Py_None;
	const char *name = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&$Oz:barrier", names,
					 pier_py_timeout, &timeout_ms, &ranks, &name) ||
	    find_algorithm(name, &algorithm) < 0)
		return NULL;
	if (ranks != Py_None)
		return barrier_of(self, algorithm, ranks, timeout_ms);
	return run_barrier(self, algorithm, NULL, 0, timeout_ms);
}

static PyObject *get_channel(struct pier_py_group *self, PyObject *argument)
{
	struct pier_channel *channel;
	PyObject *result = NULL;
	uint32_t rank;

	if (!pier_py_uint32(argument, &rank) || !pier_py_queue_take(&self->queue, -1))
		return NULL;
	channel = pier_group_channel(self->group, rank);
	if (channel)
		result = pier_py_channel_of_group((PyObject *)self, &self->queue, channel,
						  self->connected);
	else
		PyErr_Format(PyExc_IndexError, "there is no rank %u among %u", rank,
			     self->size);
	pier_py_queue_release(&self->queue);
	return result;
}

static PyObject *get_pd(struct pier_py_group *self, void *unused)
{
	(void)unused;
	return Py_NewRef(self->pd);
}

static PyObject *get_rank(struct pier_py_group *self, void *unused)
{
	(void)unused;
	return PyLong_FromUnsignedLong(self->rank);
}

static PyObject *get_size(struct pier_py_group *self, void *unused)
{
	(void)unused;
	return PyLong_FromUnsignedLong(self->size);
}

static PyObject *get_failed_rank(struct pier_py_group *self, void *unused)
{
	int rank;

	(void)unused;
	if (!pier_py_queue_take(&self->queue, -1))
		return NULL;
	rank = pier_group_failed_rank(self->group);
	pier_py_queue_release(&self->queue);
	return rank < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(rank);
}

static PyObject *get_closed(struct pier_py_group *self, void *unused)
{
	(void)unused;
	return PyBool_FromLong(self->queue.lock.closed);
}

static PyObject *describe_group(struct pier_py_group *self)
{
	return PyUnicode_FromFormat("<pier.Group, rank %u of %u%s>", self->rank,
				    self->size,
				    self->queue.lock.closed ? ", closed" : "");
}

static PyMethodDef group_methods[] = {
	{ "barrier", PIER_PY_METHOD(barrier), METH_VARARGS | METH_KEYWORDS,
	  "barrier($self, timeout=None, *, ranks=None, algorithm=None)\n--\n\n"
	  "Wait until all ranks have reached the barrier.\n\n"
	  "ranks: those that take part, ascending, the same in all of them; None: all\n"
	  "algorithm: \"central\", \"binary_tree\" or \"dissemination\"; None: the "
	  "group's\n\n"
	  "Raises TimedOut or ConnectionLost: failed_rank names the rank. Other barriers "
	  "of\n"
	  "this member then fail too." },
	{ "channel", PIER_PY_METHOD(get_channel), METH_O,
	  "channel($self, rank)\n--\n\n"
	  "Return the Channel to a rank, which may be this one. The group owns it." },
	{ "close", PIER_PY_METHOD(close_group), METH_NOARGS,
	  "close($self)\n--\n\n"
	  "Stop everything that is outstanding, and destroy the channels. Again at any\n"
	  "time. Raises Busy while a transfer or a ring uses one of them." },
	PIER_PY_CONTEXT_METHODS,
	{ NULL },
};

static PyGetSetDef group_properties[] = {
	{ "pd", (getter)get_pd, NULL, "The protection domain.", NULL },
	{ "rank", (getter)get_rank, NULL, "The rank of this member.", NULL },
	{ "size", (getter)get_size, NULL, "The number of members.", NULL },
	{ "failed_rank", (getter)get_failed_rank, NULL,
	  "The rank that made connect() or a barrier fail, or None.", NULL },
	{ "closed", (getter)get_closed, NULL, "Whether close() has closed it.", NULL },
	{ NULL },
};

int pier_py_add_group(PyObject *module)
{
	static PyTypeObject *group_type;
	static PyMethodDef methods[16];
	PyMethodDef *const tables[] = { group_methods, pier_py_group_connect_methods,
					pier_py_group_request_methods, NULL };
	PyType_Slot slots[] = {
		{ Py_tp_doc, "The members of a group, without the ways to find them." },
		{ Py_tp_new, (void *)new_group },
		{ Py_tp_dealloc, (void *)delete_group },
		{ Py_tp_repr, (void *)describe_group },
		{ Py_tp_methods, pier_py_join_methods(tables, methods) },
		{ Py_tp_getset, group_properties },
		{ 0, NULL },
	};
	PyType_Spec spec = {
		.name = "pier._pier.Group",
		.basicsize = sizeof(struct pier_py_group),
		.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
		.slots = slots,
	};

	return pier_py_add_type(module, &spec, &group_type);
}
