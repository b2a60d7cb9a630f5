/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "receive.h"
#include "acknowledge.h"
#include "complete.h"
#include "events.h"
#include "core/log.h"
#include "provider/soft/link/frame.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/ring.h"
#include "provider/soft/link/seal.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/soft.h"
#include "responder.h"

enum {
	TURN_BYTES = 1024 * 1024
};

static void reject_malformed_frame(struct soft_qp *qp)
{
	pier_warning("soft0: QP %#x: a malformed frame from QP %#x (opcode %u, length "
		     "%u, number %u)",
		     qp->ibv.qp_num, qp->attr.dest_qp_num, qp->link.header.opcode,
		     qp->link.header.length, qp->link.header.msn);
	pier_soft_report_event(qp->ibv.context, &qp->events, IBV_EVENT_QP_REQ_ERR);
	pier_soft_close_link(qp);
	pier_soft_fail_qp(qp, IBV_WC_BAD_RESP_ERR);
}

static bool add_target_memory(struct soft_qp *qp, struct soft_vector *vector,
			      uint64_t limit)
{
	struct soft_link *link = &qp->link;
	const struct soft_header *header = &link->header;
	struct soft_engine *engine = &soft_context_of(qp)->engine;
	struct ibv_sge range = {
		.addr = header->address,
		.length = header->length,
		.lkey = header->key,
	};
	const struct soft_recv *recv;
	const struct soft_send *send;

	switch (link->target) {
	case SOFT_TO_REGION:
		return pier_soft_vector_add_region(vector, qp, &range, link->payload_done,
						   limit, IBV_ACCESS_REMOTE_WRITE);
	case SOFT_TO_RECV:
		recv = pier_soft_current_recv(qp);
		return pier_soft_vector_add_sges(vector, qp, recv->sges, recv->sge_count,
						 link->payload_done, limit,
						 IBV_ACCESS_LOCAL_WRITE);
	case SOFT_TO_OPERANDS:
		pier_soft_vector_add(vector, link->operands + link->payload_done, limit);
		return true;
	case SOFT_TO_READER:
		send = pier_soft_send_at(&qp->sq, qp->sq.done);
		return pier_soft_vector_add_sges(vector, qp, send->sges, send->sge_count,
						 link->payload_done, limit,
						 IBV_ACCESS_LOCAL_WRITE);
	default:
		pier_soft_vector_add(vector, engine->sink,
				     limit < SOFT_SINK_SIZE ? limit : SOFT_SINK_SIZE);
		return true;
	}
}

/* The memory for the payload was deregistered or unmapped. */
static void fail_target(struct soft_qp *qp)
{
	switch (qp->link.target) {
	case SOFT_TO_REGION:
		pier_soft_refuse_request(qp, SOFT_NAK_ACCESS);
		break;
	case SOFT_TO_RECV:
		pier_soft_refuse_message(qp, IBV_WC_LOC_PROT_ERR, SOFT_NAK_OPERATION);
		break;
	default:
		pier_soft_fail_qp(qp, IBV_WC_LOC_PROT_ERR);
		break;
	}
}

static uint32_t payload_left(const struct soft_link *link)
{
	if (!link->in_payload)
		return 0;
	return pier_soft_payload_length(&link->header) - link->payload_done;
}

/*
 * Lists the rest of the payload, as much as fits. If all of it fits, the next header
 * follows, to save a system call.
 */
static bool build_vector(struct soft_qp *qp, struct soft_vector *vector)
{
	struct soft_link *link = &qp->link;
	uint32_t left = payload_left(link);

	pier_soft_vector_init(vector, true);
	if (link->closing) {
		pier_soft_vector_add(vector, soft_context_of(qp)->engine.sink,
				     SOFT_SINK_SIZE);
		return true;
	}
	if (left > 0 &&
	    !add_target_memory(qp, vector, left < TURN_BYTES ? left : TURN_BYTES))
		return false;
	if (vector->bytes == left)
		pier_soft_vector_add(vector, link->header_bytes + link->header_have,
				     SOFT_HEADER_SIZE - link->header_have);
	return true;
}

static void finish_frame(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;

	link->in_payload = false;
	link->payload_done = 0;
	if (link->header.opcode == SOFT_READ_RESPONSE ||
	    link->header.opcode == SOFT_ATOMIC_RESPONSE)
		pier_soft_finish_read(qp);
	else if (link->header.opcode < SOFT_ACK && !link->ignored)
		pier_soft_finish_request(qp);
}

