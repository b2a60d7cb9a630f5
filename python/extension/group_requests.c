/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "blocking.h"
#include "error.h"
#include "group.h"
#include "local.h"
#include "remote.h"
#include "time.h"
#include "work.h"

/* The requests of one call. */
struct requests {
	struct pier_group_request *list;
	struct pier_py_local *locals;
	struct pier_result *results;
	PyObject *tuple; /* keeps the Remotes */
	uint32_t count;
};

typedef int group_call(struct pier_group *group,
		       const struct pier_group_request *requests, uint32_t count,
		       int timeout_ms, struct pier_result *ret_results);

static int find_opcode(PyObject *name, enum pier_opcode usual,
		       enum pier_opcode *ret_opcode)
{
	static const enum pier_opcode known[] = { PIER_OP_WRITE, PIER_OP_SEND,
						  PIER_OP_READ, PIER_OP_RECV };

	*ret_opcode = usual;
	if ((!name || name == Py_None) && usual)
		return 0;
	for (size_t i = 0; name && PyUnicode_Check(name) && i < 4; i++) {
		*ret_opcode = known[i];
		if (PyUnicode_CompareWithASCIIString(name,
						     pier_py_opcode_name(known[i])) == 0)
			return 0;
	}
	if (name && name != Py_None && !PyUnicode_Check(name))
		pier_py_wrong_type(name, "opcode must be a str");
	else
		PyErr_Format(PyExc_ValueError,
			     "opcode %.80R is not \"write\", \"send\", \"read\" or "
			     "\"recv\"",
			     name ? name : Py_None);
	return -1;
}

static int set_remote(PyObject *object, struct pier_group_request *request)
{
	struct pier_py_remote *remote;

	if (!object || object == Py_None)
		return 0;
	remote = pier_py_remote_check(object);
	if (!remote)
		return -1;
	if (pier_py_remote_count(remote) != 1) {
		pier_py_refuse(
			EINVAL,
			"a Remote of %u parts: a request of a group writes or reads "
			"one; use the channel of the rank",
			pier_py_remote_count(remote));
		return -1;
	}
	request->remote = remote->parts;
	return 0;
}

static int set_immediate(PyObject *object, struct pier_group_request *request)
{
	int found = pier_py_optional_uint32(object, &request->immediate);

	request->has_immediate = found > 0;
	return found;
}

static int add_request(struct requests *requests, PyObject *object,
		       enum pier_opcode usual)
{
	PyObject *local, *remote = NULL, *opcode = NULL, *immediate = NULL;
	struct pier_group_request *request = &requests->list[requests->count];
	struct pier_py_local *elements = &requests->locals[requests->count];
	bool scatter;

	if (!PyTuple_Check(object)) {
		pier_py_wrong_type(object, "a request of a group is a pier.GroupRequest");
		return -1;
	}
	if (!PyArg_ParseTuple(object, "O&O|OOO:GroupRequest", pier_py_uint32,
			      &request->rank, &local, &remote, &opcode, &immediate) ||
	    find_opcode(opcode, usual, &request->opcode) < 0 ||
	    set_remote(remote, request) < 0 || set_immediate(immediate, request) < 0)
		return -1;
	requests->count++; /* its memory is now freed with the others */
	elements->list = elements->few;
	scatter = request->opcode == PIER_OP_READ || request->opcode == PIER_OP_RECV;
	if (pier_py_local_make(local, scatter, elements) < 0)
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

static int make_requests(PyObject *object, enum pier_opcode usual,
			 struct requests *ret_requests)
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
		result = add_request(ret_requests, PyTuple_GetItem(tuple, (Py_ssize_t)i),
				     usual);
	return result;
}

/* A list with a Result for each request, or None for those that failed. */
static PyObject *result_list(const struct requests *requests)
{
	PyObject *list = PyList_New((Py_ssize_t)requests->count);

	for (uint32_t i = 0; i < requests->count && list; i++) {
		PyObject *result = requests->results[i].error
					   ? Py_NewRef(Py_None)
					   : pier_py_result_record(&requests->results[i]);

		if (!result || PyList_SetItem(list, (Py_ssize_t)i, result) < 0)
			Py_CLEAR(list);
	}
	return list;
}

