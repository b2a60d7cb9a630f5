/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "step.h"
#include "workers.h"

static void *run_worker(void *argument)
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
	if (result < 0)
		fail_worker(worker);
	end_worker(worker);
	return NULL;
}

static int start_thread(struct perf_workers *workers, uint32_t number)
{
	struct perf_worker *worker = &workers->all[number];
	int error;

	worker->workers = workers;
	worker->first = number;
	error = pthread_create(&worker->thread, NULL, run_worker, worker);
	worker->started = !error;
	return error;
}

static uint32_t choose_threads(const struct side *side)
{
	uint32_t threads = side->settings->threads;

	return threads < side->lane_count ? threads : side->lane_count;
}

static void set_up_workers(struct perf_workers *workers, struct side *side, uint64_t size)
{
	const struct perf_settings *settings = side->settings;

	workers->side = side;
	workers->size = size;
	workers->initiates = side->client || settings->both;
	workers->serves = settings->opcode == PIER_OP_SEND &&
			  (!side->client || settings->both);
	workers->count = choose_threads(side);
	/* The NIC does everything that this side has to do. */
	if (!workers->initiates && !workers->serves && !is_ping_pong(settings))
		workers->count = 0;
	for (uint32_t i = 0; i < side->lane_count; i++)
		side->lanes[i].goal = UINT64_MAX;
	set_phase(workers, PHASE_WARM_UP);
}

int start_perf_workers(struct perf_workers *workers, struct side *side, uint64_t size,
		       struct failure *failure)
{
	int error = 0;

	set_up_workers(workers, side, size);
	workers->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	workers->all = calloc(workers->count ? workers->count : 1,
			      sizeof(workers->all[0]));
	if (workers->event < 0 || !workers->all)
		return fail(failure, EXIT_DEVICE, "out of memory or file descriptors");
	for (uint32_t i = 0; !error && i < workers->count; i++)
		error = start_thread(workers, i);
	return error ? fail(failure, EXIT_DEVICE, "cannot start a thread: %s",
			    strerror(error))
		     : 0;
}

int join_perf_workers(struct perf_workers *workers, struct failure *failure)
{
	for (uint32_t i = 0; workers->all && i < workers->count; i++) {
		struct perf_worker *worker = &workers->all[i];

		if (worker->started)
			pthread_join(worker->thread, NULL);
		worker->started = false;
		if (worker->failure.status)
			fail(failure, worker->failure.status, "%s", worker->failure.text);
	}
	return failure->status ? -1 : 0;
}

void free_perf_workers(struct perf_workers *workers)
{
	if (workers->event >= 0)
		close(workers->event);
	free(workers->all);
	workers->all = NULL;
	workers->event = -1;
}
