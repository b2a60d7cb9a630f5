/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../support/crew.h"
#include "../support/crew_killing.h"
#include "cases.h"
#include "world.h"

/* Groups whose members are threads, each with its own device, memory and channels. */

enum {
	MEMBERS = 4,
	SEGMENT = 3001, /* bytes to or from each rank */
	TARGET = 20011,
	SLACK_MS = 30000, /* on a busy or emulated machine */
	TIME = 200,	  /* for waits that must time out */
	LONGEST = 8000,	  /* for the last of them; a channel's own limit is later */
	BARRIERS = 4,
	RANKS = 130, /* of a large group */
};

static const enum pier_barrier_algorithm algorithms[] = {
	PIER_BARRIER_CENTRAL,
	PIER_BARRIER_BINARY_TREE,
	PIER_BARRIER_DISSEMINATION,
};
enum {
	ALGORITHMS = sizeof(algorithms) / sizeof(algorithms[0]),
};

/* The members of the running case, closed before its world is. */
static struct crew crew;

static struct crew *crew_prepared(void **state, uint32_t size)
{
	struct world *world = world_for_channels(state);
	struct pier_channel_attr channel = test_attr();
	struct pier_group_attr attr;

	pier_group_attr_init(&attr);
	channel.rnr_retry_count = 7;
	attr.channel = &channel;
	expect_ok(crew_open(&crew, size, test_device, test_peer_device, test_backend,
			    &attr, test_random_next(&world->random)));
	expect_ok(crew_exchange(&crew));
	return &crew;
}

static struct crew *crew_connected(void **state, uint32_t size)
{
	crew_prepared(state, size);
	expect_ok(crew_connect(&crew));
	return &crew;
}

static int group_teardown(void **state)
{
	int error = crew_close(&crew);

	crew.size = 0;
	world_teardown(state);
	assert_int_equal(error, 0);
	return 0;
}

/* Allow `more` fds, and return the limit before. */
static rlim_t limit_fds(rlim_t more)
{
	struct rlimit limit;
	int first = dup(STDERR_FILENO);
	rlim_t before;

	assert_true(first >= 0);
	close(first);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	before = limit.rlim_cur;
	limit.rlim_cur = (rlim_t)first + more;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	return before;
}

/* Its channels share one completion queue. The blobs are read from all of them. */
static void large_group_needs_few_fds(void **state)
{
	struct world *world = world_for_channels(state);
	uint8_t *blobs = malloc((size_t)RANKS * PIER_GROUP_BLOB_SIZE);
	struct pier_group *group = NULL;
	struct rlimit limit;
	rlim_t before;
	int made, read;

	assert_non_null(blobs);
	expect_ok(end_open(&world->a, test_device));
	before = limit_fds(4);
	made = pier_group_create(world->a.pd, 5, RANKS, NULL, &group);
	read = made ? 0
		    : pier_group_endpoints(group, blobs,
					   (size_t)RANKS * PIER_GROUP_BLOB_SIZE);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = before;
	setrlimit(RLIMIT_NOFILE, &limit);
	free(blobs);
	expect_ok(made);
	expect_ok(read);
	assert_int_equal(pier_channel_fd(pier_group_channel(group, 0)),
			 pier_channel_fd(pier_group_channel(group, RANKS - 1)));
	expect_ok(pier_group_destroy(group));
}

#define group_case(body) \
	cmocka_unit_test_setup_teardown(body, world_setup, group_teardown)

static size_t segment_at(uint32_t rank)
{
	return (size_t)rank * (SEGMENT + 1);
}

struct segment {
	struct pier_gather from;
	struct pier_scatter to;
	struct pier_remote remote;
};

/* Writes segment r of rank 0 to the same offset behind TARGET of rank r. */
static struct pier_group_request write_to(uint32_t rank, struct segment *segment)
{
	expect_ok(
		crew_gather(&crew.members[0], segment_at(rank), SEGMENT, &segment->from));
	expect_ok(crew_remote(&crew.members[rank], TARGET + segment_at(rank), SEGMENT,
			      &segment->remote));
	return (struct pier_group_request){
		.rank = rank,
		.request = { .opcode = PIER_OP_WRITE,
			     .gather = &segment->from,
			     .num_sge = 1,
			     .remote = &segment->remote },
	};
}

static void copied(uint32_t to, size_t to_offset, uint32_t from, size_t from_offset)
{
	memmove(crew.members[to].image + to_offset,
		crew.members[from].image + from_offset, SEGMENT);
}

