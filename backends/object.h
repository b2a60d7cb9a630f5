/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_OBJECT_H
#define PIER_BACKENDS_OBJECT_H

#include <stdbool.h>

#include "table.h"

/*
 * Load a backend from a shared object, which stays loaded on success.
 *
 * ret_problem  why it could not be loaded
 */
bool pier_load_backend(const char *path, struct pier_backend *ret_backend,
		       char ret_problem[PIER_BACKEND_PROBLEM_SIZE]);

#endif
