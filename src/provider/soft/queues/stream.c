/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "stream.h"
#include "core/log.h"
#include "events.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/link/seal.h"
#include "provider/soft/regions/vector.h"
#include "qp.h"
#include "requester.h"
#include "responder.h"

enum {
	/* The most that one queue pair moves before others have their turn. */
	TURN_BYTES = 1024 * 1024,
	/* A copy takes a fraction of the time of a stream. */
	COPY_TURN_BYTES = 4 * TURN_BYTES,
	/* Small frames share a system call up to here. */
	BATCH_BYTES = 64 * 1024
};

static void reject_malformed_frame(struct soft_qp *qp)
{
	pier_warning("soft0: QP %#x: a malformed frame from QP %#x (opcode %u, length "
		     "%u, number %u)",
		     qp->ibv.qp_num, qp->attr.dest_qp_num, qp->link.header.opcode,
		     qp->link.header.length, qp->link.header.msn);
	pier_soft_report_event(qp->ibv.context, &qp->events, IBV_EVENT_QP_REQ_ERR);
	pier_soft_close_link(&qp->link);
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
		return pier_soft_vector_add_region(vector, &qp->reach, &range,
						   link->payload_done, limit,
						   IBV_ACCESS_REMOTE_WRITE);
	case SOFT_TO_RECV:
		recv = pier_soft_current_recv(qp);
		return pier_soft_vector_add_sges(vector, &qp->reach, recv->sges,
						 recv->sge_count, link->payload_done,
						 limit, IBV_ACCESS_LOCAL_WRITE);
	case SOFT_TO_OPERANDS:
		pier_soft_vector_add(vector, link->operands + link->payload_done, limit);
		return true;
	case SOFT_TO_READER:
		send = pier_soft_send_at(&qp->sq, qp->sq.done);
		return pier_soft_vector_add_sges(vector, &qp->reach, send->sges,
						 send->sge_count, link->payload_done,
						 limit, IBV_ACCESS_LOCAL_WRITE);
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
		pier_soft_refuse_write(qp);
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
	if (qp->link.fifo)
		return pier_soft_fifo_receive(&qp->link, vector);
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

/* Answers and requests alternate, so that neither direction of a busy pair starves. */
static bool queue_one_frame(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;

	if (pier_soft_queue_ack(qp))
		return true;
	if (link->closing)
		return pier_soft_queue_read_response(qp);
	link->answers_first = !link->answers_first;
	if (link->answers_first)
		return pier_soft_queue_read_response(qp) || pier_soft_queue_request(qp);
	return pier_soft_queue_request(qp) || pier_soft_queue_read_response(qp);
}

static void queue_frames(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < link->frame_count; i++)
		bytes += pier_soft_frame_at(link, i)->length;
	while (link->frame_count < SOFT_MAX_FRAMES && bytes < BATCH_BYTES) {
		if (!queue_one_frame(qp))
			break;
		bytes += pier_soft_frame_at(link, link->frame_count - 1)->length;
	}
}

static bool add_payload(struct soft_qp *qp, struct soft_frame *frame,
			struct soft_vector *vector, uint64_t skip, uint64_t limit)
{
	const struct soft_send *send;
	struct ibv_sge range = {
		.addr = frame->read.address,
		.length = frame->length,
		.lkey = frame->read.key,
	};

	if (frame->source == SOFT_FROM_NOWHERE || frame->length == 0)
		return true;
	if (frame->source == SOFT_FROM_FRAME) {
		pier_soft_vector_add(vector, frame->payload + skip, frame->length - skip);
		return true;
	}
	if (frame->source == SOFT_FROM_REGION)
		return pier_soft_vector_add_region(vector, &qp->reach, &range, skip,
						   limit, IBV_ACCESS_REMOTE_READ);
	send = pier_soft_send_at(&qp->sq, frame->position);
	if (send->flags & IBV_SEND_INLINE) {
		uint64_t rest = frame->length - skip;

		pier_soft_vector_add(vector, send->inline_data + skip,
				     rest < limit ? rest : limit);
		return true;
	}
	return pier_soft_vector_add_sges(vector, &qp->reach, send->sges, send->sge_count,
					 skip, limit, 0);
}

