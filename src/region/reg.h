/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_REG_H
#define PIER_REGION_REG_H

#include <pier/mr.h>

/* pier_reg_buffer_mr() for the call that returns to `place`. */
int pier_reg_buffer_for(struct pier_pd *pd, struct pier_buffer *buffer, size_t offset,
			size_t length, int access, enum pier_policy policy,
			const void *place, struct pier_mr **ret_mr);

#endif
