/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_NODE_H
#define PIER_SOFT_NODE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <infiniband/verbs.h>

#include "address.h"
#include "core/list.h"
#include "meeting.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"

struct soft_connection;
struct soft_end;
struct soft_link;
struct soft_fifo;

/*
 * An authenticated stream whose queue pair is not ready for it: it becomes the link when
 * the queue pair goes to RTR.
 */
struct soft_early_stream {
	int fd;	   /* -1: none */
	int tx_fd; /* differs if a queue pair talks to itself */
	struct soft_fifo *fifo;
	union ibv_gid gid;
	uint32_t qpn;
	bool proven; /* the peer is authenticated: always if this end called */
	/* The result of the handshake; the secrets are filled in when it is adopted. */
	struct soft_session session;
	uint8_t proof[SOFT_MAC_SIZE];
};

/* A connection that is not authenticated yet. */
enum soft_pending_step {
	SOFT_PENDING_FREE,
	SOFT_PENDING_HELLO,
	SOFT_PENDING_PROOF
};

struct soft_pending {
	enum soft_pending_step step;
	struct soft_early_stream stream; /* what is known of it */
	bool sealed;			 /* pier_soft_must_seal() */
	int shared_fd; /* came with the proof of a link that is not sealed; -1: none */
	uint64_t deadline;
	uint32_t generation;
	uint32_t have;
	uint8_t bytes[96];
	uint32_t target_qpn;
};

/* The sockets on which peers of other processes connect. */
struct soft_listeners {
	int unix_fd, tcp_fd;
	/*
	 * Of UD queue pairs, in the folder of the meeting: only processes of the user can
	 * send to it. -1: there are none, as without a meeting.
	 */
	int datagram_fd;
	uid_t uid; /* our effective one at listen(2): peers see it in SO_PEERCRED */
	bool tcp;  /* PIER_SOFT_ADDRESS asks for it */
	uint16_t port;
	uint32_t count; /* of addresses; 0: no peer can call this end by TCP */
	struct in6_addr addresses[SOFT_MAX_ADDRESSES];
	struct soft_peers peers;
	uint64_t paused_until; /* after EMFILE, for example; 0: listening */
	struct soft_pending pending[SOFT_MAX_PENDING];
};

/*
 * A context as its peers see it: its GID, where it listens, and the connections of its
 * queue pairs.
 */
struct soft_node {
	struct soft_engine *engine;
	uint32_t handles; /* of the context that are open; under the registry's lock */
	pid_t pid;
	union ibv_gid gid;
	struct soft_meeting meeting; /* of contexts that programs open by verbs */
	struct soft_listeners listeners;
	struct pier_list registered;
	struct soft_connection *connections[SOFT_MAX_QP]; /* by QPN */
};

/* The nodes that this process has open. */

/* One more handle for the node of plain verbs of this process; NULL: there is none. */
struct soft_node *pier_soft_share_meeting(void);

/*
 * Returns the node, now with a handle; or, if another thread was faster with one of
 * plain verbs, that one with one more handle, and the caller frees its own.
 */
struct soft_node *pier_soft_register(struct soft_node *node);

/* True: this was the last handle, nobody finds the node now, and the caller frees it.
 */
bool pier_soft_unregister(struct soft_node *node);

/*
 * Finds a node of this process. Also when it returns NULL, the registry stays locked
 * until pier_soft_release_registry().
 */
struct soft_node *pier_soft_hold_registry(const union ibv_gid *gid);

void pier_soft_release_registry(void);

/* All below: with the engine locked. */

/* The secrets and addresses by which a queue pair and its peer find each other. */
struct soft_connection {
	struct soft_node *node;
	struct soft_end *end; /* of the queue pair */
	struct soft_link *link;
	uint8_t secret[SOFT_SECRET_SIZE];
	bool has_peer_address;
	struct soft_address peer_address;
	struct soft_early_stream early;
};

/* NULL: there is none. */
struct soft_connection *pier_soft_find_connection(const struct soft_node *node,
						  uint32_t qpn);

/* Consumes the fds and the FIFO, and replaces an earlier stream. */
void pier_soft_store_stream(struct soft_connection *connection,
			    const struct soft_early_stream *stream);

void pier_soft_discard_stream(struct soft_connection *connection);

/* Closes a stream that was not stored. */
void pier_soft_free_stream(struct soft_early_stream *stream);

/* Whether there is a live stream from that peer. */
bool pier_soft_has_stream(const struct soft_connection *connection,
			  const union ibv_gid *gid, uint32_t qpn);

/* Whether this end has the lower (GID, QPN). */
bool pier_soft_precedes_peer(const struct soft_connection *connection,
			     const union ibv_gid *gid, uint32_t qpn);

/*
 * Both ends of a meeting called at the same time, and the stream of this end's own call,
 * which counts, is still to be adopted: the peer's must not replace it.
 */
bool pier_soft_prefers_own_call(const struct soft_connection *connection,
				const struct soft_early_stream *stream);

/*
 * Makes the stream the link of a queue pair that wants one and has not exchanged anything
 * yet. False: there is no stream, or none from the peer that the queue pair is set to.
 */
bool pier_soft_adopt_stream(struct soft_connection *connection);

#endif
