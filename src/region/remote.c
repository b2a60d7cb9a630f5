/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <pier/remote_vec.h>

#include "mr.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/text.h"
#include "core/wire.h"

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

		pier_mr_part(mr, i, &part);
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
	uint64_t addr, end;

	if (!remote)
		return pier_check_given(remote, "remote");
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

int pier_remote_element(const struct pier_remote *remote, uint64_t index, uint64_t size,
			uint64_t field_offset, uint64_t field_size,
			struct pier_remote *ret_remote)
{
	uint64_t offset;

	if (pier_mul_u64(index, size, &offset) &&
	    pier_add_u64(offset, field_offset, &offset))
		return pier_remote_sub(remote, offset, field_size, ret_remote);
	return pier_fail(ERANGE,
			 "element %" PRIu64 " of %" PRIu64
			 " bytes: the offset overflows 64 bits",
			 index, size);
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
	const uint8_t *bytes = wire;
	struct pier_remote remote;
	uint64_t end;

	if (size != PIER_REMOTE_WIRE_SIZE)
		return pier_fail(EMSGSIZE, "remote region of %zu bytes, not %d", size,
				 PIER_REMOTE_WIRE_SIZE);
	if (!wire)
		return pier_check_given(wire, "wire");
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
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	size_t length;
	int error = pier_wire_from_text(text_prefix, text, wire, sizeof(wire), &length);

	return error ? error : pier_remote_unpack(wire, length, ret_remote);
}
