/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "region.h"
#include "remote.h"
#include "request.h"
#include "work.h"

/* The methods of a channel that post a request, and wait for it or return its Work. */

/* The arguments of a method. */
struct request {
	enum pier_opcode opcode;
	struct pier_py_local local;
	struct pier_py_remote *remote; /* borrowed; NULL: none */
	bool has_immediate;
	uint32_t immediate;
	unsigned long long compare, operand; /* of atomics */
	bool blocking;
	int timeout_ms;
};

static bool is_scatter(enum pier_opcode opcode)
{
	return opcode != PIER_OP_SEND && opcode != PIER_OP_WRITE;
}

static int post_vec(struct pier_channel *channel, struct request *request,
		    struct pier_work *ret_work)
{
	const struct pier_remote *parts = request->remote->parts;
	uint32_t count = pier_py_remote_count(request->remote);

	if (request->has_immediate)
		return pier_py_refuse(
			       EINVAL,
			       "immediate data with a Remote of %u parts: write the "
			       "bytes, and then nothing with the immediate data",
			       count),
		       -EINVAL;
	if (request->opcode == PIER_OP_READ)
		return pier_post_read_vec(channel, pier_py_local_scatter(&request->local),
					  request->local.count, parts, count, ret_work);
	return pier_post_write_vec(channel, request->local.list, request->local.count,
				   parts, count, ret_work);
}

/* The library posts reads, writes and atomics, and sends and receives, by one struct. */
static int post_request(struct pier_channel *channel, struct request *request,
			struct pier_work *ret_work)
{
	const struct pier_request posted = {
		.opcode = request->opcode,
		.flags = request->has_immediate ? PIER_POST_IMMEDIATE : 0,
		.gather = request->local.list,
		.num_sge = (int)request->local.count,
		.immediate = request->immediate,
		.remote = request->remote ? request->remote->parts : NULL,
		.compare = request->compare,
		.operand = request->operand,
	};

	if (request->opcode == PIER_OP_RECV)
		return pier_post_recv(channel, pier_py_local_scatter(&request->local),
				      (int)request->local.count, ret_work);
	if (request->remote && pier_py_remote_count(request->remote) != 1)
		return post_vec(channel, request, ret_work);
	return pier_post_request(channel, &posted, ret_work);
}

/* More requests than the send queue has room for: the library waits in between. */
static PyObject *move_in_turns(struct pier_py_channel *channel, struct request *request)
{
	const struct pier_remote *parts = request->remote->parts;
	uint32_t count = pier_py_remote_count(request->remote);
	struct pier_py_blocking blocking;
	int error;

	pier_py_blocking_begin(&blocking);
	if (request->opcode == PIER_OP_READ)
		error = pier_channel_read_vec(
			channel->channel, pier_py_local_scatter(&request->local),
			request->local.count, parts, count, request->timeout_ms);
	else
		error = pier_channel_write_vec(channel->channel, request->local.list,
					       request->local.count, parts, count,
					       request->timeout_ms);
	error = pier_py_blocking_end(&blocking, error);
	pier_py_queue_wake(channel->queue, NULL);
	return error < 0 ? NULL : Py_NewRef(Py_None);
}

/* A write and a read have no Result that says more than their return. */
static PyObject *finish(struct pier_py_work *work, const struct request *request)
{
	PyObject *result = pier_py_work_finish(work, request->timeout_ms, true);

	if (!result || request->opcode == PIER_OP_RECV)
		return result;
	Py_DECREF(result);
	Py_RETURN_NONE;
}

/* With the lock. */
static PyObject *post_locked(struct pier_py_channel *channel, struct request *request)
{
	struct pier_py_work *work = pier_py_work_new(channel);
	PyObject *result = NULL;
	int error;

	if (!work)
		return NULL;
	pier_py_queue_reap(channel->queue);
	error = post_request(channel->channel, request, &work->work);
	if (!error) {
		work->posted = true;
		work->regions = pier_py_local_take_regions(&request->local);
		result = request->blocking ? finish(work, request)
					   : Py_NewRef((PyObject *)work);
	} else if (error == -E2BIG && request->blocking && request->remote) {
		result = move_in_turns(channel, request);
	} else if (!PyErr_Occurred()) {
		pier_py_fail(error);
	}
	Py_DECREF((PyObject *)work);
	return result;
}

