/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REMOTE_VEC_H
#define PIER_REMOTE_VEC_H

#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>
#include <pier/mr.h>
#include <pier/remote.h>

PIER_BEGIN_DECLS

/**
 * Remote vectors: remote regions that follow each other, as the parts of one region.
 *
 * An array of struct pier_remote and its count. Together they have one flat space of
 * offsets, which begins at 0 with the first part's first byte; there are no gaps, and
 * parts of length 0 take no place in it. pier_post_write_vec() and
 * pier_post_read_vec() take vectors as they are, whatever they were made of.
 *
 * Where an array is written it is the caller's, must not overlap the one that is read,
 * and is left as it is on an error. Threads: values, so no rules.
 */

/**
 * Describe a whole region to a peer, of one part or of several.
 *
 * ret_parts  of room for `capacity`; as many are needed as pier_mr_parts() says, at
 *            most PIER_MR_PARTS_MAX
 *
 * Errors: -EACCES the region was registered without any remote access; -ENOSPC it has
 * more parts than `capacity` (the sentence says how many).
 */
PIER_API int pier_mr_remote_vec(const struct pier_mr *mr, struct pier_remote *ret_parts,
				uint32_t capacity, uint32_t *ret_count);

/**
 * How many bytes a vector has.
 *
 * Errors: -ERANGE the sum, or the end of a part, is past 64 bits.
 */
PIER_API int pier_remote_vec_length(const struct pier_remote *parts, uint32_t count,
				    uint64_t *ret_length);

/**
 * A part of a vector: the vector of `length` bytes at `offset`.
 *
 * A length of 0 gives no parts; offset may then equal the vector's length. `count` is
 * always enough as capacity.
 *
 * Errors: -ERANGE it leaves the vector, or as pier_remote_vec_length(); -ENOSPC it has
 * more parts than `capacity` (the sentence says how many).
 */
PIER_API int pier_remote_vec_sub(const struct pier_remote *parts, uint32_t count,
				 uint64_t offset, uint64_t length,
				 struct pier_remote *ret_parts, uint32_t capacity,
				 uint32_t *ret_count);

/**
 * Element `index` of an array of elements of `size` bytes that lies in a vector; and in
 * it a field of `field_size` bytes at `field_offset`. It may cross seams, and is a
 * vector again. The macros below call this.
 *
 * Errors: -ERANGE outside the vector, also where index * size overflows; -ENOSPC as
 * pier_remote_vec_sub().
 */
PIER_API int pier_remote_vec_element(const struct pier_remote *parts, uint32_t count,
				     uint64_t index, uint64_t size, uint64_t field_offset,
				     uint64_t field_size, struct pier_remote *ret_parts,
				     uint32_t capacity, uint32_t *ret_count);

/** `type` as element `index` of an array in a vector: as pier_remote_vec_element(). */
#define PIER_REMOTE_VEC_ARRAY(parts, count, type, index, ret_parts, capacity, ret_count) \
	pier_remote_vec_element((parts), (count), (index), sizeof(type), 0,              \
				sizeof(type), (ret_parts), (capacity), (ret_count))

/** Field `member` of element `index` of an array of `type` in a vector. */
#define PIER_REMOTE_VEC_STRUCT_ARRAY(parts, count, type, index, member, ret_parts,   \
				     capacity, ret_count)                            \
	pier_remote_vec_element((parts), (count), (index), sizeof(type),             \
				offsetof(type, member), sizeof(((type *)0)->member), \
				(ret_parts), (capacity), (ret_count))

/** Size of the wire form of so many parts, in bytes, in version 1. */
#define PIER_REMOTE_VEC_WIRE_SIZE(count) (16 + 24 * (count))

/** The longest wire form: that of PIER_MR_PARTS_MAX parts. */
#define PIER_REMOTE_VEC_WIRE_MAX PIER_REMOTE_VEC_WIRE_SIZE(PIER_MR_PARTS_MAX)

/**
 * Write the wire form: little-endian, with magic, version and length (see
 * docs/wire.md).
 *
 * Returns its size in bytes, PIER_REMOTE_VEC_WIRE_SIZE(count).
 * Errors: -E2BIG more than PIER_MR_PARTS_MAX parts; -ERANGE as
 * pier_remote_vec_length(); -ENOSPC size is too small.
 */
PIER_API int pier_remote_vec_pack(const struct pier_remote *parts, uint32_t count,
				  void *ret_wire, size_t size);

/**
 * Read the wire form, which may be hostile.
 *
 * wire, size  the bytes; exactly as many as the form says of itself
 * ret_parts   of room for `capacity`; PIER_MR_PARTS_MAX is always enough
 *
 * Errors: -EMSGSIZE shorter or longer than its own length says; -EBADMSG not a remote
 * vector, more than PIER_MR_PARTS_MAX parts, or a sum or the end of a part past 64 bits;
 * -EPROTONOSUPPORT of a version that this library does not know; -ENOSPC more parts
 * than `capacity` (the sentence says how many).
 */
PIER_API int pier_remote_vec_unpack(const void *wire, size_t size,
				    struct pier_remote *ret_parts, uint32_t capacity,
				    uint32_t *ret_count);

/** Size of the text form of so many parts, with its final NUL, in version 1. */
#define PIER_REMOTE_VEC_TEXT_SIZE(count) (16 + 2 * PIER_REMOTE_VEC_WIRE_SIZE(count) + 1)

/**
 * Write the text form: "pier-remote-vec:" and the wire form in hexadecimal; for a file,
 * a mail or a command line.
 *
 * Errors: as pier_remote_vec_pack(); -ENOSPC size is too small.
 */
PIER_API int pier_remote_vec_to_text(const struct pier_remote *parts, uint32_t count,
				     char *ret_text, size_t size);

/**
 * Read the text form, which may be hostile; blanks around it are skipped, and digits may
 * be of either case.
 *
 * Errors: -EBADMSG not a text form, or NULL; others as pier_remote_vec_unpack().
 */
PIER_API int pier_remote_vec_from_text(const char *text, struct pier_remote *ret_parts,
				       uint32_t capacity, uint32_t *ret_count);

PIER_END_DECLS

#endif
