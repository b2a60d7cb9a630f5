/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_LINK_H
#define PIER_SOFT_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "provider/soft/engine.h"
#include "provider/soft/limits.h"

/*
 * The byte stream between two ends, and what they send to each other. Nothing here knows
 * queue pairs. With the engine locked.
 */

struct soft_link;
struct soft_fifo;
struct soft_seal;

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
	 * On a shared FIFO, by the requester: requests before msn are done and need no
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
	SOFT_FLAG_COPIED = 2 /* on a shared FIFO: the payload was copied directly */
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

/*
 * Control messages: what the two ends of a shared FIFO send over their socket. All fields
 * are little-endian. The first byte is the type:
 *
 *	wake	 1 byte
 *	request	 type, 1 if this end can copy by address, 2 zeros, key (4)
 *	returned type, 3 zeros, slot (4), serial (4)
 *	revoked	 the same
 *	grant	 type, fds, 1 if writes are counted, 1 if there will never be one,
 *		 key, slot, serial (4 each), rights (4; of IBV_ACCESS_REMOTE_*),
 *		 segments (4), iova (8), where the giver has mapped the shared memory
 *		 (8; 0: fds follow); for each segment its offset in the fd, or its
 *		 address in the giver, length (8 each), fd (4), 4 zeros; the fds come
 *		 with the first byte
 */

enum soft_control_type {
	SOFT_CONTROL_WAKE = 1,
	SOFT_CONTROL_REQUEST,
	SOFT_CONTROL_RETURNED,
	SOFT_CONTROL_REVOKED,
	SOFT_CONTROL_GRANT
};

enum {
	SOFT_CONTROL_REQUEST_SIZE = 8,
	SOFT_CONTROL_SERIAL_SIZE = 12,
	SOFT_CONTROL_GRANT_SIZE = 40,
	SOFT_CONTROL_SEGMENT_SIZE = 24,
	/* Of one grant, each with its own fd. */
	SOFT_GRANT_SEGMENTS = 64,
	/* The longest message. */
	SOFT_MAX_CONTROL = SOFT_CONTROL_GRANT_SIZE +
			   SOFT_GRANT_SEGMENTS * SOFT_CONTROL_SEGMENT_SIZE
};

struct soft_grant_message {
	uint32_t key, slot, serial;
	uint64_t iova;
	bool counted; /* the owner counts writes, so it needs a header for each */
	bool never;   /* denied for good */
	uint32_t rights;
	uint64_t shared_memory; /* of the giver; 0: the segments are in fds */
	uint32_t count;		/* of segments; 0: denied */
	uint32_t fd_count;
	struct {
		uint64_t offset, length; /* in the fd, or the address in the giver */
		uint32_t fd;		 /* index */
	} segments[SOFT_GRANT_SEGMENTS];
};

/*
 * Sends bytes on a Unix socket without waiting, and with them up to SOFT_GRANT_SEGMENTS
 * fds. False: not all of it was sent.
 */
bool pier_soft_send_with_fds(int fd, void *bytes, size_t length, const int *fds,
			     uint32_t count);
void pier_soft_send_wake(const struct soft_link *link);
bool pier_soft_send_grant_request(const struct soft_link *link, uint32_t key,
				  bool by_address);
bool pier_soft_send_grant(const struct soft_link *link,
			  const struct soft_grant_message *grant, const int *fds);

/*
 * SOFT_CONTROL_RETURNED, by the receiver of a grant, which needs it no more; or
 * SOFT_CONTROL_REVOKED, by the giver.
 */
void pier_soft_send_serial(const struct soft_link *link, enum soft_control_type type,
			   uint32_t slot, uint32_t serial);

/* A READ or an atomic operation whose response is to be sent. */
struct soft_read {
	uint8_t opcode; /* of the response */
	uint32_t msn, length, key;
	uint64_t address;
	uint64_t word; /* of an atomic operation: the value before it */
};

enum soft_source {
	SOFT_FROM_NOWHERE, /* header only */
	SOFT_FROM_FRAME,   /* its own payload */
	SOFT_FROM_SEND,	   /* the elements of a send request */
	SOFT_FROM_REGION   /* memory that the peer reads */
};

struct soft_frame {
	uint8_t header[SOFT_HEADER_SIZE];
	enum soft_source source;
	bool request;
	bool stale; /* sent before an RNR NAK, to be sent again */
	uint64_t position;
	struct soft_read read;
	uint8_t payload[SOFT_OPERANDS_SIZE];
	uint32_t length;
};

enum soft_target {
	SOFT_TO_NOWHERE,
	SOFT_TO_REGION,
	SOFT_TO_RECV,
	SOFT_TO_OPERANDS, /* the link's own memory */
	SOFT_TO_READER	  /* the elements of our own READ or atomic operation */
};

/* The part of a queue pair that link/ and connect/ know. */
struct soft_end {
	struct soft_work work;
	struct ibv_pd *pd;
	const struct ibv_qp_attr *attr; /* its rights, and its peer */
	uint32_t qpn;
	bool counted; /* all writes of the peer: none may be silent */
};

struct soft_link {
	struct soft_end *end;
	int rx_fd, tx_fd;	/* differ if a queue pair talks to itself */
	struct soft_fifo *fifo; /* carries the frames; NULL: the fds do */
	struct soft_seal *seal; /* and encrypted; NULL: the link is not sealed */
	uint64_t serial;	/* in epoll events, to ignore late ones of another link */
	bool readable, writable, hung_up;
	bool closing;	/* send the last answers, then close */
	bool shut;	/* they are sent */
	bool tx_broken; /* a frame cannot be finished, or the peer is gone */
	bool answers_first;
	uint64_t closing_deadline;

	uint8_t header_bytes[SOFT_HEADER_SIZE];
	uint32_t header_have;
	bool in_payload;
	struct soft_header header;
	enum soft_target target;
	bool ignored; /* a request that the peer sends again */
	uint32_t payload_done;
	uint8_t operands[SOFT_OPERANDS_SIZE];

	struct soft_frame frames[SOFT_MAX_FRAMES];
	uint32_t first_frame, frame_count;
	uint64_t sent_of_first;
};

static inline bool pier_soft_link_open(const struct soft_link *link)
{
	return link->rx_fd >= 0;
}

static inline struct soft_engine *soft_engine_of(const struct soft_link *link)
{
	return link->end->work.engine;
}

static inline struct soft_frame *pier_soft_frame_at(struct soft_link *link,
						    uint32_t index)
{
	return &link->frames[(link->first_frame + index) % SOFT_MAX_FRAMES];
}

/* Appends a frame that is a header only; the caller adds where its payload comes from. */
struct soft_frame *pier_soft_queue_frame(struct soft_link *link,
					 const struct soft_header *header);

/* Drops requests that have not begun; answers stay. */
void pier_soft_drop_queued_requests(struct soft_link *link);

#endif
