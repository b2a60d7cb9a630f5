/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <pier/remote_vec.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/text.h"
#include "core/wire.h"
#include "mr.h"

static int check_access(const struct pier_mr *mr)
{
	const int remote = PIER_ACCESS_REMOTE_READ | PIER_ACCESS_REMOTE_WRITE |
			   PIER_ACCESS_REMOTE_ATOMIC;

	if (mr->access & remote)
		return 0;
	return pier_fail(EACCES,
			 "remote region: the region was registered without any remote "
			 "access (access 0x%x)",
			 (unsigned int)mr->access);
}

int pier_mr_remote(const struct pier_mr *mr, struct pier_remote *ret_remote)
{
	PIER_REFUSE_NULL(mr, ret_remote);
	int error = check_access(mr);

	if (error)
		return error;
	if (mr->part_count > 1)
		return pier_fail(
			EXDEV,
			"remote region: the region has %u parts with a key each: "
			"describe it with pier_mr_remote_vec()",
			mr->part_count);
	*ret_remote = (struct pier_remote){ .addr = mr->parts ? mr->parts->iova
							      : mr->iova,
					    .length = mr->length,
					    .rkey = pier_mr_rkey(mr) };
	return 0;
}

int pier_mr_remote_vec(const struct pier_mr *mr, struct pier_remote *ret_parts,
		       uint32_t capacity, uint32_t *ret_count)
{
	PIER_REFUSE_NULL(mr, ret_count);
	PIER_REFUSE_NULL_ARRAY(ret_parts, capacity);
	uint32_t count = pier_mr_parts(mr);
	int error = check_access(mr);

	if (error)
		return error;
	if (count > capacity)
		return pier_fail(ENOSPC,
				 "remote vector: the region has %u parts, and there is "
				 "room for %u",
				 count, capacity);
	for (uint32_t i = 0; i < count; i++) {
		struct pier_mr_part_info part;

		pier_mr_part(mr, i, &part, sizeof(part));
		ret_parts[i] = (struct pier_remote){ .addr = part.iova,
						     .length = part.length,
						     .rkey = part.rkey };
	}
	*ret_count = count;
	return 0;
}

int pier_remote_sub(const struct pier_remote *remote, uint64_t offset, uint64_t length,
		    struct pier_remote *ret_remote)
{
	PIER_REFUSE_NULL(remote, ret_remote);
	uint64_t addr, end;

	if (!pier_range_fits(offset, length, remote->length))
		return pier_fail(ERANGE,
				 "offset %" PRIu64 " and length %" PRIu64
				 " leave the remote region of %" PRIu64 " bytes",
				 offset, length, remote->length);
	/* A descriptor that was filled in by hand may overflow 64 bits. */
	if (!pier_add_u64(remote->addr, offset, &addr) ||
	    !pier_add_u64(addr, length, &end))
		return pier_fail(ERANGE,
				 "remote address 0x%" PRIx64 " and offset %" PRIu64
				 " overflow 64 bits",
				 remote->addr, offset);
	*ret_remote = (struct pier_remote){ .addr = addr,
					    .length = length,
					    .rkey = remote->rkey };
	return 0;
}

/*
 * The wire form, little-endian:
 *
 *	0  4  magic "PrMR"
 *	4  2  version, 1
 *	6  2  total length, 32
 *	8  4  rkey
 *	12 4  reserved, 0
 *	16 8  addr
 *	24 8  length
 */
static const uint8_t magic[4] = { 'P', 'r', 'M', 'R' };
static const char text_prefix[] = "pier-remote:";

_Static_assert(PIER_REMOTE_TEXT_SIZE == sizeof(text_prefix) + 2 * PIER_REMOTE_WIRE_SIZE,
	       "the text fits, and no more");

enum {
	VERSION = 1
};

void pier_remote_pack(const struct pier_remote *remote,
		      uint8_t ret_wire[PIER_REMOTE_WIRE_SIZE])
{
	PIER_REFUSE_NULL_AS(, remote, ret_wire);
	memcpy(ret_wire, magic, sizeof(magic));
	pier_put_le16(ret_wire + 4, VERSION);
	pier_put_le16(ret_wire + 6, PIER_REMOTE_WIRE_SIZE);
	pier_put_le32(ret_wire + 8, remote->rkey);
	pier_put_le32(ret_wire + 12, 0);
	pier_put_le64(ret_wire + 16, remote->addr);
	pier_put_le64(ret_wire + 24, remote->length);
}

