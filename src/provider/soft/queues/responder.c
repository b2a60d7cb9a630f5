/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <string.h>

#include "provider/provider.h"
#include "responder.h"
#include "atomic.h"
#include "complete.h"
#include "events.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/frame.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/outgoing.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/regions/window.h"
#include "provider/soft/soft.h"
#include "srq.h"

enum {
	/*
	 * How long it may take to send the last answers, and the peer to hang up after
	 * them.
	 */
	CLOSING_NANOSECONDS = 2000000000
};

static void send_refusal(struct soft_qp *qp, enum soft_syndrome syndrome)
{
	struct soft_link *link = &qp->link;

	/* An earlier completion may have overrun the CQ. */
	if (!pier_soft_link_open(link))
		return;
	qp->responder.nak = true;
	qp->responder.syndrome = syndrome;
	link->closing = true;
	link->closing_deadline = soft_context_of(qp)->engine.now + CLOSING_NANOSECONDS;
	pier_soft_drop_queued_requests(link);
	pier_soft_fail_qp(qp, IBV_WC_SUCCESS);
	pier_soft_activate(qp);
}

/* No completion tells this end, so an event does (IBTA 11.6.3.2). */
void pier_soft_refuse_request(struct soft_qp *qp, enum soft_syndrome syndrome)
{
	pier_soft_report_event(qp->ibv.context, &qp->events,
			       syndrome == SOFT_NAK_ACCESS ? IBV_EVENT_QP_ACCESS_ERR
							   : IBV_EVENT_QP_REQ_ERR);
	send_refusal(qp, syndrome);
}

void pier_soft_refuse_message(struct soft_qp *qp, enum ibv_wc_status status,
			      enum soft_syndrome syndrome)
{
	pier_soft_complete_recv(qp, status, &qp->link.header);
	send_refusal(qp, syndrome);
}

/*
 * A receive taken from an SRQ belongs to this queue pair, whatever happens to the
 * message.
 */
bool pier_soft_take_next_recv(struct soft_qp *qp)
{
	if (qp->srq)
		return qp->taken.there || pier_soft_take_recv(qp->srq, &qp->taken);
	return qp->rq.done != atomic_load_explicit(&qp->rq.head, memory_order_acquire);
}

static void queue_rnr_nak(struct soft_qp *qp)
{
	qp->responder.nak = true;
	qp->responder.resync = true;
	qp->responder.syndrome = SOFT_NAK_RNR;
	qp->link.ignored = true;
}

static void begin_send(struct soft_qp *qp, const struct soft_header *header)
{
	const struct soft_recv *recv = pier_soft_current_recv(qp);
	uint64_t room = 0;

	for (int i = 0; i < recv->sge_count; i++)
		room += recv->sges[i].length;
	if (header->length > room) {
		pier_soft_refuse_message(qp, IBV_WC_LOC_LEN_ERR,
					 SOFT_NAK_INVALID_REQUEST);
		return;
	}
	if (!pier_soft_check_sges(qp, recv->sges, recv->sge_count, header->length,
				  IBV_ACCESS_LOCAL_WRITE)) {
		pier_soft_refuse_message(qp, IBV_WC_LOC_PROT_ERR, SOFT_NAK_OPERATION);
		return;
	}
	qp->link.target = SOFT_TO_RECV;
}

static struct soft_mr *find_request_region(struct soft_qp *qp,
					   const struct soft_header *header, int access)
{
	return pier_soft_find_range(qp, header->key, header->address, header->length,
				    access);
}

/* For a message without bytes neither key nor address counts (IBTA 9.7.4.1.5). */
static bool may_access_region(struct soft_qp *qp, const struct soft_header *header,
			      int access)
{
	if (!(qp->attr.qp_access_flags & access))
		return false;
	return header->length == 0 || find_request_region(qp, header, access);
}

/* A write can be refused at any byte; a response that has begun cannot. */
static bool can_respond(struct soft_qp *qp, const struct soft_header *header)
{
	return header->length == 0 || (header->flags & SOFT_FLAG_COPIED) ||
	       pier_soft_is_present(
		       find_request_region(qp, header, IBV_ACCESS_REMOTE_READ),
		       header->address, header->length);
}

