/* SPDX-License-Identifier: BSD-3-Clause */
/* Groups: creation, blobs, and requests to many ranks. */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"
#include "tests/support/manual_clock.h"
#include "group_fixture.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <pier/waiting.h>

#include "group/group.h"
#include "core/deadline.h"
#include "core/error.h"

enum {
	SLACK_MS = 30000, /* tolerance for a busy machine */
	PIECE = 700,	  /* bytes for or from each rank */
	GUARD = 13,	  /* bytes between two pieces */
	TARGET = 20011,	  /* offset in every area of bytes from others */
};

static struct crew *prepared(void **state, uint32_t size,
			     const struct pier_group_attr *attr)
{
	struct group_fixture *fixture = *state;

	expect_ok(crew_open(&fixture->crew, size, "soft0", "soft0", "host", attr, seed));
	expect_ok(crew_exchange(&fixture->crew));
	return &fixture->crew;
}

static struct crew *connected_with(void **state, uint32_t size,
				   const struct pier_group_attr *attr)
{
	struct crew *crew = prepared(state, size, attr);

	expect_ok(crew_connect(crew));
	return crew;
}

static struct crew *connected(void **state, uint32_t size)
{
	return connected_with(state, size, NULL);
}

static size_t piece_at(uint32_t rank)
{
	return (size_t)rank * (PIECE + GUARD);
}

/* One request for a piece, and what it points to. */
struct piece {
	struct pier_gather from;
	struct pier_scatter to;
	struct pier_remote remote;
};

/* The bytes at one place of `from` will be at another place of `to`. */
static void image_copy(const struct crew_member *to, size_t to_offset,
		       const struct crew_member *from, size_t from_offset)
{
	memmove(to->image + to_offset, from->image + from_offset, PIECE);
}

/* Of rank 0: piece r of its area to the same place behind TARGET of rank r. */
static struct pier_group_request write_to(struct crew *crew, uint32_t rank,
					  struct piece *piece)
{
	expect_ok(crew_gather(&crew->members[0], piece_at(rank), PIECE, &piece->from));
	expect_ok(crew_remote(&crew->members[rank], TARGET + piece_at(rank), PIECE,
			      &piece->remote));
	return (struct pier_group_request){
		.rank = rank,
		.request = { .opcode = PIER_OP_WRITE,
			     .gather = &piece->from,
			     .num_sge = 1,
			     .remote = &piece->remote },
	};
}

static void written(struct crew *crew, uint32_t rank)
{
	image_copy(&crew->members[rank], TARGET + piece_at(rank), &crew->members[0],
		   piece_at(rank));
}

static void writes_to_all_and_to_itself(void **state)
{
	struct crew *crew = connected(state, 5);
	struct pier_group_request requests[5];
	struct pier_result results[5];
	struct piece pieces[5];

	for (uint32_t rank = 0; rank < 5; rank++) {
		requests[rank] = write_to(crew, rank, &pieces[rank]);
		written(crew, rank);
	}
	memset(results, 0xee, sizeof(results));
	expect_ok(pier_group_exchange(crew->members[0].group, requests, 5, CREW_PATIENT,
				      results));
	for (uint32_t rank = 0; rank < 5; rank++) {
		assert_int_equal(results[rank].error, 0);
		assert_int_equal(results[rank].opcode, PIER_OP_WRITE);
	}
	assert_int_equal(crew_differs(crew), -1);
}

static void reads_from_some(void **state)
{
	static const uint32_t ranks[] = { 4, 0, 2 };
	struct crew *crew = connected(state, 5);
	struct pier_group_request requests[3];
	struct pier_result results[3];
	struct piece pieces[3];

	for (int i = 0; i < 3; i++) {
		struct piece *piece = &pieces[i];

		expect_ok(crew_scatter(&crew->members[1], TARGET + piece_at(ranks[i]),
				       PIECE, &piece->to));
		expect_ok(crew_remote(&crew->members[ranks[i]], piece_at(1), PIECE,
				      &piece->remote));
		requests[i] = (struct pier_group_request){
			.rank = ranks[i],
			.request = { .opcode = PIER_OP_READ,
				     .scatter = &piece->to,
				     .num_sge = 1,
				     .remote = &piece->remote },
		};
		image_copy(&crew->members[1], TARGET + piece_at(ranks[i]),
			   &crew->members[ranks[i]], piece_at(1));
	}
	expect_ok(pier_group_exchange(crew->members[1].group, requests, 3, CREW_PATIENT,
				      results));
	for (int i = 0; i < 3; i++)
		assert_int_equal(results[i].byte_length, PIECE);
	assert_int_equal(crew_differs(crew), -1);
}

static void writes_one_piece_to_many(void **state)
{
	struct crew *crew = connected(state, 4);
	struct pier_group_request requests[3];
	struct pier_remote remotes[3];
	struct pier_gather from;

	expect_ok(crew_gather(&crew->members[0], 100, PIECE, &from));
	for (uint32_t i = 0; i < 3; i++) {
		expect_ok(crew_remote(&crew->members[i + 1], TARGET, PIECE, &remotes[i]));
		requests[i] = (struct pier_group_request){
			.rank = i + 1,
			.request = { .opcode = PIER_OP_WRITE,
				     .gather = &from,
				     .num_sge = 1,
				     .remote = &remotes[i] },
		};
		image_copy(&crew->members[i + 1], TARGET, &crew->members[0], 100);
	}
	expect_ok(pier_group_exchange(crew->members[0].group, requests, 3, CREW_PATIENT,
				      NULL));
	assert_int_equal(crew_differs(crew), -1);
}

