/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include <pier/inline.h>

#include "latency.h"
#include "units.h"

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
