/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "channel.h"
#include "channel_attr.h"
#include "device.h"
#include "request.h"
#include "remote.h"

#define NAME "group"

/* pier._pier.Group, the base of pier.Group. */
struct group {
	PyObject ob_base;
	struct pier_py_queue queue; /* of all channels */
	struct pier_group *group;
	PyObject *pd;
	uint32_t rank, size;
	bool connected;
};

static const char *const algorithm_names[] = {
	[PIER_BARRIER_CENTRAL] = "central",
	[PIER_BARRIER_BINARY_TREE] = "binary_tree",
	[PIER_BARRIER_DISSEMINATION] = "dissemination",
};

/* None: 0, which is the group's own. As the next functions for "O&" of a parser. */
static int convert_algorithm(PyObject *name, void *ret_algorithm)
{
	int found = name == Py_None ? 0
				    : pier_py_choose(name, "barrier", algorithm_names,
						     PIER_BARRIER_DISSEMINATION + 1);

	*(enum pier_barrier_algorithm *)ret_algorithm =
		(enum pier_barrier_algorithm)found;
	return found >= 0;
}

static int create_group(struct group *self, struct pier_py_pd *pd,
			const struct pier_group_attr *attr)
{
	self->pd = Py_NewRef((PyObject *)pd);
	if (pier_py_queue_init(&self->queue, NAME) < 0)
		return -1;
	return PIER_PY_CALL(
		pier_group_create(pd->pd, self->rank, self->size, attr, &self->group));
}

static PyObject *new_group(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "pd", "rank", "size", "barrier", NULL };
	PyObject *object, *others = keywords ? PyDict_Copy(keywords) : NULL;
	struct pier_channel_attr channel;
	struct pier_group_attr attr;
	struct group *self = NULL;
	struct pier_py_pd *pd;
	uint32_t rank, size;

	pier_channel_attr_init(&channel);
	pier_group_attr_init(&attr);
	attr.channel = &channel;
	if (pier_py_channel_attr_take(others, "pd rank size barrier", &channel) < 0 ||
	    !PyArg_ParseTupleAndKeywords(arguments, others, "OO&O&|$O&:Group", names,
					 &object, pier_py_uint32, &rank, pier_py_uint32,
					 &size, convert_algorithm, &attr.barrier))
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

static int destroy_group(void *group)
{
	return pier_group_destroy(group);
}

static void delete_group(struct group *self)
{
	pier_py_queue_delete(&self->queue, destroy_group, self->group);
	Py_XDECREF(self->pd);
	pier_py_delete(self);
}

static PyObject *close_group(struct group *self, PyObject *Py_UNUSED(unused))
{
	return pier_py_queue_close(&self->queue, "the channels of the group are",
				   destroy_group, self->group);
}

static PyObject *endpoints(struct group *self, PyObject *Py_UNUSED(unused))
{
	size_t size = (size_t)self->size * PIER_GROUP_BLOB_SIZE;
	PyObject *blobs = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
	int error;

	if (!blobs || !pier_py_queue_take(&self->queue)) {
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

static PyObject *connect_group(struct group *self, PyObject *arguments,
			       PyObject *keywords)
{
	static char *names[] = { "blobs", "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT, error = -1;
	Py_buffer blobs;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "y*|O&:connect", names,
					 &blobs, pier_py_timeout, &timeout_ms))
		return NULL;
	if (pier_py_queue_take(&self->queue)) {
		error = PIER_PY_BLOCKING(pier_group_connect(
			self->group, blobs.buf, (size_t)blobs.len, timeout_ms));
		self->connected |= !error;
		pier_py_queue_release(&self->queue);
	}
	PyBuffer_Release(&blobs);
	return error ? NULL : Py_NewRef(Py_None);
}

/* The fd of this rank is ignored, and may be None. */
static int find_fds(const struct group *self, PyObject *sockets, int *ret_fds)
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

static PyObject *handshake(struct group *self, PyObject *arguments, PyObject *keywords)
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
	if (find_fds(self, sockets, fds) == 0 && pier_py_queue_take(&self->queue)) {
		error = PIER_PY_BLOCKING(
			pier_group_handshake(self->group, fds, timeout_ms));
		self->connected |= !error;
		pier_py_queue_release(&self->queue);
	}
	free(fds);
	return error ? NULL : Py_NewRef(Py_None);
}

