/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>
#include <sys/epoll.h>

#include "attach.h"
#include "core/environment.h"
#include "grant_given.h"
#include "grant_received.h"
#include "link.h"
#include "provider/soft/engine.h"
#include "ring.h"
#include "seal.h"
#include "socket.h"

static int watch_link(const struct soft_link *link)
{
	const uint32_t in = EPOLLIN | EPOLLRDHUP | EPOLLET;
	struct soft_engine *engine = soft_engine_of(link);
	uint64_t id = link->serial * SOFT_MAX_QP + link->end->qpn % SOFT_MAX_QP;
	int error;

	if (link->ring) /* the ring itself shows when it has room */
		return pier_soft_watch(engine, link->rx_fd, in, SOFT_EVENT_QP, id);
	if (link->rx_fd == link->tx_fd)
		return pier_soft_watch(engine, link->rx_fd, in | EPOLLOUT, SOFT_EVENT_QP,
				       id);
	error = pier_soft_watch(engine, link->rx_fd, in, SOFT_EVENT_QP, id);
	if (error)
		return error;
	return pier_soft_watch(engine, link->tx_fd, EPOLLOUT | EPOLLET, SOFT_EVENT_QP,
			       id);
}

bool pier_soft_rewatch_link(struct soft_link *link)
{
	struct soft_engine *engine = soft_engine_of(link);

	pier_soft_unwatch(engine, link->rx_fd);
	if (link->tx_fd != link->rx_fd)
		pier_soft_unwatch(engine, link->tx_fd);
	return watch_link(link) == 0;
}

static void start_ring(struct soft_link *link)
{
	link->ring->link = link;
	link->ring->shares_fds = pier_soft_may_have_fds(link->tx_fd);
	link->ring->unreachable = pier_switched_off("PIER_SOFT_CMA");
	pier_soft_accept_fds(link->rx_fd, true);
	pier_soft_start_polling(link);
}

int pier_soft_attach_link(struct soft_link *link, int rx_fd, int tx_fd,
			  struct soft_ring *ring, struct soft_seal *seal)
{
	struct soft_engine *engine = soft_engine_of(link);
	int error;

	pier_soft_close_link(link);
	/*
	 * Clears all of the previous link, which may have been lost with frames queued.
	 */
	*link = (struct soft_link){
		.end = link->end,
		.rx_fd = rx_fd,
		.tx_fd = tx_fd,
		.ring = ring,
		.seal = seal,
	};
	engine->socket_links += !ring;
	link->serial = ++engine->next_serial;
	error = watch_link(link);
	if (error) {
		pier_soft_close_link(link);
		return error;
	}
	link->readable = link->writable = true;
	if (ring)
		start_ring(link);
	pier_soft_activate(&link->end->work);
	return 0;
}

static void close_ring(struct soft_link *link)
{
	struct soft_ring *ring = link->ring;

	if (!ring->link)
		ring->link = link; /* the ring was not started */
	pier_soft_revoke_link_grants(link);
	pier_soft_stop_polling(link);
	pier_soft_release_grants(ring);
	pier_soft_free_ring(ring);
}

void pier_soft_close_link(struct soft_link *link)
{
	struct soft_engine *engine = soft_engine_of(link);

	if (!pier_soft_link_open(link))
		return;
	if (link->ring)
		close_ring(link);
	else
		engine->socket_links--;
	pier_soft_unwatch(engine, link->rx_fd);
	if (link->tx_fd != link->rx_fd) {
		pier_soft_unwatch(engine, link->tx_fd);
		pier_soft_hang_up(link->tx_fd);
	}
	pier_soft_hang_up(link->rx_fd);
	pier_soft_free_seal(link->seal);
	*link = (struct soft_link){ .end = link->end, .rx_fd = -1, .tx_fd = -1 };
}
