/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include <pier/inline.h>

#include "lane.h"
#include "side.h"
#include "staged.h"
#include "units.h"

enum {
	/* One batch in so many: a look at the clock costs as much as posting. */
	SAMPLE_EVERY = 16,
	/* Receives that are taken before the thread turns to other work. */
	SERVE_MOST = 64,
};

static int post_receive(struct lane *lane, uint64_t number)
{
	const struct side *side = lane->side;
	uint64_t slot = number % side->settings->rx_depth;
	uint64_t offset = side->settings->staged ? staged_receive_slot(lane, number)
						 : lane->destination;
	struct pier_scatter element;
	int error = pier_mr_scatter(lane->mr, lane_iova(lane, offset),
				    side->settings->slot, &element);

	return error ? error
		     : pier_post_recv(lane->channel, &element, 1, &lane->receives[slot]);
}

int post_lane_receives(struct lane *lane)
{
	int error = 0;

	for (uint32_t i = 0; !error && i < lane->side->settings->rx_depth; i++)
		error = post_receive(lane, i);
	return error;
}

/* The range of the peer, and the element at this end. */
static int aim_lane(struct lane *lane, uint64_t size)
{
	enum pier_opcode opcode = lane->side->settings->opcode;
	bool read = opcode == PIER_OP_READ;
	uint64_t scatter = lane_iova(lane, read ? lane->destination : lane->source);
	int error;

	if (lane->side->settings->staged) {
		prepare_staged(lane);
		return 0;
	}
	error = pier_remote_sub(&lane->peer, read ? lane->source : lane->destination,
				size, &lane->remote);
	if (!error && (read || is_atomic(opcode)))
		error = pier_mr_scatter(lane->mr, scatter, size, &lane->scatter);
	else if (!error)
		error = pier_mr_gather(lane->mr, lane_iova(lane, lane->source), size,
				       &lane->gather);
	return error;
}

static void prepare_requests(struct lane *lane)
{
	enum pier_opcode opcode = lane->side->settings->opcode;

	for (uint32_t i = 0; i < PERF_BATCH_MAX; i++) {
		if (opcode == PIER_OP_WRITE)
			lane->requests.writes[i] =
				(struct pier_write_pair){ lane->gather, lane->remote };
		else if (opcode == PIER_OP_READ)
			lane->requests.reads[i] = (struct pier_read_pair){ lane->scatter,
									   lane->remote };
		else
			lane->requests.others[i] = (struct pier_request){
				.opcode = opcode,
				.num_sge = 1,
				.remote = &lane->remote,
				.operand = 1,
			};
		if (opcode == PIER_OP_SEND)
			lane->requests.others[i].gather = &lane->gather;
		else if (is_atomic(opcode))
			lane->requests.others[i].scatter = &lane->scatter;
	}
}

int prepare_lane(struct lane *lane, uint64_t size)
{
	int error = aim_lane(lane, size);

	lane->gather.length = (uint32_t)size;
	lane->posted = 0;
	lane->receive_base = lane->received;
	lane->sample_ns = 0;
	lane->until_sample = 1;
	prepare_requests(lane);
	return error;
}

static int post_batch(struct lane *lane, uint32_t count, struct pier_work *ret_work)
{
	switch (lane->side->settings->opcode) {
	case PIER_OP_WRITE:
		return pier_post_writes(lane->channel, lane->requests.writes, count,
					ret_work);
	case PIER_OP_READ:
		return pier_post_reads(lane->channel, lane->requests.reads, count,
				       ret_work);
	default:
		return pier_post_batch(lane->channel, lane->requests.others, count,
				       ret_work);
	}
}

static int post_sampled(struct lane *lane, uint32_t count)
{
	bool staged = lane->side->settings->staged, sample = false;
	struct pier_work *work = NULL;
	int error;

	if (!lane->sample_ns && --lane->until_sample == 0) {
		lane->until_sample = SAMPLE_EVERY;
		lane->sample_ns = now_ns();
		work = &lane->sample;
		sample = true;
	}
	error = staged ? post_staged(lane, work) : post_batch(lane, count, work);
	if (error && sample)
		lane->sample_ns = 0;
	lane->posted += error ? 0 : count;
	return error;
}