/* The exception that is set gets an attribute with the results. */
static void attach_results(const struct requests *requests)
{
	PyObject *type, *value, *traceback, *list;

	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	list = result_list(requests);
	if (!list || PyObject_SetAttrString(value, "results", list) < 0)
		PyErr_Clear();
	Py_XDECREF(list);
	PyErr_Restore(type, value, traceback);
}

static PyObject *run_requests(struct pier_py_group *self, struct requests *requests,
			      group_call *call, int timeout_ms)
{
	struct pier_py_blocking blocking;
	int error;

	if (!pier_py_queue_take(&self->queue, -1))
		return NULL;
	pier_py_queue_reap(&self->queue);
	pier_py_blocking_begin(&blocking);
	error = call(self->group, requests->list, requests->count, timeout_ms,
		     requests->results);
	error = pier_py_blocking_end(&blocking, error);
	pier_py_queue_release(&self->queue);
	pier_py_queue_wake(&self->queue, NULL);
	if (!error)
		return result_list(requests);
	if (PyErr_ExceptionMatches(pier_py_error))
		attach_results(requests);
	return NULL;
}

static PyObject *call_group(struct pier_py_group *self, PyObject *arguments,
			    PyObject *keywords, const char *format, group_call *call,
			    enum pier_opcode usual)
{
	static char *names[] = { "requests", "timeout", NULL };
	int timeout_ms = PIER_TIMEOUT_DEFAULT;
	PyObject *object, *result = NULL;
	struct requests requests;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, format, names, &object,
					 pier_py_timeout, &timeout_ms))
		return NULL;
	if (make_requests(object, usual, &requests) == 0)
		result = run_requests(self, &requests, call, timeout_ms);
	free_requests(&requests);
	return result;
}

static PyObject *exchange(struct pier_py_group *self, PyObject *arguments,
			  PyObject *keywords)
{
	return call_group(self, arguments, keywords, "O|O&:exchange", pier_group_exchange,
			  (enum pier_opcode)0);
}

static PyObject *scatter(struct pier_py_group *self, PyObject *arguments,
			 PyObject *keywords)
{
	return call_group(self, arguments, keywords, "O|O&:scatter", pier_group_scatter,
			  PIER_OP_WRITE);
}

static PyObject *gather(struct pier_py_group *self, PyObject *arguments,
			PyObject *keywords)
{
	return call_group(self, arguments, keywords, "O|O&:gather", pier_group_gather,
			  PIER_OP_READ);
}

PyMethodDef pier_py_group_request_methods[] = {
	{ "exchange", PIER_PY_METHOD(exchange), METH_VARARGS | METH_KEYWORDS,
	  "exchange($self, requests, timeout=None)\n--\n\n"
	  "Post requests to several ranks at once, and wait until all have ended. Return "
	  "the\n"
	  "Results, in the same order.\n\n"
	  "requests: GroupRequests, in any order, also several for one rank\n"
	  "timeout: in seconds, for all of them together\n\n"
	  "Raises the error of the first request that failed, whose sentence names the "
	  "ranks\n"
	  "of all. Its attribute `results` has the Results, and None for failed "
	  "requests.\n"
	  "Requests to other ranks have ended as usual." },
	{ "scatter", PIER_PY_METHOD(scatter), METH_VARARGS | METH_KEYWORDS,
	  "scatter($self, requests, timeout=None)\n--\n\n"
	  "exchange() of writes, which need no opcode, and sends." },
	{ "gather", PIER_PY_METHOD(gather), METH_VARARGS | METH_KEYWORDS,
	  "gather($self, requests, timeout=None)\n--\n\n"
	  "exchange() of reads, which need no opcode, and receives." },
	{ NULL },
};
