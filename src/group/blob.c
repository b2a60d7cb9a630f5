/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "blob.h"
#include "core/error.h"
#include "core/wire.h"

/* The wire form: see docs/wire.md. */
enum {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_LENGTH = 6,
	AT_SIZE = 8,
	AT_FROM = 12,
	AT_TO = 16,
	AT_CHANNEL_LENGTH = 20,
	AT_CONTROL_LENGTH = 22,
	AT_CHANNEL = 24,
	AT_CONTROL = AT_CHANNEL + PIER_ENDPOINT_WIRE_MAX,
	WIRE_VERSION = 1,
};

static const uint8_t magic[4] = { 'P', 'I', 'E', 'G' };

_Static_assert((int)AT_CONTROL + PIER_ENDPOINT_WIRE_MAX == PIER_GROUP_BLOB_SIZE,
	       "two of the longest endpoints fit");

/* Returns its length. */
static int pack_endpoint(const struct pier_endpoint *endpoint, uint8_t *wire)
{
	return pier_endpoint_pack(endpoint, wire, PIER_ENDPOINT_WIRE_MAX);
}

int pier_group_pack_blob(const struct pier_group_blob *blob,
			 uint8_t ret_wire[PIER_GROUP_BLOB_SIZE])
{
	uint8_t wire[PIER_GROUP_BLOB_SIZE] = { 0 };
	int channel = pack_endpoint(&blob->channel, wire + AT_CHANNEL);
	int control = pack_endpoint(&blob->control, wire + AT_CONTROL);

	if (channel < 0 || control < 0)
		return channel < 0 ? channel : control;
	memcpy(wire + AT_MAGIC, magic, sizeof(magic));
	pier_put_le16(wire + AT_VERSION, WIRE_VERSION);
	pier_put_le16(wire + AT_LENGTH, PIER_GROUP_BLOB_SIZE);
	pier_put_le32(wire + AT_SIZE, blob->size);
	pier_put_le32(wire + AT_FROM, blob->from);
	pier_put_le32(wire + AT_TO, blob->to);
	pier_put_le16(wire + AT_CHANNEL_LENGTH, (uint16_t)channel);
	pier_put_le16(wire + AT_CONTROL_LENGTH, (uint16_t)control);
	memcpy(ret_wire, wire, sizeof(wire));
	return 0;
}

/* One of the two endpoints, followed by zeros. */
static int unpack_endpoint(const uint8_t *wire, uint16_t length,
			   struct pier_endpoint *ret_endpoint)
{
	static const uint8_t zeros[PIER_ENDPOINT_WIRE_MAX];
	int error;

	if (length > PIER_ENDPOINT_WIRE_MAX)
		return pier_fail(EBADMSG,
				 "group blob: an endpoint of %u bytes; %d are possible",
				 length, PIER_ENDPOINT_WIRE_MAX);
	if (memcmp(wire + length, zeros, (size_t)PIER_ENDPOINT_WIRE_MAX - length) != 0)
		return pier_fail(EBADMSG,
				 "group blob: the bytes behind an endpoint of %u bytes "
				 "are not zero",
				 length);
	error = pier_endpoint_unpack(wire, length, ret_endpoint);
	/* The length is from the blob, so a wrong one makes the blob invalid. */
	return error == -EMSGSIZE ? -EBADMSG : error;
}

static int check_header(const uint8_t *wire)
{
	if (memcmp(wire, magic, sizeof(magic)) != 0)
		return pier_fail(EBADMSG,
				 "not a group blob: it does not begin with \"PIEG\"");
	if (pier_get_le16(wire + AT_VERSION) != WIRE_VERSION)
		return pier_fail(EPROTONOSUPPORT,
				 "group blob of version %u; this library knows version "
				 "%d",
				 pier_get_le16(wire + AT_VERSION), WIRE_VERSION);
	if (pier_get_le16(wire + AT_LENGTH) != PIER_GROUP_BLOB_SIZE)
		return pier_fail(EBADMSG, "group blob: its header says %u bytes",
				 pier_get_le16(wire + AT_LENGTH));
	return 0;
}

int pier_group_unpack_blob(const uint8_t wire[PIER_GROUP_BLOB_SIZE],
			   struct pier_group_blob *ret_blob)
{
	struct pier_group_blob blob = { 0 };
	int error = check_header(wire);

	if (error)
		return error;
	blob.size = pier_get_le32(wire + AT_SIZE);
	blob.from = pier_get_le32(wire + AT_FROM);
	blob.to = pier_get_le32(wire + AT_TO);
	if (blob.size > PIER_GROUP_MAX || blob.from >= blob.size ||
	    blob.to >= blob.size || blob.from == blob.to)
		return pier_fail(EBADMSG,
				 "group blob: from rank %u to rank %u in a group of %u",
				 blob.from, blob.to, blob.size);
	error = unpack_endpoint(wire + AT_CHANNEL,
				pier_get_le16(wire + AT_CHANNEL_LENGTH), &blob.channel);
	if (!error)
		error = unpack_endpoint(wire + AT_CONTROL,
					pier_get_le16(wire + AT_CONTROL_LENGTH),
					&blob.control);
	if (error)
		return error;
	*ret_blob = blob;
	return 0;
}
