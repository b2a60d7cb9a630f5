/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "posting.h"
#include "status.h"
#include "util/error.h"

enum {
	DOORBELL = 32, /* requests that are told to the device at once: on the stack */
};

static __attribute__((cold)) int refuse(const struct pier_channel *channel,
					const struct pier_request *request,
					uint32_t number)
{
	uint32_t max_sge = pier_max_sge(channel, request->opcode);
	int error = pier_check_form(channel, request);

	if (!error && (uint32_t)request->num_sge > max_sge)
		error = pier_refuse_elements(channel, request->num_sge, max_sge, 0);
	if (!error)
		error = pier_refuse_request(
			channel, request,
			pier_sum_lengths(pier_sg_list(request), request->num_sge));
	return pier_fail_because(error, "request %u of a batch", number);
}

static inline __attribute__((always_inline)) void fill_as(
	struct pier_channel *channel, const struct pier_request *request,
	struct ibv_send_wr *wr, uint64_t position, unsigned int inlined,
	uint32_t read_length)
{
	pier_fill_wr(wr, request, inlined);
	wr->wr_id = position;
	wr->next = wr + 1;
	pier_queue_note(&channel->sends, pier_queue_entry(&channel->sends, position),
			position, false, request->opcode, pier_sg_list(request),
			inlined ? 0 : request->num_sge, read_length);
}

/* False: it cannot be posted as it is. */
static inline bool fill(struct pier_channel *channel, const struct pier_request *request,
			struct ibv_send_wr *wr, uint64_t position)
{
	uint64_t length;

	if ((uint32_t)request->num_sge > pier_max_sge(channel, request->opcode))
		return false;
	length = pier_sum_lengths(pier_sg_list(request), request->num_sge);
	if (!pier_request_fits(channel, request, length))
		return false;
	fill_as(channel, request, wr, position,
		pier_inline_flag(channel, request->opcode, length),
		pier_read_length(request->opcode, length));
	return true;
}

static __attribute__((noinline)) bool fill_any(struct pier_channel *channel,
					       const struct pier_request *request,
					       struct ibv_send_wr *wr, uint64_t position)
{
	return pier_check_form(channel, request) == 0 &&
	       fill(channel, request, wr, position);
}

/*
 * Plain writes of one element, of which mostly a batch consists: what is known at
 * compile time costs nothing.
 */
static inline __attribute__((always_inline)) bool fill_one(
	struct pier_channel *channel, const struct pier_request *request,
	struct ibv_send_wr *wr, uint64_t position)
{
	const struct ibv_sge *sge = pier_sg_list(request);
	struct pier_request plain = { .opcode = PIER_OP_WRITE,
				      .gather = request->gather,
				      .num_sge = 1,
				      .remote = request->remote };

	if (pier_unlikely(request->opcode != PIER_OP_WRITE || request->flags ||
			  request->num_sge != 1 ||
			  sge->length <= channel->attr.max_inline ||
			  !pier_request_fits(channel, &plain, sge->length)))
		return fill_any(channel, request, wr, position);
	fill_as(channel, &plain, wr, position, 0, 0);
	return true;
}

/* Into wrs, a list; what stands at positions from head on is not posted yet. */
static int fill_all(struct pier_channel *channel, const struct pier_request *requests,
		    uint32_t first, uint32_t count, struct ibv_send_wr *wrs)
{
	uint64_t position = channel->sends.head;

	for (uint32_t i = 0; i < count; i++) {
		if (pier_unlikely(
			    !fill_one(channel, &requests[i], &wrs[i], position + i)))
			return refuse(channel, &requests[i], first + i);
	}
	wrs[count - 1].next = NULL;
	return 0;
}

/* What does not fit one doorbell is checked before the first is rung. */
static int check_rest(struct pier_channel *channel, const struct pier_request *requests,
		      uint32_t count, struct ibv_send_wr *wrs)
{
	int error = 0;

	for (uint32_t i = DOORBELL; i < count && !error; i += DOORBELL)
		error = fill_all(channel, requests + i, i,
				 count - i < DOORBELL ? count - i : DOORBELL, wrs);
	return error;
}

/* How many the device took. */
static uint32_t ring(struct pier_channel *channel, struct ibv_send_wr *wrs,
		     uint32_t count, int *ret_error)
{
	struct ibv_send_wr *bad = NULL;

	*ret_error = ibv_post_send(channel->qp, wrs, &bad);
	if (pier_likely(!*ret_error))
		return count;
	return bad >= wrs && bad < wrs + count ? (uint32_t)(bad - wrs) : 0;
}

/* Nobody would learn of what was posted: it is stopped. */
static __attribute__((cold)) int abandon(struct pier_channel *channel, int error,
					 uint32_t posted, uint32_t taken, uint32_t count)
{
	char cause[512];

	pier_queue_posted(&channel->sends, channel->sends.head + taken);
	posted += taken;
	error = pier_refuse_post(channel, error, PIER_OP_SEND);
	if (posted == 0)
		return error;
	snprintf(cause, sizeof(cause),
		 "batch: %u of %u requests were posted, and then: %s; everything "
		 "outstanding was stopped",
		 posted, count, pier_last_error());
	pier_break_channel(channel, error, cause);
	pier_stop_channel(channel);
	return pier_fail(-error, "%s", cause);
}

static int check_count(struct pier_channel *channel, uint32_t count)
{
	struct pier_queue *queue = &channel->sends;

	if (count == 0)
		return pier_fail(EINVAL, "a batch of no requests");
	if (count > queue->depth)
		return pier_fail(E2BIG, "a batch of %u requests; the send queue has %u",
				 count, queue->depth);
	if (pier_likely(pier_queue_room(queue) >= count) &&
	    pier_queue_make_free(queue, queue->head + count - 1) && !queue->aside_count)
		return 0;
	return pier_make_room(channel, queue, count);
}

/* The last of all is the one that the device completes. */
static void sign_last(struct pier_channel *channel, struct ibv_send_wr *wr, bool watched)
{
	wr->send_flags |= IBV_SEND_SIGNALED;
	if (watched)
		pier_queue_entry(&channel->sends, wr->wr_id)->state = PIER_ENTRY_WATCHED;
}

static int post_all(struct pier_channel *channel, const struct pier_request *requests,
		    uint32_t count, struct ibv_send_wr *wrs, struct pier_work *ret_work)
{
	uint32_t posted = 0, part, taken;
	uint64_t last = 0;
	int error;

	for (; posted < count; posted += part) {
		part = count - posted < DOORBELL ? count - posted : DOORBELL;
		error = fill_all(channel, requests + posted, posted, part, wrs);
		if (pier_unlikely(error))
			return error;
		last = channel->sends.head + part - 1;
		if (posted + part == count)
			sign_last(channel, &wrs[part - 1], ret_work != NULL);
		taken = ring(channel, wrs, part, &error);
		if (pier_unlikely(error))
			return abandon(channel, error, posted, taken, count);
		pier_queue_posted(&channel->sends, last + 1);
	}
	if (ret_work)
		ret_work->id = last;
	return 0;
}

int pier_post_batch(struct pier_channel *channel, const struct pier_request *requests,
		    uint32_t count, struct pier_work *ret_work)
{
	struct ibv_send_wr wrs[DOORBELL];
	int error;

	if (pier_unlikely(channel->sends_in != pier_fork_generation))
		return pier_refuse_state(channel, false);
	error = check_count(channel, count);
	if (pier_likely(!error) && count > DOORBELL)
		error = check_rest(channel, requests, count, wrs);
	if (pier_unlikely(error))
		return error;
	return post_all(channel, requests, count, wrs, ret_work);
}