int pier_remote_unpack(const void *wire, size_t size, struct pier_remote *ret_remote)
{
	PIER_REFUSE_NULL(ret_remote);
	PIER_REFUSE_NULL_ARRAY(wire, size);
	const uint8_t *bytes = wire;
	struct pier_remote remote;
	uint64_t end;

	if (size != PIER_REMOTE_WIRE_SIZE)
		return pier_fail(EMSGSIZE, "remote region of %zu bytes, not %d", size,
				 PIER_REMOTE_WIRE_SIZE);
	if (memcmp(bytes, magic, sizeof(magic)) != 0)
		return pier_fail(EBADMSG, "these bytes are not a remote region");
	if (pier_get_le16(bytes + 4) != VERSION)
		return pier_fail(EPROTONOSUPPORT, "remote region of version %u, not %d",
				 pier_get_le16(bytes + 4), VERSION);
	if (pier_get_le16(bytes + 6) != PIER_REMOTE_WIRE_SIZE ||
	    pier_get_le32(bytes + 12) != 0)
		return pier_fail(EBADMSG,
				 "remote region: length or reserved bytes are wrong");
	remote = (struct pier_remote){
		.addr = pier_get_le64(bytes + 16),
		.length = pier_get_le64(bytes + 24),
		.rkey = pier_get_le32(bytes + 8),
	};
	if (!pier_add_u64(remote.addr, remote.length, &end))
		return pier_fail(EBADMSG,
				 "remote region: address 0x%" PRIx64
				 " and length %" PRIu64 " overflow 64 bits",
				 remote.addr, remote.length);
	*ret_remote = remote;
	return 0;
}

void pier_remote_to_text(const struct pier_remote *remote,
			 char ret_text[PIER_REMOTE_TEXT_SIZE])
{
	PIER_REFUSE_NULL_AS(, remote, ret_text);
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	int error;

	pier_remote_pack(remote, wire);
	error = pier_wire_to_text(text_prefix, wire, sizeof(wire), ret_text,
				  PIER_REMOTE_TEXT_SIZE);
	assert(!error);
	(void)error;
}

int pier_remote_from_text(const char *text, struct pier_remote *ret_remote)
{
	PIER_REFUSE_NULL(text, ret_remote);
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	size_t length;
	int error = pier_wire_from_text(text_prefix, text, wire, sizeof(wire), &length);

	return error ? error : pier_remote_unpack(wire, length, ret_remote);
}

static int add_length(const struct pier_remote *part, uint32_t index, uint64_t *length)
{
	uint64_t end;

	if (!pier_add_u64(part->addr, part->length, &end))
		return pier_fail(ERANGE,
				 "part %u of a remote vector: address 0x%" PRIx64
				 " and length %" PRIu64 " overflow 64 bits",
				 index, part->addr, part->length);
	if (!pier_add_u64(*length, part->length, length))
		return pier_fail(ERANGE,
				 "remote vector: the lengths of parts 0 to %u overflow "
				 "64 bits",
				 index);
	return 0;
}

int pier_remote_vec_length(const struct pier_remote *parts, uint32_t count,
			   uint64_t *ret_length)
{
	uint64_t length = 0;
	int error = 0;

	if (count && !parts)
		return pier_fail(EINVAL, "remote vector: parts is NULL");
	for (uint32_t i = 0; i < count && !error; i++)
		error = add_length(&parts[i], i, &length);
	if (!error)
		*ret_length = length;
	return error;
}

/* Find the parts of a range in the vector, or, without ret_parts, only count them. */
static uint32_t find_parts(const struct pier_remote *parts, uint64_t offset,
			   uint64_t length, struct pier_remote *ret_parts)
{
	uint32_t found = 0;

	for (; length > 0; parts++) {
		uint64_t run;

		if (offset >= parts->length) {
			offset -= parts->length;
			continue;
		}
		run = parts->length - offset;
		if (run > length)
			run = length;
		if (ret_parts)
			ret_parts[found] = (struct pier_remote){
				.addr = parts->addr + offset,
				.length = run,
				.rkey = parts->rkey,
			};
		found++;
		length -= run;
		offset = 0;
	}
	return found;
}