static void writes_to_all_and_reads_back(void **state)
{
	struct pier_group_request requests[MEMBERS];
	struct pier_result results[MEMBERS];
	struct segment segments[MEMBERS];

	crew_connected(state, MEMBERS);
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		requests[rank] = write_to(rank, &segments[rank]);
		copied(rank, TARGET + segment_at(rank), 0, segment_at(rank));
	}
	expect_ok(pier_group_exchange(crew.members[0].group, requests, MEMBERS, PATIENT,
				      results));
	assert_int_equal(crew_differs(&crew), -1);
	/* Gather them back into adjacent ranges. */
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		size_t place = (size_t)(MEMBERS - 1 - rank) * SEGMENT;

		expect_ok(crew_scatter(&crew.members[0], place, SEGMENT,
				       &segments[rank].to));
		requests[rank].request.opcode = PIER_OP_READ;
		requests[rank].request.scatter = &segments[rank].to;
		copied(0, place, rank, TARGET + segment_at(rank));
	}
	expect_ok(pier_group_exchange(crew.members[0].group, requests, MEMBERS, PATIENT,
				      results));
	for (uint32_t rank = 0; rank < MEMBERS; rank++)
		assert_int_equal(results[rank].byte_length, SEGMENT);
	assert_int_equal(crew_differs(&crew), -1);
}

static void writes_one_segment_to_all(void **state)
{
	struct pier_group_request requests[MEMBERS];
	struct pier_remote remotes[MEMBERS];
	struct pier_gather from;

	crew_connected(state, MEMBERS);
	expect_ok(crew_gather(&crew.members[1], 77, SEGMENT, &from));
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		expect_ok(crew_remote(&crew.members[rank], TARGET, SEGMENT,
				      &remotes[rank]));
		requests[rank] = (struct pier_group_request){
			.rank = rank,
			.request = { .opcode = PIER_OP_WRITE,
				     .gather = &from,
				     .num_sge = 1,
				     .remote = &remotes[rank] },
		};
		copied(rank, TARGET, 1, 77);
	}
	expect_ok(pier_group_exchange(crew.members[1].group, requests, MEMBERS, PATIENT,
				      NULL));
	assert_int_equal(crew_differs(&crew), -1);
}

/* Each rank sends a message to each rank, including itself. */
static int exchange_messages(struct crew_member *member)
{
	struct pier_group_request requests[2 * MEMBERS];
	struct pier_result results[2 * MEMBERS];
	struct segment segments[MEMBERS];
	int error = 0;

	for (uint32_t rank = 0; rank < MEMBERS && !error; rank++) {
		struct segment *segment = &segments[rank];

		error = crew_gather(member, segment_at(rank), SEGMENT, &segment->from);
		if (!error)
			error = crew_scatter(member, TARGET + segment_at(rank), SEGMENT,
					     &segment->to);
		requests[2 * rank] = (struct pier_group_request){
			.rank = rank,
			.request = { .opcode = PIER_OP_RECV,
				     .scatter = &segment->to,
				     .num_sge = 1 },
		};
		requests[2 * rank + 1] = (struct pier_group_request){
			.rank = rank,
			.request = { .opcode = PIER_OP_SEND,
				     .gather = &segment->from,
				     .num_sge = 1,
				     .flags = PIER_POST_IMMEDIATE,
				     .immediate = 100 * member->rank + rank },
		};
	}
	if (!error)
		error = pier_group_exchange(member->group, requests, 2 * MEMBERS, PATIENT,
					    results);
	for (uint32_t rank = 0; rank < MEMBERS && !error; rank++) {
		if (results[2 * rank].immediate != 100 * rank + member->rank)
			error = -EBADE;
	}
	return error;
}

static void exchanges_messages(void **state)
{
	crew_connected(state, MEMBERS);
	expect_ok(crew_run(&crew, exchange_messages));
	for (uint32_t from = 0; from < MEMBERS; from++) {
		for (uint32_t to = 0; to < MEMBERS; to++)
			copied(to, TARGET + segment_at(from), from, segment_at(to));
	}
	assert_int_equal(crew_differs(&crew), -1);
}

/*
 * In each round every rank writes to the next one and enters a barrier. After the barrier
 * it must find its neighbour's value, in every round of every algorithm.
 */
