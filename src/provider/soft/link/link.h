/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_LINK_H
#define PIER_SOFT_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "frame.h"
#include "provider/soft/limits.h"

/* The byte stream between two queue pairs, and the frames on their way. */

struct soft_lane;
struct soft_qp;
struct soft_seal;

/* A READ or an atomic operation whose response is to be sent. */
struct soft_read {
	uint8_t opcode; /* of the response */
	uint32_t msn, length, key;
	uint64_t address;
	uint64_t word; /* of an atomic operation: what was there before it */
};

enum soft_source {
	SOFT_FROM_NOWHERE, /* header only */
	SOFT_FROM_FRAME,   /* its own words */
	SOFT_FROM_SEND,	   /* the elements of a send request */
	SOFT_FROM_REGION   /* what a peer reads */
};

struct soft_staged {
	uint8_t header[SOFT_HEADER_SIZE];
	enum soft_source source;
	bool request;
	bool stale; /* sent before an RNR NAK; will be sent again */
	uint64_t position;
	struct soft_read read;
	uint8_t words[SOFT_OPERANDS_SIZE];
	uint32_t length;
};

enum soft_target {
	SOFT_TO_NOWHERE,
	SOFT_TO_REGION,
	SOFT_TO_RECV,
	SOFT_TO_WORDS, /* the link's own: operands */
	SOFT_TO_READER /* the elements of our own READ or atomic operation */
};

struct soft_link {
	int rx_fd, tx_fd;	/* the same, but where a queue pair talks to itself */
	struct soft_lane *lane; /* frames go by shared memory; NULL: by the fds */
	struct soft_seal *seal; /* and encrypted; NULL: the link is not sealed */
	uint64_t serial;	/* tells a late epoll event from one of this link */
	bool readable, writable, hung_up;
	bool closing;	/* say the last words, then close */
	bool shut;	/* they are said */
	bool tx_broken; /* a frame that began cannot be finished, or the peer is gone */
	bool answers_first;
	uint64_t closing_deadline;

	uint8_t header_bytes[SOFT_HEADER_SIZE];
	uint32_t header_have;
	bool in_payload;
	struct soft_header header;
	enum soft_target target;
	bool ignored; /* a request that will come again */
	uint32_t payload_done;
	uint8_t words[SOFT_OPERANDS_SIZE];

	struct soft_staged staged[SOFT_MAX_STAGED];
	uint32_t first_staged, staged_count;
	uint64_t sent_of_first;
};

/* An authenticated stream for a queue pair that does not want it yet. */
struct soft_parked {
	int fd;	   /* -1: none */
	int tx_fd; /* the same, but where a queue pair talks to itself */
	struct soft_lane *lane;
	union ibv_gid gid;
	uint32_t qpn;
	bool proven; /* that the peer is who it says it is: always if we called */
	uint8_t transcript[SOFT_MAC_SIZE];
	bool sealed;
	uint8_t agreed[SOFT_SHARE_SIZE]; /* of a sealed link */
	uint8_t proof[SOFT_MAC_SIZE];
};

/* transmit.c, receive.c, link.c; with the engine locked */
struct soft_staged *pier_soft_stage(struct soft_qp *qp, const struct soft_header *header);
/* One turn; whether the next can go on at once. */
bool pier_soft_transmit(struct soft_qp *qp);
void pier_soft_say_goodbye(struct soft_qp *qp);
void pier_soft_receive(struct soft_qp *qp);
void pier_soft_lose_link(struct soft_qp *qp);
bool pier_soft_link_open(const struct soft_link *link);
/* Consumes the fds, the lane and the seal, also when it fails. */
int pier_soft_attach_link(struct soft_qp *qp, int rx_fd, int tx_fd,
			  struct soft_lane *lane, struct soft_seal *seal);
void pier_soft_close_link(struct soft_qp *qp);
/* For an event about what is there already; false: the socket cannot be watched. */
bool pier_soft_watch_again(struct soft_qp *qp);
/* Closes the socket in other processes as well. Takes -1. */
void pier_soft_hang_up(int fd);
void pier_soft_park(struct soft_qp *qp, const struct soft_parked *parked);
void pier_soft_unpark(struct soft_qp *qp);
/* Whether a live stream from that peer is parked. */
bool pier_soft_has_parked(const struct soft_qp *qp, const union ibv_gid *gid,
			  uint32_t qpn);
/* Takes the parked stream if it comes from the peer that this QP is set to. */
void pier_soft_adopt_parked(struct soft_qp *qp);

#endif
