/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SOFT_H
#define PIER_SOFT_SOFT_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <infiniband/verbs.h>

#include "../provider.h"
#include "../../util/list.h"
#include "frame.h"

/*
 * A NIC in software. One *engine* per opened context plays the hardware; each
 * connected queue pair has one *link*, a byte stream to its peer.
 *
 * Locks, outer first; whoever holds one takes only those after it:
 *
 *	qp->ibv.mutex	  one verb at a time on a queue pair
 *	registry	  which contexts this process has open
 *	engine->lock	  everything the engine touches: links, what was sent and
 *			  received, the tables of regions and queue pairs
 *	sq.lock, rq.lock  posting; the state is written with both held
 *	cq->lock	  the ring of completions
 *	channel->lock	  the queue of completion events
 */

enum {
	SOFT_MAX_QP = 4096,
	SOFT_MAX_WR = 16384,
	SOFT_MAX_SGE = 32,
	SOFT_MAX_INLINE = 1024,
	SOFT_MAX_CQE = 1 << 20,
	SOFT_MAX_CQ = 1 << 16,
	SOFT_MAX_PD = 1 << 16,
	SOFT_MAX_MR = 1 << 20,
	SOFT_MAX_RD_ATOMIC = 16,
	SOFT_SECRET_SIZE = 16,
	SOFT_MAC_SIZE = 32,
	/* Addresses that fit PIER_PROVIDER_ADDRESS_MAX beside the rest. */
	SOFT_MAX_ADDRESSES = 8,
	/* Strangers at the door; one more waits, or pushes out one who dawdles. */
	SOFT_MAX_PENDING = 64,
	/* Frames that one sendmsg(2) may carry, and the parts they consist of. */
	SOFT_MAX_STAGED = 16,
	SOFT_MAX_VECTOR = 80,
	SOFT_SINK_SIZE = 64 * 1024
};

#define SOFT_NEVER UINT64_MAX

struct soft_mr {
	struct ibv_mr ibv;
	char *memory; /* where byte `iova` lies in this process */
	uint64_t iova;
	int access;
	void *window; /* what to unmap, for a dma-buf */
	size_t window_size;
	int sync_fd; /* of a real dma-buf: brackets our accesses; else -1 */
};

/* The key of slot i is i << 12 | generation. */
struct soft_mr_slot {
	struct soft_mr *mr;
	uint32_t generation;
	uint32_t next_free;
};

struct soft_mr_table {
	struct soft_mr_slot *slots;
	uint32_t capacity;
	/* Reused oldest first, which keeps a stale key stale for long. */
	uint32_t first_free, last_free;
};

struct soft_pd {
	struct ibv_pd ibv;
	atomic_uint users;
};

struct soft_channel {
	struct ibv_comp_channel ibv;
	pthread_mutex_t lock;
	struct pier_list events; /* CQs with events; fd is readable iff not empty */
	unsigned int users;
};

struct soft_qp;

struct soft_cqe {
	struct ibv_wc wc;
	struct soft_qp *qp;
	/* Polling it frees the slots of this queue before this position. */
	_Atomic uint64_t *tail;
	uint64_t freed;
};

enum soft_armed {
	SOFT_UNARMED,
	SOFT_ARMED_SOLICITED,
	SOFT_ARMED_ANY
};

struct soft_cq {
	struct ibv_cq ibv;
	pthread_mutex_t lock;
	struct soft_cqe *ring;
	uint32_t first, count, capacity;
	enum soft_armed armed;
	bool overrun;
	atomic_uint users;
	/* Under the channel's lock. */
	struct pier_list event_link;
	unsigned int events_queued, events_taken;
};

struct soft_send {
	uint64_t wr_id;
	enum ibv_wr_opcode opcode;
	unsigned int flags;
	uint64_t length;
	uint64_t address;
	uint32_t key;
	uint32_t immediate;
	int sge_count;
	struct ibv_sge *sges;
	uint8_t *inline_data;
};

struct soft_recv {
	uint64_t wr_id;
	int sge_count;
	struct ibv_sge *sges;
};

/*
 * Positions count work requests since RESET; position p lies in slot
 * p % depth. tail <= done <= head: slots before tail are free again, requests
 * before done have completed.
 */
