/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_GID_H
#define PIER_CHANNEL_SETUP_GID_H

#include <stddef.h>
#include <stdint.h>

#include "channel/channel.h"
#include "device/gid_table.h"

/*
 * The choice of a pair of GIDs by two ends on Ethernet. The endpoint of each end has the
 * list of its GIDs, as its address, and both compute the same from the same two lists.
 */

enum {
	PIER_GIDS_WIRE_MAX = 188,
};

/* Write the wire form of a list: see docs/wire.md. Returns its size in bytes. */
size_t pier_pack_gids(const struct pier_gid_list *list,
		      uint8_t ret_wire[PIER_GIDS_WIRE_MAX]);

/*
 * Read the wire form of a peer's list. The bytes may be hostile.
 *
 * Errors: -EINVAL it is no list, or an empty, too long or incomplete one;
 * -EPROTONOSUPPORT the library does not know its version.
 */
int pier_unpack_gids(const uint8_t *wire, size_t size, struct pier_gid_list *ret_list);

/*
 * Choose a GID of each end: of the same type and address family, of the best rank, and
 * with the longest common prefix.
 *
 * Errors: -EADDRNOTAVAIL no two of them go together, and nothing was written.
 */
int pier_agree_on_gids(const struct pier_gid_list *own, const struct pier_gid_list *peer,
		       struct ibv_gid_entry *ret_own, struct ibv_gid_entry *ret_peer);

/*
 * Write a channel's GID and, on Ethernet, the list of those that it offers into its
 * endpoint. The list is the same until the channel is reset.
 */
void pier_offer_gids(const struct pier_channel *channel, struct pier_endpoint *endpoint);

/* Whether the address of an endpoint is a list of GIDs. */
bool pier_offers_gids(const struct pier_endpoint *endpoint);

/*
 * Choose the GIDs of a channel and of its peer. The peer's is written into its endpoint.
 * If the peer offers no list, both use the GIDs in the endpoints.
 *
 * Errors: those of pier_unpack_gids() and pier_agree_on_gids(); -EINVAL the peer's only
 * GID is of another address family. Nothing was changed then.
 */
int pier_choose_gids(struct pier_channel *channel, struct pier_endpoint *peer);

enum {
	PIER_FLID_AT = 4, /* in an InfiniBand GID: 16 bits, in network order */
};

/* The LID that routers of other subnets use for a GID; 0: it has none. */
static inline uint16_t pier_flid_of(const uint8_t gid[16])
{
	return (uint16_t)(gid[PIER_FLID_AT] << 8 | gid[PIER_FLID_AT + 1]);
}

/*
 * Compare the subnet prefixes of InfiniBand GIDs, without the two bytes of the FLID:
 * ncclIbExtractFlid() in NCCL's net_ib/connect.cc.
 */
bool pier_is_other_subnet(const uint8_t own[16], const uint8_t peer[16]);

/* Read the port's limits and address into the channel. */
int pier_query_channel_port(struct pier_channel *channel);

#endif
