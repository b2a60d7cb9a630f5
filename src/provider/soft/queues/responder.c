/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <linux/dma-buf.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "responder.h"
#include "core/wire.h"
#include "events.h"
#include "provider/provider.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/link.h"
#include "provider/soft/regions/keys.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/vector.h"
#include "qp.h"
#include "srq.h"

/*
 * Atomic operations on the memory of a region use those of the CPU. So they are atomic
 * for every queue pair of every context that reaches the memory, for the program's own
 * atomics on it, and for those of other processes.
 *
 * Unlike a system call, such an instruction does not survive a fault. Memory that has
 * vanished (unmapped, protected, a file that became shorter) must be an error completion
 * and not a signal. So the kernel is first asked to add 0 to half of the word, by
 * futex(2). That takes every fault that a write to the page can take, of anonymous
 * memory, files and mappings of page frames alike, and fails with EFAULT where the write
 * would be a signal. It also works on demand. One case remains: another thread takes the
 * memory away, while a peer has the right to change it, within the few instructions
 * between the two. Only a lock over the address space would help against that, which
 * user space does not have.
 */

struct word {
	uint64_t *memory;
	int sync_fd;
};

/*
 * The response is written to the requester's memory as it arrives, little-endian;
 * swapping its bytes there would have to survive faults as well.
 */
enum ibv_atomic_cap pier_soft_atomic_cap(void)
{
	bool same = __BYTE_ORDER == __LITTLE_ENDIAN;

	return same && __atomic_always_lock_free(sizeof(uint64_t), NULL)
		       ? IBV_ATOMIC_GLOB
		       : IBV_ATOMIC_NONE;
}

/*
 * The page rule gives the address the alignment of the memory, but not in a region of
 * several segments. There the memory must be aligned as well, as in rxe_mr_do_atomic_op()
 * of rxe.
 */
static bool find_in_segments(const struct soft_mr *mr, uint64_t address,
			     struct word *ret_word)
{
	uint64_t offset = address - mr->iova;
	const struct soft_segment *segment = pier_soft_find_segment(mr, offset);
	char *memory = segment->memory + (offset - segment->start);

	if (address % SOFT_WORD_SIZE || (uintptr_t)memory % SOFT_WORD_SIZE ||
	    segment->end - offset < SOFT_WORD_SIZE)
		return false;
	*ret_word = (struct word){ (uint64_t *)memory,
				   segment->dmabuf ? segment->fd : -1 };
	return true;
}

static enum soft_syndrome find_word(struct soft_qp *qp, const struct soft_header *header,
				    struct word *ret_word)
{
	const struct soft_mr *mr = pier_soft_find_range(&qp->reach, header->key,
							header->address, header->length,
							IBV_ACCESS_REMOTE_ATOMIC);

	if (!mr || !(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC))
		return SOFT_NAK_ACCESS;
	return find_in_segments(mr, header->address, ret_word) ? SOFT_NO_NAK
							       : SOFT_NAK_INVALID_REQUEST;
}

/* No thread waits on `nobody`; a waiter on the word may be woken, which is allowed. */
static bool is_word_writable(uint64_t *memory)
{
	uint32_t nobody = 0;

	return syscall(SYS_futex, &nobody, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, memory,
		       FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)) >= 0;
}

static uint64_t change_word(uint64_t *memory, uint8_t opcode, uint64_t first,
			    uint64_t second)
{
	if (opcode == SOFT_FETCH_ADD)
		return __atomic_fetch_add(memory, first, __ATOMIC_SEQ_CST);
	/* Stores the old value in `first` if it differs. */
	__atomic_compare_exchange_n(memory, &first, second, false, __ATOMIC_SEQ_CST,
				    __ATOMIC_SEQ_CST);
	return first;
}

