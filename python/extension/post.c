/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "channel.h"
#include "region.h"
#include "remote.h"
#include "request.h"

/** pier.Work: a request that was posted. */
struct work {
	PyObject ob_base;
	struct pier_py_channel *channel;
	struct pier_work work;
	/*
	 * The handle is valid, and the result is not known yet. Written with the lock of
	 * the channel. False without it means that the result can be read.
	 */
	_Atomic bool posted;
	/* With the lock of the channel: */
	PyObject *regions;
	PyObject *result; /* a Result; or, if it failed, NULL */
	PyObject *error;
};

static PyTypeObject *work_type;

/** Make the Work of a request before it is posted. NULL: raised. */
static struct work *make_work(struct pier_py_channel *channel)
{
	struct work *self = pier_py_new(work_type);

	if (self)
		self->channel = (struct pier_py_channel *)Py_NewRef((PyObject *)channel);
	return self;
}

static void delete_work(struct work *self)
{
	if (self->posted && !self->channel->queue->lock.closed)
		pier_py_queue_drop(self->channel->queue, self->channel->channel,
				   self->work, self->regions);
	else
		pier_py_regions_release(self->regions);
	Py_XDECREF(self->result);
	Py_XDECREF(self->error);
	Py_XDECREF((PyObject *)self->channel);
	pier_py_delete(self);
}

/* The result is known: a Result, or the exception that is set. */
static void conclude(struct work *self)
{
	PyObject *type, *traceback, *regions = self->regions;

	if (!self->result) {
		PyErr_Fetch(&type, &self->error, &traceback);
		PyErr_NormalizeException(&type, &self->error, &traceback);
		Py_XDECREF(type);
		Py_XDECREF(traceback);
	}
	self->regions = NULL;
	self->posted = false;
	pier_py_regions_release(regions);
}

/* The handle is used up. Call it before any other call of the library. */
static void settle(struct work *self, const struct pier_result *result)
{
	if (result->error)
		pier_py_fail(result->error);
	else
		self->result = pier_py_result_record(result);
	conclude(self);
}

static PyObject *get_result(struct work *self)
{
	if (self->result)
		return Py_NewRef(self->result);
	PyErr_SetObject((PyObject *)Py_TYPE(self->error), self->error);
	return NULL;
}

/* One wait of a thread for a request. */
struct work_wait {
	struct work *work;
	struct pier_result result;
};

/* Another thread may have got the result. */
static int check_work(void *subject)
{
	struct work_wait *wait = subject;
	struct work *work = wait->work;

	if (!work->posted)
		return 1;
	return pier_work_poll(work->channel->channel, work->work, &wait->result);
}

/*
 * Stop the channel, so that the memory is safe to reuse. The request may have completed
 * at the last moment.
 */
static struct pier_result stop_channel(struct work *self)
{
	struct pier_result result;

	pier_channel_cancel(self->channel->channel);
	if (pier_work_poll(self->channel->channel, self->work, &result) != 1)
		result = (struct pier_result){ .error = -EIO };
	return result;
}

static void expire(struct work *self, int timeout_ms)
{
	struct pier_result result = stop_channel(self);

	if (result.error == 0) {
		settle(self, &result);
		return;
	}
	pier_py_refuse(ETIMEDOUT,
		       "the request did not complete within %d ms; everything "
		       "outstanding on the channel was stopped",
		       timeout_ms);
	conclude(self);
}

/* The exception of the signal handler is set, and stays. */
static void stop_interrupted(struct work *self)
{
	PyObject *type, *value, *traceback;
	struct pier_result result;

	PyErr_Fetch(&type, &value, &traceback);
	result = stop_channel(self);
	settle(self, &result);
	PyErr_Restore(type, value, traceback);
}

/**
 * Wait until the request has completed. With the lock, which is given up in between.
 *
 * timeout_ms  afterwards the channel is stopped
 * named_ms    of the sentence at the timeout. Both also PIER_TIMEOUT_DEFAULT
 * blocking    there is no other handle of the request: stop the channel also if a signal
 *             handler raised an exception
 *
 * Returns the Result; NULL: raised.
 */
