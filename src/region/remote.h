/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_REMOTE_H
#define PIER_REGION_REMOTE_H

#include <stdint.h>

/*
 * Compute the offset of a field of element `index` of an array.
 *
 * Errors: -ERANGE it overflows 64 bits.
 */
int pier_element_offset(uint64_t index, uint64_t size, uint64_t field_offset,
			uint64_t *ret_offset);

#endif
