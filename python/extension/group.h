/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_GROUP_H
#define PIER_PY_GROUP_H

#include "channel.h"

/** pier._pier.Group, the base of pier.Group. */
struct pier_py_group {
	PyObject ob_base;
	struct pier_py_queue queue; /* of all channels */
	struct pier_group *group;
	PyObject *pd;
	uint32_t rank, size;
	bool connected;
};

int pier_py_add_group(PyObject *module);

/* Methods, by file. */
extern PyMethodDef pier_py_group_connect_methods[];
extern PyMethodDef pier_py_group_request_methods[];

#endif
