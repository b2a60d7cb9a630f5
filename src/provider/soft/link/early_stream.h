/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_EARLY_STREAM_H
#define PIER_SOFT_EARLY_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "provider/soft/limits.h"

/*
 * An authenticated stream whose queue pair is not ready for it: it becomes the link when
 * the queue pair goes to RTR. With the engine locked.
 */

struct soft_qp;
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

/* Consumes the fds and the ring, and replaces an earlier stream. */
void pier_soft_store_stream(struct soft_qp *qp, const struct soft_early_stream *stream);
void pier_soft_discard_stream(struct soft_qp *qp);
/* Closes a stream that was not stored. */
void pier_soft_free_stream(struct soft_early_stream *stream);
/* Whether there is a live stream from that peer. */
bool pier_soft_has_stream(const struct soft_qp *qp, const union ibv_gid *gid,
			  uint32_t qpn);
/*
 * Makes the stream the link if the queue pair wants one, has not exchanged anything yet,
 * and the stream comes from the peer that it is set to.
 */
void pier_soft_adopt_stream(struct soft_qp *qp);

#endif
