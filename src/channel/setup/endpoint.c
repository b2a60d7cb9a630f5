/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "core/error.h"
#include "core/text.h"
#include "core/wire.h"
#include "endpoint.h"

/* The wire form: see docs/wire.md. */
enum {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_LENGTH = 6,
	AT_QPN = 8,
	AT_PSN = 12,
	AT_MTU = 16,
	AT_GENERATION = 20,
	AT_LID = 24,
	AT_LINK_LAYER = 26,
	AT_MAX_RD_ATOMIC = 27,
	AT_GID = 28,
	AT_ADDRESS_LENGTH = 44,
	AT_ADDRESS = 46,
	WIRE_VERSION = 1,
	NUMBER_24_BITS = 0xffffff,
};

static const uint8_t magic[4] = { 'P', 'I', 'E', 'P' };

static const char text_prefix[] = "pier-endpoint:";

_Static_assert((int)AT_ADDRESS + PIER_ENDPOINT_ADDRESS_MAX <= PIER_ENDPOINT_WIRE_MAX,
	       "the longest endpoint fits");

int pier_check_endpoint(const struct pier_endpoint *endpoint, int error)
{
	if (endpoint->qpn > NUMBER_24_BITS)
		return pier_fail(error, "endpoint: qpn %#x is longer than 24 bits",
				 endpoint->qpn);
	if (endpoint->psn > NUMBER_24_BITS)
		return pier_fail(error, "endpoint: psn %#x is longer than 24 bits",
				 endpoint->psn);
	if (endpoint->mtu != 0 && !pier_mtu_valid(endpoint->mtu))
		return pier_fail(error,
				 "endpoint: mtu %u is not 256, 512, 1024, 2048, 4096 or "
				 "0 (unknown)",
				 endpoint->mtu);
	if ((unsigned int)endpoint->link_layer > PIER_LINK_ETHERNET)
		return pier_fail(error, "endpoint: link layer %u is unknown",
				 (unsigned int)endpoint->link_layer);
	if (endpoint->address_length > PIER_ENDPOINT_ADDRESS_MAX)
		return pier_fail(error,
				 "endpoint: address of %u bytes; at most %d are possible",
				 endpoint->address_length, PIER_ENDPOINT_ADDRESS_MAX);
	return 0;
}

int pier_endpoint_pack(const struct pier_endpoint *endpoint, void *ret_wire, size_t size)
{
	PIER_REFUSE_NULL(endpoint);
	PIER_REFUSE_NULL_ARRAY(ret_wire, size);
	uint8_t *wire = ret_wire;
	int error = pier_check_endpoint(endpoint, EINVAL);
	size_t length;

	if (error)
		return error;
	length = (size_t)AT_ADDRESS + endpoint->address_length;
	if (size < length)
		return pier_fail(ENOSPC, "endpoint: %zu bytes are needed, %zu are there",
				 length, size);
	memcpy(wire + AT_MAGIC, magic, sizeof(magic));
	pier_put_le16(wire + AT_VERSION, WIRE_VERSION);
	pier_put_le16(wire + AT_LENGTH, (uint16_t)length);
	pier_put_le32(wire + AT_QPN, endpoint->qpn);
	pier_put_le32(wire + AT_PSN, endpoint->psn);
	pier_put_le32(wire + AT_MTU, endpoint->mtu);
	pier_put_le32(wire + AT_GENERATION, endpoint->generation);
	pier_put_le16(wire + AT_LID, endpoint->lid);
	wire[AT_LINK_LAYER] = (uint8_t)endpoint->link_layer;
	wire[AT_MAX_RD_ATOMIC] = endpoint->max_rd_atomic;
	memcpy(wire + AT_GID, endpoint->gid, sizeof(endpoint->gid));
	pier_put_le16(wire + AT_ADDRESS_LENGTH, endpoint->address_length);
	memcpy(wire + AT_ADDRESS, endpoint->address, endpoint->address_length);
	return (int)length;
}