struct soft_send_queue {
	pthread_mutex_t lock;
	struct soft_send *slots;
	struct ibv_sge *sges;
	uint8_t *inline_data;
	uint32_t depth, max_sge, max_inline;
	_Atomic uint64_t head, tail;
	uint64_t done;
	uint64_t transmitted; /* wholly on the stream; the peer may acknowledge it */
	uint64_t staged;      /* next to be turned into a frame */
	uint32_t reads;	      /* in flight */
	/* A request that cannot be sent; reported when all before it are done. */
	bool broken;
	uint64_t broken_at;
	enum ibv_wc_status broken_status;
	uint64_t rnr_until; /* 0: not waiting */
	uint8_t rnr_left;
};

struct soft_recv_queue {
	pthread_mutex_t lock;
	struct soft_recv *slots;
	struct ibv_sge *sges;
	uint32_t depth, max_sge;
	_Atomic uint64_t head, tail;
	uint64_t done;
};

struct soft_read {
	uint32_t msn, length, key;
	uint64_t address;
};

struct soft_responder {
	uint32_t expected, acked;
	bool resync; /* after an RNR NAK: ignore all until `expected` comes again */
	bool nak;    /* to be sent */
	enum soft_syndrome syndrome;
	struct soft_read reads[SOFT_MAX_RD_ATOMIC];
	uint32_t first_read, read_count;
};

enum soft_source {
	SOFT_FROM_NOWHERE, /* header only */
	SOFT_FROM_SEND,	   /* the elements of a send request */
	SOFT_FROM_REGION   /* what a peer reads */
};

struct soft_staged {
	uint8_t header[SOFT_HEADER_SIZE];
	enum soft_source source;
	bool request;
	bool stale; /* sent before an RNR NAK; will be sent again */
	uint64_t position;
	struct soft_read read;
	uint32_t length;
};

enum soft_target {
	SOFT_TO_NOWHERE,
	SOFT_TO_REGION,
	SOFT_TO_RECV,
	SOFT_TO_READER /* the elements of our own READ */
};

struct soft_link {
	int rx_fd, tx_fd; /* the same, but where a queue pair talks to itself */
	uint64_t serial;  /* tells a late epoll event from one of this link */
	bool readable, writable, hung_up;
	bool closing;	/* say the last words, then close */
	bool shut;	/* they are said */
	bool tx_broken; /* a frame that began cannot be finished, or the peer is gone */
	bool answers_first;
	uint64_t closing_deadline;

	uint8_t header_bytes[SOFT_HEADER_SIZE];
	uint32_t header_have;
	bool in_payload;
	struct soft_header header;
	enum soft_target target;
	bool ignored; /* a request that will come again */
	uint32_t payload_done;

	struct soft_staged staged[SOFT_MAX_STAGED];
	uint32_t first_staged, staged_count;
	uint64_t sent_of_first;
};

/* An authenticated stream for a queue pair that does not want it yet. */
struct soft_parked {
	int fd;	   /* -1: none */
	int tx_fd; /* the same, but where a queue pair talks to itself */
	union ibv_gid gid;
	uint32_t qpn;
	bool proven; /* that the peer is who it says it is */
	uint8_t transcript[SOFT_MAC_SIZE];
	uint8_t proof[SOFT_MAC_SIZE];
};

struct soft_address {
	uint8_t secret[SOFT_SECRET_SIZE];
	uint16_t port;
	uint32_t count;
	struct in6_addr addresses[SOFT_MAX_ADDRESSES]; /* IPv4 as v4-mapped */
};

struct soft_qp {
	struct ibv_qp ibv;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct soft_send_queue sq;
	struct soft_recv_queue rq;
	struct soft_responder responder;
	struct soft_link link;
	struct soft_parked parked;
	uint8_t secret[SOFT_SECRET_SIZE];
	bool has_peer_address;
	struct soft_address peer_address;
	bool busy; /* has unfinished requests; the ack timer runs */
	uint64_t last_progress;
	struct pier_list active;
	/* The doorbell: a stack that posters push to and the engine empties. */
	atomic_bool rung;
	struct soft_qp *next_rung;
};

enum soft_pending_step {
	SOFT_PENDING_FREE,
	SOFT_PENDING_HELLO,
	SOFT_PENDING_PROOF
};

/* A connection that has not yet shown that it knows a secret. */
struct soft_pending {
	enum soft_pending_step step;
	int fd;
	uint64_t deadline;
	uint32_t generation;
	uint32_t have;
	uint8_t bytes[96];
	uint8_t transcript[SOFT_MAC_SIZE];
	union ibv_gid gid;
	uint32_t qpn, target_qpn;
};