static PyObject *finish_work(struct work *work, int timeout_ms, int named_ms,
			     bool blocking)
{
	struct pier_py_channel *channel = work->channel;
	struct work_wait wait = { .work = work };
	int state;

	if (named_ms == PIER_TIMEOUT_DEFAULT)
		named_ms = channel->timeout_ms;
	if (timeout_ms == PIER_TIMEOUT_DEFAULT)
		timeout_ms = named_ms;
	state = pier_py_queue_wait(channel->queue, channel->channel, check_work, &wait,
				   timeout_ms);
	if (state < 0) {
		if (blocking && work->posted && !channel->queue->lock.closed)
			stop_interrupted(work);
		return NULL;
	}
	if (work->posted && state > 0)
		settle(work, &wait.result);
	else if (work->posted && blocking)
		expire(work, named_ms);
	else if (work->posted) {
		pier_py_refuse(ETIMEDOUT,
			       "the request did not complete within %d ms; it is still "
			       "outstanding",
			       named_ms);
		return NULL;
	}
	return get_result(work);
}

static PyObject *take_and_finish(struct work *self, int timeout_ms, int named_ms)
{
	PyObject *result;

	if (!self->posted)
		return get_result(self);
	if (!pier_py_queue_take(self->channel->queue))
		return NULL;
	result = finish_work(self, timeout_ms, named_ms, false);
	pier_py_queue_release(self->channel->queue);
	if (!result)
		pier_py_queue_wake(self->channel->queue, NULL);
	return result;
}

static PyObject *wait_for_work(struct work *self, PyObject *arguments, PyObject *keywords)
{
	static char *names[] = { "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O&:wait", names,
					 pier_py_timeout, &timeout_ms))
		return NULL;
	return take_and_finish(self, timeout_ms, timeout_ms);
}

/* The channel's timeout has passed elsewhere: in pier/_waiting.py. */
static PyObject *end_wait(struct work *self, PyObject *Py_UNUSED(unused))
{
	return take_and_finish(self, 0, PIER_TIMEOUT_DEFAULT);
}

static PyObject *is_done(struct work *self, PyObject *Py_UNUSED(unused))
{
	struct pier_result result;
	int state = 1;

	if (!self->posted)
		Py_RETURN_TRUE;
	if (!pier_py_queue_take(self->channel->queue))
		return NULL;
	if (self->posted)
		state = pier_work_poll(self->channel->channel, self->work, &result);
	if (self->posted && state > 0)
		settle(self, &result);
	pier_py_queue_release(self->channel->queue);
	return state < 0 ? pier_py_fail(state) : PyBool_FromLong(state);
}

/* pier/_waiting.py */
static PyObject *await_work(struct work *self)
{
	return pier_py_call("pier._waiting", "await_work", "(O)", (PyObject *)self);
}

static PyObject *describe_work(struct work *self)
{
	return PyUnicode_FromFormat("<pier.Work%s>", self->posted   ? ", outstanding"
						     : self->result ? ", done"
								    : ", failed");
}

static PyMethodDef work_methods[] = {
	{ "_end_wait", PIER_PY_METHOD(end_wait), METH_NOARGS,
	  "_end_wait($self)\n--\n\nAs wait(0), after the timeout of the channel." },
	{ "done", PIER_PY_METHOD(is_done), METH_NOARGS,
	  "done($self)\n--\n\n"
	  "Return whether the request has completed, also if it failed. Never waits." },
	{ "wait", PIER_PY_METHOD(wait_for_work), METH_VARARGS | METH_KEYWORDS,
	  "wait($self, timeout=None)\n--\n\n"
	  "Wait until the request has completed, and return its Result. Again at any\n"
	  "time.\n\n"
	  "timeout: in seconds; None: the timeout of the channel\n\n"
	  "At the timeout, TimedOut, and after Ctrl-C, the request is still\n"
	  "outstanding: wait again, or call cancel() of the channel. A request that\n"
	  "failed raises its error: ConnectionLost, AccessDenied and others." },
	{ NULL },
};

static PyMemberDef work_members[] = {
	{ "channel", T_OBJECT_EX, offsetof(struct work, channel), READONLY,
	  "The channel of the request." },
	{ NULL },
};

