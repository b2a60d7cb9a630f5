/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_SYSFS_H
#define PIER_DEVICE_SYSFS_H

#include <stdbool.h>
#include <stddef.h>

#include <pier/export.h>

/*
 * Read a file of sysfs that holds one short line, without its newline. `format` prints
 * the path. Returns false if the file cannot be read, is empty, or is longer.
 */
bool pier_read_sysfs(char *ret_line, size_t size, const char *format, ...)
	PIER_PRINTF(3, 4);

#endif
