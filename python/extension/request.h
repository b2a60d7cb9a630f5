/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_REQUEST_H
#define PIER_PY_REQUEST_H

/* Local memory and results of requests, on channels and in groups. */
#include "extension.h"

enum {
	PIER_PY_FEW_ELEMENTS = 16
};

/** The local memory of a request: the elements, and the regions that it keeps open. */
struct pier_py_local {
	struct pier_gather few[PIER_PY_FEW_ELEMENTS];
	struct pier_gather *list; /* few, or allocated */
	uint32_t count;
	uint32_t capacity;
	uint64_t length;   /* in bytes */
	PyObject *regions; /* NULL, or a list of Regions, each with a user */
};

/** No elements: before the others. */
void pier_py_local_init(struct pier_py_local *local);

/**
 * Add the elements of an argument: a Region, a Span, None for nothing, or a sequence of
 * Regions and Spans.
 *
 * scatter  the memory is written to
 *
 * Returns 0, or -1 with TypeError, ValueError (closed) or an exception of
 * pier_mr_gather_list().
 */
int pier_py_local_add(struct pier_py_local *local, PyObject *object, bool scatter);

/** As elements that are written to; the layouts are the same. */
static inline struct pier_scatter *pier_py_local_scatter(struct pier_py_local *local)
{
	return (struct pier_scatter *)local->list;
}

/** Take the regions out: for pier_py_regions_release() when the request is over. */
static inline PyObject *pier_py_local_take_regions(struct pier_py_local *local)
{
	PyObject *regions = local->regions;

	local->regions = NULL;
	return regions;
}

void pier_py_local_free(struct pier_py_local *local);

/** Make a Result. NULL: raised. */
PyObject *pier_py_result_record(const struct pier_result *result);

#endif
