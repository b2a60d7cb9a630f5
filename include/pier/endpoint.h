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
 * A value that owns nothing. pier_channel_endpoint() makes one; for a peer that
 * does not use pier it may be filled in by hand (zero what is not known).
 */
struct pier_endpoint {
	uint32_t qpn; /**< queue pair number, 24 bits */
	uint32_t psn; /**< number of the first packet that this end sends, 24 bits */
	uint16_t lid; /**< 0 on Ethernet */
	enum pier_link_layer link_layer;
	uint8_t gid[16]; /**< in network order; zero: none */
	uint32_t mtu;	 /**< in bytes; 0: unknown, the other end's is taken */
	/** Reads and atomics that this end serves at once; 0: none. */
	uint8_t max_rd_atomic;
	/** Random; pier_handshake() notices by it an answer to an old endpoint. */
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
