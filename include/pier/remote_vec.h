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
 * Remote vectors: remote regions that follow each other, such as the parts of one
 * region.
 *
 * A vector is an array of struct pier_remote and its count. Its offsets form one flat
 * space: offset 0 is the first byte of the first part, there are no gaps, and parts of
 * length 0 take no space. pier_request.remote_count makes a write or a read accept any
 * vector, whatever its origin.
 *
 * The caller owns the arrays. An output array must not overlap the input array, and is
 * not written on an error.
 *
 * Threads: any thread may call any function.
 */

/**
 * Describe a whole region, of one or several parts, to a peer.
 *
 * ret_parts  an array of `capacity` parts
 * capacity   at least pier_mr_parts(), which is at most PIER_MR_PARTS_MAX
 *
 * Errors: -EACCES the region was registered without remote access; -ENOSPC the region
 * has more parts than `capacity` (pier_error_message() gives the number).
 */
PIER_API int pier_mr_remote_vec(const struct pier_mr *mr, struct pier_remote *ret_parts,
				uint32_t capacity, uint32_t *ret_count);

/**
 * Select a part of a vector: the vector of `length` bytes at `offset`.
 *
 * offset    in bytes; may equal the vector's length if length is 0
 * length    in bytes; 0 gives no parts
 * capacity  of ret_parts; `count` is always enough
 *
 * Errors: -ERANGE the part is not inside the vector, or the sum of the vector's lengths,
 * or the end of one of its parts, exceeds 64 bits; -ENOSPC the part has more parts than
 * `capacity` (pier_error_message() gives the number).
 */
PIER_API int pier_remote_vec_sub(const struct pier_remote *parts, uint32_t count,
				 uint64_t offset, uint64_t length,
				 struct pier_remote *ret_parts, uint32_t capacity,
				 uint32_t *ret_count);

/** Size of the wire form of `count` parts in bytes, in version 1. */
#define PIER_REMOTE_VEC_WIRE_SIZE(count) (16 + 24 * (count))

/** Size of the longest wire form, with PIER_MR_PARTS_MAX parts. */
#define PIER_REMOTE_VEC_WIRE_MAX PIER_REMOTE_VEC_WIRE_SIZE(PIER_MR_PARTS_MAX)

/**
 * Write the wire form of a vector: little-endian, with magic, version and length (see
 * docs/wire.md).
 *
 * size  of ret_wire, in bytes
 *
 * Returns the size of the form in bytes, PIER_REMOTE_VEC_WIRE_SIZE(count).
 *
 * Errors: -E2BIG there are more than PIER_MR_PARTS_MAX parts; -ERANGE as for
 * pier_remote_vec_sub(); -ENOSPC size is too small.
 */
PIER_API int pier_remote_vec_pack(const struct pier_remote *parts, uint32_t count,
				  void *ret_wire, size_t size);

/**
 * Read the wire form of a vector. The input may be hostile.
 *
 * wire, size  the wire form; size must equal the length field in it
 * ret_parts   an array of `capacity` parts
 * capacity    PIER_MR_PARTS_MAX is always enough
 *
 * Errors: -EMSGSIZE size differs from the form's own length; -EBADMSG the input is not
 * a remote vector, has more than PIER_MR_PARTS_MAX parts, or a sum or the end of a part
 * exceeds 64 bits; -EPROTONOSUPPORT this library does not support the version; -ENOSPC
 * there are more parts than `capacity` (pier_error_message() gives the number).
 */
PIER_API int pier_remote_vec_unpack(const void *wire, size_t size,
				    struct pier_remote *ret_parts, uint32_t capacity,
				    uint32_t *ret_count);

/**
 * Size of the text form of `count` parts in bytes, including the final NUL, in version
 * 1.
 */
#define PIER_REMOTE_VEC_TEXT_SIZE(count) (16 + 2 * PIER_REMOTE_VEC_WIRE_SIZE(count) + 1)

/**
 * Write the text form of a vector, for a file, a mail or a command line. It consists of
 * "pier-remote-vec:" and the wire form in hexadecimal.
 *
 * size  of ret_text, in bytes
 *
 * Errors: those of pier_remote_vec_pack(); -ENOSPC size is too small.
 */
PIER_API int pier_remote_vec_to_text(const struct pier_remote *parts, uint32_t count,
				     char *ret_text, size_t size);

/**
 * Read the text form of a vector. The input may be hostile. Surrounding blanks are
 * skipped, and digits may be of either case.
 *
 * ret_parts  an array of `capacity` parts
 *
 * Errors: -EBADMSG text is not a text form; others as for pier_remote_vec_unpack().
 */
PIER_API int pier_remote_vec_from_text(const char *text, struct pier_remote *ret_parts,
				       uint32_t capacity, uint32_t *ret_count);

PIER_END_DECLS

#endif
