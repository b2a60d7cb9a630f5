/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "run.h"
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

		for (size_t i = 0; i < size; i++)
			piece[i] = pattern_byte(side->client, number, done + i);
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

/* Clear what the other side will change, and prepare the requests of one size. */
static int prepare_step(struct side *side, uint64_t size, struct failure *failure)
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

/*
 * Compare the bytes that have arrived with those that were sent, and the bytes behind
 * them with what was there.
 *
 * arrived  on each lane: the messages that changed this side's memory
 */
static int verify_step(struct side *side, uint64_t size, const uint64_t *arrived,
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

enum {
	MS_NS = 1000000,
	KEEPALIVE_MS = 1000,
};

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

static void set_up_workers(struct perf_workers *workers, struct side *side, uint64_t size)
{
	const struct perf_settings *settings = side->settings;

	workers->side = side;
	workers->size = size;
	workers->initiates = side->client || settings->both;
	workers->serves = settings->opcode == PIER_OP_SEND &&
			  (!side->client || settings->both);
	workers->count = settings->threads < side->lane_count ? settings->threads
							      : side->lane_count;
	/* The NIC does everything that this side has to do. */
	if (!workers->initiates && !workers->serves && !is_ping_pong(settings))
		workers->count = 0;
	for (uint32_t i = 0; i < side->lane_count; i++)
		side->lanes[i].goal = UINT64_MAX;
	set_phase(workers, PHASE_WARM_UP);
}

/* Start the threads of a step that prepare_step() has prepared. */
static int start_perf_workers(struct perf_workers *workers, struct side *side,
			      uint64_t size, struct failure *failure)
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

/* Wait until they have ended; PHASE_END or PHASE_ABORT makes them. NULL-safe. */
static int join_perf_workers(struct perf_workers *workers, struct failure *failure)
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

/* Frees what start_perf_workers() allocated. */
static void free_perf_workers(struct perf_workers *workers)
{
	if (workers->event >= 0)
		close(workers->event);
	free(workers->all);
	workers->all = NULL;
	workers->event = -1;
}

static uint64_t cpu_time_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t keepalive_interval(const struct perf_session *session)
{
	uint64_t quarter = (uint64_t)session->control->timeout_ms * MS_NS / 4;

	return quarter < (uint64_t)KEEPALIVE_MS * MS_NS ? quarter
							: (uint64_t)KEEPALIVE_MS * MS_NS;
}

static int keep_alive(struct perf_session *session)
{
	uint64_t now = now_ns();

	if (now - session->keepalive_ns < keepalive_interval(session))
		return 0;
	session->keepalive_ns = now;
	return control_send(session->control, FRAME_KEEPALIVE, NULL);
}

static int take_frame(struct perf_session *session)
{
	if (control_receive(session->control, &session->frame) < 0)
		return -1;
	session->heard_ns = now_ns();
	session->has_frame = session->frame.type != FRAME_KEEPALIVE;
	return 0;
}

static int check_silence(const struct perf_session *session)
{
	struct control *control = session->control;

	if (now_ns() - session->heard_ns < (uint64_t)control->timeout_ms * MS_NS)
		return 0;
	return fail(control->failure, EXIT_PEER,
		    "%s did not respond for %g s (see --timeout)",
		    control_peer_name(control), control->timeout_ms / 1e3);
}

static int poll_timeout_ms(const struct perf_session *session, uint64_t until_ns)
{
	uint64_t now = now_ns(), next = now + keepalive_interval(session);

	if (until_ns && until_ns < next)
		next = until_ns;
	return next > now ? (int)((next - now + MS_NS - 1) / MS_NS) : 0;
}

/*
 * Wait for a frame, a change of the workers, or a time; 0: no time. Does not read another
 * frame before the last one was used.
 */
static int wait_session(struct perf_session *session, struct perf_workers *workers,
			uint64_t until_ns)
{
	struct control *control = session->control;
	struct pollfd fds[] = {
		{ .fd = control->signal_fd, .events = POLLIN },
		{ .fd = session->has_frame ? -1 : control->in, .events = POLLIN },
		{ .fd = workers ? workers->event : -1, .events = POLLIN },
	};
	eventfd_t ignored;
	int ready;

	if (keep_alive(session) < 0)
		return -1;
	ready = poll(fds, 3, poll_timeout_ms(session, until_ns));
	if (ready < 0 && errno != EINTR)
		return fail(control->failure, EXIT_PEER, "poll: %s", strerror(errno));
	if (control_check_signal(control) < 0 ||
	    (fds[1].revents && take_frame(session) < 0))
		return -1;
	if (workers && fds[2].revents)
		eventfd_read(workers->event, &ignored);
	if (workers && atomic_load(&workers->failed))
		return -1;
	/* Its signs of life are behind a frame that is still to be used. */
	return ready == 0 && !session->has_frame ? check_silence(session) : 0;
}

/* Set the phases. Returns when the next one is due; 0: when the workers know. */
static uint64_t advance_phase(struct perf_workers *workers, uint64_t until)
{
	const struct perf_settings *settings = workers->side->settings;
	bool due = until && now_ns() >= until;

	if (due && get_phase(workers) == PHASE_WARM_UP) {
		set_phase(workers, PHASE_MEASURE);
		return 0;
	}
	if (due && get_phase(workers) == PHASE_MEASURE)
		set_phase(workers, PHASE_DRAIN);
	if (!until && get_phase(workers) == PHASE_MEASURE && !settings->iterations &&
	    atomic_load(&workers->measuring) == workers->count)
		return now_ns() + (uint64_t)settings->duration_ms * MS_NS;
	return due ? 0 : until;
}

/* Until all workers have measured their own messages, or the other side has stopped. */
static int drive_workers(struct perf_session *session, struct perf_workers *workers)
{
	uint64_t until = now_ns() + (uint64_t)session->side.settings->warm_up_ms * MS_NS;

	while (atomic_load(&workers->complete) < workers->count && !session->has_frame) {
		until = advance_phase(workers, until);
		if (wait_session(session, workers, until) < 0)
			return -1;
	}
	return 0;
}

/* A number of messages is completed, a time may be cut short. */
static int await_complete(struct perf_session *session, struct perf_workers *workers)
{
	set_phase(workers,
		  session->side.settings->iterations ? PHASE_MEASURE : PHASE_DRAIN);
	while (atomic_load(&workers->complete) < workers->count)
		if (wait_session(session, workers, 0) < 0)
			return -1;
	return 0;
}

static int await_frame(struct perf_session *session, struct perf_workers *workers)
{
	while (!session->has_frame)
		if (wait_session(session, workers, 0) < 0)
			return -1;
	session->has_frame = false;
	return 0;
}

/* After all workers have ended, or are complete. */
static void collect_figures(const struct perf_workers *workers, uint64_t cpu_ns,
			    struct perf_figures *ret_figures)
{
	uint64_t start = UINT64_MAX, end = 0;

	*ret_figures = (struct perf_figures){ .lanes = workers->side->lane_count };
	for (uint32_t i = 0; i < ret_figures->lanes; i++)
		ret_figures->posted[i] = workers->side->lanes[i].posted;
	for (uint32_t i = 0; workers->initiates && i < workers->count; i++) {
		const struct perf_worker *worker = &workers->all[i];

		ret_figures->messages += worker->messages;
		start = worker->start_ns < start ? worker->start_ns : start;
		end = worker->end_ns > end ? worker->end_ns : end;
	}
	ret_figures->elapsed_ns = end > start ? end - start : 0;
	ret_figures->cpu_ns = cpu_time_ns() - cpu_ns;
}

/* The messages that changed this side's memory. */
static const uint64_t *arrived_messages(const struct side *side,
					const struct perf_figures *ours,
					const struct perf_figures *theirs)
{
	return side->settings->opcode == PIER_OP_READ ? ours->posted : theirs->posted;
}

/* The other side's messages are complete there, so the rest is short. */
static int end_workers(struct perf_session *session, struct perf_workers *workers,
		       const struct perf_figures *theirs)
{
	struct control *control = session->control;
	uint64_t until = now_ns() + (uint64_t)control->timeout_ms * MS_NS;

	memcpy(workers->incoming, theirs->posted, sizeof(workers->incoming));
	set_phase(workers, PHASE_END);
	while (atomic_load(&workers->ended) < workers->count) {
		if (wait_session(session, workers, until) < 0)
			return -1;
		if (now_ns() >= until)
			return fail(
				control->failure, EXIT_PEER,
				"messages that %s has sent did not arrive within %g s "
				"(see --timeout)",
				control_peer_name(control), control->timeout_ms / 1e3);
	}
	return join_perf_workers(workers, control->failure);
}

/* The other side may have failed, too, and know why. */
static void abort_workers(struct perf_workers *workers, struct control *control)
{
	struct failure *failure = control->failure, ours = *failure;

	set_phase(workers, PHASE_ABORT);
	if (ours.status) {
		struct failure ignored = { 0 };

		join_perf_workers(workers, &ignored);
		return;
	}
	join_perf_workers(workers, &ours);
	control_read_peer_failure(control);
	if (!failure->status)
		*failure = ours;
}

static uint64_t sum_posted(const struct perf_figures *figures)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < figures->lanes; i++)
		sum += figures->posted[i];
	return sum;
}

