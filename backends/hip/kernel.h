/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_KERNEL_H
#define PIER_BACKENDS_HIP_KERNEL_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Why this kernel gives no other device the memory of an AMD GPU, by its configuration;
 * "" if nothing is known against it. The kernel's version is no reason: amdgpu is often
 * AMD's own (amdgpu-dkms), whose age it does not tell.
 *
 * Returns false if no configuration can be read, as in most containers: then only the
 * canary finds out.
 */
bool pier_hip_explain_kernel(char *ret_reason, size_t size);

#endif
