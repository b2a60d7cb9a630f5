/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sys/socket.h>

#include "ud_receive.h"
#include "complete.h"
#include "core/log.h"
#include "provider/soft/link/datagram.h"
#include "provider/soft/link/frame.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/soft.h"
#include "responder.h"

enum {
	DATAGRAMS_PER_EVENT = 64
};

/* Takes the next datagram from the socket without reading it. */
static void discard_datagram(int fd)
{
	char byte;

	recv(fd, &byte, sizeof(byte), MSG_DONTWAIT);
}

/* NULL: nobody takes it. */
static struct soft_qp *find_receiver(struct soft_context *context, const uint8_t *bytes,
				     ssize_t length, struct soft_envelope *ret_envelope)
{
	struct soft_qp *qp;

	if (length < SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE ||
	    length > SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE + SOFT_DATAGRAM_MTU ||
	    !pier_soft_unpack_envelope(bytes, ret_envelope))
		return NULL;
	qp = pier_soft_find_qp(context, ret_envelope->to_qpn);
	if (!qp || qp->ibv.qp_type != IBV_QPT_UD || qp->attr.qkey != ret_envelope->qkey ||
	    (qp->ibv.state != IBV_QPS_RTR && qp->ibv.state != IBV_QPS_RTS))
		return NULL;
	return pier_soft_take_next_recv(qp) ? qp : NULL;
}

static uint64_t room_of(const struct soft_recv *recv)
{
	uint64_t room = 0;

	for (int i = 0; i < recv->sge_count; i++)
		room += recv->sges[i].length;
	return room;
}

/* The kernel copies; a receive whose memory is not valid fails with the datagram. */
static enum ibv_wc_status read_datagram(struct soft_qp *qp, uint32_t length)
{
	const struct soft_recv *recv = pier_soft_current_recv(qp);
	int fd = soft_context_of(qp)->listeners.datagram_fd;
	uint8_t envelope[SOFT_ENVELOPE_SIZE];
	struct soft_vector vector;
	bool valid;

	pier_soft_vector_init(&vector, true);
	pier_soft_vector_add(&vector, envelope, sizeof(envelope));
	valid = pier_soft_vector_add_sges(&vector, qp, recv->sges, recv->sge_count, 0,
					  length, IBV_ACCESS_LOCAL_WRITE) &&
		vector.bytes == SOFT_ENVELOPE_SIZE + length;
	if (valid && pier_soft_vector_receive(&vector, fd) >= 0)
		return IBV_WC_SUCCESS;
	if (!valid)
		discard_datagram(fd);
	return IBV_WC_LOC_PROT_ERR;
}

static void deliver_datagram(struct soft_qp *qp, const struct soft_envelope *envelope,
			     uint32_t length)
{
	bool immediate = envelope->flags & SOFT_DATAGRAM_IMMEDIATE;
	const struct soft_header header = {
		.opcode = immediate ? SOFT_SEND_IMM : SOFT_SEND,
		.flags = envelope->flags & SOFT_DATAGRAM_SOLICITED ? SOFT_FLAG_SOLICITED
								   : 0,
		.length = length,
		.key = envelope->from_qpn,
		.immediate = envelope->immediate,
	};
	enum ibv_wc_status status = read_datagram(qp, length);

	pier_soft_complete_recv(qp, status, &header);
	if (status != IBV_WC_SUCCESS)
		pier_soft_fail_qp(qp, IBV_WC_SUCCESS);
}

/*
 * As with hardware a datagram is lost without a receive, with another Q_Key, and if the
 * receive is too small (IBTA 9.9.3). False: there are no more.
 */
static bool receive_one(struct soft_context *context)
{
	int fd = context->listeners.datagram_fd;
	uint8_t bytes[SOFT_ENVELOPE_SIZE];
	struct soft_envelope envelope;
	ssize_t length = recv(fd, bytes, sizeof(bytes),
			      MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
	struct soft_qp *qp;

	if (length < 0)
		return errno == EINTR;
	qp = find_receiver(context, bytes, length, &envelope);
	length -= SOFT_ENVELOPE_SIZE;
	if (qp && (uint64_t)length <= room_of(pier_soft_current_recv(qp))) {
		deliver_datagram(qp, &envelope, (uint32_t)length);
	} else {
		pier_debug("soft0: lost a datagram");
		discard_datagram(fd);
	}
	return true;
}

void pier_soft_receive_datagrams(struct soft_context *context)
{
	context->engine.last_datagram = context->engine.now;
	for (int i = 0; i < DATAGRAMS_PER_EVENT; i++) {
		if (!receive_one(context))
			break;
	}
}
