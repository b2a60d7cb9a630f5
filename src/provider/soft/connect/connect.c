/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "connect.h"
#include "address.h"
#include "call.h"
#include "core/error.h"
#include "core/fd.h"
#include "node.h"
#include "provider/libcrypto.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/link/socket.h"

static struct soft_early_stream parked_stream(int rx_fd, int tx_fd,
					      struct soft_fifo *fifo,
					      const union ibv_gid *gid, uint32_t qpn)
{
	struct soft_early_stream early = {
		.fd = rx_fd,
		.tx_fd = tx_fd,
		.fifo = fifo,
		.gid = *gid,
		.qpn = qpn,
		.proven = true,
	};

	return early;
}

/*
 * The peer's end of the stream, with the proof that a caller from another process sends
 * too: the peer accepts it only if it knows the address that this queue pair has since
 * its last RESET. The proof stays in this process, so any transcript will do.
 */
static struct soft_early_stream stream_for_peer(const struct soft_connection *connection,
						int fd, struct soft_fifo *fifo)
{
	struct soft_early_stream early = parked_stream(
		fd, fd, fifo, &connection->node->gid, connection->end->qpn);

	early.proven = false;
	pier_soft_prove(connection->secret, SOFT_CALLER_IDENTITY,
			early.session.transcript, early.proof);
	return early;
}

/* The reverse check, with the engine of the peer locked. */
static int check_known_secret(const struct soft_connection *connection,
			      const struct soft_connection *peer)
{
	if (!connection->has_peer_address)
		return pier_fail(ENOTCONN,
				 "soft0: the address of QP %#x was not given "
				 "(set_qp_address)",
				 peer->end->qpn);
	if (pier_crypto.CRYPTO_memcmp(connection->peer_address.secret, peer->secret,
				      SOFT_SECRET_SIZE) != 0)
		return pier_fail(ECONNREFUSED,
				 "soft0: QP %#x refuses: it was set up with another "
				 "address, or has been reset since",
				 peer->end->qpn);
	return 0;
}

static int check_peer(const struct soft_connection *connection,
		      struct soft_node *peer_node, uint32_t qpn)
{
	const struct soft_connection *peer;
	int error = 0;

	pier_soft_lock(peer_node->engine);
	peer = pier_soft_find_connection(peer_node, qpn);
	if (peer)
		error = check_known_secret(connection, peer);
	pier_soft_unlock(peer_node->engine);
	return error;
}

static void store_stream_locked(struct soft_connection *connection,
				const struct soft_early_stream *early)
{
	pier_soft_lock(connection->node->engine);
	pier_soft_store_stream(connection, early);
	pier_soft_unlock(connection->node->engine);
}

static bool has_stream_locked(struct soft_connection *connection,
			      const struct ibv_qp_attr *attr)
{
	bool has;

	pier_soft_lock(connection->node->engine);
	has = pier_soft_has_stream(connection, &attr->ah_attr.grh.dgid,
				   attr->dest_qp_num);
	pier_soft_unlock(connection->node->engine);
	return has;
}

/* Gives one end to the peer, which stores it until it goes to RTR. */
static bool store_stream_at_peer(const struct soft_connection *connection,
				 struct soft_node *node, uint32_t qpn,
				 const struct soft_early_stream *early)
{
	struct soft_connection *peer;
	bool taken;

	pier_soft_lock(node->engine);
	peer = pier_soft_find_connection(node, qpn);
	/* The peer may have been reset in the meantime. */
	taken = peer && check_known_secret(connection, peer) == 0;
	if (taken)
		pier_soft_store_stream(peer, early);
	pier_soft_unlock(node->engine);
	return taken;
}

/* Both FIFOs or none; without them the frames go through the sockets. */
static void create_fifos(struct soft_fifo **ret_lanes)
{
	struct soft_shared_memory *memory = pier_soft_create_shared_memory();

	ret_lanes[0] = ret_lanes[1] = NULL;
	if (!memory)
		return;
	atomic_fetch_add(&memory->users, 1);
	ret_lanes[0] = pier_soft_create_fifo(memory, 0, 1);
	ret_lanes[1] = pier_soft_create_fifo(memory, 1, 0);
	if (ret_lanes[0] && ret_lanes[1])
		return;
	pier_soft_free_fifo(ret_lanes[0]);
	pier_soft_free_fifo(ret_lanes[1]);
	ret_lanes[0] = ret_lanes[1] = NULL;
}