struct soft_listeners {
	int unix_fd, tcp_fd;
	uint16_t port;
	uint32_t count;
	struct in6_addr addresses[SOFT_MAX_ADDRESSES];
	uint64_t paused_until; /* after EMFILE and its kin; 0: listening */
	struct soft_pending pending[SOFT_MAX_PENDING];
};

struct soft_engine {
	pthread_mutex_t lock;
	atomic_uint waiters; /* in pier_soft_lock(); pollers give way to them */
	pthread_t thread;
	bool stepped; /* no thread and no progress but by pier_soft_step() */
	bool threaded;
	bool stop;
	bool blocking; /* the thread sleeps, or is about to, until an event */
	int epoll_fd, wake_fd, timer_fd;
	uint64_t deadline; /* when the timer is set to ring */
	uint64_t now;	   /* read once a pass */
	_Atomic(struct soft_qp *) rung;
	atomic_uint polls; /* by applications; while it moves the thread rests */
	struct pier_list active, mark;
	uint64_t next_serial;
	uint8_t *sink; /* where unwanted bytes go */
};

struct soft_context {
	struct ibv_context ibv;
	pid_t pid;
	union ibv_gid gid;
	struct pier_list registered;
	struct soft_engine engine;
	struct soft_mr_table mrs;
	struct soft_qp *qps[SOFT_MAX_QP];
	uint32_t next_qp;
	uint16_t qp_generation;
	struct soft_listeners listeners;
	atomic_uint users; /* PDs, CQs, channels */
};

static inline struct soft_context *soft_context(struct ibv_context *context)
{
	return pier_container_of(context, struct soft_context, ibv);
}

static inline struct soft_context *soft_context_of(const struct soft_qp *qp)
{
	return soft_context(qp->ibv.context);
}

/* Scatter and gather lists for one system call; vector.c */
struct soft_vector {
	struct iovec parts[SOFT_MAX_VECTOR];
	int count;
	size_t bytes;
	struct soft_mr *synced[SOFT_MAX_VECTOR];
	int synced_count;
	bool writes;
};

void pier_soft_vector_init(struct soft_vector *vector, bool writes);
bool pier_soft_vector_add(struct soft_vector *vector, void *memory, size_t length);
/* False when the keys, the ranges or the rights do not allow it. */
bool pier_soft_vector_add_region(struct soft_vector *vector, struct soft_qp *qp,
				 const struct ibv_sge *range, uint64_t skip,
				 uint64_t limit, int access);
bool pier_soft_vector_add_sges(struct soft_vector *vector, struct soft_qp *qp,
			       const struct ibv_sge *sges, int count, uint64_t skip,
			       uint64_t limit, int access);
/* Whether add_sges() would take them. */
bool pier_soft_check_sges(struct soft_qp *qp, const struct ibv_sge *sges, int count,
			  uint64_t limit, int access);
ssize_t pier_soft_vector_send(struct soft_vector *vector, int fd);
ssize_t pier_soft_vector_receive(struct soft_vector *vector, int fd);

/* region.c, dmabuf.c */
struct soft_mr *pier_soft_find_mr(struct soft_context *context, struct ibv_pd *pd,
				  uint32_t key, uint64_t address, uint64_t length,
				  int access);
int pier_soft_check_access(int access, int allowed);
struct ibv_mr *pier_soft_add_mr(struct ibv_pd *pd, struct soft_mr *mr);
struct ibv_mr *pier_soft_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, int access);
struct ibv_mr *pier_soft_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				       uint64_t iova, int fd, int access);
int pier_soft_dereg_mr(struct ibv_mr *mr);

/* cq.c, channel.c */
struct ibv_comp_channel *pier_soft_create_comp_channel(struct ibv_context *context);
int pier_soft_destroy_comp_channel(struct ibv_comp_channel *channel);
int pier_soft_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			   void **ret_cq_context);
void pier_soft_ack_cq_events(struct ibv_cq *cq, unsigned int count);
void pier_soft_queue_event(struct soft_cq *cq);
/* Forgets the events nobody took; waits until those taken are acknowledged. */
void pier_soft_retire_events(struct soft_cq *cq);
struct ibv_cq *pier_soft_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				   struct ibv_comp_channel *channel, int comp_vector);
int pier_soft_destroy_cq(struct ibv_cq *cq);
int pier_soft_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc);
int pier_soft_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* False when the CQ has just overrun; it drops what comes from then on. */
bool pier_soft_push_cqe(struct soft_cq *cq, const struct soft_cqe *cqe, bool solicited);
void pier_soft_purge_cq(struct soft_cq *cq, const struct soft_qp *qp);

