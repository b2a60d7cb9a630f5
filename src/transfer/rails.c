/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/text.h"
#include "core/wire.h"
#include "rails.h"

/* Two ports: one of the end with the lower salt, and one of the other. */
struct pair {
	uint32_t first, second;
	/* By importance; each is better the lower it is. */
	uint32_t slowness;
	bool unconnected; /* other subnets, and no router is known */
	enum pier_distance distance;
	bool other_subnet;
	bool other_name;
};

struct choice {
	struct pier_rails first, second;
	uint32_t count;
	struct pair pairs[PIER_RAILS_MAX * PIER_RAILS_MAX];
};

static bool share_subnet(const struct pier_rail_port *a, const struct pier_rail_port *b)
{
	return a->subnet_bits && a->subnet_bits == b->subnet_bits &&
	       memcmp(a->subnet, b->subnet, sizeof(a->subnet)) == 0;
}

/*
 * A packet needs a router to reach another InfiniBand subnet (InfiniBand Architecture
 * Specification, volume 1, 19.2.4), and a description does not show whether there is one.
 */
static bool can_connect(const struct pier_rail_port *a, const struct pier_rail_port *b)
{
	if (a->kind != b->kind || a->link_layer != b->link_layer)
		return false;
	if (a->kind == PIER_RAIL_SOFT)
		return true;
	return a->link_layer == PIER_LINK_INFINIBAND ? share_subnet(a, b)
						     : a->gids & b->gids & PIER_RAIL_GIDS;
}

static struct pair rate_pair(const struct choice *choice, uint32_t first, uint32_t second)
{
	const struct pier_rail_port *a = &choice->first.ports[first];
	const struct pier_rail_port *b = &choice->second.ports[second];

	return (struct pair){
		.first = first,
		.second = second,
		.slowness = UINT32_MAX - (a->speed < b->speed ? a->speed : b->speed),
		.unconnected = !share_subnet(a, b) &&
			       !(a->gids & b->gids & PIER_RAIL_ROUTED),
		.distance = a->distance > b->distance ? a->distance : b->distance,
		.other_subnet = !share_subnet(a, b),
		.other_name = strcmp(a->device, b->device) != 0,
	};
}

/* What all pairs of one choice have in common. */
static int compare_quality(const struct pair *a, const struct pair *b)
{
	if (a->slowness != b->slowness)
		return a->slowness < b->slowness ? -1 : 1;
	if (a->unconnected != b->unconnected)
		return a->unconnected ? 1 : -1;
	if (a->distance != b->distance)
		return a->distance < b->distance ? -1 : 1;
	if (a->other_subnet != b->other_subnet)
		return a->other_subnet ? 1 : -1;
	return 0;
}

/* No two pairs are equal. The first ports of an end's list are its own preference. */
static int compare_pairs(const void *left, const void *right)
{
	const struct pair *a = left, *b = right;
	int order = compare_quality(a, b);

	if (order)
		return order;
	if (a->other_name != b->other_name)
		return a->other_name ? 1 : -1;
	if (a->first + a->second != b->first + b->second)
		return a->first + a->second < b->first + b->second ? -1 : 1;
	return a->first < b->first ? -1 : 1;
}

static void find_pairs(struct choice *choice)
{
	for (uint32_t i = 0; i < choice->first.count; i++) {
		for (uint32_t j = 0; j < choice->second.count; j++) {
			if (can_connect(&choice->first.ports[i],
					&choice->second.ports[j]))
				choice->pairs[choice->count++] = rate_pair(choice, i, j);
		}
	}
	qsort(choice->pairs, choice->count, sizeof(choice->pairs[0]), compare_pairs);
}

static struct pier_rail_pair describe_pair(const struct choice *choice,
					   const struct pair *pair, bool swapped)
{
	const struct pier_rail_port *mine = &choice->first.ports[pair->first];
	const struct pier_rail_port *theirs = &choice->second.ports[pair->second];
	struct pier_rail_pair described = { .distance = pair->distance,
					    .speed = UINT32_MAX - pair->slowness };

	if (swapped) {
		theirs = mine;
		mine = &choice->second.ports[pair->second];
	}
	memcpy(described.device, mine->device, sizeof(described.device));
	memcpy(described.peer_device, theirs->device, sizeof(described.peer_device));
	described.port = mine->port;
	described.peer_port = theirs->port;
	return described;
}

/* The best pairs, each port once. Returns how many there are. */
static uint32_t take_pairs(const struct choice *choice, bool swapped,
			   struct pier_rail_pair *ret_pairs, uint32_t count, size_t size)
{
	bool first_used[PIER_RAILS_MAX] = { false },
	     second_used[PIER_RAILS_MAX] = { false };
	struct pier_rail_pair known;
	uint32_t taken = 0;

