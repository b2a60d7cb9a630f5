/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_LOCATE_H
#define PIER_BUFFER_LOCATE_H

#include <pier/topology.h>

/*
 * Find where a buffer's memory is, from its backend and the sysfs with that root. If the
 * backend cannot report it, the location is empty.
 *
 * Errors: those of the backend.
 */
int pier_locate_buffer(const char *sysfs, const struct pier_buffer *buffer,
		       struct pier_location *ret_location);

/* pier_memory_unit_list() with another root of sysfs. */
int pier_list_units_in(const char *sysfs, struct pier_memory_unit **ret_list,
		       uint32_t *ret_count);

/*
 * Find a unit by its spec in that list: "cuda:0". Only its backend is asked.
 *
 * Errors: -EINVAL, -ENOENT as for pier_find_by_spec(); -ENODEV there is no such unit;
 * -ENOMEM.
 */
int pier_locate_unit(const char *sysfs, const char *spec,
		     struct pier_location *ret_location);

#endif
