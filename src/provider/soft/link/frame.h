/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_FRAME_H
#define PIER_SOFT_FRAME_H

#include <stdbool.h>
#include <stdint.h>

/*
 * What two soft NICs say to each other over a stream: a header of fixed size,
 * little-endian, and for some opcodes `length` bytes of payload behind it.
 */

enum {
	SOFT_HEADER_SIZE = 32,
	/* Larger than any message of a real NIC (2^31) would not fit the field. */
	SOFT_MAX_MESSAGE = 1 << 30,
	/* What an atomic operation changes, and two operands; 64 bits, little-endian. */
	SOFT_WORD_SIZE = 8,
	SOFT_OPERANDS_SIZE = 2 * SOFT_WORD_SIZE
};

enum soft_opcode {
	/* Requests; the msn counts them. */
	SOFT_SEND = 1,
	SOFT_SEND_IMM,
	SOFT_WRITE,
	SOFT_WRITE_IMM,
	SOFT_READ,
	SOFT_COMPARE_SWAP, /* the operands are its payload: compare, swap */
	SOFT_FETCH_ADD,	   /* add, 0 */
	SOFT_SEND_INV,	   /* of the key */
	/* Responses; the msn names a request. */
	SOFT_ACK = 16,	      /* every request before msn is done */
	SOFT_NAK,	      /* the same, and msn was refused */
	SOFT_READ_RESPONSE,   /* every request up to msn is done */
	SOFT_ATOMIC_RESPONSE, /* the same; its payload is what the word was */
	/* On a ring, of the requester: those before msn are done, and need no answer. */
	SOFT_SKIP = 32
};

enum soft_syndrome {
	SOFT_NO_NAK,
	SOFT_NAK_RNR, /* no receive posted: try again after `timer` */
	SOFT_NAK_INVALID_REQUEST,
	SOFT_NAK_ACCESS,
	SOFT_NAK_OPERATION,
	SOFT_NAK_LAST = SOFT_NAK_OPERATION
};

enum {
	SOFT_FLAG_SOLICITED = 1,
	SOFT_FLAG_COPIED = 2 /* on a lane: the bytes are where they belong already */
};

struct soft_header {
	uint8_t opcode;
	uint8_t flags;
	uint8_t syndrome;
	uint8_t timer; /* of an RNR NAK, in the encoding of min_rnr_timer */
	uint32_t msn;
	uint32_t length; /* of the payload, or of what a READ or an atomic reaches */
	uint32_t key;
	uint64_t address;
	uint32_t immediate; /* network byte order, as in ibv_send_wr */
};

/* `bytes` below: SOFT_HEADER_SIZE of them. */
void pier_soft_pack_header(const struct soft_header *header, uint8_t *ret_bytes);

/*
 * False when the bytes are no header of this protocol: unknown opcode, flag or
 * syndrome, a length beyond the limit or where none belongs, reserved bytes.
 */
bool pier_soft_unpack_header(const uint8_t *bytes, struct soft_header *ret_header);

bool pier_soft_is_atomic(uint8_t opcode);

/* How many bytes follow this header on the stream. */
uint32_t pier_soft_payload_length(const struct soft_header *header);

#endif
