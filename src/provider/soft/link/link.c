/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>
#include <sys/epoll.h>

#include "link.h"
#include "core/environment.h"
#include "grant_given.h"
#include "grant_received.h"
#include "provider/soft/engine.h"
#include "provider/soft/soft.h"
#include "ring.h"
#include "seal.h"
#include "socket.h"

static int watch_link(struct soft_context *context, struct soft_qp *qp)
{
	const uint32_t in = EPOLLIN | EPOLLRDHUP | EPOLLET;
	struct soft_link *link = &qp->link;
	uint64_t id = link->serial * SOFT_MAX_QP + qp->ibv.qp_num % SOFT_MAX_QP;
	int error;

	if (link->ring) /* the ring itself shows when it has room */
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

bool pier_soft_rewatch_link(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);

	pier_soft_unwatch(context, qp->link.rx_fd);
	if (qp->link.tx_fd != qp->link.rx_fd)
		pier_soft_unwatch(context, qp->link.tx_fd);
	return watch_link(context, qp) == 0;
}

static void start_ring(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;

	link->ring->qp = qp;
	link->ring->shares_fds = pier_soft_may_have_fds(link->tx_fd);
	link->ring->unreachable = pier_switched_off("PIER_SOFT_CMA");
	pier_soft_accept_fds(link->rx_fd, true);
	pier_soft_start_polling(qp);
}

int pier_soft_attach_link(struct soft_qp *qp, int rx_fd, int tx_fd,
			  struct soft_ring *ring, struct soft_seal *seal)
{
	struct soft_context *context = soft_context_of(qp);
	int error;

	pier_soft_close_link(qp);
	/*
	 * Clears all of the previous link, which may have been lost with frames queued.
	 */
	memset(&qp->link, 0, sizeof(qp->link));
	qp->link.rx_fd = rx_fd;
	qp->link.tx_fd = tx_fd;
	qp->link.ring = ring;
	qp->link.seal = seal;
	context->engine.socket_links += !ring;
	qp->link.serial = ++context->engine.next_serial;
	error = watch_link(context, qp);
	if (error) {
		pier_soft_close_link(qp);
		return error;
	}
	qp->link.readable = qp->link.writable = true;
	if (ring)
		start_ring(qp);
	qp->last_progress = pier_soft_now();
	pier_soft_activate(qp);
	return 0;
}

static void close_ring(struct soft_qp *qp)
{
	struct soft_ring *ring = qp->link.ring;

	if (!ring->qp)
		ring->qp = qp; /* the ring was not started */
	pier_soft_revoke_link_grants(qp);
	pier_soft_stop_polling(qp);
	pier_soft_release_grants(ring);
	pier_soft_free_ring(ring);
}

void pier_soft_close_link(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);
	struct soft_link *link = &qp->link;

	if (!pier_soft_link_open(link))
		return;
	if (link->ring)
		close_ring(qp);
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