/* A message with a number from each rank to each, itself included. */
static int exchange_messages(struct crew_member *member)
{
	struct pier_group_request requests[2 * CREW_MAX] = { 0 };
	struct pier_result results[2 * CREW_MAX];
	struct piece pieces[CREW_MAX];
	uint32_t size = member->crew->size;
	int error = 0;

	for (uint32_t rank = 0; rank < size && !error; rank++) {
		struct piece *piece = &pieces[rank];

		error = crew_gather(member, piece_at(rank), PIECE, &piece->from);
		if (!error)
			error = crew_scatter(member, TARGET + piece_at(rank), PIECE,
					     &piece->to);
		requests[rank] = (struct pier_group_request){
			.rank = rank,
			.request = { .opcode = PIER_OP_SEND,
				     .gather = &piece->from,
				     .num_sge = 1,
				     .flags = PIER_POST_IMMEDIATE,
				     .immediate = 1000 * member->rank + rank },
		};
		requests[size + rank] = (struct pier_group_request){
			.rank = rank,
			.request = { .opcode = PIER_OP_RECV,
				     .scatter = &piece->to,
				     .num_sge = 1 },
		};
	}
	if (!error)
		error = pier_group_exchange(member->group, requests, 2 * size,
					    CREW_PATIENT, results);
	for (uint32_t rank = 0; rank < size && !error; rank++) {
		const struct pier_result *result = &results[size + rank];

		if (!result->has_immediate || result->byte_length != PIECE ||
		    result->immediate != 1000 * rank + member->rank)
			error = pier_fail(EBADE, "immediate %u of rank %u",
					  result->immediate, rank);
	}
	return error;
}

static void exchanges_messages_with_all(void **state)
{
	struct crew *crew = connected(state, 5);

	expect_ok(crew_run(crew, exchange_messages));
	for (uint32_t from = 0; from < 5; from++) {
		for (uint32_t to = 0; to < 5; to++)
			image_copy(&crew->members[to], TARGET + piece_at(from),
				   &crew->members[from], piece_at(to));
	}
	assert_int_equal(crew_differs(crew), -1);
}

static int exchange_messages_late(struct crew_member *member)
{
	struct timespec pause = { .tv_nsec = 300000000 };

	if (member->rank == 1)
		nanosleep(&pause, NULL);
	return exchange_messages(member);
}

/* Receives that are posted later than a channel would retry by itself. */
static void waits_for_late_receives(void **state)
{
	expect_ok(crew_run(connected(state, 3), exchange_messages_late));
}

/* Many more requests to a rank than its queue takes: in order, as room comes. */
static void lists_may_exceed_the_queue(void **state)
{
	enum {
		MANY = 50
	};
	struct pier_channel_attr shallow;
	struct pier_group_attr attr;
	struct pier_group_request requests[2 * MANY];
	struct pier_result results[2 * MANY];
	struct pier_gather from[2 * MANY];
	struct pier_remote remotes[2];
	struct crew *crew;

	pier_group_attr_init(&attr);
	pier_channel_attr_init(&shallow);
	shallow.max_send_wr = 2;
	shallow.max_recv_wr = 1;
	attr.channel = &shallow;
	crew = connected_with(state, 3, &attr);
	for (int i = 0; i < 2; i++)
		expect_ok(crew_remote(&crew->members[1 + i], TARGET, PIECE, &remotes[i]));
	/* All to the same place: the last one remains. */
	for (uint32_t i = 0; i < 2 * MANY; i++) {
		expect_ok(crew_gather(&crew->members[0], i * 10, PIECE, &from[i]));
		requests[i] = (struct pier_group_request){
			.rank = 1 + i % 2,
			.request = { .opcode = PIER_OP_WRITE,
				     .gather = &from[i],
				     .num_sge = 1,
				     .remote = &remotes[i % 2] },
		};
		image_copy(&crew->members[1 + i % 2], TARGET, &crew->members[0], i * 10);
	}
	expect_ok(pier_group_exchange(crew->members[0].group, requests, 2 * MANY,
				      CREW_PATIENT, results));
	assert_int_equal(crew_differs(crew), -1);
}

static int pass(struct crew_member *member)
{
	return pier_group_barrier(member->group, CREW_PATIENT);
}

