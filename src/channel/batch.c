/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stddef.h>

#include "channel/posting.h"
#include "channel/stop.h"
#include "channel/vec.h"
#include "core/error.h"

enum {
	DOORBELL = 32, /* requests per doorbell, on the stack */
};

/* A list of requests, or of pairs of an element and a remote part. */
struct list {
	enum pier_opcode opcode; /* of all pairs; 0: a list of requests */
	const struct pier_request *requests;
	const struct pier_write_pair *pairs;
};

_Static_assert(sizeof(struct pier_write_pair) == sizeof(struct pier_read_pair) &&
		       offsetof(struct pier_write_pair, remote) ==
			       offsetof(struct pier_read_pair, remote),
	       "pairs are alike");

static inline __attribute__((always_inline)) struct pier_request request_of(
	const struct list *list, uint32_t i)
{
	if (!list->opcode)
		return list->requests[i];
	return (struct pier_request){ .opcode = list->opcode,
				      .gather = &list->pairs[i].gather,
				      .num_sge = 1,
				      .remote = &list->pairs[i].remote };
}

/*
 * Fill in any request. The list is passed by value: while no address of it escapes, the
 * compiler knows its fields.
 */
static __attribute__((noinline)) int fill_any_request(struct pier_channel *channel,
						      struct list list, uint32_t i,
						      struct ibv_send_wr *wr,
						      uint64_t position)
{
	struct pier_request request = request_of(&list, i);
	unsigned int inlined;
	uint64_t length = 0;
	int error;

	error = pier_check_form(channel, &request);
	if (!error && request.remote_count && pier_needs_several(channel, &request))
		error = pier_fail(EINVAL, "a batch takes no remote vectors");
	if (!error)
		error = pier_check_request(channel, &request, &length);
	if (pier_unlikely(error))
		return pier_fail_because(error, "request %u of a batch", i);
	inlined = pier_inline_flag(channel, &request, length);
	pier_fill_wr(wr, &request, inlined);
	wr->wr_id = position;
	pier_queue_note(&channel->sends, pier_queue_entry(&channel->sends, position),
			position, false, request.opcode, pier_sg_list(&request),
			inlined ? 0 : request.num_sge,
			pier_read_length(request.opcode, length), request.context);
	return 0;
}

/* Fill in a plain message of one element. Returns false for any other request. */
static inline __attribute__((always_inline)) bool fill_plain_request(
	struct pier_channel *channel, enum pier_opcode opcode,
	const struct pier_gather *gather, const struct pier_remote *remote,
	struct ibv_send_wr *wr, uint64_t position)
{
	uint32_t length = gather->length;

	if (pier_unlikely(length - channel->least_plain >= channel->plain_span ||
			  remote->length < length ||
			  (pier_is_read(opcode) && !channel->read_depth)))
		return false;
	wr->wr_id = position;
	wr->sg_list = (struct ibv_sge *)gather;
	wr->num_sge = 1;
	wr->opcode = pier_verb(opcode, 0);
	wr->send_flags = 0;
	wr->wr.rdma.remote_addr = remote->addr;
	wr->wr.rdma.rkey = remote->rkey;
	pier_entry_write(pier_queue_entry(&channel->sends, position), position,
			 PIER_ENTRY_KIND(PIER_ENTRY_UNWATCHED, opcode, 1), gather->lkey,
			 pier_read_length(opcode, length));
	return true;
}

static inline __attribute__((always_inline)) bool fill_request(
	struct pier_channel *channel, const struct pier_request *request,
	struct ibv_send_wr *wr, uint64_t position)
{
	return request->opcode == PIER_OP_WRITE && !request->flags && !request->context &&
	       request->num_sge == 1 && !request->remote_count && request->gather &&
	       request->remote &&
	       fill_plain_request(channel, PIER_OP_WRITE, request->gather,
				  request->remote, wr, position);
}

/*
 * Fill in requests from `first` on. Their entries, from head on, do not count as posted
 * yet.
 */
static inline __attribute__((always_inline)) int fill_requests(
	struct pier_channel *channel, const struct list *list, uint32_t first,
	uint32_t count, struct ibv_send_wr *wrs)
{
	const struct pier_write_pair *pairs = list->opcode ? &list->pairs[first] : NULL;
	const struct pier_request *requests = list->opcode ? NULL
							   : &list->requests[first];
	uint64_t head = channel->sends.head;
	bool plain;
	int error;

	for (uint32_t i = 0; i < count; i++) {
		wrs[i].next = &wrs[i + 1];
		if (list->opcode)
			plain = fill_plain_request(channel, list->opcode,
						   &pairs[i].gather, &pairs[i].remote,
						   &wrs[i], head + i);
		else
			plain = fill_request(channel, &requests[i], &wrs[i], head + i);
		if (pier_likely(plain))
			continue;
		error = fill_any_request(channel, *list, first + i, &wrs[i], head + i);
		if (error)
			return error;
	}
	wrs[count - 1].next = NULL;
	return 0;
}

