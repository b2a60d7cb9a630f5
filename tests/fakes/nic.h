/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAKES_NIC_H
#define PIER_FAKES_NIC_H

#include "device/device.h"
#include "provider/provider.h"

/*
 * A NIC that moves nothing: it remembers what it was told, and completes what
 * the test says, when the test says. One at a time.
 */

enum {
	FAKE_QUEUE = 128,
	FAKE_GIDS = 4,
	FAKE_SGE = 8,
	FAKE_MW_KEY = 0x20ff, /* the next is 0x2000: 8 bits of it count */
};

/* A request of the send queue, as it was posted. */
struct fake_send {
	struct ibv_send_wr wr;
	struct ibv_sge sg_list[FAKE_SGE];
};

struct fake_nic {
	/* What the test may change before it prepares a channel. */
	struct ibv_port_attr port;
	struct ibv_gid_entry gids[FAKE_GIDS]; /* zero: empty */
	bool never_flushes;
	int fail_call;	      /* this call of the provider fails, from 1; 0: none */
	int fail_result;      /* what a post that fails returns */
	bool gid_beyond;      /* the best GID has an index past FAKE_GIDS: 256 */
	int poll_error;	      /* what poll_cq returns instead of completions */
	uint32_t less_inline; /* bytes that a queue pair has less than was asked for */
	uint32_t sq_psn;      /* what query_qp() says */
	/*
	 * The oldest send completes with this call of poll_cq(), or earlier, with an
	 * event, when the channel is about to sleep; 0: never.
	 */
	int complete_at_poll;
	/* What is sent completes at once, in this way. */
	bool completes;
	enum ibv_wc_status completes_with;

	/* What the channel did. */
	int calls;
	int channels, cqs, qps; /* alive */
	int mrs, mws;
	int mws_at_destroy; /* when the queue pair was destroyed */
	/* As reg_mr() and alloc_mw() got them. */
	struct ibv_mr last_mr;
	uint64_t last_mr_iova;
	int last_mr_access;
	enum ibv_mw_type last_mw_type;
	int events_given, events_acked;
	int polls, notifies; /* calls of poll_cq() and req_notify_cq() */
	int comp_vector;
	struct ibv_qp_cap cap; /* as create_qp() got it */
	enum ibv_qp_state state;
	enum ibv_qp_state states[FAKE_QUEUE]; /* all that were entered */
	int changes;
	struct ibv_qp_attr init, rtr, rts; /* as modify_qp() got them */
	struct ibv_send_wr last_send;
	int doorbells;			  /* calls of post_send() */
	struct fake_send log[FAKE_QUEUE]; /* the first ones */
	int logged;
	uint64_t send_ids[FAKE_QUEUE], recv_ids[FAKE_QUEUE]; /* outstanding */
	int sends, recvs;
	int recv_doorbells; /* calls of post_recv() and post_srq_recv() */
	/* Of shared receive queues: as posted; a test that completes one of them says it.
	 */
	struct ibv_srq_attr last_srq;
	struct ibv_recv_wr last_recv;
	struct ibv_sge last_recv_sge;
	struct ibv_qp_init_attr last_qp;
	uint64_t shared_ids[FAKE_QUEUE];
	int srqs, shared;

	/* Insides. */
	struct ibv_wc queue[FAKE_QUEUE];
	int queued;
	bool armed, event;
	struct ibv_context context;
	struct pier_device device;
	struct pier_pd pd;
	struct ibv_pd verbs_pd;
	struct ibv_cq *cq;
};

extern struct fake_nic fake;

/* A fresh one: an active RoCE port with one GID. */
struct pier_pd *fake_reset(void);

/* Complete a request, in any order. */
void fake_complete(uint64_t id, enum ibv_wc_status status, enum ibv_wc_opcode opcode,
		   uint32_t length);
void fake_complete_imm(uint64_t id, enum ibv_wc_opcode opcode, uint32_t length,
		       uint32_t network_order);

#endif
