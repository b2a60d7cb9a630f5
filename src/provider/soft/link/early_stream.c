/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "early_stream.h"
#include "auth.h"
#include "core/fd.h"
#include "core/log.h"
#include "link.h"
#include "provider/soft/soft.h"
#include "ring.h"
#include "seal.h"
#include "socket.h"

/*
 * The caller has proved that it knows our secret. Now that we know its secret, this
 * checks its other proof.
 */
static bool check_peer_identity(const struct soft_qp *qp,
				const struct soft_early_stream *early)
{
	if (early->proven)
		return true;
	return qp->has_peer_address &&
	       pier_soft_proves(qp->peer_address.secret, SOFT_CALLER_IDENTITY,
				early->transcript, early->proof);
}

/* Whether the peer has hung up. What it sent before is then of no use. */
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

bool pier_soft_has_stream(const struct soft_qp *qp, const union ibv_gid *gid,
			  uint32_t qpn)
{
	return is_from(&qp->early, gid, qpn) && !is_stream_dead(qp->early.fd);
}

void pier_soft_free_stream(struct soft_early_stream *early)
{
	if (early->fd != early->tx_fd)
		pier_soft_hang_up(early->tx_fd);
	pier_soft_hang_up(early->fd);
	pier_soft_free_ring(early->ring);
	early->fd = early->tx_fd = -1;
	early->ring = NULL;
	explicit_bzero(early->agreed, sizeof(early->agreed));
}

void pier_soft_discard_stream(struct soft_qp *qp)
{
	pier_soft_free_stream(&qp->early);
}

/*
 * Both secrets are known here, and no frame has been sent or read yet. Of the two ends
 * of a sealed link only the caller has `proven` set.
 */
static struct soft_seal *seal_parked(struct soft_qp *qp,
				     const struct soft_early_stream *early)
{
	struct soft_session session;
	struct soft_seal *seal;
	uint8_t *listener = session.secrets, *caller = listener + SOFT_SECRET_SIZE;

	memcpy(early->proven ? caller : listener, qp->secret, SOFT_SECRET_SIZE);
	memcpy(early->proven ? listener : caller, qp->peer_address.secret,
	       SOFT_SECRET_SIZE);
	memcpy(session.transcript, early->transcript, SOFT_MAC_SIZE);
	memcpy(session.agreed, early->agreed, SOFT_SHARE_SIZE);
	seal = pier_soft_create_seal(&session, early->proven,
				     &soft_context_of(qp)->engine.staging);
	explicit_bzero(&session, sizeof(session));
	return seal;
}

static bool wants_link(const struct soft_qp *qp)
{
	return (qp->ibv.state == IBV_QPS_RTR || qp->ibv.state == IBV_QPS_RTS) &&
	       !pier_soft_link_open(&qp->link) && pier_soft_is_unused(qp);
}

/*
 * A peer that was given an address has a new secret after each RESET. If its stream is
 * dead, it is gone for good: the dead stream becomes the link, whose end is noticed as
 * that of any other. In a meeting it may have been reset, and will call again.
 */
static bool comes_from_peer(const struct soft_qp *qp)
{
	const struct soft_early_stream *early = &qp->early;
	bool may_call_again = soft_context_of(qp)->meeting.joined;

	return is_from(early, &qp->attr.ah_attr.grh.dgid, qp->attr.dest_qp_num) &&
	       check_peer_identity(qp, early) &&
	       !(may_call_again && is_stream_dead(early->fd));
}

void pier_soft_adopt_stream(struct soft_qp *qp)
{
	struct soft_early_stream early = qp->early;
	struct soft_seal *seal = NULL;

	if (early.fd < 0 || !wants_link(qp))
		return;
	if (!comes_from_peer(qp)) {
		pier_info("soft0: QP %#x dropped a connection: it is not from its peer",
			  qp->ibv.qp_num);
		pier_soft_discard_stream(qp);
		return;
	}
	if (early.sealed) {
		seal = seal_parked(qp, &early);
		if (!seal) {
			pier_warning("soft0: QP %#x dropped a connection: no memory or "
				     "fd to encrypt it",
				     qp->ibv.qp_num);
			pier_soft_discard_stream(qp);
			return;
		}
	}
	explicit_bzero(qp->early.agreed, sizeof(qp->early.agreed));
	explicit_bzero(early.agreed, sizeof(early.agreed));
	qp->early.fd = qp->early.tx_fd = -1;
	qp->early.ring = NULL;
	pier_soft_attach_link(qp, early.fd, early.tx_fd, early.ring, seal);
}

void pier_soft_store_stream(struct soft_qp *qp, const struct soft_early_stream *early)
{
	pier_soft_discard_stream(qp);
	qp->early = *early;
	pier_soft_adopt_stream(qp);
}
