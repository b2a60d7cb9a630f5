/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <pier/inline.h>

#include "step.h"
#include "units.h"

enum {
	PIECE = 1 << 20,
	GUARD = 64, /* bytes behind a message that must stay zero */
};

/* The bytes that a side sends on a lane. Neither 0 nor equal on two lanes or sides. */
static uint8_t pattern_byte(bool client, uint32_t lane, uint64_t offset)
{
	uint64_t mixed = (offset + 1) * UINT64_C(0x9e3779b97f4a7c15) +
			 lane * UINT64_C(0x517cc1b727220a95) + client;

	return (uint8_t)(mixed >> 32) | 1;
}

static void fill_pattern(uint8_t *piece, size_t length, bool client, uint32_t lane,
			 uint64_t offset)
{
	for (size_t i = 0; i < length; i++)
		piece[i] = pattern_byte(client, lane, offset + i);
}

static size_t piece_at(uint64_t done, uint64_t length)
{
	return length - done < PIECE ? (size_t)(length - done) : PIECE;
}

static int fill_lane(struct side *side, uint32_t number, uint8_t *piece)
{
	uint64_t source = side->lanes[number].source, length = side->settings->slot;
	int error = 0;

	for (uint64_t done = 0; !error && done < length; done += PIECE) {
		size_t size = piece_at(done, length);

		fill_pattern(piece, size, side->client, number, done);
		error = pier_buffer_copy_to(side->buffer, source + done, piece, size);
	}
	return error;
}

/*
 * The NIC of soft0 is a thread of this process: its lock orders what this thread has
 * written before what the NIC reads, and the other way round.
 */
static int order_with_nic(struct side *side)
{
	int error = 0;

	for (uint32_t i = 0; error >= 0 && i < side->lane_count; i++)
		error = pier_channel_poll(side->lanes[i].channel);
	return error < 0 ? error : 0;
}

/* The NIC reads what this side has written. */
static int sync_for_nic(struct side *side)
{
	int error = 0;

	for (uint32_t i = 0; !error && !side->staging && i < side->rail_count; i++)
		error = pier_mr_sync_for_nic(side->rails[i].mr, 0,
					     pier_mr_length(side->rails[i].mr));
	return error ? error : order_with_nic(side);
}

/* This side reads what the NIC has written. */
static int sync_for_device(struct side *side)
{
	int error = order_with_nic(side);

	for (uint32_t i = 0; !error && !side->staging && i < side->rail_count; i++)
		error = pier_mr_sync_for_device(side->rails[i].mr, 0,
						pier_mr_length(side->rails[i].mr));
	return error;
}

/* Zeroed. Returns NULL with the failure set. */
static uint8_t *alloc_piece(struct failure *failure)
{
	uint8_t *piece = calloc(1, PIECE);

	if (!piece)
		fail(failure, EXIT_DEVICE, "out of memory");
	return piece;
}

int fill_sources(struct side *side, struct failure *failure)
{
	uint8_t *piece = alloc_piece(failure);
	int error = 0;

	if (!piece)
		return -1;
	for (uint32_t i = 0; !error && i < side->lane_count; i++)
		error = fill_lane(side, i, piece);
	if (!error)
		error = sync_for_nic(side);
	free(piece);
	return error ? fail_pier(failure, EXIT_DEVICE) : 0;
}

static uint64_t checked_length(const struct side *side, uint64_t size)
{
	return size + GUARD < side->stride ? size + GUARD : side->stride;
}

static int clear_lane(struct side *side, const struct lane *lane, uint64_t size,
		      const uint8_t *zeroes)
{
	uint64_t length = checked_length(side, size);
	int error = 0;

	for (uint64_t done = 0; !error && done < length; done += PIECE)
		error = pier_buffer_copy_to(side->buffer, lane->destination + done,
					    zeroes, piece_at(done, length));
	return error;
}

int prepare_step(struct side *side, uint64_t size, struct failure *failure)
{
	uint8_t *zeroes = alloc_piece(failure);
	int error = 0;

	if (!zeroes)
		return -1;
	for (uint32_t i = 0; !error && i < side->lane_count; i++) {
		error = clear_lane(side, &side->lanes[i], size, zeroes);
		if (!error)
			error = prepare_lane(&side->lanes[i], size);
	}
	if (!error)
		error = sync_for_nic(side);
	free(zeroes);
	return error ? fail_pier(failure, EXIT_DEVICE) : 0;
}

