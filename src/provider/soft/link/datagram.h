/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DATAGRAM_H
#define PIER_SOFT_DATAGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * What UD queue pairs send: an envelope, and a global route header (GRH), which the
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

enum {
	SOFT_DATAGRAM_SOLICITED = 1,
	SOFT_DATAGRAM_IMMEDIATE = 2
};

/* `bytes` below: SOFT_ENVELOPE_SIZE of them. */
void pier_soft_pack_envelope(const struct soft_envelope *envelope, uint8_t *ret_bytes);
/* False: not an envelope of this protocol. */
bool pier_soft_unpack_envelope(const uint8_t *bytes, struct soft_envelope *ret_envelope);
/* The GRH of a RoCE v2 packet with IPv6 addresses, which is its IPv6 header. */
struct ibv_grh pier_soft_make_grh(const struct ibv_global_route *route,
				  const union ibv_gid *from, size_t payload,
				  bool immediate);

#endif
