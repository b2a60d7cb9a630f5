/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdatomic.h>

#include <pier/inline.h>
#include <pier/post.h>

#include "lane.h"
#include "units.h"

static inline uint64_t lane_iova(const struct lane *lane, uint64_t offset)
{
	return pier_mr_iova(lane->mr) + offset;
}

enum {
	STEP_BITS = 7
};

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t exponent;

	if (ns < HISTOGRAM_STEPS)
		return (uint32_t)ns;
	exponent = 63 - (uint32_t)__builtin_clzll(ns) - STEP_BITS;
	return (exponent + 1) * HISTOGRAM_STEPS +
	       (uint32_t)((ns >> exponent) - HISTOGRAM_STEPS);
}

uint64_t histogram_bucket_start(uint32_t bucket)
{
	uint32_t exponent = bucket / HISTOGRAM_STEPS, step = bucket % HISTOGRAM_STEPS;

	return exponent ? (uint64_t)(HISTOGRAM_STEPS + step) << (exponent - 1) : step;
}

void histogram_add(struct histogram *histogram, uint64_t ns)
{
	if (!histogram->total || ns < histogram->least)
		histogram->least = ns;
	if (!histogram->total || ns > histogram->most)
		histogram->most = ns;
	histogram->total++;
	histogram->sum += ns;
	histogram->counts[bucket_of(ns)]++;
}

void histogram_merge(struct histogram *histogram, const struct histogram *other)
{
	if (!other->total)
		return;
	if (!histogram->total || other->least < histogram->least)
		histogram->least = other->least;
	if (!histogram->total || other->most > histogram->most)
		histogram->most = other->most;
	histogram->total += other->total;
	histogram->sum += other->sum;
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		histogram->counts[i] += other->counts[i];
}

/* The middle of the bucket, but no time that did not occur. */
static uint64_t time_in_bucket(const struct histogram *histogram, uint32_t bucket)
{
	uint64_t start = histogram_bucket_start(bucket);
	uint64_t middle = start + (histogram_bucket_start(bucket + 1) - start) / 2;

	if (middle < histogram->least)
		return histogram->least;
	return middle > histogram->most ? histogram->most : middle;
}

double histogram_mean(const struct histogram *histogram)
{
	return histogram->total ? (double)histogram->sum / (double)histogram->total : 0;
}

uint64_t histogram_quantile(const struct histogram *histogram, double part)
{
	uint64_t rank = (uint64_t)(part * (double)histogram->total), seen = 0;

	if (!histogram->total)
		return 0;
	if (rank >= histogram->total)
		rank = histogram->total - 1;
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		seen += histogram->counts[i];
		if (seen > rank)
			return time_in_bucket(histogram, i);
	}
	return histogram->most;
}

/*
 * The path of programs without direct access: the sender copies each message from its
 * memory to host memory, the NICs send it into host memory of the receiver, and the
 * receiver copies it to its memory. The receiver writes the number of messages that it
 * has copied into the sender's staging buffer, so the sender never has more messages on
 * the way than there are receives. These are the numbers of one lane, in a slot of its
 * own; each is written in one piece of 8 bytes.
 */
struct staged_counts {
	_Atomic uint64_t copied; /* by the other side; its NIC writes it */
	uint8_t unused[56];
	_Atomic uint64_t ours; /* what this side writes there */
};

static uint8_t *staging_address(const struct lane *lane, uint64_t offset)
{
	void *memory = NULL;

	/* Host memory, so this does not fail. */
	pier_buffer_map(lane->side->staging, &memory);
	return (uint8_t *)memory + offset;
}

static struct staged_counts *counts_of(const struct lane *lane)
{
	return (struct staged_counts *)staging_address(lane, lane->staged_counts);
}

/*
 * The NICs read and write the counts at any time. That of soft0 is a thread of this
 * process, which to ThreadSanitizer is a race.
 */
__attribute__((no_sanitize_thread)) static uint64_t load_count(_Atomic uint64_t *count)
{
	return atomic_load_explicit(count, memory_order_acquire);
}

__attribute__((no_sanitize_thread)) static void store_count(_Atomic uint64_t *count,
							    uint64_t value)
{
	atomic_store_explicit(count, value, memory_order_release);
}

