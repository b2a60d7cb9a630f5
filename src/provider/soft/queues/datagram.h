/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DATAGRAM_H
#define PIER_SOFT_DATAGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * UD queue pairs. A datagram has an envelope and a global route header (GRH), which the
 * receiver finds in front of the payload (IBTA 11.4.1.2).
 */

enum {
	SOFT_ENVELOPE_SIZE = 24,
	SOFT_GRH_SIZE = 40, /* sizeof(struct ibv_grh) */
	SOFT_DATAGRAM_MTU = 4096
};

struct soft_envelope {
	uint8_t flags; /* SOFT_DATAGRAM_... */
	uint32_t from_qpn, to_qpn, qkey;
	uint32_t immediate; /* network byte order, as in ibv_send_wr */
};

/* `bytes` below: SOFT_ENVELOPE_SIZE of them. */
void pier_soft_pack_envelope(const struct soft_envelope *envelope, uint8_t *ret_bytes);

/* False: not an envelope of this protocol. */
bool pier_soft_unpack_envelope(const uint8_t *bytes, struct soft_envelope *ret_envelope);

struct soft_qp;

/* Checks a path to a peer, of a queue pair or an address handle. */
int pier_soft_check_path(const struct ibv_ah_attr *path);

/*
 * As ibv_create_ah(3). NULL: errno, with a sentence; EHOSTUNREACH: no process of this
 * user on this host has that GID.
 */
struct ibv_ah *pier_soft_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);

int pier_soft_destroy_ah(struct ibv_ah *ah);

/* Whether a UD queue pair can send this. 0 or -errno with a sentence. */
int pier_soft_check_datagram(const struct soft_qp *qp, const struct ibv_send_wr *wr);

/* Copies what the address handle says, which the caller may destroy after posting. */
void pier_soft_store_destination(struct soft_qp *qp, uint64_t position,
				 const struct ibv_send_wr *wr);

/* Sends what is posted. With the engine locked. */
void pier_soft_send_datagrams(struct soft_qp *qp);

/*
 * Sends what was posted before the queue pair is destroyed. Hardware sends a datagram
 * at once and so has none left then; here some may still wait for room at the
 * receiver. It waits for 0.2 s at most. With the engine locked, which it unlocks
 * while it waits.
 */
void pier_soft_drain_datagrams(struct soft_qp *qp);

struct soft_context;

/* Takes datagrams for the UD queue pairs of the context. With the engine locked. */
void pier_soft_receive_datagrams(struct soft_context *context);

#endif
