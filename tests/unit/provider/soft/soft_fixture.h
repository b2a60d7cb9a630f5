/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TESTS_SOFT_RIG_H
#define PIER_TESTS_SOFT_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "provider/provider.h"

/* Shared by the tests of the software NIC: one end of a connection. */

enum {
	RIG_MEMORY = 1 << 16,
	RIG_DEADLINE_MS = 20000,
	/* For rig_options.timeout: the shortest that soft0 supports, 2 s. */
	RIG_IMPATIENT = 10
};

struct rig_options {
	uint32_t depth; /* of both queues; 0: 16 */
	int cq_depth;	/* 0: 256 */
	int sq_sig_all;
	int access; /* of region and queue pair; 0: everything */
	uint8_t rnr_retry, min_rnr_timer, max_rd_atomic;
	/*
	 * How long the peer may be silent, as in ibv_modify_qp(3). 0: 21, which is 9 s; a
	 * busy machine may delay the peer's thread for seconds.
	 */
	uint8_t timeout;
	int stepped;
	int with_channel;
	uint32_t srq_depth; /* 0: the queue pair has its own receives */
};

struct rig {
	struct rig_options options;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
};

/* The description of an end for its peer. */
struct rig_endpoint {
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t rkey;
	uint64_t address;
	int blob_length;
	uint8_t blob[PIER_PROVIDER_ADDRESS_MAX];
};

void rig_open(struct rig *rig, const struct rig_options *options);
void rig_close(struct rig *rig);
void rig_create_qp(struct rig *rig);
void rig_describe(const struct rig *rig, struct rig_endpoint *ret_endpoint);
/* RESET to RTS; each returns the result of modify_qp(). */
int rig_to_init(struct rig *rig);
int rig_to_rtr(struct rig *rig, const struct rig_endpoint *peer);
int rig_to_rts(struct rig *rig);
int rig_to(struct rig *rig, enum ibv_qp_state state);
void rig_connect(struct rig *rig, const struct rig_endpoint *peer);
/* Two ends in this process. */
void rig_open_pair(struct rig *a, struct rig *b, const struct rig_options *options);

struct ibv_sge rig_sge(const struct rig *rig, uint64_t offset, uint32_t length);
/* Post one request, and return the result. */
int rig_post(struct rig *rig, enum ibv_wr_opcode opcode, uint64_t wr_id, uint64_t offset,
	     uint32_t length, const struct rig_endpoint *peer, uint64_t peer_offset,
	     unsigned int flags);
int rig_post_recv(struct rig *rig, uint64_t wr_id, uint64_t offset, uint32_t length);

/* Step both if they are stepped. */
void rig_step(struct rig *a, struct rig *b);
/* The next completion; fails the test at the deadline. */
struct ibv_wc rig_wait(struct rig *rig, struct ibv_cq *cq, struct rig *other);
void rig_expect(struct rig *rig, struct ibv_cq *cq, struct rig *other, uint64_t wr_id,
		enum ibv_wc_status status);
void rig_expect_none(struct rig *rig, struct ibv_cq *cq);

int rig_count_fds(void);
uint64_t rig_milliseconds(void);

/* Over a stream on this host, both ways at once. */
void rig_exchange(int fd, const struct rig_endpoint *mine, struct rig_endpoint *ret_its);
void rig_write_all(int fd, const void *bytes, size_t length);
void rig_read_all(int fd, void *ret_bytes, size_t length);

#endif