/* Check the requests of all later doorbells before ringing the first one. */
static inline __attribute__((always_inline)) int check_later_doorbells(
	struct pier_channel *channel, const struct list *list, uint32_t count,
	struct ibv_send_wr *wrs)
{
	int error = 0;

	for (uint32_t i = DOORBELL; i < count && !error; i += DOORBELL)
		error = fill_requests(channel, list, i,
				      count - i < DOORBELL ? count - i : DOORBELL, wrs);
	return error;
}

/* Returns how many requests the device took. */
static uint32_t ring_doorbell(struct pier_channel *channel, struct ibv_send_wr *wrs,
			      uint32_t count, int *ret_error)
{
	struct ibv_send_wr *bad = NULL;

	*ret_error = ibv_post_send(channel->qp, wrs, &bad);
	if (pier_likely(!*ret_error))
		return count;
	return bad >= wrs && bad < wrs + count ? (uint32_t)(bad - wrs) : 0;
}

/* A part was posted, and the caller gets no handle for it: stop the channel. */
static __attribute__((cold)) int abandon_batch(struct pier_channel *channel, int error,
					       uint32_t posted, uint32_t taken,
					       uint32_t count)
{
	pier_queue_posted(&channel->sends, channel->sends.head + taken);
	posted += taken;
	error = pier_refuse_post(channel, error, PIER_OP_SEND);
	if (posted == 0)
		return error;
	return pier_stop_because(channel, error,
				 "batch: %u of %u requests were posted, and then: %s; "
				 "everything outstanding was stopped",
				 posted, count, pier_error_message());
}

/* There is no room yet, or never is. */
static __attribute__((cold, noinline)) int make_room_for_batch(
	struct pier_channel *channel, uint32_t count)
{
	if (count == 0)
		return pier_fail(EINVAL, "a batch without requests");
	if (count > channel->sends.depth)
		return pier_fail(E2BIG, "a batch of %u requests; the send queue has %u",
				 count, channel->sends.depth);
	return pier_make_room(channel, &channel->sends, count);
}

/* The device completes only the last request. */
static void signal_last(struct pier_channel *channel, struct ibv_send_wr *wr,
			bool watched)
{
	wr->send_flags |= IBV_SEND_SIGNALED;
	if (watched)
		pier_entry_set_state(pier_queue_entry(&channel->sends, wr->wr_id),
				     PIER_ENTRY_WATCHED);
}

static inline __attribute__((always_inline)) int post_requests(
	struct pier_channel *channel, const struct list *list, uint32_t count,
	struct ibv_send_wr *wrs, struct pier_work *ret_work)
{
	uint32_t posted = 0, part, taken;
	uint64_t last = 0;
	int error;

	for (; posted < count; posted += part) {
		part = count - posted < DOORBELL ? count - posted : DOORBELL;
		error = fill_requests(channel, list, posted, part, wrs);
		if (pier_unlikely(error))
			return error;
		last = channel->sends.head + part - 1;
		if (posted + part == count)
			signal_last(channel, &wrs[part - 1], ret_work != NULL);
		taken = ring_doorbell(channel, wrs, part, &error);
		if (pier_unlikely(error))
			return abandon_batch(channel, error, posted, taken, count);
		pier_queue_posted(&channel->sends, last + 1);
	}
	if (ret_work)
		ret_work->id = last;
	return 0;
}

static inline __attribute__((always_inline)) int post_list(struct pier_channel *channel,
							   const struct list *list,
							   uint32_t count,
							   struct pier_work *ret_work)
{
	const struct pier_queue *queue = &channel->sends;
	struct ibv_send_wr wrs[DOORBELL];
	int error = 0;

	if (pier_unlikely(queue->limit == 0))
		return pier_refuse_state(channel);
	/* A count of 0 wraps. */
	if (pier_unlikely(count - 1 >= pier_queue_room(queue) || queue->kept))
		error = make_room_for_batch(channel, count);
	if (pier_likely(!error) && count > DOORBELL)
		error = check_later_doorbells(channel, list, count, wrs);
	if (pier_unlikely(error))
		return error;
	return post_requests(channel, list, count, wrs, ret_work);
}

int pier_channel_post_batch(struct pier_channel *channel,
			    const struct pier_request *requests, uint32_t count,
			    struct pier_work *ret_work)
{
	PIER_REFUSE_NULL(channel, requests);
	return post_list(channel, &(struct list){ .requests = requests }, count,
			 ret_work);
}

int pier_channel_post_writes(struct pier_channel *channel,
			     const struct pier_write_pair *pairs, uint32_t count,
			     struct pier_work *ret_work)
{
	PIER_REFUSE_NULL(channel, pairs);
	return post_list(channel,
			 &(struct list){ .opcode = PIER_OP_WRITE, .pairs = pairs }, count,
			 ret_work);
}

int pier_channel_post_reads(struct pier_channel *channel,
			    const struct pier_read_pair *pairs, uint32_t count,
			    struct pier_work *ret_work)
{
	PIER_REFUSE_NULL(channel, pairs);
	return post_list(channel,
			 &(struct list){ .opcode = PIER_OP_READ,
					 .pairs = (const struct pier_write_pair *)pairs },
			 count, ret_work);
}