static double per_second(const struct perf_figures *figures)
{
	return figures->elapsed_ns
		       ? (double)figures->messages * 1e9 / (double)figures->elapsed_ns
		       : 0;
}

static void fill_result(const struct perf_session *session,
			const struct perf_workers *workers,
			const struct perf_figures *ours,
			const struct perf_figures *theirs, struct perf_result *ret_result)
{
	const struct side *side = &session->side;
	double moved = (double)(sum_posted(ours) + sum_posted(theirs)) *
		       (double)workers->size / (1 << 30);
	bool both = side->settings->both;

	ret_result->size = workers->size;
	ret_result->messages = ours->messages + (both ? theirs->messages : 0);
	ret_result->seconds = (double)ours->elapsed_ns / 1e9;
	ret_result->messages_per_second = per_second(ours) +
					  (both ? per_second(theirs) : 0);
	ret_result->bytes_per_second = ret_result->messages_per_second *
				       (double)workers->size;
	ret_result->cpu_ns_per_gib = moved > 0 ? (double)ours->cpu_ns / moved : 0;
	ret_result->peer_cpu_ns_per_gib = moved > 0 ? (double)theirs->cpu_ns / moved : 0;
	memset(&ret_result->times, 0, sizeof(ret_result->times));
	for (uint32_t i = 0; i < workers->count; i++)
		histogram_merge(&ret_result->times, &workers->all[i].times);
}

