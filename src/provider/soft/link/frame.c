/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "frame.h"
#include "core/wire.h"

void pier_soft_pack_header(const struct soft_header *header, uint8_t *ret_bytes)
{
	ret_bytes[0] = header->opcode;
	ret_bytes[1] = header->flags;
	ret_bytes[2] = header->syndrome;
	ret_bytes[3] = header->timer;
	pier_put_le32(ret_bytes + 4, header->msn);
	pier_put_le32(ret_bytes + 8, header->length);
	pier_put_le32(ret_bytes + 12, header->key);
	pier_put_le64(ret_bytes + 16, header->address);
	/* In network order already: copied unchanged. */
	memcpy(ret_bytes + 24, &header->immediate, sizeof(header->immediate));
	pier_put_le32(ret_bytes + 28, 0);
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
	if (header->flags & ~(SOFT_FLAG_SOLICITED | SOFT_FLAG_COPIED))
		return false;
	if ((header->flags & SOFT_FLAG_COPIED) && header->opcode != SOFT_WRITE &&
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
		.msn = pier_get_le32(bytes + 4),
		.length = pier_get_le32(bytes + 8),
		.key = pier_get_le32(bytes + 12),
		.address = pier_get_le64(bytes + 16),
	};

	memcpy(&header.immediate, bytes + 24, sizeof(header.immediate));
	if (pier_get_le32(bytes + 28) != 0 || !is_plausible(&header))
		return false;
	*ret_header = header;
	return true;
}

uint32_t pier_soft_payload_length(const struct soft_header *header)
{
	if (header->opcode == SOFT_READ || (header->flags & SOFT_FLAG_COPIED))
		return 0;
	return pier_soft_is_atomic(header->opcode) ? SOFT_OPERANDS_SIZE : header->length;
}