/* Where the receive of a message, counted from 0, puts it in the staging buffer. */
static uint64_t staged_receive_slot(const struct lane *lane, uint64_t number)
{
	const struct side *side = lane->side;

	return lane->staged_recvs + number % side->settings->rx_depth * side->stride;
}

/* Copy the next message and post it. The send queue must have room. */
static int post_staged(struct lane *lane, struct pier_work *ret_work)
{
	const struct side *side = lane->side;
	uint64_t offset = lane->staged_sends + lane->posted % lane->depth * side->stride;
	size_t size = lane->gather.length;
	int error = pier_buffer_copy_from(side->buffer, lane->source,
					  staging_address(lane, offset), size);

	if (!error)
		error = pier_mr_gather(lane->mr, lane_iova(lane, offset), size,
				       &lane->gather);
	return error ? error
		     : pier_channel_post_send(lane->channel, &lane->gather, 1, ret_work);
}

/* The messages that may be sent now. */
static uint32_t staged_credits(const struct lane *lane)
{
	uint64_t copied = load_count(&counts_of(lane)->copied);
	uint64_t away = lane->posted - copied;
	uint32_t most = lane->side->settings->rx_depth;

	/* A number that makes no sense gives no credit. */
	return away < most ? most - (uint32_t)away : 0;
}

/* Copy a message that has arrived, counted from 0. */
static int store_staged(const struct lane *lane, uint64_t number, size_t size)
{
	const struct side *side = lane->side;

	return pier_buffer_copy_to(
		side->buffer, lane->destination,
		staging_address(lane, staged_receive_slot(lane, number)), size);
}

/* Tell the other side what was copied since the last call, if there is room. */
static int return_credits(struct lane *lane)
{
	uint64_t offset = lane->staged_counts + offsetof(struct staged_counts, ours);
	struct pier_gather element;
	struct pier_remote target;
	int error;

	if (lane->credited == lane->received || pier_channel_send_room(lane->channel) < 1)
		return 0;
	store_count(&counts_of(lane)->ours, lane->received - lane->receive_base);
	error = pier_mr_gather(lane->mr, lane_iova(lane, offset), sizeof(uint64_t),
			       &element);
	if (!error)
		error = pier_remote_sub(&lane->peer,
					lane->staged_counts +
						offsetof(struct staged_counts, copied),
					sizeof(uint64_t), &target);
	if (!error)
		error = pier_channel_post_write(lane->channel, &element, 1, &target,
						NULL);
	if (!error)
		lane->credited = lane->received;
	return error;
}

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
		     : pier_channel_post_recv(lane->channel, &element, 1,
					      &lane->receives[slot]);
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
		store_count(&counts_of(lane)->copied, 0);
		lane->credited = lane->received;
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
		return pier_channel_post_writes(lane->channel, lane->requests.writes,
						count, ret_work);
	case PIER_OP_READ:
		return pier_channel_post_reads(lane->channel, lane->requests.reads, count,
					       ret_work);
	default:
		return pier_channel_post_batch(lane->channel, lane->requests.others,
					       count, ret_work);
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
	error = pier_channel_error(lane->channel, NULL, 0);
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
		error = pier_channel_post_request(
			lane->channel,
			&(struct pier_request){ .opcode = PIER_OP_WRITE,
						.flags = PIER_POST_IMMEDIATE,
						.gather = &lane->gather,
						.num_sge = 1,
						.remote = &lane->remote },
			ret_work);
	else if (side->settings->opcode == PIER_OP_WRITE)
		error = pier_channel_post_write(lane->channel, &lane->gather, 1,
						&lane->remote, ret_work);
	else if (side->settings->opcode == PIER_OP_SEND)
		error = pier_channel_post_send(lane->channel, &lane->gather, 1, ret_work);
	else if (side->settings->opcode == PIER_OP_READ)
		error = pier_channel_post_read(lane->channel, &lane->scatter, 1,
					       &lane->remote, ret_work);
	else
		error = pier_channel_post_batch(lane->channel, lane->requests.others, 1,
						ret_work);
	lane->posted += !error;
	return error;
}
