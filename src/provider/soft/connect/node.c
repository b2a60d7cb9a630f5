/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node.h"
#include "core/fd.h"
#include "core/fork.h"
#include "core/log.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/link/seal.h"
#include "provider/soft/link/socket.h"

/*
 * The nodes that this process has open: two queue pairs of one process find each
 * other here. Global of necessity, as device names are.
 */
static struct {
	struct pier_fork_mutex lock;
	struct pier_list nodes;
} registry = {
	.lock = PIER_FORK_MUTEX,
	.nodes = { &registry.nodes, &registry.nodes },
};

static struct soft_node *find_meeting_locked(void)
{
	pier_list_for_each(struct soft_node, node, &registry.nodes, registered) {
		if (node->pid == getpid() && node->meeting.joined)
			return node;
	}
	return NULL;
}

struct soft_node *pier_soft_share_meeting(void)
{
	struct soft_node *node;

	pier_fork_lock(&registry.lock);
	node = find_meeting_locked();
	if (node)
		node->handles++;
	pier_fork_unlock(&registry.lock);
	return node;
}

struct soft_node *pier_soft_register(struct soft_node *node)
{
	struct soft_node *known = NULL;

	pier_fork_lock(&registry.lock);
	if (node->meeting.joined)
		known = find_meeting_locked();
	if (!known) {
		pier_list_append(&registry.nodes, &node->registered);
		known = node;
	}
	known->handles++;
	pier_fork_unlock(&registry.lock);
	return known;
}

bool pier_soft_unregister(struct soft_node *node)
{
	bool last;

	pier_fork_lock(&registry.lock);
	last = --node->handles == 0;
	if (last)
		pier_list_remove(&node->registered);
	pier_fork_unlock(&registry.lock);
	return last;
}

struct soft_node *pier_soft_hold_registry(const union ibv_gid *gid)
{
	pier_fork_lock(&registry.lock);
	pier_list_for_each(struct soft_node, node, &registry.nodes, registered) {
		/*
		 * A node that the parent opened before fork(2) has no engine in the
		 * child.
		 */
		if (node->pid == getpid() && memcmp(&node->gid, gid, sizeof(*gid)) == 0)
			return node;
	}
	return NULL;
}

void pier_soft_release_registry(void)
{
	pier_fork_unlock(&registry.lock);
}

/*
 * The caller has proved that it knows our secret. Now that we know its secret, this
 * checks its other proof.
 */
static bool check_peer_identity(const struct soft_connection *connection,
				const struct soft_early_stream *early)
{
	if (early->proven)
		return true;
	return connection->has_peer_address &&
	       pier_soft_proves(connection->peer_address.secret, SOFT_CALLER_IDENTITY,
				early->session.transcript, early->proof);
}

/* Whether the peer has hung up. Bytes that it sent before are then of no use. */
static bool is_stream_dead(int fd)
{
	char byte;

	ssize_t received = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	/* A peer that left bytes unread resets the stream instead of ending it. */
	return received == 0 || (received < 0 && !pier_is_transient(errno));
}

static bool is_from(const struct soft_early_stream *early, const union ibv_gid *gid,
		    uint32_t qpn)
{
	return early->fd >= 0 && early->qpn == qpn &&
	       memcmp(&early->gid, gid, sizeof(*gid)) == 0;
}

bool pier_soft_has_stream(const struct soft_connection *connection,
			  const union ibv_gid *gid, uint32_t qpn)
{
	return is_from(&connection->early, gid, qpn) &&
	       !is_stream_dead(connection->early.fd);
}

bool pier_soft_precedes_peer(const struct soft_connection *connection,
			     const union ibv_gid *gid, uint32_t qpn)
{
	int order = memcmp(&connection->node->gid, gid, sizeof(*gid));

	return order < 0 || (order == 0 && connection->end->qpn < qpn);
}

bool pier_soft_prefers_own_call(const struct soft_connection *connection,
				const struct soft_early_stream *stream)
{
	return connection->early.proven &&
	       pier_soft_has_stream(connection, &stream->gid, stream->qpn) &&
	       pier_soft_precedes_peer(connection, &stream->gid, stream->qpn);
}

void pier_soft_free_stream(struct soft_early_stream *early)
{
	if (early->fd != early->tx_fd)
		pier_soft_hang_up(early->tx_fd);
	pier_soft_hang_up(early->fd);
	pier_soft_free_fifo(early->fifo);
	early->fd = early->tx_fd = -1;
	early->fifo = NULL;
	explicit_bzero(&early->session, sizeof(early->session));
}

void pier_soft_discard_stream(struct soft_connection *connection)
{
	pier_soft_free_stream(&connection->early);
}

/*
 * Both secrets are known here, and no frame has been sent or read yet. Of the two ends
 * of a sealed link only the caller has `proven` set.
 */
static struct soft_seal *seal_parked(const struct soft_connection *connection,
				     struct soft_early_stream *early)
{
	uint8_t *listener = early->session.secrets, *caller = listener + SOFT_SECRET_SIZE;

	memcpy(early->proven ? caller : listener, connection->secret, SOFT_SECRET_SIZE);
	memcpy(early->proven ? listener : caller, connection->peer_address.secret,
	       SOFT_SECRET_SIZE);
	return pier_soft_create_seal(&early->session, early->proven);
}

/*
 * A peer that was given an address has a new secret after each RESET. If its stream is
 * dead, it is gone for good: the dead stream becomes the link, whose end is noticed as
 * that of any other. In a meeting it may have been reset, and will call again.
 */
static bool comes_from_peer(const struct soft_connection *connection)
{
	const struct soft_early_stream *early = &connection->early;
	bool may_call_again = connection->node->meeting.joined;

	return is_from(early, &connection->end->attr->ah_attr.grh.dgid,
		       connection->end->attr->dest_qp_num) &&
	       check_peer_identity(connection, early) &&
	       !(may_call_again && is_stream_dead(early->fd));
}

bool pier_soft_adopt_stream(struct soft_connection *connection)
{
	struct soft_early_stream early = connection->early;
	uint32_t qpn = connection->end->qpn;
	struct soft_seal *seal = NULL;
	bool sealed;

	if (early.fd < 0)
		return false;
	if (!comes_from_peer(connection)) {
		pier_info("soft0: QP %#x dropped a connection: it is not from its peer",
			  qpn);
		pier_soft_discard_stream(connection);
		return false;
	}
	sealed = early.session.cipher != SOFT_PLAIN;
	if (sealed)
		seal = seal_parked(connection, &early);
	explicit_bzero(&early.session, sizeof(early.session));
	if (sealed && !seal) {
		pier_warning("soft0: QP %#x dropped a connection: no memory or fd to "
			     "encrypt it",
			     qpn);
		pier_soft_discard_stream(connection);
		return false;
	}
	explicit_bzero(&connection->early.session, sizeof(early.session));
	connection->early.fd = connection->early.tx_fd = -1;
	connection->early.fifo = NULL;
	return pier_soft_attach_link(connection->link, early.fd, early.tx_fd, early.fifo,
				     seal) == 0;
}

/* The queue pair adopts it in its turn. */
void pier_soft_store_stream(struct soft_connection *connection,
			    const struct soft_early_stream *early)
{
	pier_soft_discard_stream(connection);
	connection->early = *early;
	pier_soft_activate(&connection->end->work);
}

struct soft_connection *pier_soft_find_connection(const struct soft_node *node,
						  uint32_t qpn)
{
	struct soft_connection *connection = node->connections[qpn % SOFT_MAX_QP];

	return connection && connection->end->qpn == qpn ? connection : NULL;
}
