/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <string.h>

#include "frame.h"

static void put_u32(uint8_t *bytes, uint32_t value)
{
	value = htole32(value);
	memcpy(bytes, &value, sizeof(value));
}

static void put_u64(uint8_t *bytes, uint64_t value)
{
	value = htole64(value);
	memcpy(bytes, &value, sizeof(value));
}

static uint32_t get_u32(const uint8_t *bytes)
{
	uint32_t value;

	memcpy(&value, bytes, sizeof(value));
	return le32toh(value);
}

static uint64_t get_u64(const uint8_t *bytes)
{
	uint64_t value;

	memcpy(&value, bytes, sizeof(value));
	return le64toh(value);
}

void pier_soft_pack_header(const struct soft_header *header, uint8_t *ret_bytes)
{
	ret_bytes[0] = header->opcode;
	ret_bytes[1] = header->flags;
	ret_bytes[2] = header->syndrome;
	ret_bytes[3] = header->timer;
	put_u32(ret_bytes + 4, header->msn);
	put_u32(ret_bytes + 8, header->length);
	put_u32(ret_bytes + 12, header->key);
	put_u64(ret_bytes + 16, header->address);
	/* Already bytes in network order: copied as they lie. */
	memcpy(ret_bytes + 24, &header->immediate, sizeof(header->immediate));
	put_u32(ret_bytes + 28, 0);
}

static bool is_opcode(uint8_t opcode)
{
	return (opcode >= SOFT_SEND && opcode <= SOFT_SEND_INV) ||
	       (opcode >= SOFT_ACK && opcode <= SOFT_ATOMIC_RESPONSE) ||
	       opcode == SOFT_SKIP;
}

bool pier_soft_is_atomic(uint8_t opcode)
{
	return opcode == SOFT_COMPARE_SWAP || opcode == SOFT_FETCH_ADD;
}

static bool is_length(uint8_t opcode, uint32_t length)
{
	if (opcode == SOFT_ACK || opcode == SOFT_NAK || opcode == SOFT_SKIP)
		return length == 0;
	if (pier_soft_is_atomic(opcode) || opcode == SOFT_ATOMIC_RESPONSE)
		return length == SOFT_WORD_SIZE;
	return length <= SOFT_MAX_MESSAGE;
}

static bool is_plausible(const struct soft_header *header)
{
	if (!is_opcode(header->opcode) || !is_length(header->opcode, header->length))
		return false;
	if (header->flags & ~(SOFT_FLAG_SOLICITED | SOFT_FLAG_PLACED))
		return false;
	if ((header->flags & SOFT_FLAG_PLACED) && header->opcode != SOFT_WRITE &&
	    header->opcode != SOFT_WRITE_IMM && header->opcode != SOFT_READ)
		return false;
	if (header->opcode != SOFT_NAK)
		return header->syndrome == 0 && header->timer == 0;
	return header->syndrome >= SOFT_NAK_RNR && header->syndrome <= SOFT_NAK_LAST &&
	       header->timer < 32;
}

bool pier_soft_unpack_header(const uint8_t *bytes, struct soft_header *ret_header)
{
	struct soft_header header = {
		.opcode = bytes[0],
		.flags = bytes[1],
		.syndrome = bytes[2],
		.timer = bytes[3],
		.msn = get_u32(bytes + 4),
		.length = get_u32(bytes + 8),
		.key = get_u32(bytes + 12),
		.address = get_u64(bytes + 16),
	};

	memcpy(&header.immediate, bytes + 24, sizeof(header.immediate));
	if (get_u32(bytes + 28) != 0 || !is_plausible(&header))
		return false;
	*ret_header = header;
	return true;
}

uint32_t pier_soft_payload_length(const struct soft_header *header)
{
	if (header->opcode == SOFT_READ || (header->flags & SOFT_FLAG_PLACED))
		return 0;
	return pier_soft_is_atomic(header->opcode) ? SOFT_OPERANDS_SIZE : header->length;
}
