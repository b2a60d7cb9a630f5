/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LOADED_H
#define PIER_BACKENDS_LOADED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * Whether this process has a library, under whatever path: dlopen(3) with RTLD_NOLOAD
 * would look for one that it does not have in every folder, under the loader's lock.
 *
 * prefix  of the file's name: "libcuda.so"
 * memo    of this prefix, zero at first: how many libraries had been loaded when there
 *         was none, so that nothing is looked at until there are more; or NULL
 *
 * Threads: any. False also where the path does not fit.
 */
bool pier_find_loaded(const char *prefix, atomic_ullong *memo, char *ret_path,
		      size_t size);

#endif