/* One rank refuses: it is named, the others get their bytes, and it stays broken. */
static void names_the_failing_rank_and_serves_others(void **state)
{
	struct crew *crew = connected(state, 5);
	struct pier_group *group = crew->members[0].group;
	struct pier_group_request requests[5];
	struct pier_result results[5];
	struct piece pieces[5];

	for (uint32_t rank = 0; rank < 5; rank++)
		requests[rank] = write_to(crew, rank, &pieces[rank]);
	pieces[3].remote.rkey ^= 0x10000;
	for (uint32_t rank = 0; rank < 5; rank++) {
		if (rank != 3)
			written(crew, rank);
	}
	expect_result(pier_group_exchange(group, requests, 5, CREW_PATIENT, results),
		      -EACCES);
	test_assert_sentence("1 of 5 requests of a group failed, of rank 3; rank 3: ");
	test_assert_sentence("IBV_WC_REM_ACCESS_ERR");
	for (uint32_t rank = 0; rank < 5; rank++)
		assert_int_equal(results[rank].error, rank == 3 ? -EACCES : 0);
	assert_int_equal(crew_differs(crew), -1);
	/* Its channel is broken now, and again no other rank's. */
	pieces[3].remote.rkey ^= 0x10000;
	expect_result(pier_group_exchange(group, requests, 5, CREW_PATIENT, results),
		      -EPIPE);
	for (uint32_t rank = 0; rank < 5; rank++)
		assert_int_equal(results[rank].error, rank == 3 ? -EPIPE : 0);
	assert_int_equal(crew_differs(crew), -1);
	/* Barriers have channels of their own. */
	expect_ok(crew_run(crew, pass));
}

/* Rank 1 fails before rank 2 sends: that does not end the wait for rank 2. */
static int receive_or_send_late(struct crew_member *member)
{
	struct pier_group_request requests[2] = {
		{
			.rank = 1,
			.request = { .opcode = PIER_OP_RECV, .num_sge = -1 },
		},
		{
			.rank = 2,
			.request = { .opcode = PIER_OP_RECV },
		},
	};
	struct timespec pause = { .tv_nsec = 300000000 };
	struct pier_result results[2];
	int error;

	if (member->rank == 2) {
		nanosleep(&pause, NULL);
		return pier_channel_send(pier_group_channel(member->group, 0), NULL, 0,
					 CREW_PATIENT);
	}
	error = pier_group_exchange(member->group, requests, 2, CREW_PATIENT, results);
	if (error != -EINVAL || results[0].error != -EINVAL || results[1].error != 0)
		return pier_fail(EBADE, "%d: %d and %d", error, results[0].error,
				 results[1].error);
	return 0;
}

static void failing_rank_does_not_end_other_waits(void **state)
{
	expect_ok(crew_run_some(connected(state, 3), 0x5, receive_or_send_late));
}

/*
 * Two ranks send nothing: both are named. A case of conformance measures that one
 * deadline covers both.
 */
static void one_deadline_covers_all_ranks(void **state)
{
	enum {
		TIME = 1500
	};
	struct crew *crew = connected(state, 4);
	struct pier_group *group = crew->members[0].group;
	struct pier_group_request requests[4];
	struct pier_result results[4];
	struct piece pieces[4];
	int64_t start;

	for (uint32_t rank = 0; rank < 4; rank++) {
		expect_ok(crew_scatter(&crew->members[0], TARGET + piece_at(rank), PIECE,
				       &pieces[rank].to));
		requests[rank] = (struct pier_group_request){
			.rank = rank,
			.request = { .opcode = PIER_OP_RECV,
				     .scatter = &pieces[rank].to,
				     .num_sge = 1 },
		};
	}
	expect_ok(crew_gather(&crew->members[2], 5, PIECE, &pieces[2].from));
	requests[0].request.opcode = PIER_OP_READ;
	expect_ok(crew_remote(&crew->members[0], 1, PIECE, &pieces[0].remote));
	requests[0].request.remote = &pieces[0].remote;
	expect_ok(pier_channel_post_send(pier_group_channel(crew->members[2].group, 0),
					 &pieces[2].from, 1, NULL));
	start = crew_milliseconds();
	expect_result(pier_group_exchange(group, requests, 4, TIME, results), -ETIMEDOUT);
	assert_true(crew_milliseconds() - start >= TIME);
	test_assert_sentence("2 of 4 requests of a group failed, of ranks 1, 3; rank 1: "
			     "receive did not complete within 1500 ms");
	assert_int_equal(results[0].error, 0);
	assert_int_equal(results[1].error, -ETIMEDOUT);
	assert_int_equal(results[2].error, 0);
	assert_int_equal(results[2].byte_length, PIECE);
	assert_int_equal(results[3].error, -ETIMEDOUT);
	image_copy(&crew->members[0], TARGET, &crew->members[0], 1);
	image_copy(&crew->members[0], TARGET + piece_at(2), &crew->members[2], 5);
	assert_int_equal(crew_differs(crew), -1);
	/* Their memory is safe: nothing is outstanding. */
	for (uint32_t rank = 0; rank < 4; rank++)
		assert_int_equal(
			pier_channel_outstanding(pier_group_channel(group, rank)), 0);
	assert_int_equal(
		pier_channel_post_recv(pier_group_channel(group, 3), NULL, 0, NULL),
		-EPIPE);
	assert_int_equal(
		pier_channel_post_recv(pier_group_channel(group, 2), NULL, 0, NULL), 0);
}