static void connect_to_itself(struct soft_connection *connection, const int fds[2],
			      const union ibv_gid *gid)
{
	struct soft_shared_memory *memory = pier_soft_create_shared_memory();
	struct soft_early_stream mine = parked_stream(fds[1], fds[0],
						      pier_soft_create_fifo(memory, 0, 0),
						      gid, connection->end->qpn);

	store_stream_locked(connection, &mine);
}

/* If the peer is gone, close the link again. */
static void connect_to_peer(struct soft_connection *connection,
			    struct soft_node *peer_node, const int fds[2],
			    const union ibv_gid *gid, uint32_t qpn)
{
	struct soft_early_stream mine, its;
	struct soft_fifo *fifos[2];

	create_fifos(fifos);
	mine = parked_stream(fds[0], fds[0], fifos[0], gid, qpn);
	its = stream_for_peer(connection, fds[1], fifos[1]);
	if (store_stream_at_peer(connection, peer_node, qpn, &its)) {
		store_stream_locked(connection, &mine);
		return;
	}
	pier_close_fd(fds[0]);
	pier_close_fd(fds[1]);
	pier_soft_free_fifo(fifos[0]);
	pier_soft_free_fifo(fifos[1]);
}

/*
 * The first of two queue pairs in a process makes the link. As with hardware it is no
 * error if the peer does not exist; requests to it will time out. With the registry
 * held, so that the node of the peer stays.
 */
static int connect_within(struct soft_connection *connection, struct soft_node *peer_node,
			  const struct ibv_qp_attr *attr)
{
	struct soft_node *node = connection->node;
	const union ibv_gid *gid = &attr->ah_attr.grh.dgid;
	int fds[2], error = check_peer(connection, peer_node, attr->dest_qp_num);

	if (error)
		return error;
	if (has_stream_locked(connection, attr))
		return 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
		return pier_fail(errno, "soft0: no socket pair to QP %#x",
				 attr->dest_qp_num);
	pier_soft_tune_stream(fds[0]);
	pier_soft_tune_stream(fds[1]);
	if (peer_node == node && attr->dest_qp_num == connection->end->qpn)
		connect_to_itself(connection, fds, gid);
	else
		connect_to_peer(connection, peer_node, fds, gid, attr->dest_qp_num);
	return 0;
}

static bool precedes_peer(const struct soft_connection *connection,
			  const struct ibv_qp_attr *attr)
{
	return pier_soft_precedes_peer(connection, &attr->ah_attr.grh.dgid,
				       attr->dest_qp_num);
}

/*
 * Both ends know from the endpoints which of them listens on TCP. If only one listens,
 * the other calls, even if a Unix socket then carries the link. Otherwise the end with
 * the lower (GID, QPN) calls.
 */
static bool is_caller(const struct soft_connection *connection,
		      const struct ibv_qp_attr *attr)
{
	bool we_listen = connection->node->listeners.count > 0;
	bool it_listens = connection->peer_address.count > 0;

	if (we_listen != it_listens)
		return it_listens;
	return precedes_peer(connection, attr);
}

/*
 * The hello contains the GID, which comes from an endpoint that may be hostile. With 16
 * bytes of its choice it could send a command to a service that is not soft0.
 */
static int check_gid(const union ibv_gid *gid)
{
	char text[INET6_ADDRSTRLEN];
	struct in6_addr address;
	uint16_t port;

	inet_ntop(AF_INET6, gid->raw, text, sizeof(text));
	if (!pier_soft_is_gid(gid))
		return pier_fail(EINVAL,
				 "soft0: the peer's GID %s is not that of a soft0: those "
				 "begin with fd00:7069:6572",
				 text);
	if (pier_soft_find_address(gid, &address, &port) &&
	    (port == 0 || !pier_soft_is_callable(&address)))
		return pier_fail(EINVAL,
				 "soft0: the peer's GID %s names a port or host that "
				 "nobody can have",
				 text);
	return 0;
}

