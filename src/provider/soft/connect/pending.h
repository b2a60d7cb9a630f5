/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_PENDING_H
#define PIER_SOFT_PENDING_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "provider/soft/limits.h"

/* Connections that are not authenticated yet. With the engine locked. */

struct soft_context;

enum soft_pending_step {
	SOFT_PENDING_FREE,
	SOFT_PENDING_HELLO,
	SOFT_PENDING_PROOF
};

struct soft_pending {
	enum soft_pending_step step;
	int fd;
	bool sealed;   /* pier_soft_must_seal() */
	int shared_fd; /* came with the proof of a link that is not sealed; -1: none */
	uint64_t deadline;
	uint32_t generation;
	uint32_t have;
	uint8_t bytes[96];
	uint8_t transcript[SOFT_MAC_SIZE];
	uint8_t agreed[SOFT_SHARE_SIZE]; /* of a sealed link */
	union ibv_gid gid;
	uint32_t qpn, target_qpn;
};

void pier_soft_accept(struct soft_context *context);
void pier_soft_continue_pending(struct soft_context *context, uint64_t id);
void pier_soft_check_pending(struct soft_context *context);

#endif
