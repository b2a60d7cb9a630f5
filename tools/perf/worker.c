/* SPDX-License-Identifier: BSD-3-Clause */
#include <poll.h>
#include <sys/eventfd.h>

#include <pier/inline.h>

#include "units.h"
#include "worker.h"

enum {
	REST_MS = 100, /* then a sleeping thread looks at the phase */
};

void set_phase(struct perf_workers *workers, enum perf_phase phase)
{
	atomic_store_explicit(&workers->phase, phase, memory_order_release);
}

enum perf_phase get_phase(const struct perf_workers *workers)
{
	return (enum perf_phase)atomic_load_explicit(&workers->phase,
						     memory_order_acquire);
}

static void wake_main(struct perf_workers *workers, _Atomic uint32_t *counter)
{
	atomic_fetch_add_explicit(counter, 1, memory_order_release);
	eventfd_write(workers->event, 1);
}

/* The warm-up is complete: what follows is measured. */
static void begin_measuring(struct perf_worker *worker)
{
	worker->start_ns = now_ns();
	wake_main(worker->workers, &worker->workers->measuring);
}

/* The worker's own messages have been measured. */
static void complete_worker(struct perf_worker *worker)
{
	if (worker->complete)
		return;
	worker->complete = true;
	worker->end_ns = now_ns();
	wake_main(worker->workers, &worker->workers->complete);
}

/* The next lane of the worker after a number; from lane_count on: there is none. */
static uint32_t next_lane(const struct perf_worker *worker, uint32_t number)
{
	return number + worker->workers->count;
}

/* Sleep until something arrives on the lanes, or 100 ms, if the user wants that. */
static int rest_worker(struct perf_worker *worker)
{
	const struct side *side = worker->workers->side;
	struct pollfd fds[PERF_LANES_MAX];
	nfds_t count = 0;

	if (!side->settings->events)
		return 0;
	for (uint32_t i = worker->first; i < side->lane_count; i = next_lane(worker, i)) {
		struct pier_channel *channel = side->lanes[i].channel;
		int collected = pier_channel_arm(channel);

		if (collected)
			return collected < 0 ? collected : 0;
		fds[count++] = (struct pollfd){ .fd = pier_channel_fd(channel),
						.events = POLLIN };
	}
	poll(fds, count, REST_MS);
	return 0;
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

/*
 * Keep as many messages in flight as possible, through all phases, on the worker's
 * thread. Returns a negative errno of the library on failure.
 */
static int run_bandwidth(struct perf_worker *worker)
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

/* The same for the other side: take what it sends until it has stopped. */
static int serve_until_end(struct perf_worker *worker)
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
			error = pier_channel_error(game->lane->channel, NULL, 0);
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

/*
 * One message at a time, to and fro, on the worker's thread. Returns 0 or a negative
 * errno of the library.
 */
static int run_latency(struct perf_worker *worker)
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

void *run_worker(void *argument)
{
	struct perf_worker *worker = argument;
	const struct perf_workers *workers = worker->workers;
	int result = 0;

	if (workers->side->settings->latency)
		result = run_latency(worker);
	else if (workers->initiates)
		result = run_bandwidth(worker);
	if (result >= 0) {
		complete_worker(worker);
		if (!workers->side->settings->latency)
			result = serve_until_end(worker);
	}
	if (result < 0) {
		fail_pier(&worker->failure, EXIT_PEER);
		wake_main(worker->workers, &worker->workers->failed);
	}
	wake_main(worker->workers, &worker->workers->ended);
	return NULL;
}
