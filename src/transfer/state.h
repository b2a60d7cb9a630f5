/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_STATE_H
#define PIER_TRANSFER_STATE_H

#include "remaining.h"

/*
 * The wire form: docs/wire.md.
 *
 * Returns its size. Errors: -ENOSPC. Without ret_wire: the size.
 */
int pier_remaining_pack(const struct pier_remaining *remaining, uint64_t length,
			void *ret_wire, size_t size);

/*
 * Read one of a transfer of `length` bytes, with room for `room` ranges more.
 *
 * Errors: -EMSGSIZE, -EBADMSG, -EPROTONOSUPPORT, -ENOMEM.
 */
int pier_remaining_unpack(struct pier_remaining *remaining, uint64_t length,
			  uint32_t room, const void *wire, size_t size);

#endif
