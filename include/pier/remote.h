/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REMOTE_H
#define PIER_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/** Remote regions, their parts, and their wire and text forms. */

/**
 * Remote regions: the description that a peer needs to read or write a range of memory.
 *
 * A remote region is a value and owns nothing. For a region of a peer that does not use
 * pier, fill it in yourself: addr and rkey are remote_addr and rkey of
 * ibv_post_send(3), in host byte order. All three fields are required: pier checks
 * requests against the length, and the peer's NIC checks them against its region.
 *
 * Frozen: programs have arrays of them, and fill them in.
 *
 * Threads: any thread may call any function.
 */
struct pier_remote {
	/**
	 * Of the first byte, in the region's iovas. For a region of ibv_reg_mr(3), this
	 * is the address in the peer's process.
	 */
	uint64_t addr;
	uint64_t length; /**< in bytes; may be 0 */
	uint32_t rkey;	 /**< ibv_mr.rkey, all 32 bits, unchanged */
};

/**
 * Describe a whole region to a peer.
 *
 * Errors: -EACCES the region was registered without remote access; -EXDEV the region
 * has several parts: see pier_mr_remote_vec().
 */
PIER_API int pier_mr_remote(const struct pier_mr *mr, struct pier_remote *ret_remote);

/**
 * Select a part of a remote region.
 *
 * offset  from the start of the region, in bytes; may equal its length if length is 0
 * length  in bytes
 *
 * Errors: -ERANGE the part is not inside the region, or its addresses exceed 64 bits.
 */
PIER_API int pier_remote_sub(const struct pier_remote *remote, uint64_t offset,
			     uint64_t length, struct pier_remote *ret_remote);

/**
 * Select a field of an element of a remote array. The field has `field_size` bytes and
 * starts at `field_offset` in element `index`. The macros below call this function.
 *
 * size        of one element, in bytes
 * field_size  in bytes, from 1; for the whole element, set it to size and field_offset
 *             to 0
 *
 * Errors: -ERANGE the field is not inside the region, also if index * size overflows.
 */
static inline int pier_remote_element(const struct pier_remote *remote, uint64_t index,
				      uint64_t size, uint64_t field_offset,
				      uint64_t field_size, struct pier_remote *ret_remote)
{
	/* No region ends behind the last address. */
	uint64_t offset = UINT64_MAX;

	if (size == 0 || index <= (UINT64_MAX - field_offset) / size)
		offset = index * size + field_offset;
	return pier_remote_sub(remote, offset, field_size, ret_remote);
}

/** Select element `index` of a remote array of `type`. Returns 0 or -ERANGE. */
#define PIER_REMOTE_ARRAY(remote, type, index, ret_remote)                    \
	pier_remote_element((remote), (index), sizeof(type), 0, sizeof(type), \
			    (ret_remote))

/** Select field `member` of a remote `type`. Returns 0 or -ERANGE. */
#define PIER_REMOTE_STRUCT(remote, type, member, ret_remote) \
	PIER_REMOTE_STRUCT_ARRAY(remote, type, 0, member, ret_remote)

/**
 * Select field `member` of element `index` of a remote array of `type`. Returns 0 or
 * -ERANGE.
 */
#define PIER_REMOTE_STRUCT_ARRAY(remote, type, index, member, ret_remote)            \
	pier_remote_element((remote), (index), sizeof(type), offsetof(type, member), \
			    sizeof(((type *)0)->member), (ret_remote))

/**
 * Select a part of a remote region without checks, and return it by value. The sums
 * wrap. The peer's NIC refuses a part that is not inside the region, which breaks the
 * channel.
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

/** Size of the wire form in bytes, in every version. */
#define PIER_REMOTE_WIRE_SIZE 32

/**
 * Write the wire form of a remote region: little-endian, with magic, version and length
 * (see docs/wire.md). Cannot fail.
 */
PIER_API void pier_remote_pack(const struct pier_remote *remote,
			       uint8_t ret_wire[PIER_REMOTE_WIRE_SIZE]);

/**
 * Read the wire form of a remote region. The input may be hostile.
 *
 * wire, size  the wire form; size must be PIER_REMOTE_WIRE_SIZE
 *
 * Errors: -EMSGSIZE size is wrong; -EBADMSG the input is not a remote region, or addr +
 * length exceeds 64 bits; -EPROTONOSUPPORT this library does not support the version.
 */
PIER_API int pier_remote_unpack(const void *wire, size_t size,
				struct pier_remote *ret_remote);

/** Size of the text form in bytes, including the final NUL. */
#define PIER_REMOTE_TEXT_SIZE (12 + 2 * PIER_REMOTE_WIRE_SIZE + 1)

/**
 * Write the text form of a remote region, for a file, a mail or a command line. It
 * consists of "pier-remote:" and the wire form in hexadecimal. Cannot fail.
 *
 * Anyone who has the text and a channel into the region's protection domain can access
 * the memory as the region's access rights allow.
 */
PIER_API void pier_remote_to_text(const struct pier_remote *remote,
				  char ret_text[PIER_REMOTE_TEXT_SIZE]);

/**
 * Read the text form of a remote region. The input may be hostile. Surrounding blanks
 * are skipped, and digits may be of either case.
 *
 * Errors: -EBADMSG text is not a text form; others as for pier_remote_unpack().
 */
PIER_API int pier_remote_from_text(const char *text, struct pier_remote *ret_remote);

PIER_END_DECLS

#endif
