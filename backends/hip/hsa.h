/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_HSA_H
#define PIER_BACKENDS_HIP_HSA_H

#include <stdbool.h>

#include "api.h"

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

#endif
