/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_PORT_H
#define PIER_CHANNEL_SETUP_PORT_H

#include "channel/channel.h"

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