	for (uint32_t i = 0; i < choice->count && taken < count; i++) {
		const struct pair *pair = &choice->pairs[i];

		if (compare_quality(pair, &choice->pairs[0]) != 0)
			break;
		if (first_used[pair->first] || second_used[pair->second])
			continue;
		first_used[pair->first] = second_used[pair->second] = true;
		known = describe_pair(choice, pair, swapped);
		pier_write_extensible(&known, sizeof(known),
				      (char *)ret_pairs + taken++ * size, size);
	}
	return taken;
}

static void print_ports(const struct pier_rails *rails, char *ret_text, size_t size)
{
	for (uint32_t i = 0; i < rails->count; i++) {
		const struct pier_rail_port *port = &rails->ports[i];

		pier_append_text(ret_text, size, "%s%s port %u (%s)", i ? ", " : "",
				 port->device, port->port,
				 port->kind == PIER_RAIL_SOFT		    ? "software"
				 : port->link_layer == PIER_LINK_INFINIBAND ? "InfiniBand"
									    : "Ethernet");
	}
}

static int fail_without_pair(const struct pier_rails *mine,
			     const struct pier_rails *theirs)
{
	char here[256] = "", there[256] = "";

	print_ports(mine, here, sizeof(here));
	print_ports(theirs, there, sizeof(there));
	return pier_fail(
		EHOSTUNREACH,
		"no NIC of this end can reach one of the peer: they differ in "
		"link layer, InfiniBand subnet or kind of GID. Here: %s; there: %s",
		here, there);
}

static int choose_pairs(struct choice *choice, bool swapped,
			struct pier_rail_pair *ret_pairs, uint32_t count, size_t size)
{
	find_pairs(choice);
	if (choice->count == 0)
		return swapped ? fail_without_pair(&choice->second, &choice->first)
			       : fail_without_pair(&choice->first, &choice->second);
	return (int)take_pairs(choice, swapped, ret_pairs, count, size);
}

int pier_rails_choose(const void *mine, size_t mine_size, const void *theirs,
		      size_t their_size, struct pier_rail_pair *ret_pairs, uint32_t count,
		      size_t size)
{
	PIER_REFUSE_NULL_ARRAY(mine, mine_size);
	PIER_REFUSE_NULL_ARRAY(theirs, their_size);
	PIER_REFUSE_NULL_ARRAY(ret_pairs, count);
	PIER_ENTRY();
	struct choice *choice;
	bool swapped;
	int result;

	if (count == 0)
		return pier_fail(EINVAL, "rails: room for 0 pairs");
	choice = calloc(1, sizeof(*choice));
	if (!choice)
		return pier_fail(ENOMEM, "no memory to choose rails");
	result = pier_rails_unpack(mine, mine_size, &choice->first);
	if (!result)
		result = pier_rails_unpack(theirs, their_size, &choice->second);
	/* Both ends number the ports in the same order. */
	swapped = choice->first.salt > choice->second.salt;
	if (!result && swapped) {
		struct pier_rails kept = choice->first;

		choice->first = choice->second;
		choice->second = kept;
	}
	if (!result)
		result = choose_pairs(choice, swapped, ret_pairs, count, size);
	free(choice);
	return result;
}

/* The wire form: see docs/wire.md. */
static const uint8_t magic[4] = { 'P', 'r', 'R', 'L' };

enum {
	VERSION = 1,
	HEADER = 16,
	AT_PORT = 64,
	AT_SPEED = 68,
	AT_KIND = 72,
	AT_LINK_LAYER = 73,
	AT_DISTANCE = 74,
	AT_GIDS = 75,
	AT_SUBNET = 76,
	AT_SUBNET_BITS = 92,
	AT_ZEROS = 93,
	ENTRY = 96,
};

_Static_assert((int)HEADER + PIER_RAILS_MAX * (int)ENTRY == PIER_RAILS_SIZE_MAX,
	       "the longest form");

static void pack_port(const struct pier_rail_port *port, uint8_t *wire)
{
	memset(wire, 0, ENTRY);
	memcpy(wire, port->device, strlen(port->device));
	pier_put_le32(wire + AT_PORT, port->port);
	pier_put_le32(wire + AT_SPEED, port->speed);
	wire[AT_KIND] = (uint8_t)port->kind;
	wire[AT_LINK_LAYER] = (uint8_t)port->link_layer;
	wire[AT_DISTANCE] = (uint8_t)port->distance;
	wire[AT_GIDS] = port->gids;
	memcpy(wire + AT_SUBNET, port->subnet, sizeof(port->subnet));
	wire[AT_SUBNET_BITS] = port->subnet_bits;
}