static bool begin_frame(struct soft_qp *qp)
{
	const struct soft_header *header = &qp->link.header;

	switch (header->opcode) {
	case SOFT_ACK:
		return pier_soft_handle_ack(qp, header);
	case SOFT_NAK:
		return pier_soft_handle_nak(qp, header);
	case SOFT_READ_RESPONSE:
	case SOFT_ATOMIC_RESPONSE:
		return pier_soft_begin_read_response(qp, header);
	case SOFT_SKIP:
		return pier_soft_handle_skip(qp, header);
	default:
		return pier_soft_begin_request(qp, header);
	}
}

static void take_header(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;

	link->header_have = 0;
	link->ignored = false;
	link->target = SOFT_TO_NOWHERE;
	if (!pier_soft_unpack_header(link->header_bytes, &link->header) ||
	    !begin_frame(qp)) {
		reject_malformed_frame(qp);
		return;
	}
	if (!pier_soft_link_open(link) || link->closing)
		return;
	if (pier_soft_payload_length(&link->header) > 0)
		link->in_payload = true;
	else
		finish_frame(qp);
}

static void account_received(struct soft_qp *qp, uint64_t received)
{
	struct soft_link *link = &qp->link;
	uint32_t left = payload_left(link);
	uint32_t payload = received < left ? (uint32_t)received : left;

	qp->last_progress = soft_context_of(qp)->engine.now;
	if (link->closing)
		return;
	link->payload_done += payload;
	link->header_have += (uint32_t)(received - payload);
	if (left > 0 && payload == left)
		finish_frame(qp);
	if (pier_soft_link_open(link) && !link->closing &&
	    link->header_have == SOFT_HEADER_SIZE)
		take_header(qp);
}

/* Reported as a lost peer: only someone else changes a record. */
static void reject_forged_record(struct soft_qp *qp)
{
	pier_warning("soft0: QP %#x: a record from QP %#x fails authentication: "
		     "something on the path changed it",
		     qp->ibv.qp_num, qp->attr.dest_qp_num);
	pier_soft_lose_link(qp);
}

static void handle_receive_error(struct soft_qp *qp, int error)
{
	if (error == EAGAIN && !qp->link.hung_up)
		qp->link.readable = false;
	else if (error == EFAULT)
		fail_target(qp);
	else if (error == EBADMSG)
		reject_forged_record(qp);
	else if (error != EINTR)
		pier_soft_lose_link(qp);
}

/*
 * A short read has emptied the stream, unless memory of the payload is gone: then the
 * next read fails with EFAULT. After a hang-up only the end of the stream ends the
 * reading, since no event will come any more.
 */
static bool is_drained(const struct soft_link *link, uint64_t received, uint64_t wanted,
		       uint64_t payload)
{
	/* A seal may hold more records that it has read already. */
	return !link->seal && received < wanted && received >= payload && !link->hung_up;
}

static ssize_t receive_vector(struct soft_qp *qp, struct soft_vector *vector)
{
	if (qp->link.ring)
		return pier_soft_ring_receive(qp, vector);
	if (qp->link.seal)
		return pier_soft_seal_receive(qp->link.seal, vector, qp->link.rx_fd);
	return pier_soft_vector_receive(vector, qp->link.rx_fd);
}

static uint64_t receive_once(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	uint64_t payload = payload_left(link);
	struct soft_vector vector;
	ssize_t received;

	if (!build_vector(qp, &vector)) {
		fail_target(qp);
		return 0;
	}
	received = receive_vector(qp, &vector);
	if (received < 0) {
		handle_receive_error(qp, errno);
		return 0;
	}
	if (received == 0) {
		pier_soft_lose_link(qp);
		return 0;
	}
	if (is_drained(link, received, vector.bytes, payload))
		link->readable = false;
	account_received(qp, received);
	return received;
}

void pier_soft_receive(struct soft_qp *qp)
{
	bool stepped = soft_context_of(qp)->engine.stepped;
	uint64_t turn = 0;

	while (turn < TURN_BYTES && qp->link.readable) {
		turn += receive_once(qp);
		if (stepped)
			break;
	}
}