static PyType_Slot work_slots[] = {
	{ Py_tp_doc,
	  "A request that was posted on a channel: wait for it, or await it.\n\n"
	  "It keeps its regions open until the request has completed, also if the Work\n"
	  "is gone before. To cancel an await leaves the request outstanding; at the\n"
	  "timeout of the channel an await ends as wait() does. Any thread may use it." },
	{ Py_tp_dealloc, (void *)delete_work },
	{ Py_tp_repr, (void *)describe_work },
	{ Py_tp_methods, work_methods },
	{ Py_tp_members, work_members },
	{ Py_am_await, (void *)await_work },
	{ 0, NULL },
};

/* The methods of a channel that post a request, and wait for it or return its Work. */

enum parameter {
	END,
	LOCAL,
	REMOTE,
	IMMEDIATE,
	COMPARE,
	SWAP,
	ADD,
	PAIRS,
	TIMEOUT,
	PARAMETERS,
};

enum {
	MOST_PARAMETERS = 5 /* of a method */
};

static char *const parameter_names[PARAMETERS] = {
	[LOCAL] = "local",     [REMOTE] = "remote",   [IMMEDIATE] = "immediate",
	[COMPARE] = "compare", [SWAP] = "swap",	      [ADD] = "add",
	[PAIRS] = "pairs",     [TIMEOUT] = "timeout",
};

struct method {
	const char *format; /* each parameter is an object */
	enum pier_opcode opcode;
	bool blocking;
	enum parameter parameters[MOST_PARAMETERS];
};

struct request {
	PyObject *arguments[PARAMETERS]; /* borrowed; NULL: missing */
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
	int error;

	error = PIER_PY_BLOCKING(pier_channel_run_request(channel->channel, &posted,
							  request->timeout_ms, NULL));
	pier_py_queue_wake(channel->queue, NULL);
	return error < 0 ? NULL : Py_NewRef(Py_None);
}

/* A write and a read have no Result that says more than their return. */
static PyObject *finish_request(struct work *work, const struct request *request)
{
	PyObject *result = finish_work(work, request->timeout_ms, request->timeout_ms,
				       true);

	if (!result || request->opcode == PIER_OP_RECV)
		return result;
	Py_DECREF(result);
	Py_RETURN_NONE;
}

/* With the lock. */
static PyObject *post_locked(struct pier_py_channel *channel, struct request *request)
{
	struct work *work = make_work(channel);
	PyObject *result = NULL;
	int error;

	if (!work)
		return NULL;
	pier_py_queue_reap(channel->queue);
	error = post_request(channel->channel, request, &work->work);
	if (!error) {
		work->posted = true;
		work->regions = pier_py_local_take_regions(&request->local);
		result = request->blocking ? finish_request(work, request)
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

	if (!pier_py_queue_take(channel->queue))
		return NULL;
	result = post_locked(channel, request);
	pier_py_queue_release(channel->queue);
	if (!result)
		pier_py_queue_wake(channel->queue, NULL);
	return result;
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

static bool make_pairs(struct request *request)
{
	PyObject *tuple = PySequence_Tuple(request->arguments[PAIRS]);
	Py_ssize_t count = tuple ? PyTuple_Size(tuple) : 0, i = 0;

	if (!tuple)
		return false;
	request->pairs = calloc((size_t)count + 1, sizeof(*request->pairs));
	if (!request->pairs)
		PyErr_NoMemory();
	while (request->pairs && i < count &&
	       add_pair(request, (uint32_t)i, PyTuple_GetItem(tuple, i)))
		i++;
	Py_DECREF(tuple);
	return request->pairs && i == count;
}

/* The arguments that are numbers. */
static bool take_numbers(struct request *request)
{
	PyObject *const *arguments = request->arguments;
	PyObject *operand = arguments[arguments[SWAP] ? SWAP : ADD];
	int found = pier_py_optional_uint32(arguments[IMMEDIATE], &request->immediate);

	request->has_immediate = found > 0;
	return found >= 0 &&
	       (!arguments[COMPARE] ||
		pier_py_uint64(arguments[COMPARE], &request->compare)) &&
	       (!operand || pier_py_uint64(operand, &request->operand)) &&
	       (!arguments[TIMEOUT] ||
		pier_py_timeout(arguments[TIMEOUT], &request->timeout_ms));
}

/* The arguments that are memory. */
static bool take_memory(struct request *request)
{
	PyObject *remote = request->arguments[REMOTE];

	if (request->arguments[PAIRS])
		return make_pairs(request);
	if (remote && remote != Py_None) {
		request->remote = pier_py_remote_check(remote);
		if (!request->remote)
			return false;
	}
	return pier_py_local_add(&request->local, request->arguments[LOCAL],
				 is_scatter(request->opcode)) == 0;
}

static PyObject *run_method(struct pier_py_channel *channel, PyObject *arguments,
			    PyObject *keywords, const struct method *method)
{
	struct request request = {
		.opcode = method->opcode,
		.blocking = method->blocking,
		.timeout_ms = PIER_TIMEOUT_DEFAULT,
	};
	char *names[MOST_PARAMETERS + 1] = { NULL };
	PyObject **into[MOST_PARAMETERS], *result = NULL;

	for (int i = 0; i < MOST_PARAMETERS; i++) {
		names[i] = parameter_names[method->parameters[i]];
		into[i] = &request.arguments[method->parameters[i]];
	}
	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, method->format, names,
					 into[0], into[1], into[2], into[3], into[4]))
		return NULL;
	pier_py_local_init(&request.local);
	if (take_numbers(&request) && take_memory(&request) &&
	    pier_py_channel_accepts(channel, request.local.regions))
		result = take_and_post(channel, &request);
	pier_py_local_free(&request.local);
	free(request.pairs);
	return result;
}

