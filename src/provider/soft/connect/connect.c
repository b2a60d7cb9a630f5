/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <sodium.h>

#include "connect.h"
#include "address.h"
#include "call.h"
#include "core/error.h"
#include "core/fd.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/early_stream.h"
#include "provider/soft/link/ring.h"
#include "provider/soft/link/socket.h"
#include "provider/soft/registry.h"
#include "provider/soft/soft.h"

static struct soft_early_stream parked_stream(int rx_fd, int tx_fd,
					      struct soft_ring *ring,
					      const union ibv_gid *gid, uint32_t qpn)
{
	struct soft_early_stream early = {
		.fd = rx_fd,
		.tx_fd = tx_fd,
		.ring = ring,
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
static struct soft_early_stream stream_for_peer(const struct soft_qp *qp, int fd,
						struct soft_ring *ring)
{
	struct soft_early_stream early = parked_stream(
		fd, fd, ring, &soft_context_of(qp)->gid, qp->ibv.qp_num);

	early.proven = false;
	pier_soft_prove(qp->secret, SOFT_CALLER_IDENTITY, early.transcript, early.proof);
	return early;
}

/* The reverse check, with the context of the peer locked. */
static int check_known_secret(const struct soft_qp *qp, const struct soft_qp *peer)
{
	if (!qp->has_peer_address)
		return pier_fail(ENOTCONN,
				 "soft0: the address of QP %#x was not given "
				 "(set_qp_address)",
				 peer->ibv.qp_num);
	if (sodium_memcmp(qp->peer_address.secret, peer->secret, SOFT_SECRET_SIZE) != 0)
		return pier_fail(ECONNREFUSED,
				 "soft0: QP %#x refuses: it was set up with another "
				 "address, or has been reset since",
				 peer->ibv.qp_num);
	return 0;
}

static int check_peer(const struct soft_qp *qp, struct soft_context *peer_context,
		      uint32_t qpn)
{
	const struct soft_qp *peer;
	int error = 0;

	pier_soft_lock(peer_context);
	peer = pier_soft_find_qp(peer_context, qpn);
	if (peer)
		error = check_known_secret(qp, peer);
	pier_soft_unlock(peer_context);
	return error;
}

static void store_stream_locked(struct soft_qp *qp, const struct soft_early_stream *early)
{
	pier_soft_lock(soft_context_of(qp));
	pier_soft_store_stream(qp, early);
	pier_soft_unlock(soft_context_of(qp));
}

static bool has_stream_locked(struct soft_qp *qp, const struct ibv_qp_attr *attr)
{
	bool has;

	pier_soft_lock(soft_context_of(qp));
	has = pier_soft_has_stream(qp, &attr->ah_attr.grh.dgid, attr->dest_qp_num);
	pier_soft_unlock(soft_context_of(qp));
	return has;
}

/* Gives one end to the peer, which stores it until it goes to RTR. */
static bool store_stream_at_peer(const struct soft_qp *qp, struct soft_context *context,
				 uint32_t qpn, const struct soft_early_stream *early)
{
	struct soft_qp *peer;
	bool taken;

	pier_soft_lock(context);
	peer = pier_soft_find_qp(context, qpn);
	/* The peer may have been reset in the meantime. */
	taken = peer && check_known_secret(qp, peer) == 0;
	if (taken)
		pier_soft_store_stream(peer, early);
	pier_soft_unlock(context);
	return taken;
}

/* Both rings or none; without them the frames go through the sockets. */
static void create_rings(struct soft_ring **ret_lanes)
{
	struct soft_shared_memory *memory = pier_soft_create_shared_memory();

	ret_lanes[0] = ret_lanes[1] = NULL;
	if (!memory)
		return;
	atomic_fetch_add(&memory->users, 1);
	ret_lanes[0] = pier_soft_create_ring(memory, 0);
	ret_lanes[1] = pier_soft_create_ring(memory, 1);
	if (ret_lanes[0] && ret_lanes[1])
		return;
	pier_soft_free_ring(ret_lanes[0]);
	pier_soft_free_ring(ret_lanes[1]);
	ret_lanes[0] = ret_lanes[1] = NULL;
}

static void connect_to_itself(struct soft_qp *qp, const int fds[2],
			      const union ibv_gid *gid)
{
	struct soft_shared_memory *memory = pier_soft_create_shared_memory();
	struct soft_early_stream mine = parked_stream(
		fds[1], fds[0], pier_soft_create_loop_ring(memory), gid, qp->ibv.qp_num);

	store_stream_locked(qp, &mine);
}

/* If the peer is gone, close the link again. */
static void connect_to_peer(struct soft_qp *qp, struct soft_context *peer_context,
			    const int fds[2], const union ibv_gid *gid, uint32_t qpn)
{
	struct soft_early_stream mine, its;
	struct soft_ring *rings[2];

	create_rings(rings);
	mine = parked_stream(fds[0], fds[0], rings[0], gid, qpn);
	its = stream_for_peer(qp, fds[1], rings[1]);
	if (store_stream_at_peer(qp, peer_context, qpn, &its)) {
		store_stream_locked(qp, &mine);
		return;
	}
	pier_close_fd(fds[0]);
	pier_close_fd(fds[1]);
	pier_soft_free_ring(rings[0]);
	pier_soft_free_ring(rings[1]);
}

/*
 * The first of two queue pairs in a process makes the link. As with hardware it is no
 * error if the peer does not exist; requests to it will time out. With the registry
 * held, so that the context of the peer stays.
 */
static int connect_within(struct soft_qp *qp, struct soft_context *peer_context,
			  const struct ibv_qp_attr *attr)
{
	struct soft_context *context = soft_context_of(qp);
	const union ibv_gid *gid = &attr->ah_attr.grh.dgid;
	int fds[2], error = check_peer(qp, peer_context, attr->dest_qp_num);

	if (error)
		return error;
	if (has_stream_locked(qp, attr))
		return 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
		return pier_fail(errno, "soft0: no socket pair to QP %#x",
				 attr->dest_qp_num);
	pier_soft_tune_stream(fds[0]);
	pier_soft_tune_stream(fds[1]);
	if (peer_context == context && attr->dest_qp_num == qp->ibv.qp_num)
		connect_to_itself(qp, fds, gid);
	else
		connect_to_peer(qp, peer_context, fds, gid, attr->dest_qp_num);
	return 0;
}

/* The end with the lower (GID, QPN). */
static bool precedes_peer(const struct soft_qp *qp, const struct ibv_qp_attr *attr)
{
	int order = memcmp(&soft_context_of(qp)->gid, &attr->ah_attr.grh.dgid,
			   sizeof(union ibv_gid));

	return order < 0 || (order == 0 && qp->ibv.qp_num < attr->dest_qp_num);
}

/*
 * Both ends know from the endpoints which of them listens on TCP. If only one listens,
 * the other calls, even if a Unix socket then carries the link. Otherwise the end with
 * the lower (GID, QPN) calls.
 */
static bool is_caller(const struct soft_qp *qp, const struct ibv_qp_attr *attr)
{
	bool we_listen = soft_context_of(qp)->listeners.count > 0;
	bool it_listens = qp->peer_address.count > 0;

	if (we_listen != it_listens)
		return it_listens;
	return precedes_peer(qp, attr);
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

int pier_soft_renew_secret(struct soft_qp *qp)
{
	const struct soft_context *context = soft_context_of(qp);
	uint8_t secret[SOFT_SECRET_SIZE];

	if (context->meeting.joined)
		pier_soft_derive_secret(&context->meeting, &context->gid, qp->ibv.qp_num,
					secret);
	else if (!pier_soft_random(secret, sizeof(secret)))
		return pier_fail(EIO, "soft0: QP %#x: no random numbers for a new secret",
				 qp->ibv.qp_num);
	memcpy(qp->secret, secret, sizeof(secret));
	explicit_bzero(secret, sizeof(secret));
	return 0;
}

/* What pier_soft_set_qp_address() sets, from GID and QPN. */
static void derive_peer_address(struct soft_qp *qp, const struct ibv_qp_attr *attr)
{
	struct soft_context *context = soft_context_of(qp);
	const union ibv_gid *gid = &attr->ah_attr.grh.dgid;
	struct soft_address address = { 0 };

	if (pier_soft_find_address(gid, &address.addresses[0], &address.port))
		address.count = 1;
	pier_soft_derive_secret(&context->meeting, gid, attr->dest_qp_num,
				address.secret);
	pier_soft_lock(context);
	qp->peer_address = address;
	qp->has_peer_address = true;
	pier_soft_unlock(context);
	explicit_bzero(&address, sizeof(address));
}

/* Both ends may call at the same time: then the call of the lower one counts. */
static bool keep_one_stream(struct soft_qp *qp, const struct ibv_qp_attr *attr,
			    struct soft_early_stream *early)
{
	struct soft_context *context = soft_context_of(qp);
	bool called;

	pier_soft_lock(context);
	called = pier_soft_has_stream(qp, &attr->ah_attr.grh.dgid, attr->dest_qp_num);
	if (early->fd >= 0 && (!called || precedes_peer(qp, attr)))
		pier_soft_store_stream(qp, early);
	else
		pier_soft_free_stream(early);
	pier_soft_unlock(context);
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
static int meet_peer(struct soft_qp *qp, const struct ibv_qp_attr *attr)
{
	struct soft_early_stream early;
	int error;

	if (has_stream_locked(qp, attr))
		return 0;
	error = pier_soft_call(qp, attr, &early);
	if (keep_one_stream(qp, attr, &early) || error == -ECONNREFUSED ||
	    error == -ETIMEDOUT)
		error = 0;
	explicit_bzero(&early, sizeof(early));
	return error;
}

int pier_soft_connect(struct soft_qp *qp, const struct ibv_qp_attr *attr)
{
	bool meets = soft_context_of(qp)->meeting.joined;
	struct soft_early_stream early;
	struct soft_context *peer;
	int error = 0;

	if (meets)
		derive_peer_address(qp, attr);
	peer = pier_soft_hold_registry(&attr->ah_attr.grh.dgid);
	if (peer)
		error = connect_within(qp, peer, attr);
	pier_soft_release_registry();
	if (peer)
		return error;
	error = check_gid(&attr->ah_attr.grh.dgid);
	if (error)
		return error;
	if (!qp->has_peer_address)
		return pier_fail(ENOTCONN,
				 "soft0: QP %#x is in another process, and its "
				 "address was not given (set_qp_address)",
				 attr->dest_qp_num);
	if (meets)
		return meet_peer(qp, attr);
	if (!is_caller(qp, attr))
		return 0;
	error = pier_soft_call(qp, attr, &early);
	if (!error)
		store_stream_locked(qp, &early);
	explicit_bzero(&early, sizeof(early));
	return error;
}
