/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_POSTING_H
#define PIER_CHANNEL_POSTING_H

#include <arpa/inet.h>

#include <pier/post.h>

#include "channel.h"

/*
 * What every post does, inline. Callers know most of the request at compile time, and
 * the compiler removes the checks that they do not need.
 */

/* Cold, in posting.c: the error of a request that cannot be posted as it is. */
int pier_refuse_state(const struct pier_channel *channel) __attribute__((cold));
int pier_refuse_receive(const struct pier_channel *channel) __attribute__((cold));
int pier_refuse_elements(const struct pier_channel *channel, uint32_t num_sge,
			 uint32_t max_sge, uint64_t length) __attribute__((cold));
/* The queue looked full. Returns 0 if collecting completions made room. */
int pier_make_room(struct pier_channel *channel, struct pier_queue *queue, uint32_t count)
	__attribute__((cold));
/* 0, or -EINVAL if the elements are missing. */
int pier_check_elements(enum pier_opcode opcode, const void *sg_list, uint32_t num_sge)
	__attribute__((cold));
int pier_refuse_post(const struct pier_channel *channel, int error,
		     enum pier_opcode opcode) __attribute__((cold));

/*
 * Whether the opcode belongs to the send queue, with flags that go with it. 0, -EINVAL or
 * -EOPNOTSUPP.
 */
int pier_check_form(const struct pier_channel *channel,
		    const struct pier_request *request);

/*
 * Whether a request whose form was checked can be posted as it is. Writes the length of
 * its elements.
 */
int pier_check_request(const struct pier_channel *channel,
		       const struct pier_request *request, uint64_t *ret_length);

/* Post one request whose form was checked. */
int pier_post_whole(struct pier_channel *channel, const struct pier_request *request,
		    struct pier_work *ret_work);

/* Post a send, or a write, of no bytes with immediate data. */
static inline int pier_post_immediate(struct pier_channel *channel,
				      enum pier_opcode opcode, uint32_t immediate,
				      struct pier_work *ret_work)
{
	struct pier_request request = { .opcode = opcode,
					.flags = PIER_POST_IMMEDIATE,
					.immediate = immediate };

	return pier_channel_post_request(channel, &request, ret_work);
}

static inline __attribute__((always_inline)) bool pier_is_atomic(enum pier_opcode opcode)
{
	return opcode == PIER_OP_COMPARE_SWAP || opcode == PIER_OP_FETCH_ADD;
}

/* Whether bytes come from the peer, which serves a limited number at once. */
static inline __attribute__((always_inline)) bool pier_is_read(enum pier_opcode opcode)
{
	return opcode == PIER_OP_READ || pier_is_atomic(opcode);
}

static inline __attribute__((always_inline)) const struct ibv_sge *pier_sg_list(
	const struct pier_request *request)
{
	return (const struct ibv_sge *)request->gather;
}

/* At most 2^31 lengths of 32 bits: no overflow. */
static inline __attribute__((always_inline)) uint64_t pier_sum_lengths(
	const struct ibv_sge *sg_list, uint32_t num_sge)
{
	uint64_t length;

	if (pier_likely(num_sge == 1))
		return sg_list[0].length;
	length = 0;
	for (uint32_t i = 0; i < num_sge; i++)
		length += sg_list[i].length;
	return length;
}

static inline __attribute__((always_inline)) uint32_t pier_max_sge(
	const struct pier_channel *channel, enum pier_opcode opcode)
{
	return pier_is_read(opcode) ? channel->max_read_sge : channel->sends.max_sge;
}

/* Whether the request can be posted as it is; pier_check_request() finds the reason. */
static inline __attribute__((always_inline)) bool pier_request_fits(
	const struct pier_channel *channel, const struct pier_request *request,
	uint64_t length)
{
	const struct pier_remote *remote = request->remote;

	if (length > channel->max_msg_size)
		return false;
	if (pier_is_read(request->opcode) && channel->read_depth == 0)
		return false;
	if (pier_is_atomic(request->opcode) &&
	    (length != 8 || !remote || remote->addr % 8 || !channel->has_atomics))
		return false;
	if (request->opcode == PIER_OP_SEND)
		return true;
	return remote ? remote->length >= length : length == 0;
}

static inline __attribute__((always_inline)) enum ibv_wr_opcode pier_verb(
	enum pier_opcode opcode, int flags)
{
	switch (opcode) {
	case PIER_OP_SEND:
		if (flags & PIER_POST_INVALIDATE)
			return IBV_WR_SEND_WITH_INV;
		return flags & PIER_POST_IMMEDIATE ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
	case PIER_OP_WRITE:
		return flags & PIER_POST_IMMEDIATE ? IBV_WR_RDMA_WRITE_WITH_IMM
						   : IBV_WR_RDMA_WRITE;
	case PIER_OP_READ:
		return IBV_WR_RDMA_READ;
	case PIER_OP_COMPARE_SWAP:
		return IBV_WR_ATOMIC_CMP_AND_SWP;
	default:
		return IBV_WR_ATOMIC_FETCH_AND_ADD;
	}
}

/*
 * Whether the CPU, which copies inline data, cannot read an element at its address. The
 * PD has regions with such memory.
 */