int pier_remote_vec_sub(const struct pier_remote *parts, uint32_t count, uint64_t offset,
			uint64_t length, struct pier_remote *ret_parts, uint32_t capacity,
			uint32_t *ret_count)
{
	PIER_REFUSE_NULL(ret_count);
	PIER_REFUSE_NULL_ARRAY(parts, count);
	PIER_REFUSE_NULL_ARRAY(ret_parts, capacity);
	uint64_t whole;
	uint32_t needed;
	int error = pier_remote_vec_length(parts, count, &whole);

	if (error)
		return error;
	if (!pier_range_fits(offset, length, whole))
		return pier_fail(ERANGE,
				 "offset %" PRIu64 " and length %" PRIu64
				 " leave the remote vector of %" PRIu64 " bytes",
				 offset, length, whole);
	needed = find_parts(parts, offset, length, NULL);
	if (needed > capacity)
		return pier_fail(ENOSPC,
				 "offset %" PRIu64 " and length %" PRIu64
				 " have %u parts, and there is room for %u",
				 offset, length, needed, capacity);
	find_parts(parts, offset, length, ret_parts);
	*ret_count = needed;
	return 0;
}

/*
 * The wire form, little-endian:
 *
 *	0  4  vec_magic "PrMV"
 *	4  2  version, 1
 *	6  2  total length, 16 + 24 * count
 *	8  4  count
 *	12 4  reserved, 0
 *	16    for each part:
 *	0  4  rkey
 *	4  4  reserved, 0
 *	8  8  addr
 *	16 8  length
 */
static const uint8_t vec_magic[4] = { 'P', 'r', 'M', 'V' };
static const char vec_text_prefix[] = "pier-remote-vec:";

enum {
	VEC_VERSION = 1,
	HEADER = PIER_REMOTE_VEC_WIRE_SIZE(0),
	PART = PIER_REMOTE_VEC_WIRE_SIZE(1) - HEADER,
};

_Static_assert(PIER_REMOTE_VEC_TEXT_SIZE(1) ==
		       sizeof(vec_text_prefix) + 2 * (HEADER + PART),
	       "the text fits, and no more");

_Static_assert(PIER_REMOTE_VEC_WIRE_MAX <= UINT16_MAX, "the length has 16 bits");

static void put_header(uint8_t *wire, uint32_t count, size_t size)
{
	memcpy(wire, vec_magic, sizeof(vec_magic));
	pier_put_le16(wire + 4, VEC_VERSION);
	pier_put_le16(wire + 6, (uint16_t)size);
	pier_put_le32(wire + 8, count);
	pier_put_le32(wire + 12, 0);
}

static void put_part(uint8_t *wire, const struct pier_remote *part)
{
	pier_put_le32(wire, part->rkey);
	pier_put_le32(wire + 4, 0);
	pier_put_le64(wire + 8, part->addr);
	pier_put_le64(wire + 16, part->length);
}

static struct pier_remote get_part(const uint8_t *wire)
{
	return (struct pier_remote){
		.addr = pier_get_le64(wire + 8),
		.length = pier_get_le64(wire + 16),
		.rkey = pier_get_le32(wire),
	};
}

int pier_remote_vec_pack(const struct pier_remote *parts, uint32_t count, void *ret_wire,
			 size_t size)
{
	PIER_REFUSE_NULL_ARRAY(parts, count);
	PIER_REFUSE_NULL_ARRAY(ret_wire, size);
	uint8_t *wire = ret_wire;
	uint64_t length;
	size_t needed;
	int error;

	if (count > PIER_MR_PARTS_MAX)
		return pier_fail(E2BIG, "remote vector of %u parts: the maximum is %d",
				 count, PIER_MR_PARTS_MAX);
	error = pier_remote_vec_length(parts, count, &length);
	if (error)
		return error;
	needed = PIER_REMOTE_VEC_WIRE_SIZE((size_t)count);
	if (size < needed)
		return pier_fail(ENOSPC,
				 "remote vector: %u parts need %zu bytes, not %zu", count,
				 needed, size);
	put_header(wire, count, needed);
	for (uint32_t i = 0; i < count; i++)
		put_part(wire + HEADER + (size_t)i * PART, &parts[i]);
	return (int)needed;
}

