/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "../conformance/world.h"
#include "../support/manual_clock.h"
#include "core/deadline.h"

/*
 * Random work on devices with random fault plans. Whatever fails, every request ends
 * once, in time, with a plausible error; each byte is unchanged or has the value sent to
 * it; and nothing is left behind.
 */

enum {
	ROUNDS = 12,
	STEPS = 150,
	OUTSTANDING = 12,
	/* Bytes keep their offset in the area: writes, then reads, sends, receives. */
	READS_FROM = 60000,
	SENDS_FROM = 120000,
	RECEIVES_FROM = 130000,
	MESSAGE = 5003,
	LONGEST = 9000,
	SHORTLY_MS = 30,
	/* A missing flush costs a second, and machines may be slow. */
	AT_MOST_MS = 60000,
	TRIES = 200,
};

/* The possible contents of an area: bytes that may have arrived, and bytes that have. */
struct fate {
	uint8_t touched[AREA_LENGTH], arrived[AREA_LENGTH];
};

struct request {
	struct pier_work work;
	struct fate *fate;
	size_t offset, length;
};

struct play {
	struct world *world;
	struct request requests[OUTSTANDING];
	int count;
	struct fate a, b;
};

static uint64_t below(struct play *play, uint64_t limit)
{
	return test_random_below(&play->world->random, limit);
}

static void choose_plan(struct play *play, char *ret_plan, size_t size)
{
	enum side {
		ANY,
		/* Not both, because pier_channel_create() tries only once to undo. */
		TAKES,
		GIVES_BACK,
	};
	static const struct {
		const char *word;
		unsigned int least, most;
		const char *value;
		enum side side;
	} rules[] = {
		{ "post_send", 10, 80, "=EIO" },
		{ "post_recv", 5, 40, "=ENOMEM" },
		{ "reg", 2, 20, "=ENOMEM" },
		{ "dereg_mr", 2, 20, "=EIO" },
		{ "create_comp_channel", 2, 20, "=EMFILE", TAKES },
		{ "create_cq", 2, 20, "=ENOMEM", TAKES },
		{ "create_qp", 2, 20, "=ENOMEM", TAKES },
		{ "modify_qp", 3, 20, "=EIO", TAKES },
		{ "destroy_qp", 3, 20, "=EBUSY", GIVES_BACK },
		{ "destroy_cq", 3, 20, "=EBUSY", GIVES_BACK },
		{ "wc", 10, 80, "=REM_OP_ERR" },
		{ "late", 2, 10, "=2ms" },
		{ "late", 2, 10, "=20polls" },
		/* "+": a device does not lose a single completion. */
		{ "lost", 20, 100, "+" },
		{ "overrun", 50, 200, "" },
		{ "dead", 20, 100, "=10ms" },
		{ "event", 2, 10, "=5ms" },
		{ "poll_cq", 100, 1000, "=EIO" },
		{ "req_notify_cq", 10, 100, "=EIO" },
		{ "get_cq_event", 3, 30, "=EIO" },
	};
	const size_t count = sizeof(rules) / sizeof(rules[0]);
	enum side not_side = below(play, 2) ? TAKES : GIVES_BACK;
	int used = snprintf(ret_plan, size, "fault:seed=%u",
			    (unsigned int)below(play, UINT32_MAX));

	for (uint64_t i = 0, wanted = 1 + below(play, 6); i < wanted; i++) {
		size_t rule = below(play, count);
		unsigned int number = rules[rule].least +
				      (unsigned int)below(play, rules[rule].most);

		if (rules[rule].side == not_side)
			continue;
		used += snprintf(ret_plan + used, size - (size_t)used, ",%s%c%u%s",
				 rules[rule].word,
				 rules[rule].value[0] == '+' ? '@' : '~', number,
				 rules[rule].value);
	}
	snprintf(ret_plan + used, size - (size_t)used, ":soft0");
}

static bool is_one_of(int error, const int *list)
{
	for (; *list; list++) {
		if (error == *list)
			return true;
	}
	return error == 0;
}

static void expect_post_error(int error)
{
	static const int possible[] = { -EIO, -ENOMEM, -EPIPE, -EAGAIN, 0 };

	if (!is_one_of(error, possible))
		fail_msg("posting: %d: %s", error, pier_error_message());
}

static void expect_request_error(int error)
{
	static const int possible[] = { -EIO,	       -ECANCELED, -EREMOTEIO,
					-EHOSTUNREACH, -ETIMEDOUT, 0 };

	if (!is_one_of(error, possible))
		fail_msg("a request: %d: %s", error, pier_error_message());
}

