/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "attr.h"
#include "core/error.h"
#include "core/wire.h"
#include "gid.h"
#include "endpoint.h"

/* The wire form: see docs/wire.md. */
enum {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_LENGTH = 6,
	AT_OFFERS = 8,
	AT_TYPE = 0, /* in an offer */
	AT_GID = 2,
	OFFER_SIZE = 18,
	WIRE_VERSION = 1,
};

static const uint8_t magic[4] = { 'P', 'r', 'G', 'I' };

_Static_assert((int)AT_OFFERS + (int)PIER_GID_OFFERS * (int)OFFER_SIZE ==
			       (int)PIER_GIDS_WIRE_MAX &&
		       (int)PIER_GIDS_WIRE_MAX <= PIER_ENDPOINT_ADDRESS_MAX,
	       "the longest list fits an endpoint");

size_t pier_pack_gids(const struct pier_gid_list *list,
		      uint8_t ret_wire[PIER_GIDS_WIRE_MAX])
{
	size_t length = AT_OFFERS + (size_t)list->count * OFFER_SIZE;
	uint8_t *at = ret_wire + AT_OFFERS;

	memcpy(ret_wire + AT_MAGIC, magic, sizeof(magic));
	pier_put_le16(ret_wire + AT_VERSION, WIRE_VERSION);
	pier_put_le16(ret_wire + AT_LENGTH, (uint16_t)length);
	for (uint32_t i = 0; i < list->count; i++, at += OFFER_SIZE) {
		pier_put_le16(at + AT_TYPE, (uint16_t)list->entries[i].gid_type);
		memcpy(at + AT_GID, list->entries[i].gid.raw, 16);
	}
	return length;
}

static bool is_gid_list(const uint8_t *wire, size_t size)
{
	return size >= sizeof(magic) && memcmp(wire, magic, sizeof(magic)) == 0;
}

int pier_unpack_gids(const uint8_t *wire, size_t size, struct pier_gid_list *ret_list)
{
	struct pier_gid_list list = { 0 };
	const uint8_t *at = wire + AT_OFFERS;

	if (is_gid_list(wire, size) && size >= AT_LENGTH &&
	    pier_get_le16(wire + AT_VERSION) != WIRE_VERSION)
		return pier_fail(EPROTONOSUPPORT,
				 "peer's endpoint: address is a list of GIDs of version "
				 "%u; this library knows version %d",
				 pier_get_le16(wire + AT_VERSION), WIRE_VERSION);
	if (!is_gid_list(wire, size) || size < AT_OFFERS + OFFER_SIZE ||
	    size > PIER_GIDS_WIRE_MAX || (size - AT_OFFERS) % OFFER_SIZE ||
	    pier_get_le16(wire + AT_LENGTH) != size)
		return pier_fail(EINVAL,
				 "peer's endpoint: address has %zu bytes, which are no "
				 "list of 1 to %d GIDs",
				 size, PIER_GID_OFFERS);
	list.count = (uint32_t)((size - AT_OFFERS) / OFFER_SIZE);
	for (uint32_t i = 0; i < list.count; i++, at += OFFER_SIZE) {
		list.entries[i].gid_type = pier_get_le16(at + AT_TYPE);
		memcpy(list.entries[i].gid.raw, at + AT_GID, 16);
	}
	*ret_list = list;
	return 0;
}

/*
 * On Ethernet, type 0 means RoCE v1: before Linux 5.10, enum ib_gid_type in
 * include/rdma/ib_verbs.h has one value for both.
 */
static uint32_t packet_format(const struct ibv_gid_entry *entry)
{
	return entry->gid_type == IBV_GID_TYPE_IB ? IBV_GID_TYPE_ROCE_V1
						  : entry->gid_type;
}

/*
 * The type and the source GID decide the packet's format, and IPv4 has no room for an
 * IPv6 destination: rdma_gid_attr_network_type() in include/rdma/ib_verbs.h.
 */
static bool gids_match(const struct ibv_gid_entry *a, const struct ibv_gid_entry *b)
{
	enum pier_gid_rank rank_a = pier_rank_gid(a), rank_b = pier_rank_gid(b);

	return rank_a != PIER_GID_UNUSABLE && rank_b != PIER_GID_UNUSABLE &&
	       packet_format(a) == packet_format(b) &&
	       (packet_format(a) != IBV_GID_TYPE_ROCE_V2 || rank_a == rank_b) &&
	       pier_gid_is_ipv4(a->gid.raw) == pier_gid_is_ipv4(b->gid.raw);
}

static unsigned int common_prefix(const uint8_t *a, const uint8_t *b)
{
	unsigned int bits = 0;

	while (bits < 128 && !((a[bits / 8] ^ b[bits / 8]) & (0x80 >> bits % 8)))
		bits++;
	return bits;
}

/* 0: they do not go together. */
static unsigned int rate_pair(const struct ibv_gid_entry *a,
			      const struct ibv_gid_entry *b)
{
	enum pier_gid_rank rank_a = pier_rank_gid(a), rank_b = pier_rank_gid(b);

	if (!gids_match(a, b))
		return 0;
	return (unsigned int)(rank_a < rank_b ? rank_a : rank_b) << 8 |
	       common_prefix(a->gid.raw, b->gid.raw);
}

/*
 * Both ends compare the lists in the same order, so the first of equal pairs is the same
 * pair. With equal lists, as on one host, it is the first GID of each.
 */