/* Returns 1 if the sample has completed, otherwise 0. */
static int collect_sample(struct lane *lane, struct histogram *ret_times)
{
	struct pier_result result;
	int done;

	if (!lane->sample_ns)
		return 0;
	done = pier_work_poll(lane->channel, lane->sample, &result);
	if (done <= 0)
		return done;
	histogram_add(ret_times, now_ns() - lane->sample_ns);
	lane->sample_ns = 0;
	return result.error ? result.error : 1;
}

/* Returns the room for requests, after it has polled if there is less than needed. */
static int64_t find_room(struct lane *lane, uint32_t needed)
{
	uint32_t room = pier_channel_send_room(lane->channel);
	int error;

	if (room >= needed)
		return room;
	error = pier_channel_poll(lane->channel);
	if (error < 0)
		return error;
	/* Errors of requests without a handle are only recorded there. */
	error = pier_channel_error(lane->channel, NULL);
	return error ? error : (int64_t)pier_channel_send_room(lane->channel);
}

/* The same for messages, each of which needs a credit if it is staged. */
static int64_t find_messages(struct lane *lane, uint32_t needed)
{
	int64_t room = find_room(lane, needed);
	/* Once: the other side changes the number at any time. */
	uint32_t credits = lane->side->settings->staged ? staged_credits(lane)
							: UINT32_MAX;

	return room < credits ? room : credits;
}

/* The sample first: its result occupies a place in the queue. */
int advance_lane(struct lane *lane, struct histogram *ret_times)
{
	uint64_t left = lane->goal - lane->posted;
	uint32_t batch = lane->side->settings->batch;
	int moved = collect_sample(lane, ret_times);
	int64_t room;

	if (moved < 0 || !left)
		return moved;
	if (batch > lane->depth)
		batch = lane->depth;
	if (left < batch)
		batch = (uint32_t)left;
	room = find_messages(lane, batch);
	if (room < 0)
		return (int)room;
	while (room >= batch && batch) {
		int error = post_sampled(lane, batch);

		if (error)
			return error;
		moved = 1;
		room -= batch;
		left -= batch;
		if (left < batch)
			batch = (uint32_t)left;
	}
	return moved;
}

int drain_lane(struct lane *lane, struct histogram *ret_times)
{
	int64_t room;
	int done = collect_sample(lane, ret_times);

	if (done < 0 || lane->sample_ns)
		return done < 0 ? done : 0;
	room = find_room(lane, lane->depth);
	if (room < 0)
		return (int)room;
	if (lane->side->settings->staged &&
	    staged_credits(lane) < lane->side->settings->rx_depth)
		return 0;
	return room >= lane->depth;
}

int serve_lane(struct lane *lane)
{
	uint32_t rx_depth = lane->side->settings->rx_depth;
	struct pier_result result;
	int count = 0, done = 1;

	while (count < SERVE_MOST) {
		done = pier_work_poll(lane->channel,
				      lane->receives[lane->received % rx_depth], &result);
		if (done <= 0)
			break;
		if (!result.error && lane->side->settings->staged)
			result.error = store_staged(lane, lane->received,
						    result.byte_length);
		if (!result.error)
			result.error = post_receive(lane, lane->received);
		if (result.error)
			return result.error;
		lane->received++;
		count++;
	}
	if (done >= 0 && lane->side->settings->staged)
		done = return_credits(lane);
	return done < 0 ? done : count;
}

int post_lane_message(struct lane *lane, struct pier_work *ret_work)
{
	const struct side *side = lane->side;
	int error;

	if (side->settings->staged)
		error = post_staged(lane, ret_work);
	else if (side->settings->opcode == PIER_OP_WRITE && !side_polls_memory(side))
		error = pier_post_write_imm(lane->channel, &lane->gather, 1,
					    &lane->remote, 0, ret_work);
	else if (side->settings->opcode == PIER_OP_WRITE)
		error = pier_post_write(lane->channel, &lane->gather, 1, &lane->remote,
					ret_work);
	else if (side->settings->opcode == PIER_OP_SEND)
		error = pier_post_send(lane->channel, &lane->gather, 1, ret_work);
	else if (side->settings->opcode == PIER_OP_READ)
		error = pier_post_read(lane->channel, &lane->scatter, 1, &lane->remote,
				       ret_work);
	else
		error = pier_post_batch(lane->channel, lane->requests.others, 1,
					ret_work);
	lane->posted += !error;
	return error;
}