/* A request that is not posted in time is not posted later. */
static void full_queue_does_not_outlast_the_deadline(void **state)
{
	struct pier_channel_attr shallow;
	struct pier_group_attr attr;
	struct pier_group_request requests[2] = {
		{
			.rank = 1,
			.request = { .opcode = PIER_OP_RECV },
		},
		{
			.rank = 1,
			.request = { .opcode = PIER_OP_RECV },
		},
	};
	struct pier_result results[2];
	struct crew *crew;

	pier_group_attr_init(&attr);
	pier_channel_attr_init(&shallow);
	shallow.max_recv_wr = 1;
	attr.channel = &shallow;
	crew = connected_with(state, 2, &attr);
	expect_result(pier_group_exchange(crew->members[0].group, requests, 2, CREW_BRIEF,
					  results),
		      -ETIMEDOUT);
	assert_int_equal(results[0].error, -ETIMEDOUT);
	assert_int_equal(results[1].error, -ETIMEDOUT);
	assert_int_equal(results[1].status, 0);
}

static void waits_for_requests_of_the_user(void **state)
{
	struct crew *crew = connected(state, 3);
	struct pier_group *group = crew->members[0].group;
	struct pier_group_work works[3];
	struct pier_result results[3];
	struct piece pieces[3];

	for (uint32_t rank = 0; rank < 3; rank++) {
		write_to(crew, rank, &pieces[rank]);
		written(crew, rank);
		works[rank].rank = rank;
		expect_ok(pier_channel_post_write(
			pier_group_channel(group, rank), &pieces[rank].from, 1,
			&pieces[rank].remote, &works[rank].work));
	}
	expect_result(pier_group_wait(group, works, 3, CREW_PATIENT, results), 1);
	assert_int_equal(results[2].opcode, PIER_OP_WRITE);
	assert_int_equal(crew_differs(crew), -1);
	expect_result(pier_group_wait(group, works, 3, CREW_PATIENT, results), 1);
	test_assert_sentence("3 of 3 requests of a group failed, of ranks 0, 1, 2");
	for (uint32_t rank = 0; rank < 3; rank++)
		assert_int_equal(results[rank].error, -ESTALE);
	works[0].rank = 3;
	expect_result(pier_group_wait(group, works, 1, 0, results), -EINVAL);
	expect_result(pier_group_wait(group, works, 1, 0, NULL), -EINVAL);
	test_assert_sentence("ret_results is NULL");
}

