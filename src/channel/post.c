/* SPDX-License-Identifier: BSD-3-Clause */
#include <stddef.h>

#include "posting.h"
#include "vec.h"
#include "core/hot_alias.h"

/* Elements go to the provider as they are. */
#define SAME_FIELD(type, field)                                             \
	(offsetof(struct type, field) == offsetof(struct ibv_sge, field) && \
	 sizeof(((struct type *)0)->field) == sizeof(((struct ibv_sge *)0)->field))
#define SAME_AS_SGE(type)                                                           \
	(sizeof(struct type) == sizeof(struct ibv_sge) && SAME_FIELD(type, addr) && \
	 SAME_FIELD(type, length) && SAME_FIELD(type, lkey))
_Static_assert(SAME_AS_SGE(pier_gather), "struct pier_gather is struct ibv_sge");
_Static_assert(SAME_AS_SGE(pier_scatter), "struct pier_scatter is struct ibv_sge");

/* Everything but what post_one() does in a straight line. */
static __attribute__((noinline)) int post_other(struct pier_channel *channel,
						struct pier_request request,
						struct pier_work *ret_work);

static inline __attribute__((always_inline)) int post_here(
	struct pier_channel *channel, const struct pier_request *request, uint64_t length,
	unsigned int inlined, struct pier_work *ret_work)
{
	struct pier_queue *queue = &channel->sends;
	uint64_t id = queue->head;
	struct pier_entry *entry = pier_queue_entry(queue, id);
	struct ibv_send_wr wr, *bad;
	int error;

	pier_fill_wr(&wr, request, IBV_SEND_SIGNALED | inlined);
	wr.wr_id = id;
	wr.next = NULL;
	pier_queue_note(queue, entry, id, ret_work != NULL, request->opcode,
			pier_sg_list(request), inlined ? 0 : request->num_sge,
			pier_read_length(request->opcode, length));
	error = ibv_post_send(channel->qp, &wr, &bad);
	if (pier_unlikely(error))
		return pier_refuse_post(channel, error, request->opcode);
	pier_posted(queue, id + 1, id, ret_work);
	return 0;
}

/*
 * One element with at least a byte, and room for it: what can be in one's way is found
 * by few comparisons, and told apart elsewhere. The request is copied to there: as long
 * as nobody has its address, what a caller says of it is known here at compile time.
 */
static inline __attribute__((always_inline)) int post_one(
	struct pier_channel *channel, const struct pier_request *request,
	struct pier_work *ret_work)
{
	struct pier_request one = *request;
	const struct ibv_sge *sge = pier_sg_list(request);

	if (pier_unlikely(request->num_sge != 1 || sge->length == 0 ||
			  !pier_request_fits(channel, request, sge->length) ||
			  !pier_has_room(&channel->sends)))
		return post_other(channel, *request, ret_work);
	one.num_sge = 1;
	if (!pier_is_read(one.opcode) &&
	    pier_unlikely(sge->length <= channel->attr.max_inline))
		return post_here(channel, &one, sge->length, IBV_SEND_INLINE, ret_work);
	return post_here(channel, &one, sge->length, 0, ret_work);
}

static int post_other(struct pier_channel *channel, struct pier_request request,
		      struct pier_work *ret_work)
{
	uint64_t length;
	int error = 0;

	if (channel->sends.limit == 0)
		return pier_refuse_state(channel);
	if ((uint32_t)request.num_sge > pier_max_sge(channel, request.opcode))
		return pier_post_longer(channel, &request, ret_work);
	length = pier_sum_lengths(pier_sg_list(&request), request.num_sge);
	if (!pier_request_fits(channel, &request, length))
		return pier_refuse_request(channel, &request, length);
	if (!pier_has_room(&channel->sends))
		error = pier_make_room(channel, &channel->sends, 1);
	if (error)
		return error;
	return post_here(channel, &request, length,
			 pier_inline_flag(channel, request.opcode, length), ret_work);
}

int pier_post_request(struct pier_channel *channel, const struct pier_request *request,
		      struct pier_work *ret_work)
{
	int error = pier_check_form(channel, request);

	return error ? error : post_one(channel, request, ret_work);
}

int pier_post_local(struct pier_channel *channel, struct ibv_send_wr *wr,
		    enum pier_opcode opcode, struct pier_work *ret_work)
{
	struct pier_queue *queue = &channel->sends;
	struct ibv_send_wr *bad;
	int error = 0;

	if (channel->sends.limit == 0)
		return pier_refuse_state(channel);
	if (!pier_has_room(queue))
		error = pier_make_room(channel, queue, 1);
	if (error)
		return error;
	wr->wr_id = queue->head;
	wr->send_flags |= IBV_SEND_SIGNALED;
	pier_queue_note(queue, pier_queue_entry(queue, queue->head), queue->head, true,
			opcode, NULL, 0, 0);
	error = ibv_post_send(channel->qp, wr, &bad);
	if (error)
		return pier_refuse_post(channel, error, opcode);
	pier_posted(queue, queue->head + 1, queue->head, ret_work);
	return 0;
}