static int measure_with(struct perf_session *session, struct perf_workers *workers,
			struct perf_result *ret_result)
{
	struct control *control = session->control;
	struct side *side = &session->side;
	struct perf_figures ours, theirs;
	uint64_t cpu_ns = cpu_time_ns();

	if (start_perf_workers(workers, side, workers->size, control->failure) < 0 ||
	    drive_workers(session, workers) < 0 || await_complete(session, workers) < 0)
		return -1;
	collect_figures(workers, cpu_ns, &ours);
	if (send_figures(control, FRAME_PERF_STOP, &ours) < 0 ||
	    await_frame(session, workers) < 0 ||
	    read_figures(control, &session->frame, FRAME_PERF_FIGURES, side->lane_count,
			 &theirs) < 0 ||
	    end_workers(session, workers, &theirs) < 0)
		return -1;
	fill_result(session, workers, &ours, &theirs, ret_result);
	return verify_step(side, workers->size, arrived_messages(side, &ours, &theirs),
			   control->failure);
}

static int agree_on_size(struct perf_session *session, uint64_t size)
{
	struct control *control = session->control;
	uint64_t echo;

	if (prepare_step(&session->side, size, control->failure) < 0 ||
	    send_step(control, size) < 0)
		return -1;
	session->heard_ns = now_ns();
	if (await_frame(session, NULL) < 0)
		return -1;
	return read_step(control, &session->frame, session->side.settings->slot, &echo);
}

static int serve_with(struct perf_session *session, struct perf_workers *workers)
{
	struct control *control = session->control;
	struct side *side = &session->side;
	struct perf_figures ours, theirs;
	uint64_t cpu_ns = cpu_time_ns();

	if (start_perf_workers(workers, side, workers->size, control->failure) < 0 ||
	    send_step(control, workers->size) < 0 ||
	    (workers->initiates && drive_workers(session, workers) < 0) ||
	    await_frame(session, workers) < 0 ||
	    read_figures(control, &session->frame, FRAME_PERF_STOP, side->lane_count,
			 &theirs) < 0 ||
	    (workers->initiates && await_complete(session, workers) < 0) ||
	    end_workers(session, workers, &theirs) < 0)
		return -1;
	collect_figures(workers, cpu_ns, &ours);
	if (verify_step(side, workers->size, arrived_messages(side, &ours, &theirs),
			control->failure) < 0)
		return -1;
	return send_figures(control, FRAME_PERF_FIGURES, &ours);
}

/* The part of either side, which has prepared the step. ret_result: the client's. */
static int run_size(struct perf_session *session, uint64_t size,
		    struct perf_result *ret_result)
{
	struct perf_workers workers = { .event = -1, .size = size };
	int result = ret_result ? measure_with(session, &workers, ret_result)
				: serve_with(session, &workers);

	if (result < 0)
		abort_workers(&workers, session->control);
	free_perf_workers(&workers);
	return result;
}

int measure_size(struct perf_session *session, uint64_t size,
		 struct perf_result *ret_result)
{
	return agree_on_size(session, size) < 0 ? -1
						: run_size(session, size, ret_result);
}

int serve_sizes(struct perf_session *session)
{
	uint64_t size;

	session->heard_ns = now_ns();
	for (;;) {
		if (await_frame(session, NULL) < 0)
			return -1;
		if (session->frame.type == FRAME_PERF_END)
			return 0;
		if (read_step(session->control, &session->frame,
			      session->side.settings->slot, &size) < 0 ||
		    prepare_step(&session->side, size, session->control->failure) < 0 ||
		    run_size(session, size, NULL) < 0)
			return -1;
	}
}