/* Nothing is stopped, and no result is used up, until all requests have completed. */
static void wait_that_times_out_leaves_the_requests(void **state)
{
	struct crew *crew = connected(state, 3);
	struct pier_group *group = crew->members[0].group;
	struct pier_group_work works[3] = { { .rank = 2 }, { .rank = 0 }, { .rank = 1 } };
	struct pier_result results[3] = { { .error = 1 } };
	struct piece piece;

	for (int i = 0; i < 3; i += 2)
		expect_ok(pier_channel_post_recv(pier_group_channel(group, works[i].rank),
						 NULL, 0, &works[i].work));
	write_to(crew, 0, &piece);
	written(crew, 0);
	expect_ok(pier_channel_post_write(pier_group_channel(group, 0), &piece.from, 1,
					  &piece.remote, &works[1].work));
	while (pier_channel_outstanding(pier_group_channel(group, 0)) > 0)
		assert_true(pier_channel_poll(pier_group_channel(group, 0)) >= 0);
	expect_result(pier_group_wait(group, works, 3, 0, results), 0);
	manual_clock_hurry(true);
	expect_result(pier_group_wait(group, works, 3, CREW_BRIEF, results), -ETIMEDOUT);
	test_assert_sentence("2 of 3 requests of a group did not complete within 150 ms, "
			     "of ranks 1, 2");
	manual_clock_hurry(false);
	assert_int_equal(results[0].error, 1);
	for (uint32_t rank = 1; rank < 3; rank++)
		expect_ok(pier_channel_send(
			pier_group_channel(crew->members[rank].group, 0), NULL, 0,
			CREW_PATIENT));
	expect_result(pier_group_wait(group, works, 3, CREW_PATIENT, results), 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(results[i].error, 0);
	assert_int_equal(results[1].opcode, PIER_OP_WRITE);
	assert_int_equal(crew_differs(crew), -1);
}

/*
 * A poll in which a request completes after it was examined, as if polling the next one
 * had collected both.
 */
struct late_look {
	struct pier_channel *channel;
	int looks, ends_in;
	struct pier_work work;
};

static int look_too_early(struct pier_group *group, void *subject)
{
	struct late_look *late = subject;
	struct pier_result result;

	if (++late->looks > late->ends_in)
		return pier_work_poll(late->channel, late->work, &result);
	pier_group_watch(group, 1, late->channel);
	if (late->looks < late->ends_in)
		return 0;
	expect_ok(pier_channel_post_write(late->channel, NULL, 0, NULL, &late->work));
	while (pier_channel_outstanding(late->channel) > 0)
		assert_true(pier_channel_poll(late->channel) >= 0);
	return 0;
}

static void misses_no_collected_completion(void **state)
{
	struct crew *crew = connected(state, 2);
	struct pier_group *group = crew->members[0].group;

	/* The poll before arming, and the one after it. */
	expect_ok(pier_channel_set_waiting(pier_group_channel(group, 1), PIER_WAIT_EVENT,
					   0));
	for (int ends_in = 1; ends_in <= 2; ends_in++) {
		struct late_look late = { .channel = pier_group_channel(group, 1),
					  .ends_in = ends_in };

		expect_ok(pier_group_wait_until(group, look_too_early, &late,
						pier_deadline(CREW_PATIENT)));
		assert_int_equal(late.looks, ends_in + 1);
	}
}

static void refuses_invalid_requests_before_posting(void **state)
{
	struct crew *crew = connected(state, 2);
	struct pier_group *group = crew->members[0].group;
	struct pier_group_request requests[2];
	struct pier_result results[2];
	struct piece pieces[2];

	for (uint32_t rank = 0; rank < 2; rank++)
		requests[rank] = write_to(crew, rank, &pieces[rank]);
	expect_result(pier_group_exchange(group, NULL, 2, 0, results), -EINVAL);
	test_assert_sentence("requests is NULL");
	expect_result(pier_group_wait(group, NULL, 2, 0, results), -EINVAL);
	test_assert_sentence("works is NULL");
	requests[1].rank = 2;
	expect_result(pier_group_exchange(group, requests, 2, 0, results), -EINVAL);
	test_assert_sentence("request 1 of a group: there is no rank 2 among 2");
	expect_result(pier_group_exchange(group, requests, 1, -2, results), -EINVAL);
	expect_ok(pier_group_exchange(group, requests, 0, 0, NULL));
	assert_int_equal(crew_differs(crew), -1);
}

/* A request that cannot be posted is this rank's own failure; the others are posted. */
static void reports_what_cannot_be_posted(void **state)
{
	struct crew *crew = connected(state, 2);
	struct pier_group *group = crew->members[0].group;
	struct pier_group_request requests[2];
	struct pier_result results[2];
	struct piece pieces[2];

	for (uint32_t rank = 0; rank < 2; rank++)
		requests[rank] = write_to(crew, rank, &pieces[rank]);
	pieces[1].remote.length = PIECE - 1;
	written(crew, 0);
	expect_result(pier_group_exchange(group, requests, 2, CREW_PATIENT, results),
		      -ERANGE);
	assert_int_equal(results[0].error, 0);
	assert_int_equal(results[1].error, -ERANGE);
	requests[1].request.opcode = (enum pier_opcode)0;
	expect_result(pier_group_exchange(group, requests, 2, CREW_PATIENT, results),
		      -EINVAL);
	test_assert_sentence("1 of 2 requests of a group failed, of rank 1; rank 1: ");
	assert_int_equal(results[0].error, 0);
	assert_int_equal(crew_differs(crew), -1);
}

/* To two adjacent parts, with a context. */
static void takes_requests_as_a_channel_does(void **state)
{
	struct crew *crew = connected(state, 2);
	struct pier_remote parts[2];
	struct pier_result result;
	struct piece piece;
	struct pier_group_request request = write_to(crew, 1, &piece);

	parts[0] = parts[1] = piece.remote;
	parts[0].length = 3;
	parts[1].addr += 3;
	parts[1].length -= 3;
	request.request.remote = parts;
	request.request.remote_count = 2;
	request.request.context = &piece;
	written(crew, 1);
	expect_ok(pier_group_exchange(crew->members[0].group, &request, 1, CREW_PATIENT,
				      &result));
	assert_ptr_equal(result.context, &piece);
	assert_int_equal(crew_differs(crew), -1);
}

static void rejects_impossible_attributes(void **state)
{
	struct crew *crew = prepared(state, 2, NULL);
	struct pier_group_attr attr;
	struct pier_channel_attr channel;
	struct pier_group *group = NULL;
	struct pier_pd *pd = crew->members[0].pd;

	pier_channel_attr_init(&channel);
	pier_group_attr_init(&attr);
	expect_result(pier_group_create(pd, 0, 0, NULL, &group), -EINVAL);
	expect_result(pier_group_create(pd, 0, PIER_GROUP_MAX + 1, NULL, &group),
		      -EINVAL);
	expect_result(pier_group_create(pd, 2, 2, NULL, &group), -EINVAL);
	test_assert_sentence("a group of 2: there is no rank 2");
	attr.barrier = (enum pier_barrier_algorithm)0;
	expect_result(pier_group_create(pd, 0, 2, &attr, &group), -EINVAL);
	attr.barrier = PIER_BARRIER_CENTRAL;
	attr.flags = 1;
	expect_result(pier_group_create(pd, 0, 2, &attr, &group), -EINVAL);
	attr.flags = 0;
	attr.size--;
	expect_result(pier_group_create(pd, 0, 2, &attr, &group), -EINVAL);
	attr.size++;
	channel.max_send_wr = 0;
	attr.channel = &channel;
	expect_result(pier_group_create(pd, 1, 2, &attr, &group), -EINVAL);
	test_assert_sentence("making rank 1 of a group of 2");
	test_assert_sentence("max_send_wr 0");
	assert_null(group);
}

static void is_listed_with_its_channels(void **state)
{
	struct crew *crew = prepared(state, 3, NULL);
	struct pier_group *group = crew->members[1].group;
	struct pier_object_info *list;
	uint32_t count, channels = 0, groups = 0, queues = 0;

	assert_null(pier_group_channel(group, 3));
	expect_ok(pier_object_list(&list, &count, sizeof(*list)));
	for (size_t i = 0; i < count; i++) {
		groups += list[i].object == (void *)group &&
			  list[i].kind == PIER_OBJECT_GROUP &&
			  list[i].parent == (void *)crew->members[1].pd &&
			  !strcmp(list[i].description, "group of 3, rank 1, on soft0");
		channels += list[i].parent == (void *)group &&
			    list[i].kind == PIER_OBJECT_CHANNEL;
		queues += list[i].parent == (void *)group &&
			  list[i].kind == PIER_OBJECT_CQ;
	}
	free(list);
	assert_int_equal(groups, 1);
	assert_int_equal(channels, 5);
	assert_int_equal(queues, 1);
	expect_result(pier_pd_dealloc(crew->members[1].pd), -EBUSY);
	test_assert_sentence("1 region, 5 channels, 1 group and 1 completion queue");
	/* Its channels belong to it. */
	expect_result(pier_channel_destroy(pier_group_channel(group, 0)), -EBUSY);
	expect_result(pier_channel_reset(pier_group_channel(group, 0)), -EBUSY);
	test_assert_sentence("it belongs to the group of 3, rank 1, on soft0");
	expect_ok(pier_group_destroy(NULL));
}

static void refuses_requests_before_it_is_connected(void **state)
{
	struct crew *crew = prepared(state, 2, NULL);
	struct crew_member *member = &crew->members[0];
	size_t size = 2 * PIER_GROUP_BLOB_SIZE;

	expect_result(pier_group_barrier(member->group, 0), -ENOTCONN);
	expect_result(pier_group_exchange(member->group, NULL, 0, 0, NULL), -ENOTCONN);
	expect_result(pier_group_wait(member->group, NULL, 0, 0, NULL), -ENOTCONN);
	expect_result(pier_group_endpoints(member->group, member->mine, size - 1),
		      -ENOSPC);
	test_assert_sentence("1072 bytes are needed, 1071 are there");
	expect_result(pier_group_connect(member->group, member->theirs, size - 1, 0),
		      -EMSGSIZE);
	expect_result(pier_group_connect(member->group, member->theirs, size, -2),
		      -EINVAL);
	expect_ok(crew_connect(crew));
	expect_result(pier_group_connect(member->group, member->theirs, size, 0),
		      -EISCONN);
	expect_ok(crew_run(crew, pass));
}

/* A single member: everything exists, and no message is sent. */
static void works_with_a_single_member(void **state)
{
	struct crew *crew = connected(state, 1);
	struct pier_group *group = crew->members[0].group;
	struct piece piece;
	struct pier_group_request request = write_to(crew, 0, &piece);

	expect_ok(pier_group_barrier(group, 0));
	expect_ok(pier_group_exchange(group, &request, 1, CREW_PATIENT, NULL));
	written(crew, 0);
	assert_int_equal(crew_differs(crew), -1);
}

static int connect_member(struct crew_member *member)
{
	return pier_group_connect(member->group, member->theirs,
				  (size_t)member->crew->size * PIER_GROUP_BLOB_SIZE,
				  member->crew->timeout_ms);
}

static void names_the_rank_that_does_not_connect(void **state)
{
	struct crew *crew = prepared(state, 4, NULL);

	crew->timeout_ms = 10 * CREW_BRIEF;
	expect_result(crew_run_some(crew, 0xb, connect_member), -ETIMEDOUT);
	for (uint32_t rank = 0; rank < 4; rank++) {
		struct crew_member *member = &crew->members[rank];

		if (rank == 2)
			continue;
		assert_int_equal(member->error, -ETIMEDOUT);
		assert_int_equal(pier_group_failed_rank(member->group), 2);
		assert_non_null(strstr(member->sentence, "rank 2 "));
		assert_true(member->took_ms < 10 * CREW_BRIEF + SLACK_MS);
		expect_result(pier_group_barrier(member->group, 0), -ENOTCONN);
		expect_result(pier_group_connect(member->group, member->theirs,
						 4 * PIER_GROUP_BLOB_SIZE, 0),
			      -EISCONN);
	}
}

/*
 * Rank 1 got another blob than that of rank 2, and tells the others the reason. Rank 2,
 * to which it is not connected, only sees that rank 1 does not come.
 */
static void detects_swapped_blobs(void **state)
{
	struct crew *crew = prepared(state, 4, NULL);
	uint8_t *theirs = crew->members[1].theirs;

	memcpy(theirs + 2 * PIER_GROUP_BLOB_SIZE, theirs + 3 * PIER_GROUP_BLOB_SIZE,
	       PIER_GROUP_BLOB_SIZE);
	crew->timeout_ms = 2000;
	expect_result(crew_run(crew, connect_member), -ECONNREFUSED);
	assert_int_equal(crew->members[1].error, -EINVAL);
	assert_int_equal(crew->members[2].error, -ETIMEDOUT);
	assert_non_null(strstr(crew->members[1].sentence, "connecting to rank 2 of 4: "));
	assert_non_null(strstr(crew->members[1].sentence,
			       "from rank 3 for rank 1, not from 2 for 1"));
	for (uint32_t rank = 0; rank < 4; rank++) {
		assert_int_equal(pier_group_failed_rank(crew->members[rank].group),
				 rank == 2 ? 1 : 2);
		assert_true(crew->members[rank].took_ms < 2000 + SLACK_MS);
	}
}

/* A socket between any two ranks: from rank a to rank b. */
static int sockets[4][4];

static void open_pair(int *a, int *b)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	*a = pair[0];
	*b = pair[1];
}