static int check_header(const uint8_t *wire, size_t size)
{
	uint32_t count;

	if (size < HEADER)
		return pier_fail(EMSGSIZE,
				 "remote vector of %zu bytes: the minimum is %d", size,
				 HEADER);
	if (memcmp(wire, vec_magic, sizeof(vec_magic)) != 0)
		return pier_fail(EBADMSG, "these bytes are not a remote vector");
	if (pier_get_le16(wire + 4) != VEC_VERSION)
		return pier_fail(EPROTONOSUPPORT, "remote vector of version %u, not %d",
				 pier_get_le16(wire + 4), VEC_VERSION);
	if (pier_get_le16(wire + 6) != size)
		return pier_fail(EMSGSIZE,
				 "remote vector of %u bytes, of which %zu are present",
				 pier_get_le16(wire + 6), size);
	count = pier_get_le32(wire + 8);
	if (count > PIER_MR_PARTS_MAX || size != PIER_REMOTE_VEC_WIRE_SIZE((size_t)count))
		return pier_fail(EBADMSG,
				 "remote vector: %u parts do not make a length of %zu "
				 "bytes",
				 count, size);
	if (pier_get_le32(wire + 12) != 0)
		return pier_fail(EBADMSG, "remote vector: reserved bytes are not 0");
	return 0;
}

static int check_parts(const uint8_t *wire, uint32_t count)
{
	uint64_t length = 0;

	for (uint32_t i = 0; i < count; i++, wire += PART) {
		struct pier_remote part = get_part(wire);

		if (pier_get_le32(wire + 4) != 0)
			return pier_fail(EBADMSG,
					 "part %u of a remote vector: reserved bytes are "
					 "not 0",
					 i);
		if (add_length(&part, i, &length))
			return pier_fail(EBADMSG, "%s", pier_error_message());
	}
	return 0;
}

int pier_remote_vec_unpack(const void *wire, size_t size, struct pier_remote *ret_parts,
			   uint32_t capacity, uint32_t *ret_count)
{
	PIER_REFUSE_NULL(ret_count);
	PIER_REFUSE_NULL_ARRAY(wire, size);
	PIER_REFUSE_NULL_ARRAY(ret_parts, capacity);
	const uint8_t *bytes = wire;
	uint32_t count;
	int error = check_header(bytes, size);

	if (error)
		return error;
	count = pier_get_le32(bytes + 8);
	error = check_parts(bytes + HEADER, count);
	if (error)
		return error;
	if (count > capacity)
		return pier_fail(ENOSPC,
				 "remote vector of %u parts, and there is room for %u",
				 count, capacity);
	for (uint32_t i = 0; i < count; i++)
		ret_parts[i] = get_part(bytes + HEADER + (size_t)i * PART);
	*ret_count = count;
	return 0;
}

int pier_remote_vec_to_text(const struct pier_remote *parts, uint32_t count,
			    char *ret_text, size_t size)
{
	PIER_REFUSE_NULL_ARRAY(parts, count);
	PIER_REFUSE_NULL_ARRAY(ret_text, size);
	uint8_t wire[PIER_REMOTE_VEC_WIRE_MAX];
	int length = pier_remote_vec_pack(parts, count, wire, sizeof(wire));

	return length < 0 ? length
			  : pier_wire_to_text(vec_text_prefix, wire, (size_t)length,
					      ret_text, size);
}

int pier_remote_vec_from_text(const char *text, struct pier_remote *ret_parts,
			      uint32_t capacity, uint32_t *ret_count)
{
	PIER_REFUSE_NULL(text, ret_count);
	PIER_REFUSE_NULL_ARRAY(ret_parts, capacity);
	uint8_t wire[PIER_REMOTE_VEC_WIRE_MAX];
	size_t length;
	int error = pier_wire_from_text(vec_text_prefix, text, wire, sizeof(wire),
					&length);

	return error ? error
		     : pier_remote_vec_unpack(wire, length, ret_parts, capacity,
					      ret_count);
}
