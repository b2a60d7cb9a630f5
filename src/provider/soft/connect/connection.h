/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CONNECTION_H
#define PIER_SOFT_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "node.h"
#include "provider/soft/limits.h"

/*
 * An authenticated stream whose queue pair is not ready for it: it becomes the link when
 * the queue pair goes to RTR. With the engine locked.
 */

struct soft_end;
struct soft_link;
struct soft_ring;

struct soft_early_stream {
	int fd;	   /* -1: none */
	int tx_fd; /* differs if a queue pair talks to itself */
	struct soft_ring *ring;
	union ibv_gid gid;
	uint32_t qpn;
	bool proven; /* the peer is authenticated: always if this end called */
	uint8_t transcript[SOFT_MAC_SIZE];
	bool sealed;
	uint8_t agreed[SOFT_SHARE_SIZE]; /* of a sealed link */
	uint8_t proof[SOFT_MAC_SIZE];
};

/* How a queue pair and its peer find each other. */
struct soft_connection {
	struct soft_node *node;
	struct soft_end *end; /* of the queue pair */
	struct soft_link *link;
	uint8_t secret[SOFT_SECRET_SIZE];
	bool has_peer_address;
	struct soft_address peer_address;
	struct soft_early_stream early;
};

/* NULL: there is none. */
struct soft_connection *pier_soft_find_connection(const struct soft_node *node,
						  uint32_t qpn);

/* Consumes the fds and the ring, and replaces an earlier stream. */
void pier_soft_store_stream(struct soft_connection *connection,
			    const struct soft_early_stream *stream);

void pier_soft_discard_stream(struct soft_connection *connection);

/* Closes a stream that was not stored. */
void pier_soft_free_stream(struct soft_early_stream *stream);

/* Whether there is a live stream from that peer. */
bool pier_soft_has_stream(const struct soft_connection *connection,
			  const union ibv_gid *gid, uint32_t qpn);

/*
 * Makes the stream the link of a queue pair that wants one and has not exchanged anything
 * yet. False: there is no stream, or none from the peer that the queue pair is set to.
 */
bool pier_soft_adopt_stream(struct soft_connection *connection);

#endif