/* The requests of one call. */
struct requests {
	struct pier_group_request *list;
	struct pier_py_local *locals;
	struct pier_result *results;
	PyObject *tuple; /* keeps the Remotes */
	uint32_t count;
};

static int convert_opcode(PyObject *name, void *ret_opcode)
{
	static const char *const names[] = {
		[PIER_OP_SEND] = "send",
		[PIER_OP_WRITE] = "write",
		[PIER_OP_READ] = "read",
		[PIER_OP_RECV] = "recv",
	};
	int found = pier_py_choose(name, "opcode", names, PIER_OP_RECV + 1);

	*(enum pier_opcode *)ret_opcode = (enum pier_opcode)found;
	return found >= 0;
}

static int convert_remote(PyObject *object, void *of_request)
{
	struct pier_request *request = of_request;
	struct pier_py_remote *remote;
	uint32_t count;

	if (object == Py_None)
		return 1;
	remote = pier_py_remote_check(object);
	if (!remote)
		return 0;
	count = pier_py_remote_count(remote);
	request->remote = count > 0 ? remote->parts : NULL;
	request->remote_count = count > 1 ? count : 0;
	return 1;
}

/* Only sends and writes carry it. The opcode is known. */
static int convert_immediate(PyObject *object, void *of_request)
{
	struct pier_request *request = of_request;
	int found = pier_py_optional_uint32(object, &request->immediate);

	if (found > 0 &&
	    (request->opcode == PIER_OP_SEND || request->opcode == PIER_OP_WRITE))
		request->flags = PIER_POST_IMMEDIATE;
	return found >= 0;
}

static int add_request(struct requests *requests, PyObject *object)
{
	PyObject *local;
	struct pier_group_request *of_group = &requests->list[requests->count];
	struct pier_request *request = &of_group->request;
	struct pier_py_local *elements = &requests->locals[requests->count];
	bool scatter;

	if (!PyTuple_Check(object)) {
		pier_py_wrong_type(object, "a request of a group is a pier.GroupRequest");
		return -1;
	}
	request->opcode = PIER_OP_WRITE;
	if (!PyArg_ParseTuple(object, "O&O|O&O&O&:GroupRequest", pier_py_uint32,
			      &of_group->rank, &local, convert_remote, request,
			      convert_opcode, &request->opcode, convert_immediate,
			      request))
		return -1;
	requests->count++; /* its memory is now freed with the others */
	pier_py_local_init(elements);
	scatter = request->opcode == PIER_OP_READ || request->opcode == PIER_OP_RECV;
	if (pier_py_local_add(elements, local, scatter) < 0)
		return -1;
	request->gather = elements->list;
	request->num_sge = (int)elements->count;
	return 0;
}

static void free_requests(struct requests *requests)
{
	for (uint32_t i = 0; i < requests->count; i++)
		pier_py_local_free(&requests->locals[i]);
	free(requests->list);
	free(requests->locals);
	free(requests->results);
	Py_XDECREF(requests->tuple);
}

static int make_requests(PyObject *object, struct requests *ret_requests)
{
	PyObject *tuple = PySequence_Tuple(object);
	size_t count = tuple ? (size_t)PyTuple_Size(tuple) : 0;
	int result = tuple ? 0 : -1;

	*ret_requests = (struct requests){
		.list = calloc(count + 1, sizeof(*ret_requests->list)),
		.locals = calloc(count + 1, sizeof(*ret_requests->locals)),
		.results = calloc(count + 1, sizeof(*ret_requests->results)),
		.tuple = tuple,
	};
	if (!ret_requests->list || !ret_requests->locals || !ret_requests->results) {
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < count && result == 0; i++)
		result = add_request(ret_requests, PyTuple_GetItem(tuple, (Py_ssize_t)i));
	return result;
}