static int write_round_a_ring(struct crew_member *member)
{
	struct crew_member *next =
		&member->crew->members[(member->rank + 1) % member->crew->size];
	uint32_t previous = (member->rank + member->crew->size - 1) % member->crew->size;
	struct pier_channel *channel = pier_group_channel(member->group, next->rank);
	struct pier_gather from;
	struct pier_remote to;
	int error = crew_gather(member, 0, sizeof(uint64_t), &from);

	if (!error)
		error = crew_remote(next, TARGET, sizeof(uint64_t), &to);
	for (uint64_t i = 0; i < BARRIERS * ALGORITHMS && !error; i++) {
		uint64_t value = i * 1000 + member->rank, found = 0;
		enum pier_barrier_algorithm algorithm = algorithms[i % ALGORITHMS];

		error = pier_buffer_copy_to(member->buffer, 0, &value, sizeof(value));
		if (!error)
			error = pier_channel_write(channel, &from, 1, &to, PATIENT);
		if (!error)
			error = pier_group_barrier_of(member->group, algorithm, NULL, 0,
						      PATIENT);
		if (!error)
			error = pier_buffer_copy_from(member->buffer, TARGET, &found,
						      sizeof(found));
		if (!error && found != i * 1000 + previous)
			error = -EBADE;
		/* No rank may overwrite a value before its reader has compared it. */
		if (!error)
			error = pier_group_barrier(member->group, PATIENT);
	}
	return error;
}

static void barrier_makes_earlier_writes_visible(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 5 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		crew_connected(state, sizes[i]);
		expect_ok(crew_run(&crew, write_round_a_ring));
		expect_ok(crew_close(&crew));
	}
	crew.size = 0;
}

/* A barrier of ranks 3 and 1 only. */
static int meet_some(struct crew_member *member)
{
	static const uint32_t ranks[] = { 1, 3 };
	int error = 0;

	for (int i = 0; i < ALGORITHMS && member->rank % 2 && !error; i++)
		error = pier_group_barrier_of(member->group, algorithms[i], ranks, 2,
					      PATIENT);
	return error ? error : pier_group_barrier(member->group, PATIENT);
}

static void barrier_of_some_ranks_completes(void **state)
{
	crew_connected(state, MEMBERS);
	expect_ok(crew_run(&crew, meet_some));
}

static void error_names_the_refusing_rank(void **state)
{
	struct pier_group_request requests[MEMBERS];
	struct pier_result results[MEMBERS];
	struct segment segments[MEMBERS];

	crew_connected(state, MEMBERS);
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		requests[rank] = write_to(rank, &segments[rank]);
		if (rank != 2)
			copied(rank, TARGET + segment_at(rank), 0, segment_at(rank));
	}
	segments[2].remote.addr += CREW_AREA;
	expect_result(pier_group_exchange(crew.members[0].group, requests, MEMBERS,
					  PATIENT, results),
		      -EACCES);
	test_assert_sentence("of rank 2; rank 2: ");
	for (uint32_t rank = 0; rank < MEMBERS; rank++)
		assert_int_equal(results[rank].error, rank == 2 ? -EACCES : 0);
	assert_int_equal(crew_differs(&crew), -1);
	for (int i = 0; i < ALGORITHMS; i++)
		expect_ok(crew_run(&crew, meet_some));
}

static enum pier_barrier_algorithm tested;

static int meet_briefly(struct crew_member *member)
{
	return pier_group_barrier_of(member->group, tested, NULL, 0,
				     member->crew->timeout_ms);
}

/*
 * Waits that must time out get more time, on a busy machine, until those for the other
 * ranks end before, and the wait ends soon after its limit.
 */
static bool has_more_time(int *time)
{
	if (*time > LONGEST / 2)
		return false;
	*time *= 2;
	return true;
}

static void expect_barrier_times_out(void **state, int time)
{
	crew_connected(state, MEMBERS);
	crew.timeout_ms = time;
	expect_result(crew_run_some(&crew, 0xb, meet_briefly), -ETIMEDOUT);
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		struct crew_member *member = &crew.members[rank];

		if (rank == 2)
			continue;
		assert_int_equal(member->error, -ETIMEDOUT);
		assert_true(member->took_ms < time + SLACK_MS);
		expect_result(pier_group_barrier(member->group, PATIENT), -EPIPE);
	}
}