/* Executes it with the operands of the link. `ret_word`: the value before. */
static enum soft_syndrome execute_atomic(struct soft_qp *qp,
					 const struct soft_header *header,
					 uint64_t *ret_word)
{
	struct word word;
	enum soft_syndrome syndrome = find_word(qp, header, &word);
	bool there;

	/* The operands may arrive long after the header. */
	if (syndrome != SOFT_NO_NAK)
		return syndrome;
	if (word.sync_fd >= 0)
		pier_soft_sync(word.sync_fd, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_START);
	there = is_word_writable(word.memory);
	if (there)
		*ret_word = change_word(
			word.memory, header->opcode, pier_get_le64(qp->link.operands),
			pier_get_le64(qp->link.operands + SOFT_WORD_SIZE));
	if (word.sync_fd >= 0)
		pier_soft_sync(word.sync_fd, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_END);
	return there ? SOFT_NO_NAK : SOFT_NAK_ACCESS;
}

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
	pier_soft_activate(&qp->end.work);
}

/* No completion tells this end, so an event does (IBTA 11.6.3.2). */
void pier_soft_refuse_request(struct soft_qp *qp, enum soft_syndrome syndrome)
{
	pier_soft_report_event(qp->ibv.context, &qp->events,
			       syndrome == SOFT_NAK_ACCESS ? IBV_EVENT_QP_ACCESS_ERR
							   : IBV_EVENT_QP_REQ_ERR);
	send_refusal(qp, syndrome);
}

void pier_soft_refuse_write(struct soft_qp *qp)
{
	pier_soft_count_completion(qp, PIER_COUNTS_REMOTE_WRITE, IBV_WC_REM_ACCESS_ERR);
	pier_soft_refuse_request(qp, SOFT_NAK_ACCESS);
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

	if (header->length > pier_soft_total_length(recv->sges, recv->sge_count)) {
		pier_soft_refuse_message(qp, IBV_WC_LOC_LEN_ERR,
					 SOFT_NAK_INVALID_REQUEST);
		return;
	}
	if (!pier_soft_check_sges(&qp->reach, recv->sges, recv->sge_count, header->length,
				  IBV_ACCESS_LOCAL_WRITE)) {
		pier_soft_refuse_message(qp, IBV_WC_LOC_PROT_ERR, SOFT_NAK_OPERATION);
		return;
	}
	qp->link.target = SOFT_TO_RECV;
}

static struct soft_mr *find_request_region(struct soft_qp *qp,
					   const struct soft_header *header, int access)
{
	return pier_soft_find_range(&qp->reach, header->key, header->address,
				    header->length, access);
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
		pier_soft_refuse_write(qp);
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
	struct word word;
	enum soft_syndrome syndrome = find_word(qp, header, &word);

	if (pier_soft_atomic_cap() == IBV_ATOMIC_NONE ||
	    (syndrome == SOFT_NO_NAK && is_read_limit_reached(qp)))
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

	if ((header->flags & SOFT_FLAG_COPIED) && !qp->link.fifo)
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

	if (!qp->link.fifo || responder->resync ||
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
	enum soft_syndrome syndrome = execute_atomic(qp, header, &word);

	if (syndrome == SOFT_NO_NAK)
		queue_response(&qp->responder, header, word);
	else
		pier_soft_refuse_request(qp, syndrome);
	return syndrome == SOFT_NO_NAK;
}

/* The lock has been held since pier_soft_find_range() allowed the last byte. */
static void count_write(struct soft_qp *qp, const struct soft_header *header)
{
	const struct soft_mr *mr;

	pier_soft_count_completion(qp, PIER_COUNTS_REMOTE_WRITE, IBV_WC_SUCCESS);
	/* Counters of regions leave out writes of length 0, which name no region. */
	if (header->length == 0)
		return;
	mr = find_request_region(qp, header, IBV_ACCESS_REMOTE_WRITE);
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
	if (pier_soft_invalidate(&qp->reach, header->key))
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
	if (qp->link.target == SOFT_TO_REGION)
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
		frame->source = SOFT_FROM_FRAME;
		pier_put_le64(frame->payload, read->word);
	}
	frame->read = *read;
	frame->length = read->length;
	responder->acked = read->msn + 1;
	responder->first_read = (responder->first_read + 1) % SOFT_MAX_RD_ATOMIC;
	responder->read_count--;
	return true;
}
