/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_LOAD_H
#define PIER_BACKENDS_HIP_LOAD_H

#include <stdbool.h>
#include <stddef.h>

#include <pier/export.h>

#include "api.h"

/*
 * Open the runtimes, or use those that the process has loaded. Any thread.
 *
 * Errors: -EOPNOTSUPP they are not installed, lack a function, or the process is a child
 * of one that used them; -ENOMEM.
 */
int pier_hip_open(const struct pier_hip **ret_hip);

/* The runtimes if this process has loaded them, for pier or for others; or NULL. */
const struct pier_hip *pier_hip_opened(void);

/*
 * Whether fork(2) made this process after the runtime was opened: the driver refuses the
 * parent's descriptors here, and HIP's threads do not exist here.
 */
bool pier_hip_inherited(const struct pier_hip *hip);

/* Errors: -EOPNOTSUPP it did; the sentence says why that matters. */
int pier_hip_check_owner(const struct pier_hip *hip);

/* "6.2", from hipRuntimeGetVersion(). */
void pier_hip_version(const struct pier_hip *hip, char *ret_text, size_t size);

/*
 * HSA's answer about a pointer. false: HSA is not initialised, so HIP is not either, and
 * this question must not initialise it.
 */
bool pier_hip_ask_hsa(const struct pier_hip *hip, uint64_t address,
		      struct pier_hsa_pointer_info *ret_info);

/* Whether the owner of a pointer is a GPU. */
bool pier_hip_is_on_gpu(const struct pier_hip *hip,
			const struct pier_hsa_pointer_info *info);

/*
 * Whether it is memory of hipMemMap(), provided that HIP has bounds for it: versions of
 * HSA that do not know such memory report the reservation around it, and so for addresses
 * with nothing mapped.
 */
bool pier_hip_is_mapped(const struct pier_hsa_pointer_info *info);

/* The positive errno of a hipError_t. */
int pier_hip_errno(unsigned int error);

/*
 * Returns 0 for PIER_HIP_SUCCESS; pier_fail() for a call that failed: the sentence, the
 * error's name and number, and a remedy if there is one.
 */
int pier_hip_check(const struct pier_hip *hip, unsigned int error, const char *format,
		   ...) PIER_PRINTF(3, 4);

/* The same of a status that is an error. */
int pier_hsa_fail(unsigned int status, const char *format, ...) PIER_PRINTF(2, 3);

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
