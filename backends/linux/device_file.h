/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LINUX_DEVICE_FILE_H
#define PIER_BACKENDS_LINUX_DEVICE_FILE_H

#include <stddef.h>

/*
 * Write one sentence: why a device file, or a folder of them, could not be opened, and
 * the remedy.
 *
 * option  the kernel's configuration option that provides the file
 * error   the errno of opening it
 */
void pier_explain_device_file(const char *path, const char *option, int error,
			      char *ret_text, size_t size);

/*
 * The errno to report: EOPNOTSUPP for failures that will happen again. Failures that have
 * nothing to do with the device (EMFILE, ENOMEM, ...) keep their errno.
 */
int pier_device_file_errno(int error);

#endif