/* Closing may be refused once or twice: repeat it until it succeeds. */
#define INSIST(call)                                                             \
	do {                                                                     \
		int tries_ = 0;                                                  \
                                                                                 \
		while ((call) != 0)                                              \
			if (++tries_ == TRIES)                                   \
				fail_msg("%s: %s", #call, pier_error_message()); \
	} while (0)

static void forget(struct play *play, int index, bool arrived)
{
	struct request *request = &play->requests[index];
	struct pier_result result;

	if (arrived)
		memset(request->fate->arrived + request->offset, 1, request->length);
	expect_result(pier_work_poll(play->world->a.channel, request->work, &result),
		      -ESTALE);
	*request = play->requests[--play->count];
}

static void remember(struct play *play, struct fate *fate, size_t offset, size_t length,
		     int error, struct pier_work work)
{
	expect_post_error(error);
	/* A refused request counts as lost. */
	memset(fate->touched + offset, 1, length);
	if (!error)
		play->requests[play->count++] = (struct request){ work, fate, offset,
								  length };
}

static void post_write(struct play *play)
{
	size_t length = below(play, LONGEST), offset = below(play, READS_FROM - length);
	struct pier_gather source = gather_at(&play->world->a.area, offset, length);
	struct pier_remote target = remote_at(&play->world->b.area, offset, length);
	struct pier_work work = { 0 };
	int error = pier_channel_post_write(play->world->a.channel, &source, 1, &target,
					    &work);

	remember(play, &play->b, offset, length, error, work);
}

static void post_write_vec(struct play *play)
{
	size_t length = 2 + below(play, LONGEST);
	size_t offset = below(play, READS_FROM - length);
	struct pier_gather source = gather_at(&play->world->a.area, offset, length);
	struct pier_remote parts[] = {
		remote_at(&play->world->b.area, offset, length / 2),
		remote_at(&play->world->b.area, offset + length / 2, length - length / 2),
	};
	struct pier_work work = { 0 };
	int error = test_post_write_vec(play->world->a.channel, &source, 1, parts, 2,
					&work);

	remember(play, &play->b, offset, length, error, work);
}

static void post_read(struct play *play)
{
	size_t length = below(play, LONGEST);
	size_t offset = READS_FROM + below(play, SENDS_FROM - READS_FROM - length);
	struct pier_scatter receiver = scatter_at(&play->world->a.area, offset, length);
	struct pier_remote source = remote_at(&play->world->b.area, offset, length);
	struct pier_work work = { 0 };
	int error = pier_channel_post_read(play->world->a.channel, &receiver, 1, &source,
					   &work);

	remember(play, &play->a, offset, length, error, work);
}

/* All messages are equal, so any receive may get any message. */
static void post_send(struct play *play)
{
	struct world *world = play->world;
	struct pier_gather source = gather_at(&world->a.area, SENDS_FROM, MESSAGE);
	struct pier_scatter receiver = scatter_at(&world->b.area, SENDS_FROM, MESSAGE);
	struct pier_work work = { 0 };
	int error;

	/* The peer's end may be broken already. */
	pier_channel_post_recv(world->b.channel, &receiver, 1, NULL);
	error = pier_channel_post_send(world->a.channel, &source, 1, &work);
	/* Without a receive the send is retried, and may fail with RNR. */
	remember(play, &play->b, SENDS_FROM, MESSAGE, error, work);
}

static void post_recv(struct play *play)
{
	struct world *world = play->world;
	struct pier_gather source = gather_at(&world->b.area, RECEIVES_FROM, MESSAGE);
	struct pier_scatter receiver = scatter_at(&world->a.area, RECEIVES_FROM, MESSAGE);
	struct pier_work work = { 0 };
	int error = pier_channel_post_recv(world->a.channel, &receiver, 1, &work);

	remember(play, &play->a, RECEIVES_FROM, MESSAGE, error, work);
	if (!error)
		pier_channel_post_send(world->b.channel, &source, 1, NULL);
}

static void poll_one(struct play *play)
{
	struct pier_result result = { 0 };
	int index, done;

	if (play->count == 0)
		return;
	index = (int)below(play, (uint64_t)play->count);
	done = pier_work_poll(play->world->a.channel, play->requests[index].work,
			      &result);
	if (done < 0)
		assert_int_equal(done, -EIO);
	expect_request_error(result.error);
	if (done == 1)
		forget(play, index, result.error == 0);
}

static void wait_one(struct play *play)
{
	struct pier_result result = { .error = -1 };
	int64_t start = pier_now();
	int index, error;

	if (play->count == 0)
		return;
	index = (int)below(play, (uint64_t)play->count);
	error = test_work_finish(play->world->a.channel, play->requests[index].work,
				 1 + (int)below(play, SHORTLY_MS), &result);
	expect_request_error(error);
	expect_request_error(result.error);
	assert_true(pier_now() - start < AT_MOST_MS * INT64_C(1000000));
	forget(play, index, result.error == 0);
}

static void use_region(struct play *play)
{
	static uint8_t memory[1000];
	struct pier_mr *mr = NULL;
	int error = pier_mr_reg(play->world->a.pd, memory, sizeof(memory),
				PIER_ACCESS_SHARED, &mr);

	if (error)
		assert_int_equal(error, -ENOMEM);
	INSIST(pier_mr_dereg(mr));
}

static void part(struct play *play)
{
	struct world *world = play->world;

	while (play->count > 0)
		wait_one(play);
	INSIST(pier_channel_destroy(world->a.channel));
	expect_ok(pier_channel_destroy(world->b.channel));
	world->a.channel = world->b.channel = NULL;
}

static bool join(struct play *play)
{
	struct world *world = play->world;
	int error = end_prepare(&world->a, NULL);

	if (error) {
		world->a.channel = NULL;
		return false;
	}
	expect_ok(end_prepare(&world->b, NULL));
	if (ends_connect(&world->a, &world->b) == 0)
		return true;
	part(play);
	return false;
}

static void step(struct play *play)
{
	static void (*const posts[])(struct play *) = {
		post_write, post_write_vec, post_read, post_send, post_recv,
	};
	uint64_t dice = below(play, 20);

	if (!play->world->a.channel && !join(play))
		return;
	if (dice == 0)
		part(play);
	else if (dice == 1)
		use_region(play);
	else if (dice < 6 || play->count == OUTSTANDING)
		wait_one(play);
	else if (dice < 11)
		poll_one(play);
	else
		posts[below(play, sizeof(posts) / sizeof(posts[0]))](play);
}

/* Bytes keep their offset, so the expected bytes are those of the other area there. */
static void expect_bytes(const struct area *area, const struct area *other,
			 const struct fate *fate)
{
	static uint8_t now[AREA_LENGTH];

	expect_ok(pier_buffer_copy_from(area->buffer, 0, now, AREA_LENGTH));
	for (size_t i = 0; i < AREA_LENGTH; i++) {
		bool is_new = now[i] == other->image[i],
		     is_old = now[i] == area->image[i];

		if (fate->arrived[i] ? !is_new : !is_old && !(fate->touched[i] && is_new))
			fail_msg("byte %zu is wrong: touched %d, arrived %d", i,
				 fate->touched[i], fate->arrived[i]);
	}
}

static void open_again(struct play *play, const char *plan)
{
	struct world *world = play->world;
	int tries = 0, error = end_open(&world->a, plan);

	/* The registration of the area may fail, too. */
	while (error && ++tries < TRIES) {
		INSIST(area_close(&world->a.area));
		error = area_open(&world->a.area, world->a.pd, PIER_ACCESS_SHARED);
	}
	expect_ok(error);
	expect_ok(end_open(&world->b, "soft0"));
	area_shuffle(world, &world->a.area);
	area_shuffle(world, &world->b.area);
}

static void close_round(struct play *play)
{
	struct world *world = play->world;

	if (world->a.channel)
		part(play);
	expect_bytes(&world->b.area, &world->a.area, &play->b);
	expect_bytes(&world->a.area, &world->b.area, &play->a);
	INSIST(area_close(&world->a.area));
	INSIST(pier_pd_dealloc(world->a.pd));
	INSIST(pier_device_close(world->a.device));
	world->a = (struct end){ 0 };
	expect_ok(end_close(&world->b));
}

static void survives_random_faults(void **state)
{
	struct play *play = calloc(1, sizeof(*play));
	char plan[1024];

	assert_non_null(play);
	play->world = world_empty(state);
	for (int round = 0; round < ROUNDS; round++) {
		memset(&play->a, 0, sizeof(play->a));
		memset(&play->b, 0, sizeof(play->b));
		choose_plan(play, plan, sizeof(plan));
		print_message("%s\n", plan);
		open_again(play, plan);
		for (int i = 0; i < STEPS; i++)
			step(play);
		close_round(play);
		test_assert_census(&play->world->before);
	}
	free(play);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		world_case(survives_random_faults),
	};

	test_backend = "memfd";
	manual_clock_run();
	return cmocka_run_group_tests_name("random faults", cases, NULL, NULL);
}
