/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stddef.h>

#include "posting.h"
#include "vec.h"
#include "wait.h"
#include "core/deadline.h"
#include "core/error.h"
#include "device/pd.h"

/* Elements are handed to the provider without conversion. */
#define SAME_FIELD(type, field)                                             \
	(offsetof(struct type, field) == offsetof(struct ibv_sge, field) && \
	 sizeof(((struct type *)0)->field) == sizeof(((struct ibv_sge *)0)->field))
#define SAME_AS_SGE(type)                                                           \
	(sizeof(struct type) == sizeof(struct ibv_sge) && SAME_FIELD(type, addr) && \
	 SAME_FIELD(type, length) && SAME_FIELD(type, lkey))
_Static_assert(SAME_AS_SGE(pier_gather), "struct pier_gather is struct ibv_sge");
_Static_assert(SAME_AS_SGE(pier_scatter), "struct pier_scatter is struct ibv_sge");

/* Whether it is one element of at least one byte, and there is room. */
static inline __attribute__((always_inline)) bool is_plain(
	const struct pier_channel *channel, const struct pier_request *request)
{
	const struct ibv_sge *sge = pier_sg_list(request);

	/*
	 * gcc reads both counts at once if they are compared one after the other, and
	 * writes the request to memory for that.
	 */
	return pier_likely(request->num_sge == 1 && sge && sge->length > 0 &&
			   !request->remote_count &&
			   pier_request_fits(channel, request, sge->length) &&
			   pier_has_room(&channel->sends));
}

static inline __attribute__((always_inline)) int post_plain(
	struct pier_channel *channel, const struct pier_request *request,
	struct pier_work *ret_work)
{
	struct pier_request one = *request;
	uint32_t length = pier_sg_list(request)->length;

	one.num_sge = 1;
	if (!pier_is_read(one.opcode) &&
	    pier_unlikely(length <= channel->attr.max_inline))
		return pier_post_now(channel, &one, length,
				     pier_inline_flag(channel, &one, length), ret_work);
	return pier_post_now(channel, &one, length, 0, ret_work);
}

/* Everything that is not plain. */
static __attribute__((noinline)) int post_other(struct pier_channel *channel,
						const struct pier_request *request,
						struct pier_work *ret_work)
{
	if (channel->sends.limit == 0)
		return pier_refuse_state(channel);
	return pier_needs_several(channel, request)
		       ? pier_post_several(channel, request, ret_work)
		       : pier_post_whole(channel, request, ret_work);
}

/*
 * Gets the fields one by one: while no address of a request escapes, the compiler knows
 * them in the function that calls this.
 */
static __attribute__((noinline, cold)) int post_fields(
	struct pier_channel *channel, enum pier_opcode opcode, const void *sg_list,
	uint32_t num_sge, const struct pier_remote *remote, struct pier_work *ret_work)
{
	const struct pier_request request = {
		.opcode = opcode, .gather = sg_list, .num_sge = num_sge, .remote = remote
	};

	return post_other(channel, &request, ret_work);
}

static inline __attribute__((always_inline)) int post_one(
	struct pier_channel *channel, enum pier_opcode opcode, const void *sg_list,
	uint32_t num_sge, const struct pier_remote *remote, struct pier_work *ret_work)
{
	const struct pier_request request = {
		.opcode = opcode, .gather = sg_list, .num_sge = num_sge, .remote = remote
	};

	if (is_plain(channel, &request))
		return post_plain(channel, &request, ret_work);
	return post_fields(channel, opcode, sg_list, num_sge, remote, ret_work);
}

int pier_channel_post_send(struct pier_channel *channel,
			   const struct pier_gather *sg_list, uint32_t num_sge,
			   struct pier_work *ret_work)
{
	PIER_REFUSE_NULL(channel);
	return post_one(channel, PIER_OP_SEND, sg_list, num_sge, NULL, ret_work);
}

int pier_channel_post_write(struct pier_channel *channel,
			    const struct pier_gather *sg_list, uint32_t num_sge,
			    const struct pier_remote *remote, struct pier_work *ret_work)
{
	PIER_REFUSE_NULL(channel);
	return post_one(channel, PIER_OP_WRITE, sg_list, num_sge, remote, ret_work);
}

int pier_channel_post_read(struct pier_channel *channel,
			   const struct pier_scatter *sg_list, uint32_t num_sge,
			   const struct pier_remote *remote, struct pier_work *ret_work)
{
	PIER_REFUSE_NULL(channel);
	return post_one(channel, PIER_OP_READ, sg_list, num_sge, remote, ret_work);
}

