/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "rails.h"
#include "region.h"
#include "remote.h"

static bool is_rail(PyObject *object)
{
	return PyTuple_Check(object) && PyTuple_Size(object) == 3 &&
	       PyObject_TypeCheck(PyTuple_GetItem(object, 0), pier_py_channel_type);
}

/* Also releases the user of the region if that cannot be kept. */
static int keep_objects(struct pier_py_rails *rails, struct pier_py_channel *channel,
			struct pier_py_region *region, struct pier_py_remote *remote)
{
	if (PyList_Append(rails->regions, (PyObject *)region) < 0) {
		pier_py_use_end(&region->use);
		return -1;
	}
	if (PyList_Append(rails->channels, (PyObject *)channel) < 0)
		return -1;
	return PyList_Append(rails->remotes, (PyObject *)remote);
}

static int add_rail(struct pier_py_rails *rails, PyObject *object)
{
	struct pier_py_channel *channel;
	struct pier_py_region *region;
	struct pier_py_remote *remote;
	struct pier_py_range range;

	if (!is_rail(object)) {
		pier_py_wrong_type(object, "a transfer takes pier.Rail(channel, local, "
					   "remote), or a list of them");
		return -1;
	}
	channel = (struct pier_py_channel *)PyTuple_GetItem(object, 0);
	remote = pier_py_remote_check(PyTuple_GetItem(object, 2));
	region = remote ? pier_py_local_begin(PyTuple_GetItem(object, 1), &range) : NULL;
	if (!region || keep_objects(rails, channel, region, remote) < 0)
		return -1;
	/* The channel is filled in when its lock is held. */
	rails->list[rails->count++] = (struct pier_rail){
		.mr = region->mr,
		.offset = range.offset,
		.parts = remote->parts,
		.count = pier_py_remote_count(remote),
	};
	if (range.length < rails->length)
		rails->length = range.length;
	return 0;
}

static struct pier_py_channel *channel_of(const struct pier_py_rails *rails, uint32_t i)
{
	return (struct pier_py_channel *)PyList_GetItem(rails->channels, (Py_ssize_t)i);
}

static int allocate_rails(struct pier_py_rails *rails, size_t count)
{
	rails->list = calloc(count + 1, sizeof(*rails->list));
	rails->queues = calloc(count + 1, sizeof(struct pier_py_queue *));
	rails->channels = PyList_New(0);
	rails->regions = PyList_New(0);
	rails->remotes = PyList_New(0);
	if (!rails->list || !rails->queues) {
		PyErr_NoMemory();
		return -1;
	}
	return rails->channels && rails->regions && rails->remotes ? 0 : -1;
}

int pier_py_rails_make(PyObject *object, struct pier_py_rails *ret_rails)
{
	PyObject *tuple = is_rail(object) ? PyTuple_Pack(1, object)
					  : PySequence_Tuple(object);
	Py_ssize_t count = tuple ? PyTuple_Size(tuple) : 0;
	int result = -1;

	*ret_rails = (struct pier_py_rails){ .length = UINT64_MAX };
	if (tuple && (count == 0 || count > PIER_RAILS_MAX))
		pier_py_refuse(EINVAL, "%zd rails; a transfer has 1 to %d", count,
			       PIER_RAILS_MAX);
	else if (tuple)
		result = allocate_rails(ret_rails, (size_t)count);
	for (Py_ssize_t i = 0; i < count && result == 0; i++)
		result = add_rail(ret_rails, PyTuple_GetItem(tuple, i));
	for (uint32_t i = 0; result == 0 && i < ret_rails->count; i++)
		ret_rails->queues[i] = channel_of(ret_rails, i)->queue;
	if (result == 0)
		ret_rails->queue_count = pier_py_queues_sort(ret_rails->queues,
							     ret_rails->count);
	Py_XDECREF(tuple);
	return result;
}

void pier_py_rails_free(struct pier_py_rails *rails)
{
	pier_py_rails_end_use(rails);
	free(rails->list);
	free(rails->queues);
	rails->list = NULL;
	rails->queues = NULL;
	rails->queue_count = rails->count = 0;
	Py_CLEAR(rails->channels);
	Py_CLEAR(rails->remotes);
}

bool pier_py_rails_take(struct pier_py_rails *rails)
{
	if (!pier_py_queues_take(rails->queues, rails->queue_count))
		return false;
	for (uint32_t i = 0; i < rails->count; i++)
		rails->list[i].channel = channel_of(rails, i)->channel;
	return true;
}

void pier_py_rails_release(struct pier_py_rails *rails)
{
	pier_py_queues_release(rails->queues, rails->queue_count);
}

void pier_py_rails_begin_use(struct pier_py_rails *rails)
{
	for (uint32_t i = 0; i < rails->queue_count; i++)
		rails->queues[i]->users++;
	rails->in_use = true;
}

void pier_py_rails_end_use(struct pier_py_rails *rails)
{
	PyObject *regions = rails->regions;

	for (uint32_t i = 0; i < rails->queue_count && rails->in_use; i++)
		rails->queues[i]->users--;
	rails->in_use = false;
	rails->regions = NULL;
	pier_py_regions_release(regions);
}
