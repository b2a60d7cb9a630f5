/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LINUX_DEVICE_FILE_H
#define PIER_BACKENDS_LINUX_DEVICE_FILE_H

#include <stddef.h>

/*
 * Why a device file (or folder of them) could not be opened and what to do, as
 * one sentence.
 *
 * option  the kernel's configuration option that makes the file
 * error   the errno of opening it
 */
void pier_explain_device_file(const char *path, const char *option, int error,
			      char *ret_text, size_t size);

/*
 * The errno to report: failures that would be the same next time are
 * EOPNOTSUPP; those that say nothing about the device (EMFILE, ENOMEM, ...)
 * stay what they are.
 */
int pier_device_file_errno(int error);

#endif
