/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_LOCATE_H
#define PIER_BUFFER_LOCATE_H

#include <pier/topology.h>

/*
 * Where a buffer's memory is, by what its backend says and the sysfs whose root that
 * is; memory of a backend that says nothing is nowhere.
 *
 * Errors: those of the backend.
 */
int pier_locate_buffer(const char *sysfs, const struct pier_buffer *buffer,
		       struct pier_location *ret_location);

/* pier_memory_unit_list() by that sysfs. */
int pier_list_units_in(const char *sysfs, struct pier_memory_unit **ret_list,
		       size_t *ret_count);

#endif