static void open_sockets(void)
{
	for (uint32_t a = 0; a < 4; a++) {
		sockets[a][a] = -1;
		for (uint32_t b = a + 1; b < 4; b++)
			open_pair(&sockets[a][b], &sockets[b][a]);
	}
}

static void close_sockets(uint32_t of)
{
	for (uint32_t b = 0; b < 4; b++) {
		if (sockets[of][b] >= 0)
			close(sockets[of][b]);
		sockets[of][b] = -1;
	}
}

static int shake_hands(struct crew_member *member)
{
	return pier_group_handshake(member->group, sockets[member->rank],
				    member->crew->timeout_ms);
}

static void connects_without_a_launcher(void **state)
{
	struct crew *crew = prepared(state, 4, NULL);
	char word = 'w';

	open_sockets();
	expect_ok(crew_run(crew, shake_hands));
	assert_int_equal(send(sockets[1][2], &word, 1, 0), 1);
	assert_int_equal(recv(sockets[2][1], &word, 1, MSG_DONTWAIT), 1);
	assert_int_equal(recv(sockets[2][1], &word, 1, MSG_DONTWAIT), -1);
	expect_ok(crew_run(crew, pass));
	expect_ok(crew_run(crew, exchange_messages));
	expect_result(pier_group_handshake(crew->members[0].group, sockets[0], 0),
		      -EISCONN);
	for (uint32_t rank = 0; rank < 4; rank++)
		close_sockets(rank);
}