int pier_rails_pack(const struct pier_rails *rails, void *ret_bytes, size_t size)
{
	uint8_t *wire = ret_bytes;
	size_t needed = HEADER + (size_t)rails->count * ENTRY;

	if (!wire)
		return (int)needed;
	if (size < needed)
		return pier_fail(ENOSPC, "rails: %u ports need %zu bytes, not %zu",
				 rails->count, needed, size);
	memcpy(wire, magic, sizeof(magic));
	pier_put_le16(wire + 4, VERSION);
	pier_put_le16(wire + 6, (uint16_t)rails->count);
	pier_put_le64(wire + 8, rails->salt);
	for (uint32_t i = 0; i < rails->count; i++)
		pack_port(&rails->ports[i], wire + HEADER + i * ENTRY);
	return (int)needed;
}

/* Of printable characters, followed by zeros. */
static bool unpack_name(const uint8_t *wire, char ret_name[64])
{
	size_t length = 0;

	while (length < 63 && wire[length] > ' ' && wire[length] < 0x7f)
		length++;
	for (size_t i = length; i < 64; i++) {
		if (wire[i])
			return false;
	}
	memcpy(ret_name, wire, 64);
	return length > 0;
}

/* Bits behind the prefix are 0. */
static bool unpack_subnet(const uint8_t *wire, struct pier_rail_port *ret_port)
{
	uint8_t bits = wire[AT_SUBNET_BITS];

	if (bits > 128)
		return false;
	for (unsigned int i = bits; i < 128; i++) {
		if (wire[AT_SUBNET + i / 8] & 0x80 >> i % 8)
			return false;
	}
	memcpy(ret_port->subnet, wire + AT_SUBNET, sizeof(ret_port->subnet));
	ret_port->subnet_bits = bits;
	return true;
}

static bool unpack_port(const uint8_t *wire, struct pier_rail_port *ret_port)
{
	static const uint8_t zeros[ENTRY - AT_ZEROS];

	*ret_port = (struct pier_rail_port){
		.port = pier_get_le32(wire + AT_PORT),
		.speed = pier_get_le32(wire + AT_SPEED),
		.kind = (enum pier_rail_kind)wire[AT_KIND],
		.link_layer = (enum pier_link_layer)wire[AT_LINK_LAYER],
		.distance = (enum pier_distance)wire[AT_DISTANCE],
		.gids = wire[AT_GIDS],
	};
	return unpack_name(wire, ret_port->device) && unpack_subnet(wire, ret_port) &&
	       ret_port->port >= 1 && ret_port->port <= UINT8_MAX &&
	       (ret_port->kind == PIER_RAIL_VERBS || ret_port->kind == PIER_RAIL_SOFT) &&
	       (ret_port->link_layer == PIER_LINK_INFINIBAND ||
		ret_port->link_layer == PIER_LINK_ETHERNET) &&
	       ret_port->distance <= PIER_DISTANCE_UNKNOWN &&
	       ret_port->gids <= (PIER_RAIL_GIDS | PIER_RAIL_ROUTED) &&
	       memcmp(wire + AT_ZEROS, zeros, sizeof(zeros)) == 0;
}

int pier_rails_unpack(const void *bytes, size_t size, struct pier_rails *ret_rails)
{
	const uint8_t *wire = bytes;

	if (size < HEADER || memcmp(wire, magic, sizeof(magic)) != 0)
		return pier_fail(EBADMSG,
				 "rails: %zu bytes that are no description of "
				 "ports",
				 size);
	if (pier_get_le16(wire + 4) != VERSION)
		return pier_fail(EBADMSG, "rails: version %u; this library has %d",
				 pier_get_le16(wire + 4), VERSION);
	ret_rails->count = pier_get_le16(wire + 6);
	ret_rails->salt = pier_get_le64(wire + 8);
	if (ret_rails->count < 1 || ret_rails->count > PIER_RAILS_MAX ||
	    size != HEADER + (size_t)ret_rails->count * ENTRY)
		return pier_fail(EBADMSG,
				 "rails: %u ports in %zu bytes; each has %d, and "
				 "there are 1 to %d",
				 ret_rails->count, size, ENTRY, PIER_RAILS_MAX);
	for (uint32_t i = 0; i < ret_rails->count; i++) {
		if (!unpack_port(wire + HEADER + i * ENTRY, &ret_rails->ports[i]))
			return pier_fail(EBADMSG,
					 "rails: port number %u has a value that "
					 "is not possible",
					 i);
	}
	return 0;
}
