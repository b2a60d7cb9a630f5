/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TESTS_SOFT_FIXTURE_H
#define PIER_TESTS_SOFT_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "provider/provider.h"

/* Shared by the tests of the software NIC: one end of a connection. */

enum {
	FIXTURE_PAGE = 1 << 16, /* a multiple of the page of any machine */
	FIXTURE_MEMORY = FIXTURE_PAGE,
	FIXTURE_DEADLINE_MS = 30000,
	/* For fixture_options.timeout: the shortest that soft0 supports, 2 s. */
	FIXTURE_IMPATIENT = 10
};

struct fixture_options {
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
	int meets;	    /* opened as by a program that knows only verbs */
	int datagrams;	    /* a UD queue pair */
	uint32_t srq_depth; /* 0: the queue pair has its own receives */
};

struct soft_fixture {
	struct fixture_options options;
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
struct fixture_endpoint {
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t rkey;
	uint64_t address;
	int blob_length;
	uint8_t blob[PIER_PROVIDER_ADDRESS_MAX];
};

void fixture_open(struct soft_fixture *fixture, const struct fixture_options *options);
void fixture_close(struct soft_fixture *fixture);
void fixture_create_qp(struct soft_fixture *fixture);
void fixture_describe(const struct soft_fixture *fixture,
		      struct fixture_endpoint *ret_endpoint);
/* RESET to RTS; each returns the result of modify_qp(). */
int fixture_to_init(struct soft_fixture *fixture);
int fixture_to_rtr(struct soft_fixture *fixture, const struct fixture_endpoint *peer);
int fixture_to_rts(struct soft_fixture *fixture);
int fixture_to(struct soft_fixture *fixture, enum ibv_qp_state state);
void fixture_connect(struct soft_fixture *fixture, const struct fixture_endpoint *peer);
/* Two ends in this process. */
void fixture_open_pair(struct soft_fixture *a, struct soft_fixture *b,
		       const struct fixture_options *options);

struct ibv_sge fixture_sge(const struct soft_fixture *fixture, uint64_t offset,
			   uint32_t length);
/* Post one request, and return the result. */
int fixture_post(struct soft_fixture *fixture, enum ibv_wr_opcode opcode, uint64_t wr_id,
		 uint64_t offset, uint32_t length, const struct fixture_endpoint *peer,
		 uint64_t peer_offset, unsigned int flags);
int fixture_post_recv(struct soft_fixture *fixture, uint64_t wr_id, uint64_t offset,
		      uint32_t length);

/* Step both if they are stepped. */
void fixture_step(struct soft_fixture *a, struct soft_fixture *b);
/* The next completion; fails the test at the deadline. */
struct ibv_wc fixture_wait(struct soft_fixture *fixture, struct ibv_cq *cq,
			   struct soft_fixture *other);
void fixture_expect(struct soft_fixture *fixture, struct ibv_cq *cq,
		    struct soft_fixture *other, uint64_t wr_id,
		    enum ibv_wc_status status);
void fixture_expect_none(struct soft_fixture *fixture, struct ibv_cq *cq);

/* The folder in which contexts with `meets` meet: setup and teardown of a cmocka group.
 */
int fixture_make_folder(void **state);
int fixture_remove_folder(void **state);

int fixture_count_fds(void);
uint64_t fixture_milliseconds(void);

/* Over a stream on this host, both ways at once. */
void fixture_exchange(int fd, const struct fixture_endpoint *mine,
		      struct fixture_endpoint *ret_its);
void fixture_write_all(int fd, const void *bytes, size_t length);
void fixture_read_all(int fd, void *ret_bytes, size_t length);

#endif
