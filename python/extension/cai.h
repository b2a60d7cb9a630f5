/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_CAI_H
#define PIER_PY_CAI_H

#include "memory.h"

/**
 * Get the memory of an object that has __cuda_array_interface__ (version 2 or 3, numba's
 * documentation, "CUDA Array Interface"). As pier_py_memory_get().
 */
int pier_py_memory_from_cai(PyObject *object, struct pier_py_memory *ret_memory);

#endif
