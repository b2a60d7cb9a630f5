/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAKES_NIC_H
#define PIER_FAKES_NIC_H

#include "device/device.h"
#include "provider/provider.h"

/*
 * A NIC that moves no bytes. It records calls, and completes requests when the test asks
 * for it. There can be only one at a time.
 */

enum {
	FAKE_QUEUE = 128,
	FAKE_GIDS = 4,
	FAKE_SGE = 8,
	FAKE_EVENTS = 8,
	FAKE_MW_KEY = 0x20ff, /* the next key is 0x2000: 8 bits of it count */
	FAKE_QPN = 0x1234,    /* of the first queue pair; the next ones follow */
};

/* A request of the send queue as it was posted. */
struct fake_send {
	struct ibv_send_wr wr;
	struct ibv_sge sg_list[FAKE_SGE];
};

struct fake_nic {
	/* Settings that the test may change before it prepares a channel. */
	struct ibv_port_attr port;
	struct ibv_gid_entry gids[FAKE_GIDS]; /* zero: empty */
	bool never_flushes;
	/*
	 * Destroying a queue pair removes its completions from the CQ, as
	 * mlx5_cq_clean() in libmlx5 does. rxe leaves them there.
	 */
	bool cleans_cq;
	/* A new CQ is at the address of the one that was destroyed last. */
	bool reuses_cq;
	uint32_t receiver; /* the queue pair that shared receives complete on */
	int fail_call;	 /* the number of the provider call that fails, from 1; 0: none */
	int fail_result; /* result of a failing post */
	bool gid_beyond; /* the best GID has an index past FAKE_GIDS: 256 */
	int poll_error;	 /* result of poll_cq() instead of completions */
	uint32_t
		less_inline; /* inline bytes that a queue pair lacks of those requested */
	uint32_t sq_psn;     /* result of query_qp() */
	/* modify_qp() to RTR returns ETIMEDOUT this many times: a cold ARP cache. */
	int unresolved;
	int rtr_lacks_memory; /* the same with ENOMEM */
	/* ionic: all queue pairs together serve this many reads; 0: no such limit. */
	int read_budget;
	/*
	 * irdma: RESET does nothing to a queue pair in ERR, and INIT then returns EINVAL
	 * (irdma_modify_qp_roce()).
	 */
	bool stays_in_error;
	/*
	 * mlx5: the send queue has this many blocks of 64 bytes, and create_qp() returns
	 * EINVAL beyond them (mlx5_calc_sq_size()); 0: no such limit.
	 */
	uint32_t send_blocks;
	/*
	 * The oldest send completes at this call of poll_cq(), or earlier with an event
	 * if the channel is about to sleep; 0: never.
	 */
	int complete_at_poll;
	/* Sends complete immediately, with these values. */
	bool completes;
	enum ibv_wc_status completes_with;

	/* Recorded calls of the channel. */
	int calls;
	int channels, cqs, qps; /* alive */
	uint32_t qps_created;
	int mrs, mws;
	int mws_at_destroy; /* when the queue pair was destroyed */
	/* Arguments of reg_mr() and alloc_mw(). */
	struct ibv_mr last_mr;
	uint64_t last_mr_iova;
	int last_mr_access;
	enum ibv_mw_type last_mw_type;
	int events_given, events_acked;
	int polls, notifies; /* calls of poll_cq() and req_notify_cq() */
	int comp_vector;
	struct ibv_qp_cap cap; /* argument of create_qp() */
	enum ibv_qp_state state;
	enum ibv_qp_state states[FAKE_QUEUE]; /* all states entered */
	int changes;
	struct ibv_qp_attr init, rtr, rts; /* arguments of modify_qp() */
	struct ibv_send_wr last_send;
	int doorbells;			  /* calls of post_send() */
	struct fake_send log[FAKE_QUEUE]; /* the first requests */
	int logged;
	uint64_t send_ids[FAKE_QUEUE], recv_ids[FAKE_QUEUE]; /* outstanding */
	uint32_t send_qpns[FAKE_QUEUE], recv_qpns[FAKE_QUEUE];
	int sends, recvs;
	int recv_doorbells; /* calls of post_recv() and post_srq_recv() */
	/*
	 * Receives of shared receive queues as posted. A test that completes one names
	 * it.
	 */
	struct ibv_srq_attr last_srq;
	struct ibv_recv_wr last_recv;
	struct ibv_sge last_recv_sge;
	struct ibv_qp_init_attr last_qp;
	uint64_t shared_ids[FAKE_QUEUE];
	int srqs, shared;

	/* Internal state. */
	struct ibv_wc queue[FAKE_QUEUE];
	int queued;
	bool armed, event, removed;
	struct ibv_async_event device_events[FAKE_EVENTS]; /* not taken yet */
	int device_event_count, device_events_acked;
	uint64_t ports_down; /* bits, by their events */
	struct ibv_device verbs_device;
	struct ibv_context context;
	struct pier_device device;
	struct pier_pd pd;
	struct ibv_pd verbs_pd;
	struct ibv_cq *cq, *free_cq;
};

extern struct fake_nic fake;

/* Resets the NIC: an active RoCE port with one GID. */
struct pier_pd *fake_reset(void);

/*
 * The device reports an asynchronous event. The first call makes a device that has
 * events, so a test that needs them begins with an event.
 */
void fake_report(enum ibv_event_type type, int port);
void fake_report_completion_queue(struct ibv_cq *cq);
void fake_report_queue_pair(enum ibv_event_type type, struct ibv_qp *qp);

/*
 * The device is removed: from now on the fd of the completion channel has POLLERR and
 * taking an event fails with EIO (ib_uverbs_event_poll() and ib_uverbs_event_read()).
 */
void fake_remove(void);

/* Complete a request, in any order. */
void fake_complete(uint64_t id, enum ibv_wc_status status, enum ibv_wc_opcode opcode,
		   uint32_t length);
void fake_complete_imm(uint64_t id, enum ibv_wc_opcode opcode, uint32_t length,
		       uint32_t network_order);

#endif