/* A function of PyMethodDef has no argument that tells which method was called. */
#define DEFINE_METHOD(function, format_, opcode_, blocking_, ...)                    \
	static PyObject *function(struct pier_py_channel *self, PyObject *arguments, \
				  PyObject *keywords)                                \
	{                                                                            \
		static const struct method method = {                                \
			format_, opcode_, blocking_, { __VA_ARGS__ }                 \
		};                                                                   \
                                                                                     \
		return run_method(self, arguments, keywords, &method);               \
	}

DEFINE_METHOD(run_write, "OO|$OO:write", PIER_OP_WRITE, true, LOCAL, REMOTE, IMMEDIATE,
	      TIMEOUT)
DEFINE_METHOD(post_write, "OO|$O:post_write", PIER_OP_WRITE, false, LOCAL, REMOTE,
	      IMMEDIATE)
DEFINE_METHOD(run_read, "OO|$O:read", PIER_OP_READ, true, LOCAL, REMOTE, TIMEOUT)
DEFINE_METHOD(post_read, "OO:post_read", PIER_OP_READ, false, LOCAL, REMOTE)
DEFINE_METHOD(run_send, "O|$OO:send", PIER_OP_SEND, true, LOCAL, IMMEDIATE, TIMEOUT)
DEFINE_METHOD(post_send, "O|$O:post_send", PIER_OP_SEND, false, LOCAL, IMMEDIATE)
DEFINE_METHOD(run_recv, "O|$O:recv", PIER_OP_RECV, true, LOCAL, TIMEOUT)
DEFINE_METHOD(post_recv, "O:post_recv", PIER_OP_RECV, false, LOCAL)
DEFINE_METHOD(compare_swap, "OOOO|$O:compare_swap", PIER_OP_COMPARE_SWAP, true, LOCAL,
	      REMOTE, COMPARE, SWAP, TIMEOUT)
DEFINE_METHOD(fetch_add, "OOO|$O:fetch_add", PIER_OP_FETCH_ADD, true, LOCAL, REMOTE, ADD,
	      TIMEOUT)
DEFINE_METHOD(post_reads, "O:post_reads", PIER_OP_READ, false, PAIRS)
DEFINE_METHOD(post_writes, "O:post_writes", PIER_OP_WRITE, false, PAIRS)

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

int pier_py_add_post(PyObject *module)
{
	if (pier_py_add_type(module, "pier.Work", sizeof(struct work), work_slots,
			     &work_type) < 0)
		return -1;
	return pier_py_add_methods(pier_py_channel_type, post_methods);
}