/* None for a request that failed. */
static PyObject *describe_result(const void *results, size_t index)
{
	const struct pier_result *result = (const struct pier_result *)results + index;

	return result->error ? Py_NewRef(Py_None) : pier_py_result_record(result);
}

/* The exception that is set gets an attribute with the results. */
static void attach_results(const struct requests *requests)
{
	PyObject *type, *value, *traceback, *list;

	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	list = pier_py_list(requests->count, describe_result, requests->results);
	if (!list || PyObject_SetAttrString(value, "results", list) < 0)
		PyErr_Clear();
	Py_XDECREF(list);
	PyErr_Restore(type, value, traceback);
}

static PyObject *run_requests(struct group *self, struct requests *requests,
			      int timeout_ms)
{
	int error;

	if (!pier_py_queue_take(&self->queue))
		return NULL;
	pier_py_queue_reap(&self->queue);
	error = PIER_PY_BLOCKING(pier_group_exchange(self->group, requests->list,
						     requests->count, timeout_ms,
						     requests->results));
	pier_py_queue_release(&self->queue);
	pier_py_queue_wake(&self->queue, NULL);
	if (!error)
		return pier_py_list(requests->count, describe_result, requests->results);
	if (PyErr_ExceptionMatches(pier_py_error))
		attach_results(requests);
	return NULL;
}

static PyObject *exchange(struct group *self, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "requests", "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT;
	PyObject *object, *result = NULL;
	struct requests requests;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|O&:exchange", names,
					 &object, pier_py_timeout, &timeout_ms))
		return NULL;
	if (make_requests(object, &requests) == 0)
		result = run_requests(self, &requests, timeout_ms);
	free_requests(&requests);
	return result;
}

static PyObject *run_barrier(struct group *self, enum pier_barrier_algorithm algorithm,
			     const uint32_t *ranks, uint32_t count, int timeout_ms)
{
	int error;

	if (!pier_py_queue_take(&self->queue))
		return NULL;
	error = PIER_PY_BLOCKING(
		pier_group_barrier_of(self->group, algorithm, ranks, count, timeout_ms));
	pier_py_queue_release(&self->queue);
	pier_py_queue_wake(&self->queue, NULL);
	return error ? NULL : Py_NewRef(Py_None);
}

static PyObject *barrier_of(struct group *self, enum pier_barrier_algorithm algorithm,
			    PyObject *object, int timeout_ms)
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

static PyObject *barrier(struct group *self, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "timeout", "ranks", "algorithm", NULL };
	enum pier_barrier_algorithm algorithm = 0;
	int timeout_ms = PIER_TIMEOUT_DEFAULT;
	PyObject *ranks = Py_None;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&$OO&:barrier", names,
					 pier_py_timeout, &timeout_ms, &ranks,
					 convert_algorithm, &algorithm))
		return NULL;
	if (ranks != Py_None)
		return barrier_of(self, algorithm, ranks, timeout_ms);
	return run_barrier(self, algorithm, NULL, 0, timeout_ms);
}

