/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "attr.h"
#include "core/error.h"
#include "mtu.h"
#include "port.h"

static enum pier_link_layer link_layer_of(const struct ibv_port_attr *port)
{
	/* IBV_LINK_LAYER_UNSPECIFIED means InfiniBand (ibv_query_port(3)). */
	return port->link_layer == IBV_LINK_LAYER_ETHERNET ? PIER_LINK_ETHERNET
							   : PIER_LINK_INFINIBAND;
}

/* Read the GID that the caller named. */
static int query_gid(struct pier_channel *channel, int index)
{
	int error = channel->provider->query_gid(channel->pd->device->context,
						 (uint8_t)channel->attr.port,
						 (uint32_t)index, &channel->gid);

	if (error == ENODATA)
		return pier_fail(EADDRNOTAVAIL, "gid_index %d of port %u is empty", index,
				 channel->attr.port);
	if (error)
		return pier_fail_because(error, "read GID %d of port %u", index,
					 channel->attr.port);
	return 0;
}

/*
 * GID 0, or GID 1 if that has a FLID, by which peers in other subnets reach this port:
 * ncclIbGetGidIndex() in NCCL's net_ib/connect.cc. Other GIDs need not have one.
 */
static int query_infiniband_gid(struct pier_channel *channel,
				const struct ibv_port_attr *port)
{
	struct ibv_gid_entry routable;

	if (port->gid_tbl_len > 1 &&
	    channel->provider->query_gid(channel->pd->device->context,
					 (uint8_t)channel->attr.port, 1,
					 &routable) == 0 &&
	    pier_flid_of(routable.gid.raw)) {
		channel->gid = routable;
		return 0;
	}
	return query_gid(channel, 0);
}

/*
 * RoCE always needs a GID. InfiniBand has LIDs: the GID goes into the endpoint, and into
 * packets only if the caller or the port demands it or the peer is in another subnet.
 */
static int choose_address(struct pier_channel *channel, const struct ibv_port_attr *port)
{
	int index = channel->attr.gid_index, error;

	pier_drop_gids(channel->gids);
	channel->gids = NULL;
	channel->lid = port->lid;
	channel->link_layer = link_layer_of(port);
	channel->use_grh = channel->link_layer == PIER_LINK_ETHERNET || index >= 0 ||
			   (port->flags & IBV_QPF_GRH_REQUIRED);
	pier_clear_error();
	if (index >= 0)
		return query_gid(channel, index);
	if (channel->link_layer == PIER_LINK_INFINIBAND)
		return query_infiniband_gid(channel, port);
	error = pier_list_gids(channel->pd->device, (uint8_t)channel->attr.port,
			       port->gid_tbl_len, &channel->gids);
	if (!error)
		channel->gid = channel->gids->list.entries[0];
	return error;
}

bool pier_is_other_subnet(const uint8_t own[16], const uint8_t peer[16])
{
	const size_t behind = PIER_FLID_AT + sizeof(uint16_t);

	return memcmp(own, peer, PIER_FLID_AT) != 0 ||
	       memcmp(own + behind, peer + behind, 8 - behind) != 0;
}

int pier_query_channel_port(struct pier_channel *channel)
{
	struct ibv_port_attr port = { 0 };
	uint8_t number = (uint8_t)channel->attr.port;
	int error;

	pier_clear_error();
	error = channel->provider->query_port(channel->pd->device->context, number,
					      &port);
	if (error)
		return pier_fail_because(error, "query port %u", number);
	error = pier_check_channel_port(&channel->attr, &port);
	if (error)
		return error;
	channel->max_msg_size = port.max_msg_sz;
	channel->least_plain = channel->attr.max_inline + 1;
	channel->plain_span = port.max_msg_sz > channel->attr.max_inline
				      ? port.max_msg_sz - channel->attr.max_inline
				      : 0;
	/*
	 * If the port does not report an MTU, assume the least that every link carries.
	 */
	channel->port_mtu = pier_mtu_from_verbs(port.active_mtu);
	if (channel->port_mtu == 0)
		channel->port_mtu = 256;
	channel->port_mtu = pier_clamp_mtu(channel->attr.mtu, channel->port_mtu);
	return choose_address(channel, &port);
}
