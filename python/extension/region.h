/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_REGION_H
#define PIER_PY_REGION_H

#include "device.h"
#include "memory.h"

/** pier.Region */
struct pier_py_region {
	PyObject ob_base;
	/* Requests in progress are users. */
	struct pier_py_use use;
	struct pier_mr *mr;
	/* Of the domain, from which the mr is; NULL: the region owns it. */
	struct pier_mr_cache *cache;
	int put_error;		     /* of its return to the cache */
	struct pier_py_range window; /* of the mr: all of it unless it is cached */
	int access;		     /* that was asked for; that of the mr can be more */
	struct pier_py_pd *pd;
	/* The object that keeps the memory: a Buffer, View, Dmabuf or any other. */
	PyObject *object;
	struct pier_py_memory memory;
};

extern PyTypeObject *pier_py_region_type;

/** The method register() of ProtectionDomain. */
PyObject *pier_py_region_register(struct pier_py_pd *pd, PyObject *arguments,
				  PyObject *keywords);

/**
 * Use the memory of a request: a Region or a Span.
 *
 * ret_range  its range in the mr of the region
 *
 * Returns the region, borrowed, with a user (pier_py_use_end(&region->use)). A request
 * that goes on after the call also needs a reference. NULL with TypeError, or ValueError
 * if the region is closed.
 */
struct pier_py_region *pier_py_local_begin(PyObject *local,
					   struct pier_py_range *ret_range);

/** End the use of regions. Steals the list, in which each has a user; NULL is allowed. */
void pier_py_regions_release(PyObject *regions);

#endif