/* qp.c, modify.c, query.c */
struct ibv_qp *pier_soft_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int pier_soft_destroy_qp(struct ibv_qp *qp);
int pier_soft_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
		       struct ibv_qp_init_attr *ret_init_attr);
int pier_soft_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
/* Checks mask and values for the change; 0 or -errno with a sentence. */
int pier_soft_check_transition(enum ibv_qp_state from, const struct ibv_qp_attr *attr,
			       int mask, enum ibv_qp_state *ret_to);
/* With the engine locked. */
struct soft_qp *pier_soft_find_qp(struct soft_context *context, uint32_t qpn);
void pier_soft_set_state(struct soft_qp *qp, enum ibv_qp_state state);

/* post.c */
int pier_soft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			struct ibv_send_wr **bad_wr);
int pier_soft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
			struct ibv_recv_wr **bad_wr);

/* complete.c; with the engine locked */
void pier_soft_complete_send(struct soft_qp *qp, enum ibv_wc_status status);
void pier_soft_complete_recv(struct soft_qp *qp, enum ibv_wc_status status,
			     const struct soft_header *header);
/* ERR: the oldest send fails with `status` (SUCCESS: is flushed), the rest flushes. */
void pier_soft_fail_qp(struct soft_qp *qp, enum ibv_wc_status status);
void pier_soft_flush_recvs(struct soft_qp *qp);
void pier_soft_flush_sends(struct soft_qp *qp);

/* requester.c, timers.c; with the engine locked. The bool: false, the peer is out of
 * line. */