static bool comes_first(const struct pier_gid_list *own, const struct pier_gid_list *peer)
{
	uint8_t a[PIER_GIDS_WIRE_MAX], b[PIER_GIDS_WIRE_MAX];
	size_t length_a = pier_pack_gids(own, a), length_b = pier_pack_gids(peer, b);

	if (length_a != length_b)
		return length_a < length_b;
	return memcmp(a, b, length_a) <= 0;
}

int pier_agree_on_gids(const struct pier_gid_list *own, const struct pier_gid_list *peer,
		       struct ibv_gid_entry *ret_own, struct ibv_gid_entry *ret_peer)
{
	bool first = comes_first(own, peer);
	const struct pier_gid_list *a = first ? own : peer, *b = first ? peer : own;
	char text_a[INET6_ADDRSTRLEN], text_b[INET6_ADDRSTRLEN];
	unsigned int best = 0;

	for (uint32_t i = 0; i < a->count * b->count; i++) {
		const struct ibv_gid_entry *of_a = &a->entries[i / b->count];
		const struct ibv_gid_entry *of_b = &b->entries[i % b->count];
		unsigned int rate = rate_pair(of_a, of_b);

		if (rate <= best)
			continue;
		best = rate;
		*ret_own = first ? *of_a : *of_b;
		*ret_peer = first ? *of_b : *of_a;
	}
	if (best)
		return 0;
	return pier_fail(
		EADDRNOTAVAIL,
		"no GID of this end goes with one of the peer's (the first are %s of "
		"type "
		"%u and %s of type %u): give both network interfaces an address of the "
		"same family and subnet",
		inet_ntop(AF_INET6, own->entries[0].gid.raw, text_a, sizeof(text_a)),
		own->entries[0].gid_type,
		inet_ntop(AF_INET6, peer->entries[0].gid.raw, text_b, sizeof(text_b)),
		peer->entries[0].gid_type);
}

/* A GID that the caller named is the only one. */
static struct pier_gid_list own_gids(const struct pier_channel *channel)
{
	return channel->gids ? channel->gids->list
			     : (struct pier_gid_list){ 1, { channel->gid } };
}

void pier_offer_gids(const struct pier_channel *channel, struct pier_endpoint *endpoint)
{
	struct pier_gid_list own = own_gids(channel);

	memcpy(endpoint->gid, own.entries[0].gid.raw, sizeof(endpoint->gid));
	if (channel->link_layer == PIER_LINK_ETHERNET)
		endpoint->address_length = (uint16_t)pier_pack_gids(&own,
								    endpoint->address);
}

bool pier_offers_gids(const struct pier_endpoint *endpoint)
{
	return is_gid_list(endpoint->address, endpoint->address_length);
}

/* The peer sends to the GID in this end's endpoint, which is the first. */
static int check_family(const struct pier_channel *channel,
			const struct pier_endpoint *peer)
{
	const struct ibv_gid_entry *own = &channel->gid;

	if (channel->provider->set_qp_address || own->gid_type != IBV_GID_TYPE_ROCE_V2 ||
	    pier_gid_is_ipv4(own->gid.raw) == pier_gid_is_ipv4(peer->gid))
		return 0;
	return pier_fail(EINVAL,
			 "peer's endpoint: gid is %s address, and GID %u of this port is "
			 "not: choose another gid_index at one end",
			 pier_gid_is_ipv4(peer->gid) ? "an IPv4" : "an IPv6",
			 own->gid_index);
}

int pier_choose_gids(struct pier_channel *channel, struct pier_endpoint *peer)
{
	struct pier_gid_list own = own_gids(channel), offered;
	struct ibv_gid_entry peer_gid;
	int error;

	if (channel->link_layer != PIER_LINK_ETHERNET || !pier_offers_gids(peer))
		return check_family(channel, peer);
	error = pier_unpack_gids(peer->address, peer->address_length, &offered);
	if (!error)
		error = pier_agree_on_gids(&own, &offered, &channel->gid, &peer_gid);
	if (!error)
		memcpy(peer->gid, peer_gid.gid.raw, sizeof(peer->gid));
	return error;
}

static enum pier_link_layer link_layer_of(const struct ibv_port_attr *port)
{
	/* IBV_LINK_LAYER_UNSPECIFIED means InfiniBand (ibv_query_port(3)). */
	return port->link_layer == IBV_LINK_LAYER_ETHERNET ? PIER_LINK_ETHERNET
							   : PIER_LINK_INFINIBAND;
}

/* Read the GID that the caller named. */
static int query_gid(struct pier_channel *channel, uint32_t index)
{
	int error = channel->provider->query_gid(channel->pd->device->context,
						 (uint8_t)channel->attr.port, index,
						 &channel->gid);

	if (error == ENODATA)
		return pier_fail(EADDRNOTAVAIL, "gid_index %u of port %u is empty", index,
				 channel->attr.port);
	if (error)
		return pier_fail_because(error, "read GID %u of port %u", index,
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
	bool is_named = channel->attr.gid_index != PIER_GID_ANY;
	int error;

	pier_drop_gids(channel->gids);
	channel->gids = NULL;
	channel->lid = port->lid;
	channel->link_layer = link_layer_of(port);
	channel->use_grh = channel->link_layer == PIER_LINK_ETHERNET || is_named ||
			   (port->flags & IBV_QPF_GRH_REQUIRED);
	pier_clear_error();
	if (is_named)
		return query_gid(channel, channel->attr.gid_index);
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