int pier_soft_renew_secret(struct soft_connection *connection)
{
	const struct soft_node *node = connection->node;
	uint8_t secret[SOFT_SECRET_SIZE];

	if (node->meeting.joined)
		pier_soft_derive_secret(&node->meeting, &node->gid, connection->end->qpn,
					secret);
	else if (!pier_soft_random(secret, sizeof(secret)))
		return pier_fail(EIO, "soft0: QP %#x: no random numbers for a new secret",
				 connection->end->qpn);
	memcpy(connection->secret, secret, sizeof(secret));
	explicit_bzero(secret, sizeof(secret));
	return 0;
}

/* Sets the same as pier_soft_set_qp_address(), from GID and QPN. */
static void derive_peer_address(struct soft_connection *connection,
				const struct ibv_qp_attr *attr)
{
	struct soft_node *node = connection->node;
	const union ibv_gid *gid = &attr->ah_attr.grh.dgid;
	struct soft_address address = { 0 };

	if (pier_soft_find_address(gid, &address.addresses[0], &address.port))
		address.count = 1;
	pier_soft_derive_secret(&node->meeting, gid, attr->dest_qp_num, address.secret);
	pier_soft_lock(node->engine);
	connection->peer_address = address;
	connection->has_peer_address = true;
	pier_soft_unlock(node->engine);
	explicit_bzero(&address, sizeof(address));
}

/* Both ends may call at the same time: then the call of the lower one counts. */
static bool keep_one_stream(struct soft_connection *connection,
			    const struct ibv_qp_attr *attr,
			    struct soft_early_stream *early)
{
	struct soft_node *node = connection->node;
	bool called;

	pier_soft_lock(node->engine);
	called = pier_soft_has_stream(connection, &attr->ah_attr.grh.dgid,
				      attr->dest_qp_num);
	if (early->fd >= 0 && (!called || precedes_peer(connection, attr)))
		pier_soft_store_stream(connection, early);
	else
		pier_soft_free_stream(early);
	pier_soft_unlock(node->engine);
	return called;
}

/*
 * In a meeting neither end knows when the other gets to RTR, or back to RESET. So each
 * calls at RTR, unless the peer has called since this end was in RESET. Every stream
 * belongs to the present life of both ends: RESET closes the streams of an end, and an
 * end that has exchanged anything accepts no other one (pier_soft_adopt_stream()).
 *
 * As with hardware it is no error if the peer does not answer: its requests time out.
 */
static int meet_peer(struct soft_connection *connection, const struct ibv_qp_attr *attr)
{
	struct soft_early_stream early;
	int error;

	if (has_stream_locked(connection, attr))
		return 0;
	error = pier_soft_call(connection, attr, &early);
	if (keep_one_stream(connection, attr, &early) || error == -ECONNREFUSED ||
	    error == -ETIMEDOUT)
		error = 0;
	explicit_bzero(&early, sizeof(early));
	return error;
}

int pier_soft_connect(struct soft_connection *connection, const struct ibv_qp_attr *attr)
{
	bool meets = connection->node->meeting.joined;
	struct soft_early_stream early;
	struct soft_node *peer;
	int error = 0;

	if (meets)
		derive_peer_address(connection, attr);
	peer = pier_soft_hold_registry(&attr->ah_attr.grh.dgid);
	if (peer)
		error = connect_within(connection, peer, attr);
	pier_soft_release_registry();
	if (peer)
		return error;
	error = check_gid(&attr->ah_attr.grh.dgid);
	if (error)
		return error;
	if (!connection->has_peer_address)
		return pier_fail(ENOTCONN,
				 "soft0: QP %#x is in another process, and its "
				 "address was not given (set_qp_address)",
				 attr->dest_qp_num);
	if (meets)
		return meet_peer(connection, attr);
	if (!is_caller(connection, attr))
		return 0;
	error = pier_soft_call(connection, attr, &early);
	if (!error)
		store_stream_locked(connection, &early);
	explicit_bzero(&early, sizeof(early));
	return error;
}
