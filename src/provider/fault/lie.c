/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "fault.h"
#include "lie.h"
#include "reach.h"

enum {
	/* Wrong bytes are at most this many of a request's first element. */
	LIE_BYTES = 256,
};

struct fault_read {
	struct pier_list link;
	enum pier_fault_effect effect; /* FAULT_FAIL: the bytes stay as they are */
	struct ibv_sge first;	       /* the bytes in question */
	/* It is done when so many signalled requests have completed; 0: not known yet. */
	uint64_t done_at;
};

struct fault_lies {
	struct ibv_mr *mr; /* of the slots, on the device beneath */
	/* A slot is used again after as many lies as requests fit into the queue. */
	uint8_t (*slots)[LIE_BYTES];
	uint32_t slot_count, next_slot;
	/* The first bytes of the requests before: sent, and read. */
	uint8_t sent[LIE_BYTES], read[LIE_BYTES];
	struct pier_list reads;
	uint64_t signalled, completed; /* requests since the last reset */
	uint32_t max_sge;
	struct ibv_sge sges[];
};

uint32_t pier_fault_widen(const struct fault_context *context, struct ibv_qp_cap *cap)
{
	if (!pier_fault_plans_lies(&context->plan) ||
	    cap->max_send_sge >= (uint32_t)context->limits.max_sge)
		return 0;
	cap->max_send_sge++;
	return 1;
}

int pier_fault_prepare_lies(struct fault_qp *qp, const struct ibv_qp_cap *cap)
{
	struct fault_context *context = fault_context(qp->ibv.context);
	struct fault_lies *lies;

	if (!pier_fault_plans_lies(&context->plan))
		return 0;
	lies = calloc(1, sizeof(*lies) + cap->max_send_sge * sizeof(lies->sges[0]));
	if (!lies)
		return ENOMEM;
	qp->lies = lies;
	pier_list_init(&lies->reads);
	lies->max_sge = cap->max_send_sge;
	lies->slot_count = cap->max_send_wr ? cap->max_send_wr : 1;
	lies->slots = calloc(lies->slot_count, LIE_BYTES);
	if (lies->slots)
		lies->mr = context->beneath->reg_mr(
			fault_pd(qp->ibv.pd)->under, lies->slots,
			(size_t)lies->slot_count * LIE_BYTES, (uintptr_t)lies->slots, 0);
	if (lies->mr)
		return 0;
	pier_fault_end_lies(qp);
	return ENOMEM;
}

void pier_fault_end_lies(struct fault_qp *qp)
{
	struct fault_lies *lies = qp->lies;

	if (!lies)
		return;
	pier_fault_forget_reads(qp);
	if (lies->mr)
		fault_context(qp->ibv.context)->beneath->dereg_mr(lies->mr);
	free(lies->slots);
	free(lies);
	qp->lies = NULL;
}

static void free_read(struct fault_read *read)
{
	pier_list_remove(&read->link);
	free(read);
}

void pier_fault_forget_reads(struct fault_qp *qp)
{
	if (!qp->lies)
		return;
	pier_list_for_each_safe(struct fault_read, read, following, &qp->lies->reads,
				link)
		free_read(read);
	qp->lies->signalled = qp->lies->completed = 0;
}

static uint64_t total_length(const struct ibv_send_wr *wr)
{
	uint64_t length = 0;

	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	return length;
}

static bool is_send(const struct ibv_send_wr *wr)
{
	return wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM ||
	       wr->opcode == IBV_WR_SEND_WITH_INV;
}

static bool moves_bytes(const struct ibv_send_wr *wr)
{
	return (is_send(wr) || wr->opcode == IBV_WR_RDMA_WRITE ||
		wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
		wr->opcode == IBV_WR_RDMA_READ) &&
	       total_length(wr) > 0;
}

/* The effect of the first rule that strikes, or FAULT_FAIL. All of them count. */
static enum pier_fault_effect choose_lie(struct pier_fault_plan *plan)
{
	static const enum pier_fault_effect effects[] = { FAULT_DROP, FAULT_MISPLACE,
							  FAULT_STALE, FAULT_CORRUPT };
	enum pier_fault_effect chosen = FAULT_FAIL;

