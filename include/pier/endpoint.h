/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_ENDPOINT_H
#define PIER_ENDPOINT_H

#include <stddef.h>
#include <stdint.h>

#include <pier/device.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/** The most bytes that a provider may add to an endpoint. */
#define PIER_ENDPOINT_ADDRESS_MAX 192

/**
 * One end of a channel: what the other end must know to connect to it.
 *
 * A value that owns nothing. pier_channel_endpoint() makes one.
 *
 * For a peer that does not use pier, it may be filled in by hand, from numbers
 * that came some other way: zero all of it, then set what is said below to be
 * needed. All numbers are in host order. docs/wire.md, "A peer without pier",
 * tells what the peer does with the numbers of this end.
 */
struct pier_endpoint {
	/** Queue pair number, 24 bits, from 2 (ibv_qp.qp_num). Needed. */
	uint32_t qpn;
	/**
	 * Number of the first packet that this end sends, 24 bits: sq_psn of this
	 * end (ibv_modify_qp(3)), and rq_psn of the other. Needed.
	 */
	uint32_t psn;
	/** Of the port (ibv_query_port(3)). Needed on InfiniBand, 0 on Ethernet. */
	uint16_t lid;
	/** Unspecified: as the other end's. */
	enum pier_link_layer link_layer;
	/**
	 * Of the port, as union ibv_gid and its raw[16]: in network order, so that of
	 * 192.0.2.1 ends with the bytes c0 00 02 01. Needed on Ethernet, and it must be
	 * of the other end's type (RoCE v1 or v2; see pier_query_gid()); zero: none.
	 */
	uint8_t gid[16];
	/**
	 * The most that this end takes in a packet: 256, 512, 1024, 2048 or 4096
	 * bytes, not enum ibv_mtu. Both ends use the smaller of their two, as path_mtu;
	 * 0: unknown, and the other end's is used.
	 */
	uint32_t mtu;
	/**
	 * Reads and atomics that this end serves at once (its max_dest_rd_atomic), and
	 * so the most that the other may have under way (its max_rd_atomic). Needed if
	 * the other end reads; 0: none.
	 */
	uint8_t max_rd_atomic;
	/**
	 * Tells the connections of this end apart: random at first, one more with each
	 * pier_channel_reset(). 0: unknown, which nothing is taken for stale by.
	 */
	uint32_t generation;
	/** The provider's own, e.g. where soft0 listens; length 0 for real NICs. */
	uint16_t address_length;
	uint8_t address[PIER_ENDPOINT_ADDRESS_MAX];
};

/** The longest wire form, in bytes. */
#define PIER_ENDPOINT_WIRE_MAX 256

/**
 * Write the wire form: little-endian, with magic, version and length (see
 * docs/wire.md).
 *
 * Returns its size in bytes, at most PIER_ENDPOINT_WIRE_MAX.
 * Errors: -EINVAL a field is out of its range, -ENOSPC size is too small.
 */
PIER_API int pier_endpoint_pack(const struct pier_endpoint *endpoint, void *ret_wire,
				size_t size);

/**
 * Read the wire form, which may be hostile.
 *
 * Errors: -EMSGSIZE shorter or longer than its own length says; -EBADMSG not an
 * endpoint, or a field out of its range; -EPROTONOSUPPORT of a version that
 * this library does not know.
 */
PIER_API int pier_endpoint_unpack(const void *wire, size_t size,
				  struct pier_endpoint *ret_endpoint);

/** The longest text form, with its final NUL. */
#define PIER_ENDPOINT_TEXT_MAX (16 + 2 * PIER_ENDPOINT_WIRE_MAX)

/**
 * Write the text form: "pier-endpoint:" and the wire form in hexadecimal; for
 * a file, a mail or a command line.
 *
 * Errors: as pier_endpoint_pack(); -ENOSPC size is too small.
 */
PIER_API int pier_endpoint_to_text(const struct pier_endpoint *endpoint, char *ret_text,
				   size_t size);

/**
 * Read the text form; blanks around it are skipped.
 *
 * Errors: -EBADMSG not a text form, or NULL; others as pier_endpoint_unpack().
 */
PIER_API int pier_endpoint_from_text(const char *text,
				     struct pier_endpoint *ret_endpoint);

PIER_END_DECLS

#endif