bool pier_soft_stage_request(struct soft_qp *qp);
bool pier_soft_handle_ack(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_handle_nak(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_begin_read_response(struct soft_qp *qp, const struct soft_header *header);
void pier_soft_break_sends(struct soft_qp *qp, uint64_t position,
			   enum ibv_wc_status status);
void pier_soft_finish_read(struct soft_qp *qp);
void pier_soft_check_timers(struct soft_qp *qp);
void pier_soft_arm_timers(struct soft_qp *qp);
void pier_soft_finish_transmit(struct soft_qp *qp, const struct soft_staged *frame);

/* responder.c; with the engine locked */
bool pier_soft_begin_request(struct soft_qp *qp, const struct soft_header *header);
void pier_soft_finish_request(struct soft_qp *qp);
void pier_soft_drop_requests(struct soft_link *link);
void pier_soft_refuse(struct soft_qp *qp, enum soft_syndrome syndrome);
bool pier_soft_stage_ack(struct soft_qp *qp);
bool pier_soft_stage_read_response(struct soft_qp *qp);

/* transmit.c, receive.c, link.c; with the engine locked */
struct soft_staged *pier_soft_stage(struct soft_qp *qp, const struct soft_header *header);
/* One turn; whether the next can go on at once. */
bool pier_soft_transmit(struct soft_qp *qp);
void pier_soft_say_goodbye(struct soft_qp *qp);
void pier_soft_receive(struct soft_qp *qp);
void pier_soft_lose_link(struct soft_qp *qp);
bool pier_soft_link_open(const struct soft_link *link);
int pier_soft_attach_link(struct soft_qp *qp, int rx_fd, int tx_fd);
void pier_soft_close_link(struct soft_qp *qp);
/* Closes the socket in other processes as well. Takes -1. */
void pier_soft_hang_up(int fd);
void pier_soft_park(struct soft_qp *qp, const struct soft_parked *parked);
void pier_soft_unpark(struct soft_qp *qp);
/* Whether a live stream from that peer is parked. */
bool pier_soft_has_parked(const struct soft_qp *qp, const union ibv_gid *gid,
			  uint32_t qpn);
/* Takes the parked stream if it comes from the peer that this QP is set to. */
void pier_soft_adopt_parked(struct soft_qp *qp);

/* thread.c */
int pier_soft_start_engine(struct soft_context *context, bool stepped);
void pier_soft_stop_engine(struct soft_context *context);

/* engine.c */
void pier_soft_lock(struct soft_context *context);
void pier_soft_unlock(struct soft_context *context);
void pier_soft_ring(struct soft_qp *qp);
/* After an empty poll: makes progress if nobody else does. */
void pier_soft_poll_engine(struct soft_context *context);
/* With the engine locked. */
void pier_soft_pass(struct soft_context *context, const struct epoll_event *events,
		    int count);
void pier_soft_activate(struct soft_qp *qp);
void pier_soft_arm_timer(struct soft_context *context, uint64_t when);
void pier_soft_empty_doorbells(struct soft_context *context);
uint64_t pier_soft_now(void);

enum soft_event {
	SOFT_EVENT_WAKE,
	SOFT_EVENT_TIMER,
	SOFT_EVENT_QP, /* id: serial of the link * SOFT_MAX_QP + index of the QP */
	SOFT_EVENT_LISTENER,
	SOFT_EVENT_PENDING /* id: generation << 8 | index */
};

enum soft_event pier_soft_event_kind(const struct epoll_event *event);
int pier_soft_watch(struct soft_context *context, int fd, uint32_t events,
		    enum soft_event event, uint64_t id);
void pier_soft_unwatch(struct soft_context *context, int fd);

/* For tests: no thread; nothing moves but by the step, one event at a time. */
struct ibv_context *pier_soft_open_stepped(void);
/* Whether anything happened. */
bool pier_soft_step(struct ibv_context *context);

/* device.c */
struct ibv_context *pier_soft_open(bool stepped);

/* registry.c */
void pier_soft_register(struct soft_context *context);
void pier_soft_unregister(struct soft_context *context);
/* Holds the registry from here to pier_soft_release_registry(). */
struct soft_context *pier_soft_hold_registry(const union ibv_gid *gid);
void pier_soft_release_registry(void);

/* address.c */
int pier_soft_get_qp_address(struct ibv_qp *qp, uint8_t *ret_address, size_t size);
int pier_soft_set_qp_address(struct ibv_qp *qp, const uint8_t *address, size_t length);
int pier_soft_pack_address(const struct soft_address *address, uint8_t *ret_bytes,
			   size_t size);
int pier_soft_unpack_address(const uint8_t *bytes, size_t length,
			     struct soft_address *ret_address);

/* listen.c: the door; engine locked but for open and close */
int pier_soft_open_listeners(struct soft_context *context);
void pier_soft_close_listeners(struct soft_context *context);
void pier_soft_pause_listeners(struct soft_context *context, uint64_t nanoseconds);
void pier_soft_resume_listeners(struct soft_context *context);

/* pending.c; engine locked */
void pier_soft_accept(struct soft_context *context);
void pier_soft_continue_pending(struct soft_context *context, uint64_t id);
void pier_soft_check_pending(struct soft_context *context);
bool pier_soft_unix_allowed(void);
socklen_t pier_soft_unix_name(const union ibv_gid *gid, struct sockaddr_un *ret_name);
bool pier_soft_same_user(int fd);
void pier_soft_tune_stream(int fd);

/* interfaces.c: what PIER_SOFT_ADDRESS selects */
int pier_soft_choose_addresses(struct soft_listeners *listeners,
			       struct in6_addr *ret_bind, bool *ret_tcp);

/* connect.c: finds and reaches the peer while the QP goes to RTR */
int pier_soft_connect(struct soft_qp *qp, const struct ibv_qp_attr *attr);
/* call.c: an authenticated stream to a peer in another process; blocks for seconds. */
int pier_soft_call(struct soft_qp *qp, const struct ibv_qp_attr *attr, int *ret_fd);

/* auth.c */
enum {
	SOFT_HELLO_SIZE = 80,
	SOFT_CHALLENGE_SIZE = 64,
	SOFT_PROOF_SIZE = 64,
	SOFT_WELCOME_SIZE = 32
};

struct soft_hello {
	uint8_t nonce[32];
	union ibv_gid from, to;
	uint32_t from_qpn, to_qpn;
};

enum soft_role {
	SOFT_LISTENER_PROVES,
	SOFT_CALLER_PROVES,
	SOFT_CALLER_IDENTITY,
	SOFT_LISTENER_WELCOMES
};

void pier_soft_pack_hello(const struct soft_hello *hello, uint8_t *ret_bytes);
bool pier_soft_unpack_hello(const uint8_t *bytes, struct soft_hello *ret_hello);
void pier_soft_hash_transcript(const uint8_t *hello, const uint8_t *nonce,
			       uint8_t *ret_transcript);
void pier_soft_prove(const uint8_t *secret, enum soft_role role,
		     const uint8_t *transcript, uint8_t *ret_mac);
bool pier_soft_proves(const uint8_t *secret, enum soft_role role,
		      const uint8_t *transcript, const uint8_t *mac);
bool pier_soft_random(void *ret_bytes, size_t length);

#endif
