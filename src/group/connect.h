/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_GROUP_CONNECT_H
#define PIER_GROUP_CONNECT_H

#include "group.h"

/* The wire form of docs/wire.md. A rank has no blob for itself. */

struct pier_group_blob {
	uint32_t size, from, to;
	struct pier_endpoint channel, control;
};

/* Errors: those of pier_endpoint_pack(). */
int pier_group_pack_blob(const struct pier_group_blob *blob,
			 uint8_t ret_wire[PIER_GROUP_BLOB_SIZE]);

/* Errors: -EBADMSG, -EPROTONOSUPPORT. */
int pier_group_unpack_blob(const uint8_t wire[PIER_GROUP_BLOB_SIZE],
			   struct pier_group_blob *ret_blob);

#endif