static void one_rank_needs_no_sockets(void **state)
{
	struct crew *crew = prepared(state, 1, NULL);

	expect_ok(pier_group_handshake(crew->members[0].group, NULL, crew->timeout_ms));
	expect_ok(crew_run(crew, exchange_messages));
}

static void send_blob(const struct crew *crew, uint32_t from, uint32_t to)
{
	const uint8_t *blob = crew->members[from].mine +
			      (size_t)to * PIER_GROUP_BLOB_SIZE;
	/* The failure of `from` itself is not of interest. */
	close(sockets[from][to]);
	close(sockets[to][from]);
	open_pair(&sockets[from][to], &sockets[to][from]);
	assert_int_equal(send(sockets[from][to], blob, PIER_GROUP_BLOB_SIZE, 0),
			 PIER_GROUP_BLOB_SIZE);
}

static void names_silent_and_dead_ranks(void **state)
{
	struct crew *crew = prepared(state, 4, NULL);
	struct crew_member *first = &crew->members[0], *last = &crew->members[3];
	uint8_t garbage[PIER_GROUP_BLOB_SIZE + 1] = "GET / HTTP/1.1", behind = 0;

	open_sockets();
	close_sockets(3);
	expect_result(pier_group_handshake(last->group, sockets[3], 0), -EBADF);
	test_assert_sentence("the socket to rank 0 is fd -1");
	crew->timeout_ms = CREW_BRIEF;
	/* 1 is silent, 3 is gone. */
	expect_result(crew_run_some(crew, 1u << 0, shake_hands), -ECONNRESET);
	assert_non_null(strstr(first->sentence, "rank 3 of 4 "));
	assert_int_equal(pier_group_failed_rank(first->group), 3);
	expect_result(pier_group_handshake(first->group, sockets[0], 0), -EISCONN);
	/* 3 writes half a blob to 2, and nothing more. */
	close(sockets[2][3]);
	open_pair(&sockets[2][3], &sockets[3][2]);
	assert_int_equal(send(sockets[3][2], garbage, 100, 0), 100);
	send_blob(crew, 0, 2);
	send_blob(crew, 1, 2);
	expect_result(crew_run_some(crew, 1u << 2, shake_hands), -ETIMEDOUT);
	assert_non_null(strstr(crew->members[2].sentence,
			       "rank 3 of 4 sent 100 of 536 bytes within 150 ms"));
	/* And to 1 an invalid blob, with a byte behind it that belongs to the caller. */
	garbage[PIER_GROUP_BLOB_SIZE] = 'b';
	close(sockets[1][3]);
	open_pair(&sockets[1][3], &sockets[3][1]);
	assert_int_equal(send(sockets[3][1], garbage, sizeof(garbage), 0),
			 sizeof(garbage));
	send_blob(crew, 0, 1);
	send_blob(crew, 2, 1);
	expect_result(crew_run_some(crew, 1u << 1, shake_hands), -EBADMSG);
	assert_int_equal(pier_group_failed_rank(crew->members[1].group), 3);
	assert_int_equal(recv(sockets[1][3], &behind, 1, MSG_DONTWAIT), 1);
	assert_int_equal(behind, 'b');
	for (uint32_t rank = 0; rank < 4; rank++)
		close_sockets(rank);
}

