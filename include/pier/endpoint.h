/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_ENDPOINT_H
#define PIER_ENDPOINT_H

#include <stddef.h>
#include <stdint.h>

#include <pier/device.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/** Endpoints: what a peer needs to connect to a channel, and its wire and text forms. */

/** The most bytes of an endpoint's address. */
#define PIER_ENDPOINT_ADDRESS_MAX 192

/**
 * One end of a channel: everything that the other end needs to connect to it.
 *
 * An endpoint is a value that owns nothing. pier_channel_endpoint() creates one.
 *
 * For a peer without pier, fill it in by hand from numbers obtained in another way:
 * zero all of it, then set the fields that are marked as needed below. All numbers are
 * in host order. docs/wire.md, "A peer without pier", describes how the peer uses the
 * numbers of this end.
 *
 * Frozen, because programs fill it in. A later version can extend `address`.
 */
struct pier_endpoint {
	/** Queue pair number, 24 bits, at least 2 (ibv_qp.qp_num). Needed. */
	uint32_t qpn;
	/**
	 * Number of the first packet that this end sends, 24 bits: sq_psn of this end
	 * (ibv_modify_qp(3)) and rq_psn of the other end. Needed.
	 */
	uint32_t psn;
	/** LID of the port (ibv_query_port(3)). Needed on InfiniBand, 0 on Ethernet. */
	uint16_t lid;
	/** Link layer of the port; unspecified: that of the other end. */
	enum pier_link_layer link_layer;
	/**
	 * GID of the port, as raw[16] of union ibv_gid, in network order: the GID of
	 * 192.0.2.1 ends with the bytes c0 00 02 01. Needed on Ethernet; zero: none.
	 * Without a list in `address` it must have the type (RoCE v1 or v2; see
	 * pier_device_query_gid()) and the address family of the other end's GID. With
	 * one, it is the first of the list.
	 */
	uint8_t gid[16];
	/**
	 * The largest packet payload that this end receives: 256, 512, 1024, 2048 or
	 * 4096 bytes; not enum ibv_mtu. Both ends use the smaller of their two as
	 * path_mtu. 0: unknown; the value of the other end is used.
	 */
	uint32_t mtu;
	/**
	 * Number of reads and atomics that this end serves at once (its
	 * max_dest_rd_atomic), and so the most that the other end may have in flight
	 * (its max_rd_atomic). Needed if the other end reads; 0: none.
	 */
	uint8_t max_rd_atomic;
	/**
	 * Identifies one connection of this end: random at first, incremented by each
	 * pier_channel_reset(). 0: unknown; disables stale-endpoint detection.
	 */
	uint32_t generation;
	/**
	 * On Ethernet, the GIDs that this end offers, from which both ends choose a pair
	 * (docs/wire.md); with soft0, the address on which it listens. address_length is
	 * 0 on InfiniBand, and for a peer without pier.
	 */
	uint16_t address_length;
	uint8_t address[PIER_ENDPOINT_ADDRESS_MAX];
};

/** The longest wire form, in bytes. */
#define PIER_ENDPOINT_WIRE_MAX 256

/**
 * Write the wire form of an endpoint.
 *
 * It is little-endian, with magic, version and length (see docs/wire.md).
 *
 * size  of ret_wire, in bytes
 *
 * Returns the size of the wire form in bytes, at most PIER_ENDPOINT_WIRE_MAX.
 *
 * Errors: -EINVAL a field is out of range; -ENOSPC size is too small.
 */
PIER_API int pier_endpoint_pack(const struct pier_endpoint *endpoint, void *ret_wire,
				size_t size);

/**
 * Read the wire form of an endpoint. The bytes may be hostile.
 *
 * size  of wire, in bytes
 *
 * Errors: -EMSGSIZE the wire form is shorter or longer than its own length field;
 * -EBADMSG it is not an endpoint, or a field is out of range; -EPROTONOSUPPORT the
 * library does not know its version.
 */
PIER_API int pier_endpoint_unpack(const void *wire, size_t size,
				  struct pier_endpoint *ret_endpoint);

/** The longest text form, in bytes, including the final NUL. */
#define PIER_ENDPOINT_TEXT_MAX (16 + 2 * PIER_ENDPOINT_WIRE_MAX)

/**
 * Write the text form of an endpoint, for a file, an e-mail or a command line.
 *
 * It is "pier-endpoint:" followed by the wire form in hexadecimal.
 *
 * size  of ret_text, in bytes
 *
 * Errors: those of pier_endpoint_pack(); -ENOSPC size is too small.
 */
PIER_API int pier_endpoint_to_text(const struct pier_endpoint *endpoint, char *ret_text,
				   size_t size);

/**
 * Read the text form of an endpoint. Blanks around it are skipped.
 *
 * Errors: -EBADMSG text is not a text form; others as for pier_endpoint_unpack().
 */
PIER_API int pier_endpoint_from_text(const char *text,
				     struct pier_endpoint *ret_endpoint);

PIER_END_DECLS

#endif