int pier_post_send(struct pier_channel *channel, const struct pier_gather *sg_list,
		   int num_sge, struct pier_work *ret_work)
{
	return post_one(channel,
			&(struct pier_request){ .opcode = PIER_OP_SEND,
						.gather = sg_list,
						.num_sge = num_sge },
			ret_work);
}

int pier_post_send_imm(struct pier_channel *channel, const struct pier_gather *sg_list,
		       int num_sge, uint32_t immediate, struct pier_work *ret_work)
{
	return post_one(channel,
			&(struct pier_request){ .opcode = PIER_OP_SEND,
						.flags = PIER_POST_IMMEDIATE,
						.gather = sg_list,
						.num_sge = num_sge,
						.immediate = immediate },
			ret_work);
}

int pier_post_write(struct pier_channel *channel, const struct pier_gather *sg_list,
		    int num_sge, const struct pier_remote *remote,
		    struct pier_work *ret_work)
{
	return post_one(channel,
			&(struct pier_request){ .opcode = PIER_OP_WRITE,
						.gather = sg_list,
						.num_sge = num_sge,
						.remote = remote },
			ret_work);
}

int pier_post_write_imm(struct pier_channel *channel, const struct pier_gather *sg_list,
			int num_sge, const struct pier_remote *remote, uint32_t immediate,
			struct pier_work *ret_work)
{
	return post_one(channel,
			&(struct pier_request){ .opcode = PIER_OP_WRITE,
						.flags = PIER_POST_IMMEDIATE,
						.gather = sg_list,
						.num_sge = num_sge,
						.immediate = immediate,
						.remote = remote },
			ret_work);
}

int pier_post_read(struct pier_channel *channel, const struct pier_scatter *sg_list,
		   int num_sge, const struct pier_remote *remote,
		   struct pier_work *ret_work)
{
	return post_one(channel,
			&(struct pier_request){ .opcode = PIER_OP_READ,
						.scatter = sg_list,
						.num_sge = num_sge,
						.remote = remote },
			ret_work);
}

int pier_post_compare_swap(struct pier_channel *channel,
			   const struct pier_scatter *element,
			   const struct pier_remote *remote, uint64_t compare,
			   uint64_t swap, struct pier_work *ret_work)
{
	return post_one(channel,
			&(struct pier_request){ .opcode = PIER_OP_COMPARE_SWAP,
						.scatter = element,
						.num_sge = 1,
						.remote = remote,
						.compare = compare,
						.operand = swap },
			ret_work);
}

int pier_post_fetch_add(struct pier_channel *channel, const struct pier_scatter *element,
			const struct pier_remote *remote, uint64_t add,
			struct pier_work *ret_work)
{
	return post_one(channel,
			&(struct pier_request){ .opcode = PIER_OP_FETCH_ADD,
						.scatter = element,
						.num_sge = 1,
						.remote = remote,
						.operand = add },
			ret_work);
}

int pier_post_recv(struct pier_channel *channel, const struct pier_scatter *sg_list,
		   int num_sge, struct pier_work *ret_work)
{
	struct pier_queue *queue = &channel->receives;
	struct ibv_recv_wr wr = { .sg_list = (struct ibv_sge *)sg_list,
				  .num_sge = num_sge },
			   *bad;
	uint64_t length;
	int error = 0;

	if (pier_unlikely(queue->limit == 0))
		return pier_refuse_receive(channel);
	if (pier_unlikely((uint32_t)num_sge > queue->max_sge))
		return pier_refuse_elements(channel, num_sge, queue->max_sge, 0);
	length = pier_sum_lengths(wr.sg_list, num_sge);
	if (pier_unlikely(length > channel->max_msg_size))
		return pier_refuse_elements(channel, num_sge, queue->max_sge, length);
	if (pier_unlikely(!pier_has_room(queue)))
		error = pier_make_room(channel, queue, 1);
	if (pier_unlikely(error))
		return error;
	wr.wr_id = PIER_ID_RECEIVE | queue->head;
	pier_queue_note(queue, pier_queue_entry(queue, queue->head), wr.wr_id,
			ret_work != NULL, PIER_OP_RECV, wr.sg_list, num_sge, 0);
	error = ibv_post_recv(channel->qp, &wr, &bad);
	if (pier_unlikely(error))
		return pier_refuse_post(channel, error, PIER_OP_RECV);
	pier_posted(queue, queue->head + 1, wr.wr_id, ret_work);
	return 0;
}

int pier_hot_refused(struct pier_channel *channel, int error, enum pier_opcode opcode)
{
	return pier_refuse_post(channel, error, opcode);
}

PIER_HOT_ALIAS(post_send);
PIER_HOT_ALIAS(post_write);
PIER_HOT_ALIAS(post_read);
