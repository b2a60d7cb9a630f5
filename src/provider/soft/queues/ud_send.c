/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "ud_send.h"
#include "complete.h"
#include "provider/soft/connect/datagram_socket.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/datagram.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/soft.h"

enum {
	DATAGRAMS_PER_TURN = 64,
	/*
	 * The kernel queues about 10 datagrams for a receiver (net.unix.max_dgram_qlen),
	 * which is less than a burst. Like Ethernet with flow control the sender waits
	 * for room, but not for a receiver that does not run.
	 */
	RETRY_NANOSECONDS = 20000,
	PATIENCE_NANOSECONDS = 200000000
};

static bool is_slow(const struct soft_ud *ud, const union ibv_gid *gid)
{
	return ud->has_slow && memcmp(&ud->slow, gid, sizeof(*gid)) == 0;
}

/* The receiver has no room. False: the datagram is lost. */
static bool wait_for_receiver(struct soft_qp *qp, const union ibv_gid *gid)
{
	uint64_t now = soft_context_of(qp)->engine.now;
	struct soft_ud *ud = &qp->ud;

	if (is_slow(ud, gid))
		return false;
	if (!ud->stalled_since)
		ud->stalled_since = now;
	if (now - ud->stalled_since < PATIENCE_NANOSECONDS) {
		qp->sq.rnr_until = now + RETRY_NANOSECONDS;
		return true;
	}
	ud->slow = *gid;
	ud->has_slow = true;
	return false;
}

static bool build_datagram(struct soft_qp *qp, struct soft_send *send, uint8_t *headers,
			   struct soft_vector *vector)
{
	const struct soft_destination *to =
		&qp->ud.destinations[qp->sq.done % qp->sq.depth];
	bool immediate = send->opcode == IBV_WR_SEND_WITH_IMM;
	const struct soft_envelope envelope = {
		.flags = (send->flags & IBV_SEND_SOLICITED ? SOFT_DATAGRAM_SOLICITED
							   : 0) |
			 (immediate ? SOFT_DATAGRAM_IMMEDIATE : 0),
		.from_qpn = qp->ibv.qp_num,
		.to_qpn = to->qpn,
		.qkey = to->qkey,
		.immediate = send->immediate,
	};
	struct ibv_grh grh = pier_soft_make_grh(&to->route, &soft_context_of(qp)->gid,
						send->length, immediate);

	pier_soft_pack_envelope(&envelope, headers);
	memcpy(headers + SOFT_ENVELOPE_SIZE, &grh, SOFT_GRH_SIZE);
	pier_soft_vector_init(vector, false);
	pier_soft_vector_add(vector, headers, SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE);
	if (send->flags & IBV_SEND_INLINE) {
		pier_soft_vector_add(vector, send->inline_data, send->length);
		return true;
	}
	return pier_soft_vector_add_sges(vector, qp, send->sges, send->sge_count, 0,
					 send->length, 0) &&
	       vector->bytes == SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE + send->length;
}

/* 0 or -errno. */
static int send_datagram(struct soft_qp *qp, struct soft_send *send,
			 const union ibv_gid *gid)
{
	const struct soft_context *context = soft_context_of(qp);
	uint8_t headers[SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE];
	struct soft_vector vector;
	struct sockaddr_un name;

	if (!build_datagram(qp, send, headers, &vector))
		return -EFAULT;
	pier_soft_datagram_name(&context->meeting, gid, &name);
	if (pier_soft_vector_send_to(&vector, context->listeners.datagram_fd, &name) < 0)
		return -errno;
	return 0;
}

/*
 * False: the request waits. A datagram to nobody is lost, as on a network. So is one
 * above the MTU, without an error (IBTA C10-93.1.1).
 */
static bool send_first(struct soft_qp *qp)
{
	struct soft_send *send = pier_soft_send_at(&qp->sq, qp->sq.done);
	const union ibv_gid *gid =
		&qp->ud.destinations[qp->sq.done % qp->sq.depth].route.dgid;
	int error = 0;

	if (send->length <= SOFT_DATAGRAM_MTU)
		error = send_datagram(qp, send, gid);
	if (error == -EINTR || (error == -EAGAIN && wait_for_receiver(qp, gid)))
		return false;
	if (error == -EFAULT) {
		pier_soft_fail_qp(qp, IBV_WC_LOC_PROT_ERR);
		return false;
	}
	qp->ud.stalled_since = 0;
	soft_context_of(qp)->engine.last_datagram = soft_context_of(qp)->engine.now;
	if (error == 0 && is_slow(&qp->ud, gid))
		qp->ud.has_slow = false;
	pier_soft_complete_send(qp, IBV_WC_SUCCESS);
	return true;
}

void pier_soft_send_datagrams(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;

	for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
		if (qp->ibv.state != IBV_QPS_RTS || sq->rnr_until ||
		    sq->done == atomic_load_explicit(&sq->head, memory_order_acquire))
			return;
		if (!send_first(qp))
			break;
	}
	pier_soft_activate(qp);
}

static bool has_datagrams(const struct soft_qp *qp)
{
	return qp->ibv.state == IBV_QPS_RTS && qp->sq.done != atomic_load(&qp->sq.head);
}

void pier_soft_drain_datagrams(struct soft_qp *qp)
{
	const struct timespec retry = { .tv_nsec = RETRY_NANOSECONDS };
	struct soft_context *context = soft_context_of(qp);
	uint64_t end = pier_soft_now() + PATIENCE_NANOSECONDS;

	while (has_datagrams(qp)) {
		context->engine.now = pier_soft_now();
		qp->sq.rnr_until = 0;
		pier_soft_send_datagrams(qp);
		if (context->engine.stepped || pier_soft_now() >= end)
			return;
		/* The receiver may be served by this engine. */
		pier_soft_unlock(context);
		nanosleep(&retry, NULL);
		pier_soft_lock(context);
	}
}
