/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "core/deadline.h"
#include "core/error.h"
#include "posting.h"
#include "region/mr.h"
#include "status.h"
#include "stop.h"
#include "vec.h"
#include "wait.h"

/*
 * A list of elements and a remote vector are two sequences of bytes. They are moved in
 * requests that respect the remote parts, the elements per request and the longest
 * message. Each request takes as much as it can, so their number is minimal.
 *
 * The send queue of a reliable connection executes and completes requests in the order
 * of posting, reads too (InfiniBand Architecture Specification, volume 1, 9.5,
 * transaction ordering), and executes nothing behind a failed request. The completion
 * of the last request therefore covers all, and only the last one is watched.
 */

/* What remains to be moved. */
struct cursor {
	const struct pier_request *whole;
	const struct ibv_sge *sg_list;
	uint32_t num_sge;
	const struct pier_remote *parts;
	uint32_t count;
	uint32_t sge_offset;  /* in the first element */
	uint64_t part_offset; /* in the first part */
};

/* The elements are in channel->scratch; without elements it moves nothing. */
struct piece {
	struct pier_remote remote;
	uint32_t num_sge;
};

static void skip_used_up(struct cursor *cursor)
{
	while (cursor->num_sge > 0 && cursor->sge_offset == cursor->sg_list->length) {
		cursor->sg_list++;
		cursor->num_sge--;
		cursor->sge_offset = 0;
	}
	while (cursor->count > 0 && cursor->part_offset == cursor->parts->length) {
		cursor->parts++;
		cursor->count--;
		cursor->part_offset = 0;
	}
}

/* Take up to `room` bytes of the first element. */
static struct ibv_sge take_element(struct cursor *cursor, uint64_t room)
{
	const struct ibv_sge *first = cursor->sg_list;
	struct ibv_sge sge = { .addr = first->addr + cursor->sge_offset,
			       .length = first->length - cursor->sge_offset,
			       .lkey = first->lkey };

	if (sge.length > room)
		sge.length = (uint32_t)room;
	cursor->sge_offset += sge.length;
	cursor->part_offset += sge.length;
	return sge;
}

static struct piece next_piece(struct pier_channel *channel, struct cursor *cursor)
{
	uint32_t max_sge = pier_max_sge(channel, cursor->whole->opcode);
	struct piece piece = { .num_sge = 0 };
	uint64_t room;

	skip_used_up(cursor);
	if (cursor->count == 0 || cursor->num_sge == 0)
		return piece;
	piece.remote.addr = cursor->parts->addr + cursor->part_offset;
	piece.remote.rkey = cursor->parts->rkey;
	room = cursor->parts->length - cursor->part_offset;
	if (room > channel->max_msg_size)
		room = channel->max_msg_size;
	while (room > 0 && cursor->num_sge > 0 && piece.num_sge < max_sge) {
		struct ibv_sge sge = take_element(cursor, room);

		channel->scratch[piece.num_sge++] = sge;
		piece.remote.length += sge.length;
		room -= sge.length;
		skip_used_up(cursor);
	}
	return piece;
}

static int fail_short(const struct pier_channel *channel, const struct cursor *cursor,
		      uint64_t remote)
{
	uint64_t length = 0;

	if (channel->max_msg_size == 0)
		return pier_fail(EMSGSIZE, "the port's max_msg_size is 0");
	/* At most 2^32 lengths of 32 bits: no overflow. */
	for (uint32_t i = 0; i < cursor->num_sge; i++)
		length += cursor->sg_list[i].length;
	return pier_fail(ERANGE,
			 "%s of %" PRIu64 " bytes; the remote vector of %u parts has "
			 "%" PRIu64,
			 pier_opcode_name(cursor->whole->opcode), length, cursor->count,
			 remote);
}

/* How many requests it takes. One without elements if there is nothing to move. */
static int count_requests(struct pier_channel *channel, const struct cursor *all,
			  uint64_t *ret_count)
{
	struct cursor cursor = *all;
	uint64_t count = 0, remote;
	int error = pier_check_elements(all->whole->opcode, all->sg_list,
					(int)all->num_sge);

	if (!error)
		error = pier_remote_vec_length(all->parts, all->count, &remote);
	if (error)
		return error;
	skip_used_up(&cursor);
	for (; cursor.num_sge > 0; count++)
		if (next_piece(channel, &cursor).num_sge == 0)
			return fail_short(channel, all, remote);
	*ret_count = count ? count : 1;
	return 0;
}

static int find_room(struct pier_channel *channel, enum pier_opcode opcode,
		     uint64_t count)
{
	if (count > channel->sends.depth)
		return pier_fail(E2BIG,
				 "%s: %" PRIu64 " requests are needed, and the send "
				 "queue has %u",
				 pier_opcode_name(opcode), count, channel->sends.depth);
	return pier_make_room(channel, &channel->sends, (uint32_t)count);
}

