/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_CHANNEL_H
#define PIER_PY_CHANNEL_H

#include "queue.h"

/** pier.Channel */
struct pier_py_channel {
	PyObject ob_base;
	struct pier_channel *channel;
	struct pier_py_queue *queue; /* its own, or that of its group */
	struct pier_py_queue own_queue;
	PyObject *parent; /* its protection domain or its group */
	bool connected;
	int timeout_ms;
};

extern PyTypeObject *pier_py_channel_type;

/**
 * Make the Channel of a rank of a group, which owns the library's channel and the queue.
 * NULL: raised.
 */
PyObject *pier_py_channel_of_group(PyObject *group, struct pier_py_queue *queue,
				   struct pier_channel *channel, bool connected);

/** Check an argument. Returns it, borrowed, or NULL with TypeError. */
struct pier_py_channel *pier_py_channel_check(PyObject *object);

/**
 * Check that regions, a list or NULL, are in the protection domain of the channel. The
 * device does not look at the keys of inline data. Returns false with Invalid.
 */
bool pier_py_channel_accepts(struct pier_py_channel *channel, PyObject *regions);

#endif