static PyObject *get_channel(struct group *self, PyObject *argument)
{
	struct pier_channel *channel;
	PyObject *result = NULL;
	uint32_t rank;

	if (!pier_py_uint32(argument, &rank) || !pier_py_queue_take(&self->queue))
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

static PyObject *get_failed_rank(struct group *self, void *Py_UNUSED(unused))
{
	int rank;

	if (!pier_py_queue_take(&self->queue))
		return NULL;
	rank = pier_group_failed_rank(self->group);
	pier_py_queue_release(&self->queue);
	return rank < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(rank);
}

static PyObject *describe_group(struct group *self)
{
	return PyUnicode_FromFormat("<pier.Group, rank %u of %u%s>", self->rank,
				    self->size,
				    self->queue.lock.closed ? ", closed" : "");
}

static PyMethodDef group_methods[] = {
	{ "endpoints", PIER_PY_METHOD(endpoints), METH_NOARGS,
	  "endpoints($self)\n--\n\n"
	  "Return the blobs that the other members need: len(result) // size bytes for\n"
	  "each rank, in their order. With soft0 they have secrets: send them over\n"
	  "trusted connections only." },
	{ "connect", PIER_PY_METHOD(connect_group), METH_VARARGS | METH_KEYWORDS,
	  "connect($self, blobs, timeout=None)\n--\n\n"
	  "Connect to all other members, which do the same, and wait until all are\n"
	  "connected.\n\n"
	  "blobs: the blob that each rank made for this one, in the order of ranks\n\n"
	  "Raises TimedOut, ConnectionLost, BadMessage, Invalid: failed_rank names the\n"
	  "rank." },
	{ "handshake", PIER_PY_METHOD(handshake), METH_VARARGS | METH_KEYWORDS,
	  "handshake($self, sockets, timeout=None)\n--\n\n"
	  "Exchange blobs over one trusted stream socket for each other rank, and\n"
	  "connect.\n\n"
	  "sockets: by rank; that of this rank is ignored, and may be None" },
	{ "exchange", PIER_PY_METHOD(exchange), METH_VARARGS | METH_KEYWORDS,
	  "exchange($self, requests, timeout=None)\n--\n\n"
	  "Post requests to several ranks at once, and wait until all have ended.\n"
	  "Return the Results, in the same order.\n\n"
	  "requests: GroupRequests, in any order, also several for one rank\n"
	  "timeout: in seconds, for all of them together\n\n"
	  "Raises the error of the first request that failed, whose sentence names the\n"
	  "ranks of all. Its attribute `results` has the Results, and None for failed\n"
	  "requests. Requests to other ranks have ended as usual." },
	{ "barrier", PIER_PY_METHOD(barrier), METH_VARARGS | METH_KEYWORDS,
	  "barrier($self, timeout=None, *, ranks=None, algorithm=None)\n--\n\n"
	  "Wait until all ranks have reached the barrier.\n\n"
	  "ranks: those that take part, ascending, the same in all of them; None: all\n"
	  "algorithm: \"central\", \"binary_tree\" or \"dissemination\"; None: the\n"
	  "group's\n\n"
	  "Raises TimedOut or ConnectionLost: failed_rank names the rank. Other\n"
	  "barriers of this member then fail too." },
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
	{ "failed_rank", (getter)get_failed_rank, NULL,
	  "The rank that made connect() or a barrier fail, or None.", NULL },
	{ NULL },
};

static PyMemberDef group_members[] = {
	{ "pd", T_OBJECT_EX, offsetof(struct group, pd), READONLY,
	  "The protection domain." },
	{ "rank", T_UINT, offsetof(struct group, rank), READONLY,
	  "The rank of this member." },
	{ "size", T_UINT, offsetof(struct group, size), READONLY,
	  "The number of members." },
	PIER_PY_CLOSED_MEMBER(struct group, queue.lock),
	{ NULL },
};

static PyType_Slot group_slots[] = {
	{ Py_tp_doc, "The members of a group, without the ways to find them." },
	{ Py_tp_new, (void *)new_group },
	{ Py_tp_dealloc, (void *)delete_group },
	{ Py_tp_repr, (void *)describe_group },
	{ Py_tp_methods, group_methods },
	{ Py_tp_members, group_members },
	{ Py_tp_getset, group_properties },
	{ 0, NULL },
};

static PyType_Spec group_spec = {
	.name = "pier._pier.Group",
	.basicsize = sizeof(struct group),
	.flags = Py_TPFLAGS_BASETYPE,
	.slots = group_slots,
};

int pier_py_add_group(PyObject *module)
{
	PyTypeObject *type;

	return pier_py_add_spec(module, &group_spec, &type);
}