static inline __attribute__((always_inline)) int post_receive(
	struct pier_channel *channel, const struct pier_scatter *sg_list,
	uint32_t num_sge, void *context, struct pier_work *ret_work)
{
	struct pier_queue *queue = &channel->receives;
	struct ibv_recv_wr wr = { .sg_list = (struct ibv_sge *)sg_list,
				  .num_sge = num_sge },
			   *bad;
	uint64_t length;
	int error = 0;

	if (pier_unlikely(queue->limit == 0))
		return pier_refuse_receive(channel);
	if (pier_unlikely(num_sge > queue->max_sge))
		return pier_refuse_elements(channel, num_sge, queue->max_sge, 0);
	if (pier_unlikely(!sg_list && num_sge > 0))
		return pier_check_elements(PIER_OP_RECV, sg_list, num_sge);
	length = pier_sum_lengths(wr.sg_list, num_sge);
	if (pier_unlikely(length > channel->max_msg_size))
		return pier_refuse_elements(channel, num_sge, queue->max_sge, length);
	if (pier_unlikely(channel->pd->device->copies_receives))
		error = pier_check_receive(channel->pd, wr.sg_list, num_sge);
	if (!error && pier_unlikely(!pier_has_room(queue)))
		error = pier_make_room(channel, queue, 1);
	if (pier_unlikely(error))
		return error;
	wr.wr_id = PIER_ID_RECEIVE | queue->head;
	pier_queue_note(queue, pier_queue_entry(queue, queue->head), wr.wr_id,
			ret_work != NULL, PIER_OP_RECV, wr.sg_list, num_sge, 0, context);
	error = ibv_post_recv(channel->qp, &wr, &bad);
	if (pier_unlikely(error))
		return pier_refuse_post(channel, error, PIER_OP_RECV);
	pier_posted(queue, queue->head + 1, wr.wr_id, ret_work);
	return 0;
}

int pier_channel_post_recv(struct pier_channel *channel,
			   const struct pier_scatter *sg_list, uint32_t num_sge,
			   struct pier_work *ret_work)
{
	PIER_REFUSE_NULL(channel);
	return post_receive(channel, sg_list, num_sge, NULL, ret_work);
}

int pier_channel_post_request(struct pier_channel *channel,
			      const struct pier_request *request,
			      struct pier_work *ret_work)
{
	PIER_REFUSE_NULL(channel, request);
	int error;

	if (request->opcode == PIER_OP_RECV)
		return request->flags
			       ? pier_fail(EINVAL, "request: a receive has no flags")
			       : post_receive(channel, request->scatter, request->num_sge,
					      request->context, ret_work);
	error = pier_check_form(channel, request);
	if (error)
		return error;
	return is_plain(channel, request) ? post_plain(channel, request, ret_work)
					  : post_other(channel, request, ret_work);
}

int pier_hot_refused(struct pier_channel *channel, int error, enum pier_opcode opcode)
{
	return pier_refuse_post(channel, error, opcode);
}

int pier_channel_run_request(struct pier_channel *channel,
			     const struct pier_request *request, int timeout_ms,
			     struct pier_result *ret_result)
{
	PIER_REFUSE_NULL(channel, request);
	struct pier_work work = { 0 };
	int error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);

	if (!error && pier_needs_several(channel, request)) {
		error = pier_check_form(channel, request);
		return error ? error
			     : pier_run_several(channel, request, timeout_ms, ret_result);
	}
	if (!error)
		error = pier_channel_post_request(channel, request, &work);
	return error ? error
		     : pier_wait_or_stop(channel, work, pier_deadline(timeout_ms),
					 timeout_ms, ret_result);
}

static int run_one(struct pier_channel *channel, enum pier_opcode opcode,
		   const void *sg_list, uint32_t num_sge,
		   const struct pier_remote *remote, int timeout_ms,
		   struct pier_result *ret_result)
{
	const struct pier_request request = {
		.opcode = opcode, .gather = sg_list, .num_sge = num_sge, .remote = remote
	};

	return pier_channel_run_request(channel, &request, timeout_ms, ret_result);
}

int pier_channel_send(struct pier_channel *channel, const struct pier_gather *sg_list,
		      uint32_t num_sge, int timeout_ms)
{
	return run_one(channel, PIER_OP_SEND, sg_list, num_sge, NULL, timeout_ms, NULL);
}

int pier_channel_recv(struct pier_channel *channel, const struct pier_scatter *sg_list,
		      uint32_t num_sge, int timeout_ms, struct pier_result *ret_result)
{
	return run_one(channel, PIER_OP_RECV, sg_list, num_sge, NULL, timeout_ms,
		       ret_result);
}

int pier_channel_write(struct pier_channel *channel, const struct pier_gather *sg_list,
		       uint32_t num_sge, const struct pier_remote *remote, int timeout_ms)
{
	return run_one(channel, PIER_OP_WRITE, sg_list, num_sge, remote, timeout_ms,
		       NULL);
}

int pier_channel_read(struct pier_channel *channel, const struct pier_scatter *sg_list,
		      uint32_t num_sge, const struct pier_remote *remote, int timeout_ms)
{
	return run_one(channel, PIER_OP_READ, sg_list, num_sge, remote, timeout_ms, NULL);
}