/* Frees the local memory. */
static PyObject *run_request(struct pier_py_channel *channel, struct request *request)
{
	PyObject *result = NULL;

	if (pier_py_channel_take(channel)) {
		result = post_locked(channel, request);
		pier_py_channel_release(channel);
		if (!result)
			pier_py_queue_wake(channel->queue, NULL);
	}
	pier_py_local_free(&request->local);
	return result;
}

/* Convert the arguments that are objects. */
static bool take_objects(struct pier_py_channel *channel, struct request *request,
			 PyObject *local, PyObject *remote, PyObject *immediate)
{
	int found;

	request->local.list = request->local.few;
	if (remote && remote != Py_None) {
		request->remote = pier_py_remote_check(remote);
		if (!request->remote)
			return false;
	}
	found = pier_py_optional_uint32(immediate, &request->immediate);
	if (found < 0)
		return false;
	request->has_immediate = found;
	return pier_py_local_make(local, is_scatter(request->opcode), &request->local) ==
		       0 &&
	       pier_py_channel_accepts(channel, request->local.regions);
}

static PyObject *run_with_objects(struct pier_py_channel *channel,
				  struct request *request, PyObject *local,
				  PyObject *remote, PyObject *immediate)
{
	if (take_objects(channel, request, local, remote, immediate))
		return run_request(channel, request);
	pier_py_local_free(&request->local);
	return NULL;
}

#define BLOCKING(opcode_)                                                               \
	{                                                                               \
		.opcode = opcode_, .blocking = true, .timeout_ms = PIER_TIMEOUT_DEFAULT \
	}

static PyObject *run_write(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "local", "remote", "immediate", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_WRITE);
	PyObject *local, *remote, *immediate = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|$OO&:write", names,
					 &local, &remote, &immediate, pier_py_timeout,
					 &request.timeout_ms))
		return NULL;
	return run_with_objects(self, &request, local, remote, immediate);
}

static PyObject *post_write(struct pier_py_channel *self, PyObject *arguments,
			    PyObject *keywords)
{
	static char *names[] = { "local", "remote", "immediate", NULL };
	struct request request = { .opcode = PIER_OP_WRITE };
	PyObject *local, *remote, *immediate = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|$O:post_write", names,
					 &local, &remote, &immediate))
		return NULL;
	return run_with_objects(self, &request, local, remote, immediate);
}

static PyObject *run_read(struct pier_py_channel *self, PyObject *arguments,
			  PyObject *keywords)
{
	static char *names[] = { "local", "remote", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_READ);
	PyObject *local, *remote;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|$O&:read", names,
					 &local, &remote, pier_py_timeout,
					 &request.timeout_ms))
		return NULL;
	return run_with_objects(self, &request, local, remote, NULL);
}

static PyObject *post_read(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "local", "remote", NULL };
	struct request request = { .opcode = PIER_OP_READ };
	PyObject *local, *remote;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO:post_read", names,
					 &local, &remote))
		return NULL;
	return run_with_objects(self, &request, local, remote, NULL);
}

static PyObject *run_send(struct pier_py_channel *self, PyObject *arguments,
			  PyObject *keywords)
{
	static char *names[] = { "local", "immediate", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_SEND);
	PyObject *local, *immediate = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$OO&:send", names,
					 &local, &immediate, pier_py_timeout,
					 &request.timeout_ms))
		return NULL;
	return run_with_objects(self, &request, local, NULL, immediate);
}

static PyObject *post_send(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "local", "immediate", NULL };
	struct request request = { .opcode = PIER_OP_SEND };
	PyObject *local, *immediate = NULL;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$O:post_send", names,
					 &local, &immediate))
		return NULL;
	return run_with_objects(self, &request, local, NULL, immediate);
}

static PyObject *run_recv(struct pier_py_channel *self, PyObject *arguments,
			  PyObject *keywords)
{
	static char *names[] = { "local", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_RECV);
	PyObject *local;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$O&:recv", names, &local,
					 pier_py_timeout, &request.timeout_ms))
		return NULL;
	return run_with_objects(self, &request, local, NULL, NULL);
}

static PyObject *post_recv(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "local", NULL };
	struct request request = { .opcode = PIER_OP_RECV };
	PyObject *local;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:post_recv", names,
					 &local))
		return NULL;
	return run_with_objects(self, &request, local, NULL, NULL);
}

static PyObject *compare_swap(struct pier_py_channel *self, PyObject *arguments,
			      PyObject *keywords)
{
	static char *names[] = { "local", "remote", "compare", "swap", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_COMPARE_SWAP);
	PyObject *local, *remote;

	if (!PyArg_ParseTupleAndKeywords(
		    arguments, keywords, "OOO&O&|$O&:compare_swap", names, &local,
		    &remote, pier_py_uint64, &request.compare, pier_py_uint64,
		    &request.operand, pier_py_timeout, &request.timeout_ms))
		return NULL;
	return run_with_objects(self, &request, local, remote, NULL);
}

