/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_KERNEL_H
#define PIER_TOOLS_DOCTOR_KERNEL_H

struct facts;

/*
 * Keep the lines of the running kernel's configuration that checks ask for: "y" or "m",
 * or "n" if a line says that the option is not set. "pier/config" is the file's name.
 */
void keep_kernel_config(struct facts *facts);

#endif
