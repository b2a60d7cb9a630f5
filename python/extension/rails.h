/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_RAILS_H
#define PIER_PY_RAILS_H

#include "channel.h"

/** The rails of a transfer. While it runs, their channels and regions cannot be closed.
 */
struct pier_py_rails {
	struct pier_rail *list;
	uint32_t count;
	uint64_t length;	       /* of the shortest local memory */
	PyObject *channels;	       /* a list, by rail */
	PyObject *regions;	       /* a list of Regions, each with a user */
	PyObject *remotes;	       /* a list, which keeps the parts of the rails */
	struct pier_py_queue **queues; /* each once, in the order of locking */
	uint32_t queue_count;
	bool in_use; /* the queues have a user */
};

/**
 * Make rails of an argument: a Rail, or a sequence of Rails.
 *
 * Returns 0, or -1 with TypeError, ValueError (something is closed) or pier.Invalid. Give
 * them to pier_py_rails_free() in any case.
 */
int pier_py_rails_make(PyObject *object, struct pier_py_rails *ret_rails);

/** Rails that are in use are released; then no thread may have the locks. */
void pier_py_rails_free(struct pier_py_rails *rails);

/** Take the locks of all queues. Returns false with an exception. */
bool pier_py_rails_take(struct pier_py_rails *rails);
void pier_py_rails_release(struct pier_py_rails *rails);

/** Begin or end the use of the queues; ending also releases the regions. With the locks.
 */
void pier_py_rails_begin_use(struct pier_py_rails *rails);
void pier_py_rails_end_use(struct pier_py_rails *rails);

#endif