	for (size_t i = 0; i < sizeof(effects) / sizeof(effects[0]); i++) {
		if (pier_fault_strikes(plan, effects[i], FAULT_POST_SEND) &&
		    chosen == FAULT_FAIL)
			chosen = effects[i];
	}
	return chosen;
}

/*
 * A request of no bytes. In place of a message goes a write, which needs no key then,
 * and whose completion has the opcode of one.
 */
static void drop_bytes(struct ibv_send_wr *wr)
{
	if (is_send(wr)) {
		wr->opcode = IBV_WR_RDMA_WRITE;
		wr->wr.rdma.remote_addr = 0;
		wr->wr.rdma.rkey = 0;
	}
	wr->send_flags &= ~(unsigned int)IBV_SEND_INLINE;
	wr->num_sge = 0;
}

/* Appends the bytes from `begin` to `end` of the list `from`. False: no room. */
static bool append_part(struct fault_lies *lies, uint32_t *count,
			const struct ibv_send_wr *from, uint64_t begin, uint64_t end)
{
	uint64_t at = 0;

	for (int i = 0; i < from->num_sge; i++) {
		const struct ibv_sge *sge = &from->sg_list[i];
		uint64_t first = begin > at ? begin : at;
		uint64_t last = end < at + sge->length ? end : at + sge->length;

		if (first < last && *count == lies->max_sge)
			return false;
		if (first < last)
			lies->sges[(*count)++] = (struct ibv_sge){
				.addr = sge->addr + (first - at),
				.length = (uint32_t)(last - first),
				.lkey = sge->lkey,
			};
		at += sge->length;
	}
	return true;
}

static void use_list(struct fault_lies *lies, struct ibv_send_wr *wr, uint32_t count,
		     bool complete)
{
	if (!complete) {
		pier_warning("fault: a list of %d elements has no room for a lie",
			     wr->num_sge);
		return;
	}
	wr->sg_list = lies->sges;
	wr->num_sge = (int)count;
}

/*
 * Both halves change places: other offsets, all inside the memory of the request. The
 * second half arrives first, also by a read.
 */
static void misplace_bytes(struct fault_lies *lies, struct ibv_send_wr *wr)
{
	uint64_t length = total_length(wr), half = length / 2;
	uint64_t split = wr->opcode == IBV_WR_RDMA_READ ? length - half : half;
	uint32_t count = 0;
	bool complete = append_part(lies, &count, wr, split, length) &&
			append_part(lies, &count, wr, 0, split);

	use_list(lies, wr, count, complete);
}

static struct ibv_sge first_bytes(const struct ibv_send_wr *wr)
{
	struct ibv_sge first = wr->sg_list[0];

	for (int i = 1; i < wr->num_sge && first.length == 0; i++)
		first = wr->sg_list[i];
	if (first.length > LIE_BYTES)
		first.length = LIE_BYTES;
	return first;
}

static void flip_bit(uint8_t *bytes, uint32_t length)
{
	bytes[length / 2] ^= 1;
}

/* In place of the first bytes go those of a slot. */
static void replace_first(struct fault_lies *lies, struct ibv_send_wr *wr,
			  const uint8_t *bytes, uint32_t length, bool flip)
{
	uint8_t *slot = lies->slots[lies->next_slot];
	uint32_t count = 1;

	lies->next_slot = (lies->next_slot + 1) % lies->slot_count;
	memcpy(slot, bytes, length);
	if (flip)
		flip_bit(slot, length);
	lies->sges[0] = (struct ibv_sge){ .addr = (uintptr_t)slot,
					  .length = length,
					  .lkey = lies->mr->lkey };
	use_list(lies, wr, count,
		 append_part(lies, &count, wr, length, total_length(wr)));
}

static const uint8_t *find_sent_bytes(const struct fault_context *context,
				      const struct ibv_send_wr *wr,
				      const struct ibv_sge *first)
{
	if (wr->send_flags & IBV_SEND_INLINE)
		return (const uint8_t *)(uintptr_t)first->addr;
	return pier_fault_find_bytes(context, first, first->length);
}