static bool add_frame(struct soft_qp *qp, struct soft_frame *frame,
		      struct soft_vector *vector, uint64_t sent)
{
	uint64_t skip = 0;

	if (sent < SOFT_HEADER_SIZE)
		pier_soft_vector_add(vector, frame->header + sent,
				     SOFT_HEADER_SIZE - sent);
	else
		skip = sent - SOFT_HEADER_SIZE;
	return add_payload(qp, frame, vector, skip, TURN_BYTES);
}

/*
 * The request of the first frame and all requests after it are not sent. Answers still
 * are, and so are earlier requests that the peer asks for again.
 */
static void cancel_requests(struct soft_qp *qp)
{
	uint64_t position = pier_soft_frame_at(&qp->link, 0)->position;

	pier_soft_drop_queued_requests(&qp->link);
	pier_soft_activate(&qp->end.work);
	pier_soft_break_sends(qp, position, IBV_WC_LOC_PROT_ERR);
}

/*
 * A frame that has begun cannot be taken back, so nothing can follow it: no NAK if the
 * link is closing, and no request that the peer asks for again.
 */
static void break_frame(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	struct soft_frame frame = *pier_soft_frame_at(link, 0);

	if (link->closing) {
		pier_soft_lose_link(qp);
		return;
	}
	if (frame.source == SOFT_FROM_REGION) {
		pier_soft_fail_qp(qp, IBV_WC_SUCCESS);
		return;
	}
	link->tx_broken = true;
	pier_soft_break_sends(qp, frame.position, IBV_WC_LOC_PROT_ERR);
	if (frame.stale && qp->ibv.state == IBV_QPS_RTS)
		pier_soft_fail_qp(qp, IBV_WC_RETRY_EXC_ERR);
}

/* The memory of the first frame is gone: deregistered or unmapped. */
static void fail_source(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	struct soft_frame frame = *pier_soft_frame_at(link, 0);

	if (link->sent_of_first > 0) {
		break_frame(qp);
		return;
	}
	if (frame.source == SOFT_FROM_SEND) {
		cancel_requests(qp);
		return;
	}
	link->frame_count = 0;
	qp->responder.read_count = 0;
	qp->responder.expected = frame.read.msn;
	pier_soft_refuse_request(qp, SOFT_NAK_ACCESS);
}

static void account_sent(struct soft_qp *qp, uint64_t sent)
{
	struct soft_link *link = &qp->link;

	qp->last_progress = soft_context_of(qp)->engine.now;
	while (link->frame_count > 0) {
		struct soft_frame *frame = pier_soft_frame_at(link, 0);
		uint64_t rest = SOFT_HEADER_SIZE + frame->length - link->sent_of_first;

		if (sent < rest)
			break;
		sent -= rest;
		if (frame->request && !frame->stale)
			pier_soft_finish_transmit(qp, frame);
		link->sent_of_first = 0;
		link->first_frame = (link->first_frame + 1) % SOFT_MAX_FRAMES;
		link->frame_count--;
	}
	link->sent_of_first += sent;
}

/*
 * As many frames as fit. The last one may be incomplete: then the vector is full and
 * ignores what follows, or it holds the bytes of a whole turn.
 */
static bool build_batch(struct soft_qp *qp, struct soft_vector *vector,
			uint32_t max_frames)
{
	struct soft_link *link = &qp->link;

	pier_soft_vector_init(vector, false);
	for (uint32_t i = 0; i < link->frame_count && i < max_frames; i++) {
		int count = vector->count;
		size_t bytes = vector->bytes;

		if (count == SOFT_MAX_VECTOR || bytes >= BATCH_BYTES)
			break;
		if (!add_frame(qp, pier_soft_frame_at(link, i), vector,
			       i == 0 ? link->sent_of_first : 0)) {
			vector->count = count;
			vector->bytes = bytes;
			return i > 0;
		}
	}
	return true;
}

