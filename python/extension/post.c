/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "region.h"
#include "remote.h"
#include "request.h"
#include "work.h"

/* The methods of a channel that post a request, and wait for it or return its Work. */

struct request {
	/* The arguments, borrowed; NULL: missing. */
	PyObject *local_object, *remote_object, *immediate_object;
	enum pier_opcode opcode;
	struct pier_py_local local;
	struct pier_py_remote *remote; /* borrowed; NULL: none */
	bool has_immediate;
	uint32_t immediate;
	unsigned long long compare, operand; /* of atomics */
	struct pier_write_pair *pairs;	     /* as many as elements; NULL: no pairs */
	bool blocking;
	int timeout_ms;
};

static bool is_scatter(enum pier_opcode opcode)
{
	return opcode != PIER_OP_SEND && opcode != PIER_OP_WRITE;
}

/* The layouts of both are the same: an element and a remote part. */
_Static_assert(sizeof(struct pier_write_pair) == sizeof(struct pier_read_pair),
	       "pairs of reads and writes are alike");

static int post_pairs(struct pier_channel *channel, struct request *request,
		      struct pier_work *ret_work)
{
	if (request->opcode == PIER_OP_READ)
		return pier_channel_post_reads(
			channel, (const struct pier_read_pair *)request->pairs,
			request->local.count, ret_work);
	return pier_channel_post_writes(channel, request->pairs, request->local.count,
					ret_work);
}

static struct pier_request to_post(const struct request *request)
{
	const uint32_t parts = request->remote ? pier_py_remote_count(request->remote)
					       : 0;

	return (struct pier_request){
		.opcode = request->opcode,
		.flags = request->has_immediate ? PIER_POST_IMMEDIATE : 0,
		.gather = request->local.list,
		.num_sge = (int)request->local.count,
		.remote_count = parts > 1 ? parts : 0,
		.immediate = request->immediate,
		.remote = parts ? request->remote->parts : NULL,
		.compare = request->compare,
		.operand = request->operand,
	};
}

static int post_request(struct pier_channel *channel, struct request *request,
			struct pier_work *ret_work)
{
	const struct pier_request posted = to_post(request);

	return request->pairs ? post_pairs(channel, request, ret_work)
			      : pier_channel_post_request(channel, &posted, ret_work);
}

/* More requests than the send queue has room for: the library waits in between. */
static PyObject *move_in_turns(struct pier_py_channel *channel, struct request *request)
{
	const struct pier_request posted = to_post(request);
	struct pier_py_blocking blocking;
	int error;

	pier_py_blocking_begin(&blocking);
	error = pier_channel_run_request(channel->channel, &posted, request->timeout_ms,
					 NULL);
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

static PyObject *take_and_post(struct pier_py_channel *channel, struct request *request)
{
	PyObject *result;

	if (!pier_py_channel_take(channel))
		return NULL;
	result = post_locked(channel, request);
	pier_py_channel_release(channel);
	if (!result)
		pier_py_queue_wake(channel->queue, NULL);
	return result;
}

/* Convert the arguments that are objects. */
static bool take_objects(struct request *request)
{
	int found;

	if (request->remote_object && request->remote_object != Py_None) {
		request->remote = pier_py_remote_check(request->remote_object);
		if (!request->remote)
			return false;
	}
	found = pier_py_optional_uint32(request->immediate_object, &request->immediate);
	request->has_immediate = found > 0;
	return found >= 0 && pier_py_local_add(&request->local, request->local_object,
					       is_scatter(request->opcode)) == 0;
}

static PyObject *run_request(struct pier_py_channel *channel, struct request *request)
{
	PyObject *result = NULL;

	pier_py_local_init(&request->local);
	if (take_objects(request) &&
	    pier_py_channel_accepts(channel, request->local.regions))
		result = take_and_post(channel, request);
	pier_py_local_free(&request->local);
	return result;
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

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|$OO&:write", names,
					 &request.local_object, &request.remote_object,
					 &request.immediate_object, pier_py_timeout,
					 &request.timeout_ms))
		return NULL;
	return run_request(self, &request);
}

static PyObject *post_write(struct pier_py_channel *self, PyObject *arguments,
			    PyObject *keywords)
{
	static char *names[] = { "local", "remote", "immediate", NULL };
	struct request request = { .opcode = PIER_OP_WRITE };

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|$O:post_write", names,
					 &request.local_object, &request.remote_object,
					 &request.immediate_object))
		return NULL;
	return run_request(self, &request);
}

static PyObject *run_read(struct pier_py_channel *self, PyObject *arguments,
			  PyObject *keywords)
{
	static char *names[] = { "local", "remote", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_READ);

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|$O&:read", names,
					 &request.local_object, &request.remote_object,
					 pier_py_timeout, &request.timeout_ms))
		return NULL;
	return run_request(self, &request);
}

static PyObject *post_read(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "local", "remote", NULL };
	struct request request = { .opcode = PIER_OP_READ };

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO:post_read", names,
					 &request.local_object, &request.remote_object))
		return NULL;
	return run_request(self, &request);
}

static PyObject *run_send(struct pier_py_channel *self, PyObject *arguments,
			  PyObject *keywords)
{
	static char *names[] = { "local", "immediate", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_SEND);

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$OO&:send", names,
					 &request.local_object, &request.immediate_object,
					 pier_py_timeout, &request.timeout_ms))
		return NULL;
	return run_request(self, &request);
}

