/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_LIMITS_H
#define PIER_SOFT_LIMITS_H

#include <stdint.h>

enum {
	SOFT_MAX_QP = 4096,
	SOFT_MAX_WR = 16384,
	SOFT_MAX_SGE = 32,
	SOFT_MAX_INLINE = 1024,
	SOFT_MAX_CQE = 1 << 20,
	SOFT_MAX_CQ = 1 << 16,
	SOFT_MAX_PD = 1 << 16,
	SOFT_MAX_SRQ = 1 << 16,
	SOFT_MAX_COMP_COUNTERS = 1 << 16,
	SOFT_MAX_AH = 1 << 20,
	SOFT_MAX_MR = 1 << 20,
	SOFT_MAX_PARTS = 1024,
	/* Bytes of one allocation of the NIC's own memory. */
	SOFT_MAX_DM = 1 << 28,
	/* Keys up to this are for callers that ask for one. */
	SOFT_MAX_KEY = (1 << 16) - 1,
	SOFT_MAX_RD_ATOMIC = 16,
	SOFT_SECRET_SIZE = 16,
	SOFT_MAC_SIZE = 32,
	SOFT_SHARE_SIZE = 32, /* of X25519: a scalar, a public key, the shared result */
	SOFT_KEY_SIZE = 32,
	/* Addresses that fit PIER_PROVIDER_ADDRESS_MAX beside the rest. */
	SOFT_MAX_ADDRESSES = 8,
	/* Connections that are not authenticated; beyond that the slowest is replaced. */
	SOFT_MAX_PENDING = 64,
	/* Frames that one sendmsg(2) may carry, and the parts of such a call. */
	SOFT_MAX_FRAMES = 16,
	SOFT_MAX_VECTOR = 80,
	SOFT_SINK_SIZE = 64 * 1024,
	/* Plaintext of one record of a TCP link. */
	SOFT_MAX_RECORD = 64 * 1024,
	/* Regions that are granted to one peer. */
	SOFT_MAX_GRANTS = 64
};

#define SOFT_NEVER UINT64_MAX

#endif
