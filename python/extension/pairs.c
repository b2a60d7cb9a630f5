/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "error.h"
#include "local.h"
#include "pairs.h"
#include "remote.h"
#include "work.h"

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

PyObject *pier_py_post_reads(struct pier_py_channel *self, PyObject *arguments,
			     PyObject *keywords)
{
	static char *names[] = { "pairs", NULL };
	PyObject *pairs;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:post_reads", names,
					 &pairs))
		return NULL;
	return run_pairs(self, pairs, true);
}

PyObject *pier_py_post_writes(struct pier_py_channel *self, PyObject *arguments,
			      PyObject *keywords)
{
	static char *names[] = { "pairs", NULL };
	PyObject *pairs;

	if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:post_writes", names,
					 &pairs))
		return NULL;
	return run_pairs(self, pairs, false);
}