/* The peer's last bytes are still on the stream: read to its end. */
static void stop_sending(struct soft_link *link)
{
	link->tx_broken = true;
	link->readable = true;
	link->hung_up = true;
}

static ssize_t send_vector(struct soft_qp *qp, struct soft_vector *vector)
{
	if (qp->link.fifo)
		return pier_soft_fifo_send(&qp->link, vector);
	if (qp->link.seal)
		return pier_soft_seal_send(qp->link.seal, vector, qp->link.tx_fd);
	return pier_soft_vector_send(vector, qp->link.tx_fd, NULL);
}

/* The engine polls a FIFO for room; a socket reports it by an event. */
static void wait_for_room(struct soft_qp *qp)
{
	qp->link.writable = false;
	if (qp->link.fifo)
		pier_soft_start_polling(&qp->link);
}

/* False: the socket is full, or broken. */
static bool flush_seal(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;

	if (!link->seal || pier_soft_seal_flush(link->seal, link->tx_fd) == 0)
		return true;
	if (errno == EAGAIN)
		wait_for_room(qp);
	else
		stop_sending(link);
	return false;
}

/* The bytes sent; 0: no more can be sent now. */
static uint64_t send_batch(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	uint32_t max_frames = SOFT_MAX_FRAMES;
	struct soft_vector vector;
	ssize_t sent;

	for (;;) {
		if (!build_batch(qp, &vector, max_frames)) {
			fail_source(qp);
			return 0;
		}
		sent = send_vector(qp, &vector);
		if (sent >= 0) {
			account_sent(qp, sent);
			return sent;
		}
		if (errno == EFAULT && max_frames > 1)
			max_frames = 1; /* to find out whose memory it is */
		else if (errno != EINTR)
			break;
	}
	if (errno == EAGAIN)
		wait_for_room(qp);
	else if (errno == EFAULT)
		fail_source(qp);
	else
		stop_sending(link);
	return 0;
}

static void shut_when_answered(struct soft_link *link)
{
	if (!link->closing || link->shut || link->frame_count > 0)
		return;
	shutdown(link->tx_fd, SHUT_WR);
	link->shut = true;
}

/* Without this check each large copy would wake the thread to look for more. */
static bool is_direct_copy_cut_short(struct soft_qp *qp)
{
	return qp->sq.budget == 0 &&
	       qp->sq.queued != atomic_load_explicit(&qp->sq.head, memory_order_acquire);
}

bool pier_soft_transmit(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	bool stepped = soft_context_of(qp)->engine.stepped;
	uint64_t turn = 0, sent;

	qp->sq.budget = stepped ? 1 : COPY_TURN_BYTES;
	while (turn < TURN_BYTES && !link->tx_broken && !link->shut) {
		if (!flush_seal(qp))
			return false;
		queue_frames(qp);
		if (!pier_soft_link_open(link))
			return false;
		if (link->frame_count == 0) {
			shut_when_answered(link);
			return is_direct_copy_cut_short(qp);
		}
		sent = send_batch(qp);
		if (sent == 0)
			return false;
		turn += stepped ? TURN_BYTES : sent;
	}
	return turn >= TURN_BYTES || is_direct_copy_cut_short(qp);
}

void pier_soft_send_last_answers(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;

	if (!pier_soft_link_open(link) || link->closing || link->tx_broken)
		return;
	pier_soft_drop_queued_requests(link);
	if (link->frame_count > 0 && pier_soft_frame_at(link, 0)->request)
		return;
	if (link->frame_count < SOFT_MAX_FRAMES)
		pier_soft_queue_ack(qp);
	if (link->frame_count > 0)
		send_batch(qp);
}