/* The last request carries the immediate data and wakes the peer. */
static int post_next(struct pier_channel *channel, struct cursor *cursor, bool last,
		     struct pier_work *ret_work)
{
	struct piece next = next_piece(channel, cursor);
	struct pier_request request = *cursor->whole;

	if (!last)
		request.flags &= PIER_POST_FENCE;
	request.gather = (const struct pier_gather *)channel->scratch;
	request.num_sge = next.num_sge;
	request.remote = next.num_sge ? &next.remote : NULL;
	return pier_post_whole(channel, &request, last ? ret_work : NULL);
}

/*
 * The error of the request that failed first, instead of those that were flushed behind
 * it.
 */
static int fail_cause(const struct pier_channel *channel)
{
	char cause[sizeof(channel->cause)];

	snprintf(cause, sizeof(cause), "%s", channel->cause);
	return pier_fail(-channel->broken, "%s", cause);
}

/*
 * Some requests were posted, and no more can follow. The caller gets an error and may
 * reuse the memory, and the peer must not take half of the data for all of it. So stop
 * the channel.
 */
static int abandon_vec(struct pier_channel *channel, enum pier_opcode opcode, int error,
		       uint64_t posted, uint64_t count, int timeout_ms)
{
	char reason[256];

	if (error == -ETIMEDOUT)
		snprintf(reason, sizeof(reason), "the time limit of %d ms expired",
			 timeout_ms);
	else
		snprintf(reason, sizeof(reason), "%s", pier_error_message());
	error = pier_stop_because(channel, error,
				  "%s: %" PRIu64 " of %" PRIu64
				  " requests were posted, and then: %s; everything "
				  "outstanding was stopped",
				  pier_opcode_name(opcode), posted, count, reason);
	return error == -EPIPE ? fail_cause(channel) : error;
}

/* Watch only the last request. Nothing is posted if the first one is refused. */
static int post_requests(struct pier_channel *channel, struct cursor cursor,
			 uint64_t count, int64_t deadline, int timeout_ms,
			 struct pier_work *ret_work)
{
	uint64_t posted = 0;
	int error = 0;

	while (posted < count && !error) {
		if (posted > 0)
			error = pier_wait_for_room(channel, 1, deadline);
		if (!error)
			error = post_next(channel, &cursor, posted + 1 == count,
					  ret_work);
		if (!error)
			posted++;
	}
	if (!error || posted == 0)
		return error;
	return abandon_vec(channel, cursor.whole->opcode, error, posted, count,
			   timeout_ms);
}

bool pier_needs_several(const struct pier_channel *channel,
			const struct pier_request *request)
{
	return (request->opcode == PIER_OP_WRITE || request->opcode == PIER_OP_READ) &&
	       request->remote && request->num_sge <= INT32_MAX &&
	       (request->remote_count > 0 ||
		request->num_sge > pier_max_sge(channel, request->opcode));
}

static struct cursor cursor_of(const struct pier_request *request)
{
	return (struct cursor){ .whole = request,
				.sg_list = pier_sg_list(request),
				.num_sge = request->num_sge,
				.parts = request->remote,
				.count = request->remote_count ? request->remote_count
							       : 1 };
}

int pier_post_several(struct pier_channel *channel, const struct pier_request *request,
		      struct pier_work *ret_work)
{
	struct cursor cursor = cursor_of(request);
	uint64_t count = 0;
	int error = pier_check_process(&channel->object);

	if (!error)
		error = count_requests(channel, &cursor, &count);
	if (!error)
		error = find_room(channel, request->opcode, count);
	/* There is room for all requests, so this does not wait. */
	return error ? error : post_requests(channel, cursor, count, 0, 0, ret_work);
}

int pier_run_several(struct pier_channel *channel, const struct pier_request *request,
		     int timeout_ms, struct pier_result *ret_result)
{
	struct cursor cursor = cursor_of(request);
	struct pier_work work = { 0 };
	int64_t deadline;
	uint64_t count = 0;
	int error = pier_check_process(&channel->object);

	if (!error)
		error = count_requests(channel, &cursor, &count);
	if (!error)
		error = find_room(channel, request->opcode, 1);
	if (error)
		return error;
	deadline = pier_deadline(timeout_ms);
	error = post_requests(channel, cursor, count, deadline, timeout_ms, &work);
	if (error)
		return error;
	error = pier_wait_or_stop(channel, work, deadline, timeout_ms, ret_result);
	return error == -ECANCELED && channel->broken ? fail_cause(channel) : error;
}
