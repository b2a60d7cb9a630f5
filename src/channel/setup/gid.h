/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_GID_H
#define PIER_CHANNEL_SETUP_GID_H

#include <stddef.h>
#include <stdint.h>

#include "device/gid_rank.h"

/*
 * The choice of a pair of GIDs by two ends that have told each other theirs. Both ends
 * compute the same from the same two lists.
 */

enum {
	PIER_GID_OFFER_SIZE = 18, /* of one GID in the wire form */
};

/* Write the wire form of a list: see docs/wire.md. Returns its size in bytes. */
size_t pier_pack_gids(const struct pier_gid_list *list,
		      uint8_t ret_wire[PIER_GID_OFFERS * PIER_GID_OFFER_SIZE]);

/*
 * Read the wire form of a peer's list. The bytes may be hostile.
 *
 * Errors: -EBADMSG the list is empty or too long, or does not end with a GID.
 */
int pier_unpack_gids(const uint8_t *wire, size_t size, struct pier_gid_list *ret_list);

/*
 * Choose a GID of each end: of the same type and address family, of the best rank, and
 * with the longest common prefix.
 *
 * Errors: -EADDRNOTAVAIL no two of them go together.
 */
int pier_agree_on_gids(const struct pier_gid_list *own, const struct pier_gid_list *peer,
		       struct ibv_gid_entry *ret_own, struct ibv_gid_entry *ret_peer);

#endif
