/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_RAILS_H
#define PIER_RAILS_H

#include <stddef.h>
#include <stdint.h>

#include <pier/buffer.h>
#include <pier/export.h>
#include <pier/topology.h>
#include <pier/transfer.h>

PIER_BEGIN_DECLS

/**
 * Rails: which NICs to connect, on hosts with several. Each end describes its own in
 * bytes, the ends exchange these by any means, and both make the same choice from them:
 *
 *	uint8_t mine[PIER_RAILS_SIZE_MAX], theirs[PIER_RAILS_SIZE_MAX];
 *	struct pier_rail_pair pairs[8];
 *
 *	size = pier_rails_describe(buffer, NULL, mine, sizeof(mine));
 *	... send size bytes of mine, receive their_size bytes of theirs ...
 *	count = pier_rails_choose(mine, size, theirs, their_size, pairs, 8,
 *				  sizeof(pairs[0]));
 *
 * Pair i of one end connects to pair i of the other: open pairs[i].device, and create a
 * channel on pairs[i].port. The channels are the rails of a transfer (<pier/transfer.h>).
 *
 * Two ports can be paired if they have the same link layer and, on InfiniBand, the same
 * subnet prefix; on Ethernet, GIDs of the same kind (RoCE v1, link-local, IPv6, IPv4)
 * among those that a channel offers to its peer. Ports of different IP subnets can be
 * paired, ports of different InfiniBand subnets cannot. The best pair is the fastest; of
 * those, one in the same IP subnet, or with a route through a gateway at both ends; of
 * those, the one nearest to the memory at its farther end; of those, one in the same IP
 * subnet; of those, one with the same name at both ends, as hosts of one kind are wired.
 * Each port is used once. The other pairs are as fast, as near and as much in one subnet
 * as the best, so that all rails finish together.
 *
 * Threads: any thread may call any function.
 */

/** The most bytes that describe the rails of one end. */
#define PIER_RAILS_SIZE_MAX (16 + PIER_RAILS_MAX * 96)

/**
 * Describe the ports of this end that can be rails.
 *
 * buffer     the memory that the NICs are to be near, or NULL
 * devices    names as for pier_device_open(), with "," between them, or one name with a
 *            fault plan. A name may appear several times: its device then has as many
 *            rails. NULL: the names in PIER_DEVICE. If that is unset, all RDMA devices
 *            that work and can have channels, the nearest first
 *            (pier_device_list_near()), but never soft0
 * ret_bytes  NULL: only return the size
 * size       of ret_bytes, in bytes
 *
 * Only active ports are described. If PIER_CHANNEL has `port`, only ports of that number
 * are, of all devices that have one, because channels are created on it; and if it has
 * `gid`, only that GID of a RoCE port counts. Each call describes the moment; call it
 * once for each choice, at both ends. The form is little-endian, with magic and version
 * (docs/wire.md).
 *
 * Returns the number of bytes, up to PIER_RAILS_SIZE_MAX.
 *
 * Errors: -EINVAL devices has no name; -ENODEV there is no device that can be used
 * (pier_error_message() gives the reasons), or none with the port of PIER_CHANNEL;
 * -ENETDOWN a named device has no active port; -EINVAL PIER_CHANNEL is wrong, or a
 * named device has no port of its number; -ENOSPC size is too small; -E2BIG more than
 * PIER_RAILS_MAX ports; others as for pier_device_open_near().
 */
PIER_API int pier_rails_describe(const struct pier_buffer *buffer, const char *devices,
				 void *ret_bytes, size_t size);

/** A port of this end, and the port of the peer to connect it to. */
struct pier_rail_pair {
	char device[64]; /**< the name for pier_device_open() */
	uint32_t port;	 /**< struct pier_channel_attr.port */
	char peer_device[64];
	uint32_t peer_port;
	enum pier_distance distance; /**< from the memory, at the farther end */
	uint32_t speed;		     /**< of the slower end, in Mbit/s; 0: unknown */
};

/**
 * Choose the pairs to connect. Both ends get the same pairs in the same order.
 *
 * mine, theirs  from pier_rails_describe() at both ends; theirs is checked as hostile
 *               input
 * ret_pairs     room for `count` pairs; the best are returned
 * count         from 1; the same at both ends, or use only the smaller number of pairs
 * size          sizeof(ret_pairs[0]) in the caller
 *
 * Returns the number of pairs, from 1.
 *
 * Errors: -EBADMSG the bytes of one end are malformed; -EHOSTUNREACH no two ports can be
 * paired (pier_error_message() names the ports of both ends); -EINVAL count is 0;
 * -ENOMEM.
 */
PIER_API int pier_rails_choose(const void *mine, size_t mine_size, const void *theirs,
			       size_t their_size, struct pier_rail_pair *ret_pairs,
			       uint32_t count, size_t size);

PIER_END_DECLS

#endif