static struct pier_group_blob blob_of(uint32_t from, uint32_t to)
{
	struct pier_group_blob blob = {
		.size = 9,
		.from = from,
		.to = to,
		.channel = { .qpn = 0x123456, .psn = 7, .mtu = 1024, .lid = 3 },
		.control = { .qpn = 0x654321, .psn = 8, .mtu = 256, .lid = 4 },
	};

	blob.channel.address_length = PIER_ENDPOINT_ADDRESS_MAX;
	memset(blob.channel.address, 0xa5, PIER_ENDPOINT_ADDRESS_MAX);
	return blob;
}

static void blobs_have_the_documented_form(void **state)
{
	static const uint8_t head[] = {
		'P', 'I', 'E', 'G', 1, 0, 0x18, 0x02, 9,   0, 0,  0,
		4,   0,	  0,   0,   7, 0, 0,	0,    238, 0, 46, 0,
	};
	struct pier_group_blob blob = blob_of(4, 7), read = { 0 };
	uint8_t wire[PIER_GROUP_BLOB_SIZE], again[PIER_GROUP_BLOB_SIZE];

	(void)state;
	expect_ok(pier_group_pack_blob(&blob, wire));
	assert_memory_equal(wire, head, sizeof(head));
	expect_ok(pier_group_unpack_blob(wire, &read));
	assert_int_equal(read.size, 9);
	assert_int_equal(read.from, 4);
	assert_int_equal(read.to, 7);
	assert_int_equal(read.control.qpn, 0x654321);
	expect_ok(pier_group_pack_blob(&read, again));
	assert_memory_equal(wire, again, sizeof(wire));
	blob.control.qpn = 1 << 24;
	expect_result(pier_group_pack_blob(&blob, again), -EINVAL);
}

/* Each byte, and its new value. */
static void rejects_hostile_blobs(void **state)
{
	static const struct {
		int at, value, error;
		const char *says;
	} changes[] = {
		{ 0, 'Q', -EBADMSG, "PIEG" },
		{ 4, 2, -EPROTONOSUPPORT, "version 2" },
		{ 6, 0, -EBADMSG, "512 bytes" },
		{ 10, 2, -EBADMSG, "in a group of 131081" },
		{ 12, 9, -EBADMSG, "from rank 9" },
		{ 16, 9, -EBADMSG, "to rank 9" },
		{ 16, 4, -EBADMSG, "from rank 4 to rank 4" },
		{ 20, 237, -EBADMSG, "behind an endpoint" },
		{ 20, 239, -EBADMSG, NULL },
		{ 21, 1, -EBADMSG, "an endpoint of 494 bytes" },
		{ 21, 255, -EBADMSG, NULL },
		{ 22, 0, -EBADMSG, "behind an endpoint" },
		{ 24, 'Q', -EBADMSG, "not an endpoint" },
		{ 24 + 11, 1, -EBADMSG, "qpn" },
		{ 24 + 238, 1, -EBADMSG, "behind an endpoint" },
		{ 280 + 4, 7, -EPROTONOSUPPORT, "version 7" },
		{ 535, 1, -EBADMSG, "behind an endpoint" },
	};
	struct pier_group_blob blob = blob_of(4, 7), untouched = { .size = 77 };
	uint8_t wire[PIER_GROUP_BLOB_SIZE];

	(void)state;
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		expect_ok(pier_group_pack_blob(&blob, wire));
		wire[changes[i].at] = (uint8_t)changes[i].value;
		expect_result(pier_group_unpack_blob(wire, &untouched), changes[i].error);
		if (changes[i].says)
			test_assert_sentence(changes[i].says);
		assert_int_equal(untouched.size, 77);
	}
}

#define fixture_test(body) cmocka_unit_test_setup_teardown(body, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(writes_to_all_and_to_itself),
		fixture_test(reads_from_some),
		fixture_test(writes_one_piece_to_many),
		fixture_test(exchanges_messages_with_all),
		fixture_test(waits_for_late_receives),
		fixture_test(lists_may_exceed_the_queue),
		fixture_test(names_the_failing_rank_and_serves_others),
		fixture_test(failing_rank_does_not_end_other_waits),
		fixture_test(one_deadline_covers_all_ranks),
		fixture_test(full_queue_does_not_outlast_the_deadline),
		fixture_test(waits_for_requests_of_the_user),
		fixture_test(wait_that_times_out_leaves_the_requests),
		fixture_test(misses_no_collected_completion),
		fixture_test(refuses_invalid_requests_before_posting),
		fixture_test(reports_what_cannot_be_posted),
		fixture_test(takes_requests_as_a_channel_does),
		fixture_test(rejects_impossible_attributes),
		fixture_test(is_listed_with_its_channels),
		fixture_test(refuses_requests_before_it_is_connected),
		fixture_test(works_with_a_single_member),
		fixture_test(names_the_rank_that_does_not_connect),
		fixture_test(detects_swapped_blobs),
		fixture_test(connects_without_a_launcher),
		fixture_test(one_rank_needs_no_sockets),
		fixture_test(names_silent_and_dead_ranks),
		cmocka_unit_test(blobs_have_the_documented_form),
		cmocka_unit_test(rejects_hostile_blobs),
	};

	manual_clock_run();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