/* Magic, version and length, which have the same place in every version. */
static int check_header(const uint8_t *wire, size_t size)
{
	size_t length;

	if (size >= sizeof(magic) && memcmp(wire, magic, sizeof(magic)) != 0)
		return pier_fail(EBADMSG,
				 "not an endpoint: it does not begin with \"PIEP\"");
	if (size < (size_t)AT_QPN)
		return pier_fail(EMSGSIZE, "endpoint: cut off after %zu bytes", size);
	if (pier_get_le16(wire + AT_VERSION) != WIRE_VERSION)
		return pier_fail(EPROTONOSUPPORT,
				 "endpoint of version %u; this library knows version %d",
				 pier_get_le16(wire + AT_VERSION), WIRE_VERSION);
	length = pier_get_le16(wire + AT_LENGTH);
	if (size != length)
		return pier_fail(EMSGSIZE,
				 "endpoint: its header says %zu bytes, %zu are there",
				 length, size);
	if (length < (size_t)AT_ADDRESS ||
	    pier_get_le16(wire + AT_ADDRESS_LENGTH) != length - (size_t)AT_ADDRESS)
		return pier_fail(EBADMSG,
				 "endpoint: the address does not end where the "
				 "endpoint does (%zu bytes)",
				 length);
	return 0;
}

int pier_endpoint_unpack(const void *wire, size_t size,
			 struct pier_endpoint *ret_endpoint)
{
	PIER_REFUSE_NULL(ret_endpoint);
	PIER_REFUSE_NULL_ARRAY(wire, size);
	const uint8_t *bytes = wire;
	int error = check_header(bytes, size);
	struct pier_endpoint endpoint = { 0 };

	if (error)
		return error;
	endpoint.qpn = pier_get_le32(bytes + AT_QPN);
	endpoint.psn = pier_get_le32(bytes + AT_PSN);
	endpoint.mtu = pier_get_le32(bytes + AT_MTU);
	endpoint.generation = pier_get_le32(bytes + AT_GENERATION);
	endpoint.lid = pier_get_le16(bytes + AT_LID);
	endpoint.link_layer = (enum pier_link_layer)bytes[AT_LINK_LAYER];
	endpoint.max_rd_atomic = bytes[AT_MAX_RD_ATOMIC];
	memcpy(endpoint.gid, bytes + AT_GID, sizeof(endpoint.gid));
	endpoint.address_length = pier_get_le16(bytes + AT_ADDRESS_LENGTH);
	error = pier_check_endpoint(&endpoint, EBADMSG);
	if (error)
		return error;
	memcpy(endpoint.address, bytes + AT_ADDRESS, endpoint.address_length);
	*ret_endpoint = endpoint;
	return 0;
}

int pier_endpoint_to_text(const struct pier_endpoint *endpoint, char *ret_text,
			  size_t size)
{
	PIER_REFUSE_NULL(endpoint);
	PIER_REFUSE_NULL_ARRAY(ret_text, size);
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];
	int length = pier_endpoint_pack(endpoint, wire, sizeof(wire));

	if (length < 0)
		return length;
	return pier_wire_to_text(text_prefix, wire, (size_t)length, ret_text, size);
}

int pier_endpoint_from_text(const char *text, struct pier_endpoint *ret_endpoint)
{
	PIER_REFUSE_NULL(text, ret_endpoint);
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];
	size_t length;
	int error = pier_wire_from_text(text_prefix, text, wire, sizeof(wire), &length);

	return error ? error : pier_endpoint_unpack(wire, length, ret_endpoint);
}

bool pier_mtu_valid(uint32_t bytes)
{
	return bytes >= 256 && bytes <= 4096 && (bytes & (bytes - 1)) == 0;
}

/* enum ibv_mtu counts doublings: IBV_MTU_256 is 1, IBV_MTU_4096 is 5. */
_Static_assert(IBV_MTU_256 == 1 && IBV_MTU_4096 == 5, "128 << mtu is its size");

enum ibv_mtu pier_mtu_to_verbs(uint32_t bytes)
{
	return (enum ibv_mtu)(__builtin_ctz(bytes) - 7);
}

uint32_t pier_mtu_from_verbs(enum ibv_mtu mtu)
{
	if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096)
		return 0;
	return UINT32_C(128) << mtu;
}

uint32_t pier_clamp_mtu(uint32_t wanted, uint32_t limit)
{
	if (wanted == 0 || (limit != 0 && limit < wanted))
		return limit;
	return wanted;
}
