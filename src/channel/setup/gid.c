/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "gid.h"
#include "core/error.h"
#include "core/wire.h"

enum {
	AT_TYPE = 0,
	AT_GID = 2,
};

size_t pier_pack_gids(const struct pier_gid_list *list,
		      uint8_t ret_wire[PIER_GID_OFFERS * PIER_GID_OFFER_SIZE])
{
	uint8_t *at = ret_wire;

	for (uint32_t i = 0; i < list->count; i++, at += PIER_GID_OFFER_SIZE) {
		pier_put_le16(at + AT_TYPE, (uint16_t)list->entries[i].gid_type);
		memcpy(at + AT_GID, list->entries[i].gid.raw, 16);
	}
	return (size_t)(at - ret_wire);
}

int pier_unpack_gids(const uint8_t *wire, size_t size, struct pier_gid_list *ret_list)
{
	struct pier_gid_list list = { .count = (uint32_t)(size / PIER_GID_OFFER_SIZE) };

	if (size == 0 || size % PIER_GID_OFFER_SIZE || list.count > PIER_GID_OFFERS)
		return pier_fail(EBADMSG,
				 "handshake: %zu bytes are no list of 1 to %d GIDs", size,
				 PIER_GID_OFFERS);
	for (uint32_t i = 0; i < list.count; i++, wire += PIER_GID_OFFER_SIZE) {
		list.entries[i].gid_type = pier_get_le16(wire + AT_TYPE);
		memcpy(list.entries[i].gid.raw, wire + AT_GID, 16);
	}
	*ret_list = list;
	return 0;
}

/*
 * The type and the source GID decide the packet's format, and IPv4 has no room for an
 * IPv6 destination: rdma_gid_attr_network_type() in include/rdma/ib_verbs.h.
 */
static bool gids_match(const struct ibv_gid_entry *a, const struct ibv_gid_entry *b)
{
	return pier_rank_gid(a) != PIER_GID_UNUSABLE &&
	       pier_rank_gid(a) == pier_rank_gid(b) &&
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
	if (!gids_match(a, b))
		return 0;
	return (unsigned int)pier_rank_gid(a) << 8 |
	       common_prefix(a->gid.raw, b->gid.raw);
}

/*
 * Both ends compare the lists in the same order, so the first of equal pairs is the same
 * pair. With equal lists, as on one host, it is the first GID of each.
 */
static bool comes_first(const struct pier_gid_list *own, const struct pier_gid_list *peer)
{
	uint8_t a[PIER_GID_OFFERS * PIER_GID_OFFER_SIZE];
	uint8_t b[PIER_GID_OFFERS * PIER_GID_OFFER_SIZE];
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
