/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_KERNEL_H
#define PIER_BACKENDS_HIP_KERNEL_H

#include <stddef.h>

/*
 * Why this kernel gives no other device the memory of an AMD GPU, by its configuration;
 * "" if nothing is known against it. Containers have no configuration, and what cannot be
 * read is no reason: the canary decides.
 */
void pier_hip_explain_kernel(char *ret_reason, size_t size);

#endif
