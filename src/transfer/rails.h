/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RAILS_H
#define PIER_TRANSFER_RAILS_H

#include <stdbool.h>

#include <pier/device.h>
#include <pier/rails.h>

/* The description of an end's ports for its peer: <pier/rails.h>, docs/wire.md. */

/* Only devices of one kind reach each other. */
enum pier_rail_kind {
	PIER_RAIL_VERBS = 1,
	PIER_RAIL_SOFT = 2,
};

/* Kinds of GIDs that a RoCE port has, ored together. */
enum {
	PIER_RAIL_ROCE_V1 = 1,
	PIER_RAIL_LINK_LOCAL = 2,
	PIER_RAIL_IPV6 = 4,
	PIER_RAIL_IPV4 = 8,
	PIER_RAIL_GIDS = 15,
	/* Not a kind: a router leads from the port to other IP networks. */
	PIER_RAIL_ROUTED = 16,
};

struct pier_rail_port {
	char device[64];
	uint32_t port, speed;
	enum pier_rail_kind kind;
	enum pier_link_layer link_layer; /* InfiniBand or Ethernet */
	enum pier_distance distance;
	uint8_t gids; /* and PIER_RAIL_ROUTED */
	/* The subnet prefix of InfiniBand, or the IP network; 0 bits: unknown. */
	uint8_t subnet[16];
	uint8_t subnet_bits;
};

struct pier_rails {
	uint64_t salt; /* random: no two descriptions are equal */
	uint32_t count;
	struct pier_rail_port ports[PIER_RAILS_MAX];
};

/* pier_rails_describe() with another root of sysfs. */
int pier_rails_describe_in(const char *sysfs, const struct pier_buffer *buffer,
			   const char *devices, void *ret_bytes, size_t size);

/* Returns the number of bytes; -ENOSPC. */
int pier_rails_pack(const struct pier_rails *rails, void *ret_bytes, size_t size);
/* Errors: -EBADMSG. */
int pier_rails_unpack(const void *bytes, size_t size, struct pier_rails *ret_rails);

#endif