static PyObject *fetch_add(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "local", "remote", "add", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_FETCH_ADD);
	PyObject *local, *remote;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOO&|$O&:fetch_add", names,
					 &local, &remote, pier_py_uint64,
					 &request.operand, pier_py_timeout,
					 &request.timeout_ms))
		return NULL;
	return run_with_objects(self, &request, local, remote, NULL);
}

/* The layouts of both are the same: an element and a remote part. */
_Static_assert(sizeof(struct pier_write_pair) == sizeof(struct pier_read_pair),
	       "pairs of reads and writes are alike");

struct pairs {
	struct pier_write_pair *list;
	uint32_t count;
	PyObject *regions; /* a list of Regions with users */
};

static void free_pairs(struct pairs *pairs)
{
	free(pairs->list);
	pier_py_regions_release(pairs->regions);
}

/* The users of the regions go from one list to the other. */
static int keep_regions(struct pairs *pairs, struct pier_py_local *local)
{
	PyObject *regions = pier_py_local_take_regions(local), *before = pairs->regions;

	pairs->regions = before ? PySequence_InPlaceConcat(before, regions)
				: Py_NewRef(regions);
	if (!pairs->regions) {
		pairs->regions = before;
		pier_py_regions_release(regions);
		return -1;
	}
	Py_XDECREF(before);
	Py_DECREF(regions);
	return 0;
}

static int add_pair(struct pairs *pairs, PyObject *object, bool scatter)
{
	struct pier_write_pair *pair = &pairs->list[pairs->count];
	struct pier_py_local local = { .list = local.few };
	struct pier_py_remote *remote;
	PyObject *first, *second;
	int result = -1;

	if (!PyTuple_Check(object) ||
	    !PyArg_ParseTuple(object, "OO:pair", &first, &second)) {
		if (!PyErr_Occurred())
			pier_py_wrong_type(object, "a pair is a tuple (local, remote)");
		return -1;
	}
	remote = pier_py_remote_check(second);
	if (remote && pier_py_local_make(first, scatter, &local) == 0) {
		if (local.count != 1 || pier_py_remote_count(remote) != 1) {
			pier_py_refuse(
				EINVAL,
				"pair %u has %u local and %u remote parts: each has "
				"one here; post_read() and post_write() take more",
				pairs->count, local.count, pier_py_remote_count(remote));
		} else {
			*pair = (struct pier_write_pair){ local.list[0],
							  remote->parts[0] };
			pairs->count++;
			result = keep_regions(pairs, &local);
		}
	}
	pier_py_local_free(&local);
	return result;
}

static int make_pairs(PyObject *object, bool scatter, struct pairs *ret_pairs)
{
	PyObject *tuple = PySequence_Tuple(object);
	Py_ssize_t count = tuple ? PyTuple_Size(tuple) : 0;
	int result = tuple ? 0 : -1;

	*ret_pairs = (struct pairs){ 0 };
	if (tuple) {
		ret_pairs->list = calloc((size_t)count + 1, sizeof(*ret_pairs->list));
		if (!ret_pairs->list) {
			PyErr_NoMemory();
			result = -1;
		}
	}
	for (Py_ssize_t i = 0; i < count && result == 0; i++)
		result = add_pair(ret_pairs, PyTuple_GetItem(tuple, i), scatter);
	Py_XDECREF(tuple);
	return result;
}

/* With the lock. */
static PyObject *post_pairs(struct pier_py_channel *channel, struct pairs *pairs,
			    bool scatter)
{
	struct pier_py_work *work = pier_py_work_new(channel);
	int error;

	if (!work)
		return NULL;
	pier_py_queue_reap(channel->queue);
	error = scatter ? pier_post_reads(channel->channel,
					  (const struct pier_read_pair *)pairs->list,
					  pairs->count, &work->work)
			: pier_post_writes(channel->channel, pairs->list, pairs->count,
					   &work->work);
	if (error) {
		Py_DECREF((PyObject *)work);
		return pier_py_fail(error);
	}
	work->posted = true;
	work->regions = pairs->regions;
	pairs->regions = NULL;
	return (PyObject *)work;
}