static void begin_write(struct soft_qp *qp, const struct soft_header *header)
{
	if (may_access_region(qp, header, IBV_ACCESS_REMOTE_WRITE))
		qp->link.target = SOFT_TO_REGION;
	else
		pier_soft_refuse_request(qp, SOFT_NAK_ACCESS);
}

static bool is_read_limit_reached(const struct soft_qp *qp)
{
	return qp->responder.read_count >= qp->attr.max_dest_rd_atomic;
}

static void begin_read(struct soft_qp *qp, const struct soft_header *header)
{
	if (!may_access_region(qp, header, IBV_ACCESS_REMOTE_READ) ||
	    !can_respond(qp, header))
		pier_soft_refuse_request(qp, SOFT_NAK_ACCESS);
	else if (!(header->flags & SOFT_FLAG_COPIED) && is_read_limit_reached(qp))
		pier_soft_refuse_request(qp, SOFT_NAK_INVALID_REQUEST);
}

static void begin_atomic(struct soft_qp *qp, const struct soft_header *header)
{
	enum soft_syndrome syndrome = pier_soft_check_atomic(qp, header);

	if (syndrome == SOFT_NO_NAK && is_read_limit_reached(qp))
		syndrome = SOFT_NAK_INVALID_REQUEST;
	if (syndrome == SOFT_NO_NAK)
		qp->link.target = SOFT_TO_OPERANDS;
	else
		pier_soft_refuse_request(qp, syndrome);
}

static bool consumes_recv(uint8_t opcode)
{
	return opcode == SOFT_SEND || opcode == SOFT_SEND_IMM ||
	       opcode == SOFT_SEND_INV || opcode == SOFT_WRITE_IMM;
}

bool pier_soft_begin_request(struct soft_qp *qp, const struct soft_header *header)
{
	struct soft_responder *responder = &qp->responder;

	if ((header->flags & SOFT_FLAG_COPIED) && !qp->link.ring)
		return false;
	if (header->msn != responder->expected) {
		qp->link.ignored = true;
		return responder->resync;
	}
	responder->resync = false;
	if (qp->ibv.state == IBV_QPS_RTR && !responder->established) {
		responder->established = true;
		pier_soft_report_event(qp->ibv.context, &qp->events, IBV_EVENT_COMM_EST);
	}
	if (consumes_recv(header->opcode) && !pier_soft_take_next_recv(qp)) {
		queue_rnr_nak(qp);
		return true;
	}
	switch (header->opcode) {
	case SOFT_SEND:
	case SOFT_SEND_IMM:
	case SOFT_SEND_INV:
		begin_send(qp, header);
		break;
	case SOFT_WRITE:
	case SOFT_WRITE_IMM:
		begin_write(qp, header);
		break;
	case SOFT_READ:
		begin_read(qp, header);
		break;
	default:
		begin_atomic(qp, header);
		break;
	}
	return true;
}

bool pier_soft_handle_skip(struct soft_qp *qp, const struct soft_header *header)
{
	struct soft_responder *responder = &qp->responder;

	if (!qp->link.ring || responder->resync ||
	    responder->acked != responder->expected)
		return false;
	responder->expected = responder->acked = header->msn;
	return true;
}

/*
 * The memory for a response is looked up again when it is sent; an atomic is executed
 * now.
 */
static void queue_response(struct soft_responder *responder,
			   const struct soft_header *header, uint64_t word)
{
	uint32_t last = responder->first_read + responder->read_count++;

	responder->reads[last % SOFT_MAX_RD_ATOMIC] = (struct soft_read){
		.opcode = header->opcode == SOFT_READ ? SOFT_READ_RESPONSE
						      : SOFT_ATOMIC_RESPONSE,
		.msn = header->msn,
		.length = header->length,
		.key = header->key,
		.address = header->address,
		.word = word,
	};
}

