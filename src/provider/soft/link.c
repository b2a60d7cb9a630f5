/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "core/fd.h"
#include "core/log.h"
#include "soft.h"

bool pier_soft_link_open(const struct soft_link *link)
{
	return link->rx_fd >= 0;
}

static int watch_link(struct soft_context *context, struct soft_qp *qp)
{
	const uint32_t in = EPOLLIN | EPOLLRDHUP | EPOLLET;
	struct soft_link *link = &qp->link;
	uint64_t id = link->serial * SOFT_MAX_QP + qp->ibv.qp_num % SOFT_MAX_QP;
	int error;

	if (link->lane) /* room in the ring is told otherwise */
		return pier_soft_watch(context, link->rx_fd, in, SOFT_EVENT_QP, id);
	if (link->rx_fd == link->tx_fd)
		return pier_soft_watch(context, link->rx_fd, in | EPOLLOUT, SOFT_EVENT_QP,
				       id);
	error = pier_soft_watch(context, link->rx_fd, in, SOFT_EVENT_QP, id);
	if (error)
		return error;
	return pier_soft_watch(context, link->tx_fd, EPOLLOUT | EPOLLET, SOFT_EVENT_QP,
			       id);
}

bool pier_soft_watch_again(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);

	pier_soft_unwatch(context, qp->link.rx_fd);
	if (qp->link.tx_fd != qp->link.rx_fd)
		pier_soft_unwatch(context, qp->link.tx_fd);
	return watch_link(context, qp) == 0;
}

static void start_lane(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;

	link->lane->qp = qp;
	link->lane->shares_fds = pier_soft_may_have_fds(link->tx_fd);
	pier_soft_accept_fds(link->rx_fd, true);
	pier_soft_heat(qp);
}

int pier_soft_attach_link(struct soft_qp *qp, int rx_fd, int tx_fd,
			  struct soft_lane *lane, struct soft_seal *seal)
{
	struct soft_context *context = soft_context_of(qp);
	int error;

	pier_soft_close_link(qp);
	/* Nothing of the one before, of which frames were staged when it was lost. */
	memset(&qp->link, 0, sizeof(qp->link));
	qp->link.rx_fd = rx_fd;
	qp->link.tx_fd = tx_fd;
	qp->link.lane = lane;
	qp->link.seal = seal;
	context->engine.socket_links += !lane;
	qp->link.serial = ++context->engine.next_serial;
	error = watch_link(context, qp);
	if (error) {
		pier_soft_close_link(qp);
		return error;
	}
	qp->link.readable = qp->link.writable = true;
	if (lane)
		start_lane(qp);
	qp->last_progress = pier_soft_now();
	pier_soft_activate(qp);
	return 0;
}

/* Closing alone would leave it open where a forked child has a copy. */
void pier_soft_hang_up(int fd)
{
	if (fd >= 0)
		shutdown(fd, SHUT_RDWR);
	pier_close_fd(fd);
}

static void close_lane(struct soft_qp *qp)
{
	struct soft_lane *lane = qp->link.lane;

	if (!lane->qp)
		lane->qp = qp; /* it was not started */
	pier_soft_revoke_link(qp);
	pier_soft_leave_hot(qp);
	pier_soft_free_lane(lane);
}

void pier_soft_close_link(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);
	struct soft_link *link = &qp->link;

	if (!pier_soft_link_open(link))
		return;
	if (link->lane)
		close_lane(qp);
	else
		context->engine.socket_links--;
	pier_soft_unwatch(context, link->rx_fd);
	if (link->tx_fd != link->rx_fd) {
		pier_soft_unwatch(context, link->tx_fd);
		pier_soft_hang_up(link->tx_fd);
	}
	pier_soft_hang_up(link->rx_fd);
	pier_soft_free_seal(link->seal);
	memset(link, 0, sizeof(*link));
	link->rx_fd = link->tx_fd = -1;
}