static PyObject *run_pairs(struct pier_py_channel *self, PyObject *object, bool scatter)
{
	PyObject *result = NULL;
	struct pairs pairs;

	if (make_pairs(object, scatter, &pairs) == 0 &&
	    pier_py_channel_accepts(self, pairs.regions) && pier_py_channel_take(self)) {
		result = post_pairs(self, &pairs, scatter);
		pier_py_channel_release(self);
	}
	free_pairs(&pairs);
	return result;
}

static PyObject *post_reads(struct pier_py_channel *self, PyObject *arguments,
			    PyObject *keywords)
{
	static char *names[] = { "pairs", NULL };
	PyObject *pairs;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:post_reads", names,
					 &pairs))
		return NULL;
	return run_pairs(self, pairs, true);
}

static PyObject *post_writes(struct pier_py_channel *self, PyObject *arguments,
			     PyObject *keywords)
{
	static char *names[] = { "pairs", NULL };
	PyObject *pairs;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:post_writes", names,
					 &pairs))
		return NULL;
	return run_pairs(self, pairs, false);
}

#define METHOD(name, function, doc)                                               \
	{                                                                         \
		name, PIER_PY_METHOD(function), METH_VARARGS | METH_KEYWORDS, doc \
	}

static PyMethodDef post_methods[] = {
	METHOD("write", run_write,
	       "write($self, local, remote, *, immediate=None, timeout=None)\n--\n\n"
	       "Write local memory to the peer's, and wait until it is there.\n\n"
	       "local: a Region, a slice of one, or a list of them; None: no bytes\n"
	       "remote: a Remote, at least as long; None with no bytes\n"
	       "immediate: 32 bits that the peer finds in its receive\n"
	       "timeout: in seconds; None: the timeout of the channel\n\n"
	       "At the timeout, and if Ctrl-C interrupts the wait, everything "
	       "outstanding on\n"
	       "the channel is stopped, so that the memory is safe to reuse.\n\n"
	       "Raises TimedOut, ConnectionLost, AccessDenied (the peer refused), "
	       "OutOfRange,\n"
	       "Busy (the queue is full)."),
	METHOD("post_write", post_write,
	       "post_write($self, local, remote, *, immediate=None)\n--\n\n"
	       "Post a write and return its Work. Raises Busy if the queue is full."),
	METHOD("read", run_read,
	       "read($self, local, remote, *, timeout=None)\n--\n\n"
	       "Read the peer's memory into local memory, and wait. See write()."),
	METHOD("post_read", post_read,
	       "post_read($self, local, remote)\n--\n\n"
	       "Post a read and return its Work. Raises Busy if the queue is full."),
	METHOD("send", run_send,
	       "send($self, local, *, immediate=None, timeout=None)\n--\n\n"
	       "Send a message into a receive of the peer, and wait. See write()."),
	METHOD("post_send", post_send,
	       "post_send($self, local, *, immediate=None)\n--\n\n"
	       "Post a send and return its Work. Raises Busy if the queue is full."),
	METHOD("recv", run_recv,
	       "recv($self, local, *, timeout=None)\n--\n\n"
	       "Receive one message, and return its Result with the length and the "
	       "immediate\n"
	       "data. See write()."),
	METHOD("post_recv", post_recv,
	       "post_recv($self, local)\n--\n\n"
	       "Post a receive and return its Work; also before the channel is "
	       "connected."),
	METHOD("compare_swap", compare_swap,
	       "compare_swap($self, local, remote, compare, swap, *, "
	       "timeout=None)\n--\n\n"
	       "Atomically replace 8 bytes of the peer by swap if they are equal to "
	       "compare.\n"
	       "The previous value goes to the 8 bytes of local memory. Raises "
	       "NotSupported\n"
	       "without atomics."),
	METHOD("fetch_add", fetch_add,
	       "fetch_add($self, local, remote, add, *, timeout=None)\n--\n\n"
	       "Atomically add to 8 bytes of the peer. The previous value goes to the 8 "
	       "bytes\n"
	       "of local memory."),
	METHOD("post_reads", post_reads,
	       "post_reads($self, pairs)\n--\n\n"
	       "Post reads under one doorbell, and return the Work of all of them.\n\n"
	       "pairs: (local, remote) of one range each, at most max_send_wr\n\n"
	       "Raises Busy if the queue has too little room."),
	METHOD("post_writes", post_writes,
	       "post_writes($self, pairs)\n--\n\n"
	       "Post writes under one doorbell. See post_reads()."),
	{ NULL },
};

int pier_py_add_post(PyObject *module)
{
	(void)module;
	return pier_py_add_methods(pier_py_channel_type, post_methods);
}