static PyObject *post_send(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "local", "immediate", NULL };
	struct request request = { .opcode = PIER_OP_SEND };

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$O:post_send", names,
					 &request.local_object,
					 &request.immediate_object))
		return NULL;
	return run_request(self, &request);
}

static PyObject *run_recv(struct pier_py_channel *self, PyObject *arguments,
			  PyObject *keywords)
{
	static char *names[] = { "local", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_RECV);

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$O&:recv", names,
					 &request.local_object, pier_py_timeout,
					 &request.timeout_ms))
		return NULL;
	return run_request(self, &request);
}

static PyObject *post_recv(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "local", NULL };
	struct request request = { .opcode = PIER_OP_RECV };

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:post_recv", names,
					 &request.local_object))
		return NULL;
	return run_request(self, &request);
}

static PyObject *compare_swap(struct pier_py_channel *self, PyObject *arguments,
			      PyObject *keywords)
{
	static char *names[] = { "local", "remote", "compare", "swap", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_COMPARE_SWAP);

	if (!PyArg_ParseTupleAndKeywords(
		    arguments, keywords, "OOO&O&|$O&:compare_swap", names,
		    &request.local_object, &request.remote_object, pier_py_uint64,
		    &request.compare, pier_py_uint64, &request.operand, pier_py_timeout,
		    &request.timeout_ms))
		return NULL;
	return run_request(self, &request);
}

static PyObject *fetch_add(struct pier_py_channel *self, PyObject *arguments,
			   PyObject *keywords)
{
	static char *names[] = { "local", "remote", "add", "timeout", NULL };
	struct request request = BLOCKING(PIER_OP_FETCH_ADD);

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOO&|$O&:fetch_add", names,
					 &request.local_object, &request.remote_object,
					 pier_py_uint64, &request.operand,
					 pier_py_timeout, &request.timeout_ms))
		return NULL;
	return run_request(self, &request);
}

static bool add_pair(struct request *request, uint32_t number, PyObject *object)
{
	struct pier_py_local *local = &request->local;
	struct pier_py_remote *remote;
	PyObject *first, *second;

	if (!PyTuple_Check(object))
		return pier_py_wrong_type(object, "a pair is a tuple (local, remote)");
	if (!PyArg_ParseTuple(object, "OO:pair", &first, &second))
		return false;
	remote = pier_py_remote_check(second);
	if (!remote || pier_py_local_add(local, first, is_scatter(request->opcode)) < 0)
		return false;
	if (local->count != number + 1 || pier_py_remote_count(remote) != 1)
		return pier_py_refuse(
			EINVAL,
			"pair %u has %u local and %u remote parts: each has "
			"one here; post_read() and post_write() take more",
			number, local->count - number, pier_py_remote_count(remote));
	request->pairs[number] = (struct pier_write_pair){ local->list[number],
							   remote->parts[0] };
	return true;
}

static bool make_pairs(struct request *request, PyObject *tuple)
{
	Py_ssize_t count = PyTuple_Size(tuple), i = 0;

	request->pairs = calloc((size_t)count + 1, sizeof(*request->pairs));
	if (!request->pairs)
		PyErr_NoMemory();
	while (request->pairs && i < count &&
	       add_pair(request, (uint32_t)i, PyTuple_GetItem(tuple, i)))
		i++;
	return request->pairs && i == count;
}

static PyObject *run_pairs(struct pier_py_channel *channel, PyObject *object,
			   enum pier_opcode opcode)
{
	struct request request = { .opcode = opcode };
	PyObject *tuple = PySequence_Tuple(object), *result = NULL;

	pier_py_local_init(&request.local);
	if (tuple && make_pairs(&request, tuple) &&
	    pier_py_channel_accepts(channel, request.local.regions))
		result = take_and_post(channel, &request);
	pier_py_local_free(&request.local);
	free(request.pairs);
	Py_XDECREF(tuple);
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
	return run_pairs(self, pairs, PIER_OP_READ);
}

static PyObject *post_writes(struct pier_py_channel *self, PyObject *arguments,
			     PyObject *keywords)
{
	static char *names[] = { "pairs", NULL };
	PyObject *pairs;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:post_writes", names,
					 &pairs))
		return NULL;
	return run_pairs(self, pairs, PIER_OP_WRITE);
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
	       "outstanding\n"
	       "on the channel is stopped, so that the memory is safe to reuse.\n\n"
	       "Raises TimedOut, ConnectionLost, AccessDenied (the peer refused),\n"
	       "OutOfRange, Busy (the queue is full)."),
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
	       "Receive one message, and return its Result with the length and the\n"
	       "immediate data. See write()."),
	METHOD("post_recv", post_recv,
	       "post_recv($self, local)\n--\n\n"
	       "Post a receive and return its Work; also before the channel is "
	       "connected."),
	METHOD("compare_swap", compare_swap,
	       "compare_swap($self, local, remote, compare, swap, *, "
	       "timeout=None)\n--\n\n"
	       "Atomically replace 8 bytes of the peer by swap if they are equal to\n"
	       "compare. The previous value goes to the 8 bytes of local memory. Raises\n"
	       "NotSupported without atomics."),
	METHOD("fetch_add", fetch_add,
	       "fetch_add($self, local, remote, add, *, timeout=None)\n--\n\n"
	       "Atomically add to 8 bytes of the peer. The previous value goes to the 8\n"
	       "bytes of local memory."),
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

int pier_py_add_post(PyObject *Py_UNUSED(module))
{
	return pier_py_add_methods(pier_py_channel_type, post_methods);
}
