/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LOADED_H
#define PIER_BACKENDS_LOADED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * Whether this process has loaded a library, from any path. dlopen(3) with RTLD_NOLOAD
 * would search every folder for a library that is not loaded, under the loader's lock.
 *
 * prefix  of the file's name: "libcuda.so"
 * memo    for this prefix, zero at first: the count of loaded libraries at the last
 *         search without a result, so that the next one waits for a new library; or NULL
 *
 * Returns false, too, if the path is longer than `size`. Any thread.
 */
bool pier_find_loaded(const char *prefix, atomic_ullong *memo, char *ret_path,
		      size_t size);

#endif
