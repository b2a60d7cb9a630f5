/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REMOTE_H
#define PIER_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/**
 * Remote regions: what a peer must know to read or write a piece of our memory.
 *
 * A value that owns nothing. For a region of a peer that does not use pier it is
 * filled in by hand: addr and rkey are what ibv_post_send(3) calls remote_addr and
 * rkey, in host order, and all three fields are needed: pier checks requests
 * against the length, and then the peer's NIC against the region. Threads:
 * values, so no rules.
 */
struct pier_remote {
	/**
	 * Of the first byte, in the region's iovas: where ibv_reg_mr(3) registered
	 * it, its address in the peer's process.
	 */
	uint64_t addr;
	uint64_t length; /**< in bytes; may be 0 */
	uint32_t rkey;	 /**< ibv_mr.rkey: all 32 bits, as they are */
};

/**
 * Describe a whole region to a peer.
 *
 * Errors: -EACCES the region was registered without any remote access; -EXDEV it
 * has several parts: see pier_mr_remote_vec().
 */
PIER_API int pier_mr_remote(const struct pier_mr *mr, struct pier_remote *ret_remote);

/**
 * A part of a remote region: `length` bytes at `offset` from its start.
 *
 * offset may equal the region's length, with length 0.
 *
 * Errors: -ERANGE the part leaves the region, or its addresses 64 bits.
 */
PIER_API int pier_remote_sub(const struct pier_remote *remote, uint64_t offset,
			     uint64_t length, struct pier_remote *ret_remote);

/**
 * The rest of a remote region from `offset` on; nothing (length 0) when offset
 * is its length.
 *
 * Errors: -ERANGE offset is past the end.
 */
PIER_API int pier_remote_rest(const struct pier_remote *remote, uint64_t offset,
			      struct pier_remote *ret_remote);

/**
 * Element `index` of a remote array of elements of `size` bytes; and in it a
 * field of `field_size` bytes at `field_offset`. The macros below call these.
 *
 * Errors: -ERANGE outside the region, also where index * size overflows.
 */
PIER_API int pier_remote_element(const struct pier_remote *remote, uint64_t index,
				 uint64_t size, uint64_t field_offset,
				 uint64_t field_size, struct pier_remote *ret_remote);

/** `type` as element `index` of a remote array. 0 or -ERANGE. */
#define PIER_REMOTE_ARRAY(remote, type, index, ret_remote)                    \
	pier_remote_element((remote), (index), sizeof(type), 0, sizeof(type), \
			    (ret_remote))

/** Field `member` of a remote `type`. 0 or -ERANGE. */
#define PIER_REMOTE_STRUCT(remote, type, member, ret_remote) \
	PIER_REMOTE_STRUCT_ARRAY(remote, type, 0, member, ret_remote)

/** Field `member` of element `index` of a remote array of `type`. 0 or -ERANGE. */
#define PIER_REMOTE_STRUCT_ARRAY(remote, type, index, member, ret_remote)            \
	pier_remote_element((remote), (index), sizeof(type), offsetof(type, member), \
			    sizeof(((type *)0)->member), (ret_remote))

/**
 * The same without checks, as values: the sums wrap, and what is outside is
 * refused by the peer's NIC, which breaks the channel.
 */
static inline struct pier_remote pier_remote_sub_unchecked(
	const struct pier_remote *remote, uint64_t offset, uint64_t length)
{
	struct pier_remote part = { remote->addr + offset, length, remote->rkey };

	return part;
}

#define PIER_REMOTE_ARRAY_UNCHECKED(remote, type, index)                      \
	pier_remote_sub_unchecked((remote), (uint64_t)(index) * sizeof(type), \
				  sizeof(type))
#define PIER_REMOTE_STRUCT_UNCHECKED(remote, type, member) \
	PIER_REMOTE_STRUCT_ARRAY_UNCHECKED(remote, type, 0, member)
#define PIER_REMOTE_STRUCT_ARRAY_UNCHECKED(remote, type, index, member)              \
	pier_remote_sub_unchecked(                                                   \
		(remote), (uint64_t)(index) * sizeof(type) + offsetof(type, member), \
		sizeof(((type *)0)->member))

/** Size of the wire form, in bytes, in every version. */
#define PIER_REMOTE_WIRE_SIZE 32

/**
 * Write the wire form: little-endian, with magic, version and length (see
 * docs/wire.md). Cannot fail.
 */
PIER_API void pier_remote_pack(const struct pier_remote *remote,
			       uint8_t ret_wire[PIER_REMOTE_WIRE_SIZE]);

/**
 * Read the wire form, which may be hostile.
 *
 * wire, size  the bytes; exactly PIER_REMOTE_WIRE_SIZE of them
 *
 * Errors: -EMSGSIZE wrong size; -EBADMSG not a remote region, or addr + length
 * past 64 bits; -EPROTONOSUPPORT of a version that this library does not know.
 */
PIER_API int pier_remote_unpack(const void *wire, size_t size,
				struct pier_remote *ret_remote);

/** Size of the text form, with its final NUL. */
#define PIER_REMOTE_TEXT_SIZE (12 + 2 * PIER_REMOTE_WIRE_SIZE + 1)

/**
 * Write the text form: "pier-remote:" and the wire form in hexadecimal; for a
 * file, a mail or a command line. Cannot fail.
 *
 * Whoever has it, and a channel into the region's protection domain, may do with
 * the memory what the region's access allows.
 */
PIER_API void pier_remote_to_text(const struct pier_remote *remote,
				  char ret_text[PIER_REMOTE_TEXT_SIZE]);

/**
 * Read the text form, which may be hostile; blanks around it are skipped, and
 * digits may be of either case.
 *
 * Errors: -EBADMSG not a text form, or NULL; others as pier_remote_unpack().
 */
PIER_API int pier_remote_from_text(const char *text, struct pier_remote *ret_remote);

PIER_END_DECLS

#endif
