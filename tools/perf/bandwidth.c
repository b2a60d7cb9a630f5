/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "bandwidth.h"

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