/* The caller proved that it knows our secret; now that we know its, this too. */
static bool identity_holds(const struct soft_qp *qp, const struct soft_parked *parked)
{
	if (parked->proven)
		return true;
	return qp->has_peer_address &&
	       pier_soft_proves(qp->peer_address.secret, SOFT_CALLER_IDENTITY,
				parked->transcript, parked->proof);
}

/* The peer gave up meanwhile, and whatever it sent is of no use without it. */
static bool is_dead(int fd)
{
	char byte;

	ssize_t received = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	/* A peer that left bytes unread resets the stream instead of ending it. */
	return received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR);
}

bool pier_soft_has_parked(const struct soft_qp *qp, const union ibv_gid *gid,
			  uint32_t qpn)
{
	const struct soft_parked *parked = &qp->parked;

	return parked->fd >= 0 && parked->qpn == qpn &&
	       memcmp(&parked->gid, gid, sizeof(*gid)) == 0 && !is_dead(parked->fd);
}

void pier_soft_unpark(struct soft_qp *qp)
{
	struct soft_parked *parked = &qp->parked;

	if (parked->fd != parked->tx_fd)
		pier_soft_hang_up(parked->tx_fd);
	pier_soft_hang_up(parked->fd);
	pier_soft_free_lane(parked->lane);
	parked->fd = parked->tx_fd = -1;
	parked->lane = NULL;
	explicit_bzero(parked->agreed, sizeof(parked->agreed));
}

/*
 * Both secrets are known here, and no frame has been sent or read yet. Of the two ends of
 * a sealed link, only the caller has `proven` set.
 */
static struct soft_seal *seal_parked(struct soft_qp *qp, const struct soft_parked *parked)
{
	struct soft_session session;
	struct soft_seal *seal;
	uint8_t *listener = session.secrets, *caller = listener + SOFT_SECRET_SIZE;

	memcpy(parked->proven ? caller : listener, qp->secret, SOFT_SECRET_SIZE);
	memcpy(parked->proven ? listener : caller, qp->peer_address.secret,
	       SOFT_SECRET_SIZE);
	memcpy(session.transcript, parked->transcript, SOFT_MAC_SIZE);
	memcpy(session.agreed, parked->agreed, SOFT_SHARE_SIZE);
	seal = pier_soft_create_seal(&session, parked->proven,
				     &soft_context_of(qp)->engine.staging);
	explicit_bzero(&session, sizeof(session));
	return seal;
}

void pier_soft_adopt_parked(struct soft_qp *qp)
{
	struct soft_parked parked = qp->parked;
	struct soft_seal *seal = NULL;

	if (parked.fd < 0)
		return;
	if (!pier_soft_has_parked(qp, &qp->attr.ah_attr.grh.dgid, qp->attr.dest_qp_num) ||
	    !identity_holds(qp, &parked)) {
		pier_info("soft0: QP %#x dropped a connection that is not its peer's",
			  qp->ibv.qp_num);
		pier_soft_unpark(qp);
		return;
	}
	if (parked.sealed) {
		seal = seal_parked(qp, &parked);
		if (!seal) {
			pier_warning("soft0: QP %#x dropped a connection: no memory or "
				     "fd to encrypt it",
				     qp->ibv.qp_num);
			pier_soft_unpark(qp);
			return;
		}
	}
	explicit_bzero(qp->parked.agreed, sizeof(qp->parked.agreed));
	explicit_bzero(parked.agreed, sizeof(parked.agreed));
	qp->parked.fd = qp->parked.tx_fd = -1;
	qp->parked.lane = NULL;
	pier_soft_attach_link(qp, parked.fd, parked.tx_fd, parked.lane, seal);
}

/* Consumes the fds in `parked`; the newest one counts. */
void pier_soft_park(struct soft_qp *qp, const struct soft_parked *parked)
{
	enum ibv_qp_state state = qp->ibv.state;

	pier_soft_unpark(qp);
	qp->parked = *parked;
	if ((state == IBV_QPS_RTR || state == IBV_QPS_RTS) &&
	    !pier_soft_link_open(&qp->link))
		pier_soft_adopt_parked(qp);
}
