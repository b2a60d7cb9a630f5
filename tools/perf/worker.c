/* SPDX-License-Identifier: BSD-3-Clause */
#include <poll.h>
#include <sys/eventfd.h>

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

int fail_worker(struct perf_worker *worker)
{
	fail_pier(&worker->failure, EXIT_PEER);
	wake_main(worker->workers, &worker->workers->failed);
	return -1;
}

void begin_measuring(struct perf_worker *worker)
{
	worker->start_ns = now_ns();
	wake_main(worker->workers, &worker->workers->measuring);
}

void complete_worker(struct perf_worker *worker)
{
	if (worker->complete)
		return;
	worker->complete = true;
	worker->end_ns = now_ns();
	wake_main(worker->workers, &worker->workers->complete);
}

uint32_t next_lane(const struct perf_worker *worker, uint32_t number)
{
	return number + worker->workers->count;
}

int rest_worker(struct perf_worker *worker)
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

void end_worker(struct perf_worker *worker)
{
	wake_main(worker->workers, &worker->workers->ended);
}