static uint8_t expected_byte(const struct side *side, uint32_t lane, uint64_t size,
			     uint64_t offset)
{
	return offset < size ? pattern_byte(!side->client, lane, offset) : 0;
}

static int compare_piece(const struct side *side, uint32_t lane, uint64_t size,
			 uint64_t offset, const uint8_t *piece, size_t length,
			 struct failure *failure)
{
	/* Polled memory counts the messages in the last byte. */
	uint64_t counter = side_polls_memory(side) ? size - 1 : UINT64_MAX;

	for (size_t i = 0; i < length; i++)
		if (piece[i] != expected_byte(side, lane, size, offset + i) &&
		    offset + i != counter)
			return fail(failure, EXIT_VERIFY,
				    "verification failed: byte %llu of a message of %llu "
				    "bytes (channel %u) arrived as 0x%02x, not 0x%02x",
				    (unsigned long long)(offset + i),
				    (unsigned long long)size, lane, piece[i],
				    expected_byte(side, lane, size, offset + i));
	return 0;
}

static int verify_bytes(struct side *side, uint32_t number, uint64_t size, uint8_t *piece,
			struct failure *failure)
{
	uint64_t length = checked_length(side, size);

	for (uint64_t done = 0; done < length; done += PIECE) {
		size_t part = piece_at(done, length);

		if (pier_buffer_copy_from(side->buffer,
					  side->lanes[number].destination + done, piece,
					  part) < 0)
			return fail_pier(failure, EXIT_DEVICE);
		if (compare_piece(side, number, size, done, piece, part, failure) < 0)
			return -1;
	}
	return 0;
}

/* Each fetch-and-add added 1; the first compare-and-swap replaced 0 by 1. */
static int verify_atomic(struct side *side, uint32_t number, uint64_t arrived,
			 struct failure *failure)
{
	uint64_t expected = arrived, value;

	if (side->settings->opcode == PIER_OP_COMPARE_SWAP)
		expected = arrived > 0;
	if (pier_buffer_copy_from(side->buffer, side->lanes[number].destination, &value,
				  sizeof(value)) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	if (value == expected)
		return 0;
	return fail(failure, EXIT_VERIFY,
		    "verification failed: after %llu atomics the number of channel %u is "
		    "%llu, not %llu",
		    (unsigned long long)arrived, number, (unsigned long long)value,
		    (unsigned long long)expected);
}

int verify_step(struct side *side, uint64_t size, const uint64_t *arrived,
		struct failure *failure)
{
	uint8_t *piece;
	int result = 0;