bool pier_has_far_element(const struct pier_channel *channel,
			  const struct ibv_sge *sg_list, uint32_t num_sge)
	__attribute__((cold));

/* IBV_SEND_INLINE if the CPU copies the `length` bytes at once, else 0. */
static inline __attribute__((always_inline)) unsigned int pier_inline_flag(
	const struct pier_channel *channel, const struct pier_request *request,
	uint64_t length)
{
	if (pier_is_read(request->opcode) || length == 0 ||
	    length > channel->attr.max_inline)
		return 0;
	if (pier_unlikely(atomic_load_explicit(&channel->pd->far_count,
					       memory_order_relaxed)) &&
	    pier_has_far_element(channel, pier_sg_list(request), request->num_sge))
		return 0;
	return IBV_SEND_INLINE;
}

static inline __attribute__((always_inline)) unsigned int pier_send_flags(int flags)
{
	return (flags & PIER_POST_FENCE ? IBV_SEND_FENCE : 0) |
	       (flags & PIER_POST_SOLICITED ? IBV_SEND_SOLICITED : 0);
}

/*
 * Fill in all but wr_id and next, and nothing that the opcode does not use: superfluous
 * stores would be a third of the cost of posting.
 */
static inline __attribute__((always_inline)) void pier_fill_wr(
	struct ibv_send_wr *wr, const struct pier_request *request,
	unsigned int send_flags)
{
	const struct pier_remote *remote = request->remote;

	wr->sg_list = (struct ibv_sge *)request->gather;
	wr->num_sge = request->num_sge;
	wr->opcode = pier_verb(request->opcode, request->flags);
	wr->send_flags = send_flags | pier_send_flags(request->flags);
	if (request->flags & PIER_POST_IMMEDIATE)
		wr->imm_data = htonl(request->immediate);
	else if (request->flags & PIER_POST_INVALIDATE)
		wr->invalidate_rkey = request->invalidate_rkey;
	if (request->opcode == PIER_OP_SEND)
		return;
	if (pier_is_atomic(request->opcode)) {
		wr->wr.atomic.remote_addr = remote->addr;
		wr->wr.atomic.rkey = remote->rkey;
		wr->wr.atomic.compare_add = request->opcode == PIER_OP_COMPARE_SWAP
						    ? request->compare
						    : request->operand;
		wr->wr.atomic.swap = request->operand;
		return;
	}
	/* Without a remote part nothing is moved, and both are ignored. */
	wr->wr.rdma.remote_addr = remote ? remote->addr : 0;
	wr->wr.rdma.rkey = remote ? remote->rkey : 0;
}

/* The length in the result of a read or an atomic; 0 for others. */
static inline __attribute__((always_inline)) uint32_t pier_read_length(
	enum pier_opcode opcode, uint64_t length)
{
	return pier_is_read(opcode) ? (uint32_t)length : 0;
}

/*
 * Whether there is room for one more. The entry is written before the device gets the
 * request, while all values are at hand. It counts only after pier_posted(): the next
 * request overwrites an entry that could not be posted.
 */
static inline __attribute__((always_inline)) bool pier_has_room(
	const struct pier_queue *queue)
{
	return queue->head - queue->tail < queue->limit &&
	       pier_entry_get_state(pier_queue_entry(queue, queue->head)) !=
		       PIER_ENTRY_DONE;
}

/* The device has all requests before `head`. The caller may ask for the last of them. */
static inline __attribute__((always_inline)) void pier_posted(struct pier_queue *queue,
							      uint64_t head, uint64_t id,
							      struct pier_work *ret_work)
{
	pier_queue_posted(queue, head);
	if (ret_work)
		ret_work->id = id;
}

/*
 * Post a request whose opcode and arguments are set. There must be room for it.
 *
 * num_sge  elements that the device reads or writes
 * length   of the result
 */
static inline __attribute__((always_inline)) int pier_post_wr(
	struct pier_channel *channel, struct ibv_send_wr *wr, enum pier_opcode opcode,
	const struct ibv_sge *sg_list, uint32_t num_sge, uint32_t length, void *context,
	struct pier_work *ret_work)
{
	struct pier_queue *queue = &channel->sends;
	uint64_t id = queue->head;
	struct ibv_send_wr *bad;
	int error;

	wr->wr_id = id;
	wr->next = NULL;
	pier_queue_note(queue, pier_queue_entry(queue, id), id, ret_work != NULL, opcode,
			sg_list, num_sge, length, context);
	error = ibv_post_send(channel->qp, wr, &bad);
	if (pier_unlikely(error))
		return pier_refuse_post(channel, error, opcode);
	pier_posted(queue, id + 1, id, ret_work);
	return 0;
}

static inline __attribute__((always_inline)) int pier_post_now(
	struct pier_channel *channel, const struct pier_request *request, uint64_t length,
	unsigned int inlined, struct pier_work *ret_work)
{
	struct ibv_send_wr wr;

	pier_fill_wr(&wr, request, IBV_SEND_SIGNALED | inlined);
	return pier_post_wr(channel, &wr, request->opcode, pier_sg_list(request),
			    inlined ? 0 : request->num_sge,
			    pier_read_length(request->opcode, length), request->context,
			    ret_work);
}

#endif
