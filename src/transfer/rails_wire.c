/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "rails.h"
#include "core/error.h"
#include "core/wire.h"

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
