/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_PAIRS_H
#define PIER_PY_PAIRS_H

#include "channel.h"

/** The methods post_reads() and post_writes() of a channel. */
PyObject *pier_py_post_reads(struct pier_py_channel *self, PyObject *arguments,
			     PyObject *keywords);
PyObject *pier_py_post_writes(struct pier_py_channel *self, PyObject *arguments,
			      PyObject *keywords);

#endif
