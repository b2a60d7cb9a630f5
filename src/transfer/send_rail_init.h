/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_SEND_RAIL_INIT_H
#define PIER_TRANSFER_SEND_RAIL_INIT_H

#include "send_rail.h"

/*
 * Check what the caller gave, and copy it.
 *
 * index  for error sentences
 *
 * Errors: those of pier_transfer_begin(). Nothing is left to free.
 */
int pier_send_rail_init(struct pier_send_rail *rail, uint32_t index,
			const struct pier_rail *given,
			const struct pier_transfer_attr *attr);
void pier_send_rail_free(struct pier_send_rail *rail);

#endif
