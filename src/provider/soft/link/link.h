/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_LINK_H
#define PIER_SOFT_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "frame.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"

/*
 * The byte stream between two ends, and the frames on it. Nothing here knows queue pairs.
 * With the engine locked.
 */

struct soft_ring;
struct soft_seal;

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

/* What a link knows of the queue pair whose it is. */
struct soft_end {
	struct soft_work work;
	struct ibv_pd *pd;
	const struct ibv_qp_attr *attr; /* its rights, and its peer */
	uint32_t qpn;
};

struct soft_link {
	struct soft_end *end;
	int rx_fd, tx_fd;	/* differ if a queue pair talks to itself */
	struct soft_ring *ring; /* carries the frames; NULL: the fds do */
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
