/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_FRAME_H
#define PIER_SOFT_FRAME_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Frames: what the two ends of a link send over its stream. A frame is a header of fixed
 * size, little-endian, and for some opcodes `length` bytes of payload.
 */

enum {
	SOFT_HEADER_SIZE = 32,
	/* A message of 2^31 bytes, the limit of real NICs, would not fit the field. */
	SOFT_MAX_MESSAGE = 1 << 30,
	/* The word of an atomic operation, and its two operands. */
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
	SOFT_SEND_INV,	   /* and invalidates the key */
	/* Responses; the msn names a request. */
	SOFT_ACK = 16,	      /* all requests before msn are done */
	SOFT_NAK,	      /* the same, and msn is refused */
	SOFT_READ_RESPONSE,   /* all requests up to msn are done */
	SOFT_ATOMIC_RESPONSE, /* the same; its payload is the value before */
	/*
	 * On a shared ring, by the requester: requests before msn are done and need no
	 * answer.
	 */
	SOFT_SKIP = 32
};

enum soft_syndrome {
	SOFT_NO_NAK,
	SOFT_NAK_RNR, /* no receive is posted: try again after `timer` */
	SOFT_NAK_INVALID_REQUEST,
	SOFT_NAK_ACCESS,
	SOFT_NAK_OPERATION,
	SOFT_NAK_LAST = SOFT_NAK_OPERATION
};

enum {
	SOFT_FLAG_SOLICITED = 1,
	SOFT_FLAG_COPIED = 2 /* on a shared ring: the payload was copied directly */
};

struct soft_header {
	uint8_t opcode;
	uint8_t flags;
	uint8_t syndrome;
	uint8_t timer; /* of an RNR NAK, in the encoding of min_rnr_timer */
	uint32_t msn;
	uint32_t length; /* of the payload, or of the memory of a READ or an atomic */
	uint32_t key;
	uint64_t address;
	uint32_t immediate; /* network byte order, as in ibv_send_wr */
};

/* `bytes` below: SOFT_HEADER_SIZE of them. */
void pier_soft_pack_header(const struct soft_header *header, uint8_t *ret_bytes);

/*
 * False: not a header of this protocol: an unknown opcode, flag or syndrome, a length
 * above the limit or where none is allowed, or reserved bytes that are not 0.
 */
bool pier_soft_unpack_header(const uint8_t *bytes, struct soft_header *ret_header);

bool pier_soft_is_atomic(uint8_t opcode);

/* How many bytes of payload follow the header. */
uint32_t pier_soft_payload_length(const struct soft_header *header);

#endif