static bool finish_atomic(struct soft_qp *qp, const struct soft_header *header)
{
	uint64_t word = 0;
	enum soft_syndrome syndrome = pier_soft_execute_atomic(qp, header, &word);

	if (syndrome == SOFT_NO_NAK)
		queue_response(&qp->responder, header, word);
	else
		pier_soft_refuse_request(qp, syndrome);
	return syndrome == SOFT_NO_NAK;
}

/* The lock has been held since pier_soft_find_range() allowed the last byte. */
static void count_write(struct soft_qp *qp, const struct soft_header *header)
{
	const struct soft_mr *mr = find_request_region(qp, header,
						       IBV_ACCESS_REMOTE_WRITE);

	/* Only writes by the region's own key count, not those through a window. */
	if (!mr || !mr->counter || header->key != mr->ibv.rkey)
		return;
	atomic_fetch_add(&mr->counter->value, 1);
	if (mr->counter->notify)
		mr->counter->notify(mr->counter);
}

/*
 * When the whole message is here, before its receive completes. The receive fails as
 * with rxe (RESPST_ERR_INVALIDATE_RKEY). But rxe acknowledges the message, and here the
 * sender fails too, as with every key that is not valid.
 */
static bool finish_invalidate(struct soft_qp *qp, const struct soft_header *header)
{
	if (pier_soft_invalidate(qp, header->key))
		return true;
	pier_soft_refuse_message(qp, IBV_WC_REM_INV_REQ_ERR, SOFT_NAK_ACCESS);
	return false;
}

void pier_soft_finish_request(struct soft_qp *qp)
{
	const struct soft_header *header = &qp->link.header;

	if (pier_soft_is_atomic(header->opcode) && !finish_atomic(qp, header))
		return;
	if (header->opcode == SOFT_SEND_INV && !finish_invalidate(qp, header))
		return;
	qp->responder.expected++;
	if (qp->link.target == SOFT_TO_REGION && header->length > 0)
		count_write(qp, header);
	if (header->opcode == SOFT_READ && !(header->flags & SOFT_FLAG_COPIED))
		queue_response(&qp->responder, header, 0);
	else if (consumes_recv(header->opcode))
		pier_soft_complete_recv(qp, IBV_WC_SUCCESS, header);
}

/* Neither an ACK nor a NAK may overtake the data of an earlier READ. */
bool pier_soft_queue_ack(struct soft_qp *qp)
{
	struct soft_responder *responder = &qp->responder;
	struct soft_header header = { .opcode = SOFT_ACK, .msn = responder->expected };
	bool nak = responder->nak && responder->read_count == 0;

	if (responder->read_count > 0)
		header.msn = responder->reads[responder->first_read].msn;
	if (!nak && header.msn == responder->acked)
		return false;
	responder->acked = header.msn;
	if (nak) {
		header.opcode = SOFT_NAK;
		header.syndrome = (uint8_t)responder->syndrome;
		header.timer = qp->attr.min_rnr_timer;
		responder->nak = false;
	}
	pier_soft_queue_frame(&qp->link, &header);
	return true;
}

bool pier_soft_queue_read_response(struct soft_qp *qp)
{
	struct soft_responder *responder = &qp->responder;
	struct soft_read *read = &responder->reads[responder->first_read];
	struct soft_header header = {
		.opcode = read->opcode,
		.msn = read->msn,
		.length = read->length,
	};
	struct soft_frame *frame;

	/* The attempt to queue a request may have closed the link. */
	if (responder->read_count == 0 || !pier_soft_link_open(&qp->link))
		return false;
	frame = pier_soft_queue_frame(&qp->link, &header);
	frame->source = SOFT_FROM_REGION;
	if (read->opcode == SOFT_ATOMIC_RESPONSE) {
		uint64_t word = htole64(read->word);

		frame->source = SOFT_FROM_FRAME;
		memcpy(frame->payload, &word, sizeof(word));
	}
	frame->read = *read;
	frame->length = read->length;
	responder->acked = read->msn + 1;
	responder->first_read = (responder->first_read + 1) % SOFT_MAX_RD_ATOMIC;
	responder->read_count--;
	return true;
}