static void warn_of_memory(void)
{
	pier_warning("fault: the CPU does not reach the memory of a request that should "
		     "lie");
}

static void lie_in_sent_bytes(struct fault_qp *qp, struct ibv_send_wr *wr,
			      enum pier_fault_effect effect)
{
	struct fault_lies *lies = qp->lies;
	struct ibv_sge first = first_bytes(wr);
	const uint8_t *bytes = find_sent_bytes(fault_context(qp->ibv.context), wr,
					       &first);
	uint8_t before[LIE_BYTES];

	memcpy(before, lies->sent, LIE_BYTES);
	if (bytes)
		memcpy(lies->sent, bytes, first.length);
	if (effect == FAULT_STALE)
		replace_first(lies, wr, before, first.length, false);
	else if (effect == FAULT_CORRUPT && bytes)
		replace_first(lies, wr, bytes, first.length, true);
	else if (effect == FAULT_CORRUPT)
		warn_of_memory();
}

/* Only where the bytes are needed: for a lie, or for a later one about these. */
static struct fault_read *note_read(struct fault_qp *qp, const struct ibv_send_wr *wr,
				    enum pier_fault_effect effect)
{
	struct fault_read *read;

	if (effect != FAULT_CORRUPT &&
	    !pier_fault_plans(&fault_context(qp->ibv.context)->plan, FAULT_STALE))
		return NULL;
	read = malloc(sizeof(*read));
	if (!read)
		return NULL;
	*read = (struct fault_read){ .effect = effect, .first = first_bytes(wr) };
	pier_list_append(&qp->lies->reads, &read->link);
	return read;
}

struct fault_read *pier_fault_lie(struct fault_qp *qp, struct ibv_send_wr *wr)
{
	enum pier_fault_effect effect;
	struct fault_read *read = NULL;

	if (!qp->lies || !moves_bytes(wr))
		return NULL;
	effect = choose_lie(&fault_context(qp->ibv.context)->plan);
	if (wr->opcode == IBV_WR_RDMA_READ)
		read = note_read(qp, wr, effect);
	else
		lie_in_sent_bytes(qp, wr, effect);
	if (effect == FAULT_DROP)
		drop_bytes(wr);
	if (effect == FAULT_MISPLACE)
		misplace_bytes(qp->lies, wr);
	return read;
}

void pier_fault_note_post(struct fault_qp *qp, struct fault_read *read,
			  const struct ibv_send_wr *wr, int error)
{
	if (error && read)
		free_read(read);
	if (error || !qp->lies ||
	    !(qp->signals_all || (wr->send_flags & IBV_SEND_SIGNALED)))
		return;
	qp->lies->signalled++;
	pier_list_for_each(struct fault_read, one, &qp->lies->reads, link) {
		if (!one->done_at)
			one->done_at = qp->lies->signalled;
	}
}

static void land_read(struct fault_qp *qp, const struct fault_read *read)
{
	uint8_t *bytes = pier_fault_find_bytes(fault_context(qp->ibv.context),
					       &read->first, read->first.length);
	uint8_t arrived[LIE_BYTES];

	if (!bytes) {
		warn_of_memory();
		return;
	}
	memcpy(arrived, bytes, read->first.length);
	if (read->effect == FAULT_STALE)
		memcpy(bytes, qp->lies->read, read->first.length);
	if (read->effect == FAULT_CORRUPT)
		flip_bit(bytes, read->first.length);
	memcpy(qp->lies->read, arrived, read->first.length);
}

/* Requests of a send queue complete in order (IBTA 10.8.5). */
void pier_fault_land_reads(struct fault_qp *qp)
{
	if (!qp->lies)
		return;
	qp->lies->completed++;
	pier_list_for_each_safe(struct fault_read, read, following, &qp->lies->reads,
				link) {
		if (!read->done_at || read->done_at > qp->lies->completed)
			return;
		land_read(qp, read);
		free_read(read);
	}
}