static void barrier_without_a_rank_times_out(void **state)
{
	for (int i = 0; i < ALGORITHMS; i++) {
		int time = TIME, culprit;

		tested = algorithms[i];
		do {
			expect_barrier_times_out(state, time);
			culprit = pier_group_failed_rank(crew.members[0].group);
			expect_ok(crew_close(&crew));
		} while (tested == PIER_BARRIER_CENTRAL && culprit != 2 &&
			 has_more_time(&time));
		if (tested == PIER_BARRIER_CENTRAL)
			assert_int_equal(culprit, 2);
	}
	crew.size = 0;
}

/* Ranks 1 and 2 send nothing. Returns the milliseconds that it took. */
static int64_t gather_from_silent_ranks(void **state, int time,
					struct pier_result *results)
{
	struct pier_group_request requests[MEMBERS];
	struct segment segments[MEMBERS];
	int64_t start;

	crew_connected(state, MEMBERS);
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		expect_ok(crew_scatter(&crew.members[0], TARGET + segment_at(rank),
				       SEGMENT, &segments[rank].to));
		requests[rank] = (struct pier_group_request){
			.rank = rank,
			.request = { .opcode = PIER_OP_RECV,
				     .scatter = &segments[rank].to,
				     .num_sge = 1 },
		};
	}
	expect_ok(crew_gather(&crew.members[3], 5, SEGMENT, &segments[3].from));
	requests[0].request.opcode = PIER_OP_READ;
	expect_ok(crew_remote(&crew.members[0], 1, SEGMENT, &segments[0].remote));
	requests[0].request.remote = &segments[0].remote;
	expect_ok(pier_channel_post_send(pier_group_channel(crew.members[3].group, 0),
					 &segments[3].from, 1, NULL));
	start = crew_milliseconds();
	expect_result(pier_group_exchange(crew.members[0].group, requests, MEMBERS, time,
					  results),
		      -ETIMEDOUT);
	return crew_milliseconds() - start;
}

static void requests_share_one_deadline(void **state)
{
	struct pier_result results[MEMBERS];
	int64_t took;
	int time = TIME;

	took = gather_from_silent_ranks(state, time, results);
	while ((results[0].error || results[3].error || took >= 2 * time) &&
	       has_more_time(&time)) {
		expect_ok(crew_close(&crew));
		took = gather_from_silent_ranks(state, time, results);
	}
	assert_in_range(took, time, 2 * time - 1);
	test_assert_sentence("of ranks 1, 2; rank 1: ");
	for (uint32_t rank = 0; rank < MEMBERS; rank++)
		assert_int_equal(results[rank].error,
				 rank == 1 || rank == 2 ? -ETIMEDOUT : 0);
	copied(0, TARGET, 0, 1);
	copied(0, TARGET + segment_at(3), 3, 5);
	assert_int_equal(crew_differs(&crew), -1);
}

/* If a rank is killed, all others waiting with it in a barrier return in time. */
static void killed_member_ends_barriers(void **state)
{
	world_for_channels(state);
	for (uint32_t i = 0; i < ALGORITHMS; i++) {
		struct crew_killing killing = {
			.size = MEMBERS,
			.victim = i,
			.late = 3,
			.algorithm = algorithms[i],
			.timeout_ms = TIME,
			.device = test_device,
			.odd_device = test_peer_device,
		};

		expect_ok(crew_kill(&killing));
		for (uint32_t rank = 0; rank < MEMBERS; rank++) {
			struct crew_report *report = &killing.reports[rank];

			if (rank == i)
				continue;
			assert_int_not_equal(report->error, 0);
			if (report->first_error == -ECONNRESET)
				assert_int_equal(report->culprit, i);
			else if (report->first_error)
				assert_int_equal(report->first_error, -ETIMEDOUT);
			assert_in_range(report->took_ms, 0, 2 * TIME + SLACK_MS);
		}
	}
}

int run_group_cases(void)
{
	const struct CMUnitTest cases[] = {
		group_case(writes_to_all_and_reads_back),
		group_case(writes_one_segment_to_all),
		group_case(exchanges_messages),
		group_case(barrier_makes_earlier_writes_visible),
		group_case(barrier_of_some_ranks_completes),
		group_case(error_names_the_refusing_rank),
		group_case(barrier_without_a_rank_times_out),
		group_case(requests_share_one_deadline),
		group_case(killed_member_ends_barriers),
		world_case(large_group_needs_few_fds),
	};

	return cmocka_run_group_tests_name("groups", cases, NULL, NULL);
}