	if (sync_for_device(side) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	piece = alloc_piece(failure);
	if (!piece)
		return -1;
	for (uint32_t i = 0; result == 0 && i < side->lane_count; i++) {
		if (is_atomic(side->settings->opcode))
			result = verify_atomic(side, i, arrived[i], failure);
		else if (arrived[i])
			result = verify_bytes(side, i, size, piece, failure);
	}
	free(piece);
	return result;
}

/* Returns 1 if there was something to do, 0 if not, or a negative errno. */
static int serve_lanes(struct perf_worker *worker)
{
	struct side *side = worker->workers->side;
	int moved = 0;

	if (!worker->workers->serves)
		return 0;
	for (uint32_t i = worker->first; i < side->lane_count; i = next_lane(worker, i)) {
		int served = serve_lane(&side->lanes[i]);

		if (served < 0)
			return served;
		moved |= served > 0;
	}
	return moved;
}

static int advance_lanes(struct perf_worker *worker)
{
	struct side *side = worker->workers->side;
	int moved = 0;

	for (uint32_t i = worker->first; i < side->lane_count; i = next_lane(worker, i)) {
		int advanced = advance_lane(&side->lanes[i], &worker->times);

		if (advanced < 0)
			return advanced;
		moved |= advanced;
	}
	return moved;
}

/* Returns 1 when all that the worker posted is complete. */
static int drain_lanes(struct perf_worker *worker)
{
	struct side *side = worker->workers->side;

	for (;;) {
		int drained = 1;

		for (uint32_t i = worker->first; i < side->lane_count;
		     i = next_lane(worker, i)) {
			int one = drain_lane(&side->lanes[i], &worker->times);

			if (one < 0)
				return one;
			drained &= one;
		}
		if (drained || get_phase(worker->workers) == PHASE_ABORT)
			return drained;
		/* The other side may be unable to take more before this side has. */
		drained = serve_lanes(worker);
		if (drained == 0)
			drained = rest_worker(worker);
		if (drained < 0)
			return drained;
	}
}

static bool is_goal_reached(const struct perf_worker *worker)
{
	const struct side *side = worker->workers->side;

	for (uint32_t i = worker->first; i < side->lane_count; i = next_lane(worker, i))
		if (side->lanes[i].posted < side->lanes[i].goal)
			return false;
	return true;
}

static uint64_t posted_messages(const struct perf_worker *worker)
{
	const struct side *side = worker->workers->side;
	uint64_t sum = 0;

	for (uint32_t i = worker->first; i < side->lane_count; i = next_lane(worker, i))
		sum += side->lanes[i].posted;
	return sum;
}

/* The first batch that is measured is a sample, even if no other follows. */
static void begin_lanes(const struct perf_worker *worker)
{
	struct side *side = worker->workers->side;
	uint64_t iterations = side->settings->iterations;

	for (uint32_t i = worker->first; i < side->lane_count; i = next_lane(worker, i)) {
		struct lane *lane = &side->lanes[i];

		lane->until_sample = 1;
		if (iterations)
			lane->goal = lane->posted + iterations;
	}
}

/* At least one message, even if the thread got no CPU for the whole of the time. */
static int post_until(struct perf_worker *worker, enum perf_phase last)
{
	uint64_t before = posted_messages(worker);

	while ((get_phase(worker->workers) <= last ||
		posted_messages(worker) == before) &&
	       get_phase(worker->workers) != PHASE_ABORT && !is_goal_reached(worker)) {
		int served = serve_lanes(worker), moved;

		moved = served < 0 ? served : advance_lanes(worker);
		if (moved == 0 && served == 0)
			moved = rest_worker(worker);
		if (moved < 0)
			return moved;
	}
	return drain_lanes(worker);
}

int run_bandwidth(struct perf_worker *worker)
{
	int result = post_until(worker, PHASE_WARM_UP);
	uint64_t before = posted_messages(worker);

	if (result < 0)
		return result;
	memset(&worker->times, 0, sizeof(worker->times));
	begin_lanes(worker);
	begin_measuring(worker);
	result = post_until(worker, PHASE_MEASURE);
	worker->messages = posted_messages(worker) - before;
	return result;
}

static bool has_all_arrived(const struct perf_worker *worker)
{
	const struct perf_workers *workers = worker->workers;
	const struct side *side = workers->side;

	for (uint32_t i = worker->first; workers->serves && i < side->lane_count;
	     i = next_lane(worker, i)) {
		const struct lane *lane = &side->lanes[i];

		if (lane->received - lane->receive_base < workers->incoming[i])
			return false;
	}
	return true;
}

int serve_until_end(struct perf_worker *worker)
{
	for (;;) {
		enum perf_phase phase = get_phase(worker->workers);
		int served = serve_lanes(worker);

		if (phase == PHASE_ABORT ||
		    (served == 0 && phase == PHASE_END && has_all_arrived(worker)))
			return 0;
		if (served == 0)
			served = rest_worker(worker);
		if (served < 0)
			return served;
	}
}

enum {
	/* soft0 makes progress when its channel is polled; a NIC by itself. */
	LOOKS_PER_POLL = 256,
	NUMBERS = 250, /* of messages, in one byte; never 0 */
};

struct ping_pong {
	struct perf_worker *worker;
	struct lane *lane;
	bool polls_memory;
	volatile uint8_t *outgoing, *incoming; /* the last bytes of the messages */
	uint32_t looks_per_poll;
	uint64_t received; /* messages */
};

static uint8_t message_number(uint64_t count)
{
	return (uint8_t)(count % NUMBERS + 1);
}

static bool is_over(const struct ping_pong *game)
{
	return get_phase(game->worker->workers) >= PHASE_END;
}

/*
 * The NIC writes the byte at any time. That of soft0 is a thread of this process, which
 * to ThreadSanitizer is a race.
 */
__attribute__((no_sanitize_thread)) static bool has_number_arrived(
	const struct ping_pong *game, uint8_t number)
{
	return *game->incoming == number;
}

/* Returns 1 when the next message is there, 0 when the step is over. */
static int await_byte(struct ping_pong *game)
{
	uint8_t number = message_number(game->received);

	for (uint32_t look = 1; !has_number_arrived(game, number); look++) {
		int error;

		if (look % game->looks_per_poll != 0)
			continue;
		if (is_over(game))
			return 0;
		error = pier_channel_poll(game->lane->channel);
		if (error >= 0)
			error = pier_channel_error(game->lane->channel, NULL);
		if (error < 0)
			return error;
	}
	/* Later reads of the message must not come before this one. */
	atomic_thread_fence(memory_order_acquire);
	return 1;
}

static int await_receive(struct ping_pong *game)
{
	for (;;) {
		int served = serve_lane(game->lane);

		if (served != 0)
			return served;
		if (is_over(game))
			return 0;
		served = rest_worker(game->worker);
		if (served < 0)
			return served;
	}
}

static int await_message(struct ping_pong *game)
{
	int arrived = game->polls_memory ? await_byte(game) : await_receive(game);

	game->received += arrived > 0;
	return arrived;
}

static int await_completion(struct ping_pong *game, struct pier_work work)
{
	struct pier_result result;
	int done;

	while ((done = pier_work_poll(game->lane->channel, work, &result)) == 0) {
		if (get_phase(game->worker->workers) == PHASE_ABORT)
			return 0;
		done = rest_worker(game->worker);
		if (done < 0)
			break;
	}
	if (done < 0)
		return done;
	return result.error ? result.error : 1;
}

/* The completion first: meanwhile the answer is on its way. So does perftest. */
static int send_message(struct ping_pong *game)
{
	struct pier_work work;
	int error;

	if (game->polls_memory)
		*game->outgoing = message_number(game->lane->posted);
	error = post_lane_message(game->lane, &work);
	return error ? error : await_completion(game, work);
}

static int ask_once(struct ping_pong *game)
{
	int result = send_message(game);

	if (result > 0 && is_ping_pong(game->lane->side->settings))
		result = await_message(game);
	return result;
}

static int run_questions(struct ping_pong *game)
{
	struct perf_worker *worker = game->worker;
	uint64_t iterations = game->lane->side->settings->iterations;
	unsigned int ways = is_ping_pong(game->lane->side->settings) ? 2 : 1;
	bool measuring = false;
	int result = 1;

	for (uint64_t at = now_ns(), then; result > 0; at = then) {
		enum perf_phase phase = get_phase(worker->workers);

		if (phase > PHASE_DRAIN || (phase == PHASE_DRAIN && worker->messages) ||
		    (measuring && iterations && worker->messages == iterations))
			break;
		if (phase >= PHASE_MEASURE && !measuring) {
			measuring = true;
			begin_measuring(worker);
			at = now_ns();
		}
		result = ask_once(game);
		then = now_ns();
		if (result > 0 && measuring) {
			histogram_add(&worker->times, (then - at) / ways);
			worker->messages++;
		}
	}
	return result;
}

static int run_answers(struct ping_pong *game)
{
	int result;

	do {
		result = await_message(game);
		if (result > 0)
			result = send_message(game);
	} while (result > 0);
	return result;
}

int run_latency(struct perf_worker *worker)
{
	struct side *side = worker->workers->side;
	struct ping_pong game = {
		.worker = worker,
		.lane = &side->lanes[0],
		.polls_memory = side_polls_memory(side),
		.looks_per_poll = LOOKS_PER_POLL,
	};
	uint64_t last = worker->workers->size - 1;
	uint8_t saved = 0;
	int result;

	if (game.polls_memory) {
		game.outgoing = side->memory + game.lane->source + last;
		game.incoming = side->memory + game.lane->destination + last;
		saved = *game.outgoing;
	}
	if (strcmp(pier_device_name(side->rails[0].device), PIER_SOFT_DEVICE) == 0)
		game.looks_per_poll = 1;
	result = side->client ? run_questions(&game) : run_answers(&game);
	if (game.polls_memory)
		*game.outgoing = saved;
	return result;
}
