/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DOOR_H
#define PIER_SOFT_DOOR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <infiniband/verbs.h>

#include "provider/soft/limits.h"
#include "peers.h"

/* How streams come to be: addresses, callers, listeners, and proofs of identity. */

struct soft_context;
struct soft_lane;
struct soft_parked;
struct soft_qp;
struct soft_segment;

struct soft_address {
	uint8_t secret[SOFT_SECRET_SIZE];
	uint16_t port;
	uint32_t count;
	struct in6_addr addresses[SOFT_MAX_ADDRESSES]; /* IPv4 as v4-mapped */
};

/* address.c */
int pier_soft_get_qp_address(struct ibv_qp *qp, uint8_t *ret_address, size_t size);
int pier_soft_set_qp_address(struct ibv_qp *qp, const uint8_t *address, size_t length);
int pier_soft_pack_address(const struct soft_address *address, uint8_t *ret_bytes,
			   size_t size);
int pier_soft_unpack_address(const uint8_t *bytes, size_t length,
			     struct soft_address *ret_address);

enum soft_pending_step {
	SOFT_PENDING_FREE,
	SOFT_PENDING_HELLO,
	SOFT_PENDING_PROOF
};

/* A connection that has not yet shown that it knows a secret. */
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

struct soft_listeners {
	int unix_fd, tcp_fd;
	uid_t uid; /* our effective one at listen(2): callers see it in SO_PEERCRED */
	bool tcp;  /* PIER_SOFT_ADDRESS asks for it */
	uint16_t port;
	uint32_t count; /* of addresses; 0: this end cannot be called by TCP */
	struct in6_addr addresses[SOFT_MAX_ADDRESSES];
	struct soft_peers peers;
	uint64_t paused_until; /* after EMFILE and its kin; 0: listening */
	struct soft_pending pending[SOFT_MAX_PENDING];
};

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
/* Not a Unix socket, so its bytes may cross a network. */
bool pier_soft_is_remote(int fd);
void pier_soft_tune_stream(int fd);

/* credentials.c: of the process at the other end of a Unix socket */
/*
 * Whether the link must be encrypted. It need not only if `fd` is a Unix socket and the
 * process at its other end is of the user `uid`.
 */
bool pier_soft_must_seal(int fd, uid_t uid);
/* Also true if either of the two is root, whichever of them calls. */
bool pier_soft_may_connect(int fd);
/* Whether it could take our fds out of /proc anyway, so that giving one adds nothing. */
bool pier_soft_may_have_fds(int fd);
/* Where the kernel can, lets it fail to send us fds, or to do so again. */
void pier_soft_accept_fds(int fd, bool accepted);
/* Closes an fd that a peer sent, of which nothing is known; -1 as pier_close_fd(). */
int pier_soft_close_foreign(int fd);

/* interfaces.c: what PIER_SOFT_ADDRESS and PIER_SOFT_PEERS select */
int pier_soft_choose_addresses(struct soft_listeners *listeners,
			       struct in6_addr *ret_bind);

/* connect.c: finds and reaches the peer while the QP goes to RTR */
int pier_soft_connect(struct soft_qp *qp, const struct ibv_qp_attr *attr);
/* call.c: an authenticated stream to a peer in another process; blocks for seconds. */
int pier_soft_call(struct soft_qp *qp, const struct ibv_qp_attr *attr,
		   struct soft_parked *ret_parked);

/* auth.c */
enum {
	SOFT_HELLO_SIZE = 80,
	SOFT_CHALLENGE_SIZE = 64,
	SOFT_PROOF_SIZE = 64,
	SOFT_WELCOME_SIZE = 32
};

struct soft_hello {
	uint8_t nonce[SOFT_SHARE_SIZE];
	union ibv_gid from, to;
	uint32_t from_qpn, to_qpn;
};

enum soft_role {
	SOFT_LISTENER_PROVES,
	SOFT_CALLER_PROVES,
	SOFT_CALLER_IDENTITY,
	SOFT_LISTENER_WELCOMES,
	SOFT_LISTENER_SHARES /* the same, and takes the memory that came with the proof */
};

void pier_soft_pack_hello(const struct soft_hello *hello, uint8_t *ret_bytes);
bool pier_soft_unpack_hello(const uint8_t *bytes, struct soft_hello *ret_hello);
/* A hello of pier's, but of a version that this one does not speak. */
bool pier_soft_is_other_version(const uint8_t *bytes);
void pier_soft_hash_transcript(const uint8_t *hello, const uint8_t *nonce, bool sealed,
			       uint8_t *ret_transcript);
void pier_soft_prove(const uint8_t *secret, enum soft_role role,
		     const uint8_t *transcript, uint8_t *ret_mac);
bool pier_soft_proves(const uint8_t *secret, enum soft_role role,
		      const uint8_t *transcript, const uint8_t *mac);
bool pier_soft_random(void *ret_bytes, size_t length);

/* One end's secret half of a nonce. */
struct soft_share {
	bool wanted; /* the link is sealed */
	uint8_t scalar[SOFT_SHARE_SIZE];
};

/* The nonce of a sealed link is a fresh X25519 public key. */
bool pier_soft_make_nonce(struct soft_share *share, bool sealed, uint8_t *ret_nonce);
/* Wipes the share. False: the peer's nonce is not a valid public key. */
bool pier_soft_agree(struct soft_share *share, const uint8_t *nonce, uint8_t *ret_agreed);

/* All that the keys of a sealed link depend on. */
struct soft_session {
	uint8_t secrets[2 * SOFT_SECRET_SIZE]; /* of the listener, of the caller */
	uint8_t transcript[SOFT_MAC_SIZE];
	uint8_t agreed[SOFT_SHARE_SIZE];
};

void pier_soft_derive_key(const struct soft_session *session, bool from_caller,
			  uint8_t *ret_key);

#endif
