/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include "cases.h"
#include "world.h"

/* Shared completion queues: one at each end, for all channels between the two. */

enum {
	PAIRS = 4,
	MORE = 64,     /* channels, more than fit */
	LENGTH = 1003, /* of a message: a multiple of nothing */
	MESSAGES = 300,
	RECEIVES = 4,	/* of each channel, posted at a time */
	BYTES = 150001, /* of a transfer */
	CHUNK = 4096,
};

struct hub {
	struct world *world;
	struct pier_cq *of_from, *of_to;
	struct pier_channel *from[PAIRS], *to[PAIRS];
};

static struct pier_channel_attr attr_in(struct pier_cq *cq, int number)
{
	struct pier_channel_attr attr = test_attr();

	attr.cq = cq;
	attr.context = (void *)(uintptr_t)number;
	attr.rnr_retry_count = 7;
	attr.min_rnr_timer = 1;
	return attr;
}

static struct pier_cq *cq_for(struct pier_pd *pd, uint32_t entries)
{
	struct pier_cq_attr attr;
	struct pier_cq *cq = NULL;

	pier_cq_attr_init(&attr);
	attr.depth = entries;
	expect_ok(pier_cq_create(pd, &attr, &cq));
	return cq;
}

static void connect_pair(struct hub *hub, int i)
{
	struct end a = { .channel = hub->from[i] }, b = { .channel = hub->to[i] };

	expect_ok(ends_connect(&a, &b));
}

/* srq: of the receiving channels, or NULL */
static void add_pair(struct hub *hub, int i, struct pier_srq *srq)
{
	struct pier_channel_attr attr = attr_in(hub->of_from, i);

	expect_ok(pier_channel_create(hub->world->a.pd, &attr, &hub->from[i]));
	attr.cq = hub->of_to;
	attr.srq = srq;
	expect_ok(pier_channel_create(hub->world->b.pd, &attr, &hub->to[i]));
	connect_pair(hub, i);
}

static void remove_pair(struct hub *hub, int i)
{
	expect_ok(pier_channel_destroy(hub->from[i]));
	expect_ok(pier_channel_destroy(hub->to[i]));
}

static struct hub empty_hub(void **state)
{
	struct world *world = world_for_channels(state);
	struct hub hub = { .world = world };

	expect_ok(end_open(&world->a, test_device));
	expect_ok(end_open(&world->b, test_peer_device));
	area_shuffle(world, &world->a.area);
	area_shuffle(world, &world->b.area);
	hub.of_from = cq_for(world->a.pd, PAIRS * 32);
	hub.of_to = cq_for(world->b.pd, PAIRS * 32);
	return hub;
}

static struct hub open_hub(void **state)
{
	struct hub hub = empty_hub(state);

	for (int i = 0; i < PAIRS; i++)
		add_pair(&hub, i, NULL);
	return hub;
}

static void close_hub(struct hub *hub)
{
	for (int i = 0; i < PAIRS; i++)
		remove_pair(hub, i);
	expect_ok(pier_cq_destroy(hub->of_from));
	expect_ok(pier_cq_destroy(hub->of_to));
	world_expect(hub->world);
}

/* Of message `number` of pair i, in both areas. */
static size_t place_of(int i, int number)
{
	return (size_t)(i * RECEIVES + number % RECEIVES) * LENGTH;
}

/* Write one message through a pair, and wait for it. */
static void write_through(struct hub *hub, int i)
{
	struct world *world = hub->world;
	struct pier_gather source = gather_at(&world->a.area, place_of(i, 0), LENGTH);
	struct pier_remote target = remote_at(&world->b.area, place_of(i, 1), LENGTH);

	expect_ok(pier_channel_write(hub->from[i], &source, 1, &target, PATIENT));
	image_copy(&world->b.area, place_of(i, 1), &world->a.area, place_of(i, 0),
		   LENGTH);
}

static void write_through_all_but(struct hub *hub, int missing)
{
	for (int i = 0; i < PAIRS; i++) {
		if (i != missing)
			write_through(hub, i);
	}
}

/* The thread of the sending channels and their queue. It must not assert. */
struct sender {
	struct hub *hub;
	struct pier_gather sources[PAIRS][RECEIVES];
	int error;
};

static void *send_to_all(void *argument)
{
	struct sender *sender = argument;

	for (int n = 0; n < PAIRS * MESSAGES && !sender->error; n++)
		sender->error = pier_channel_send(
			sender->hub->from[n % PAIRS],
			&sender->sources[n % PAIRS][n / PAIRS % RECEIVES], 1, PATIENT);
	return NULL;
}

struct receiver {
	struct pier_work posted[RECEIVES];
	int done;
};

static void post_receive(struct hub *hub, struct receiver *receiver, int i, int number)
{
	struct pier_scatter target = scatter_at(&hub->world->b.area, place_of(i, number),
						LENGTH);

	expect_ok(pier_channel_post_recv(hub->to[i], &target, 1,
					 &receiver->posted[number % RECEIVES]));
}

/* Take all messages that a channel has, and post their receives again. */
static int take_messages(struct hub *hub, struct receiver *receiver, int i)
{
	struct pier_result result;
	int before = receiver->done;

	while (receiver->done < MESSAGES &&
	       pier_work_poll(hub->to[i], receiver->posted[receiver->done % RECEIVES],
			      &result) == 1) {
		assert_int_equal(result.error, 0);
		assert_int_equal(result.byte_length, LENGTH);
		if (receiver->done + RECEIVES < MESSAGES)
			post_receive(hub, receiver, i, receiver->done + RECEIVES);
		receiver->done++;
	}
	return receiver->done - before;
}

/* Sleep until a channel has something, if pier_cq_arm() allows it. */
static void sleep_on_queue(struct pier_cq *cq)
{
	struct pollfd fd = { .fd = pier_cq_fd(cq), .events = POLLIN };
	int ready = pier_cq_arm(cq);

	assert_true(ready >= 0);
	if (ready == 0)
		assert_int_equal(poll(&fd, 1, PATIENT), 1);
}

/*
 * The channels are only looked at when pier_cq_poll() returns them, so a wake-up that is
 * lost ends the test.
 */
static void one_fd_wakes_for_every_channel(void **state)
{
	struct hub hub = open_hub(state);
	struct receiver receivers[PAIRS] = { 0 };
	struct sender sender = { .hub = &hub };
	struct pier_channel *ready[2];
	pthread_t thread;
	int left = PAIRS * MESSAGES;

	for (int i = 0; i < PAIRS; i++) {
		for (int n = 0; n < RECEIVES; n++) {
			sender.sources[i][n] = gather_at(&hub.world->a.area,
							 place_of(i, n), LENGTH);
			post_receive(&hub, &receivers[i], i, n);
		}
	}
	assert_int_equal(pthread_create(&thread, NULL, send_to_all, &sender), 0);
	while (left > 0) {
		int count = pier_cq_poll(hub.of_to, ready, 2);

		assert_true(count >= 0);
		for (int n = 0; n < count; n++) {
			int i = (int)(uintptr_t)pier_channel_context(ready[n]);

			assert_ptr_equal(ready[n], hub.to[i]);
			left -= take_messages(&hub, &receivers[i], i);
		}
		if (count == 0 && left > 0)
			sleep_on_queue(hub.of_to);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(sender.error, 0);
	image_copy(&hub.world->b.area, 0, &hub.world->a.area, 0,
		   (size_t)PAIRS * RECEIVES * LENGTH);
	close_hub(&hub);
}

static void every_waiting_mode_completes_beside_others(void **state)
{
	static const enum pier_waiting ways[] = { PIER_WAIT_POLL, PIER_WAIT_EVENT,
						  PIER_WAIT_ADAPTIVE };
	struct hub hub = open_hub(state);

	for (size_t way = 0; way < 3; way++) {
		for (int i = 0; i < PAIRS; i++)
			expect_ok(pier_channel_set_waiting(hub.from[i], ways[way], 20));
		for (int round = 0; round < 5; round++)
			write_through_all_but(&hub, -1);
	}
	close_hub(&hub);
}

/* More requests than the channel that fails can complete in one poll. */
static void failing_channel_does_not_disturb_others(void **state)
{
	struct hub hub = open_hub(state);
	struct world *world = hub.world;
	struct pier_gather source = gather_at(&world->a.area, 0, LENGTH);
	struct pier_remote refused = remote_at(&world->b.area, 0, LENGTH);
	struct pier_remote target = remote_at(&world->b.area, place_of(1, 2), LENGTH);
	struct pier_work failing[16], good;
	struct pier_result result = { 0 };
	int found;

	refused.addr = UINT64_MAX - 2 * LENGTH;
	for (int n = 0; n < 16; n++)
		expect_ok(pier_channel_post_write(hub.from[0], &source, 1, &refused,
						  &failing[n]));
	expect_ok(pier_channel_post_write(hub.from[1], &source, 1, &target, &good));
	expect_end(hub.from[1], good, 0);
	image_copy(&world->b.area, place_of(1, 2), &world->a.area, 0, LENGTH);
	for (int n = 0; n < 16; n++) {
		found = test_work_finish(hub.from[0], failing[n], PATIENT, &result);
		assert_true(found < 0 && found == result.error);
	}
	assert_int_not_equal(pier_channel_error(hub.from[0], NULL, 0), 0);
	assert_int_equal(pier_channel_error(hub.from[1], NULL, 0), 0);
	write_through_all_but(&hub, 0);
	expect_ok(pier_channel_reset(hub.from[0]));
	expect_ok(pier_channel_reset(hub.to[0]));
	connect_pair(&hub, 0);
	write_through_all_but(&hub, -1);
	close_hub(&hub);
}

/* It has requests outstanding, and completions that nobody has polled. */
static void destroyed_channel_makes_room(void **state)
{
	struct hub hub = open_hub(state);
	struct world *world = hub.world;
	struct pier_gather source = gather_at(&world->a.area, 0, LENGTH);
	struct pier_remote target = remote_at(&world->b.area, place_of(0, 3), LENGTH);
	struct pier_scatter place = scatter_at(&world->b.area, place_of(0, 2), LENGTH);
	struct pier_channel_attr attr = attr_in(hub.of_from, 0);
	struct pier_channel *more[MORE] = { NULL };
	int fit = 0, again = 0;

	/* A device may round the depth up. */
	while (fit < MORE && pier_channel_create(world->a.pd, &attr, &more[fit]) == 0)
		fit++;
	for (int i = 0; i < fit; i++)
		expect_ok(pier_channel_destroy(more[i]));
	for (int round = 0; round < 5; round++) {
		for (int n = 0; n < 8; n++) {
			expect_ok(pier_channel_post_recv(hub.to[0], &place, 1, NULL));
			expect_ok(pier_channel_post_write(hub.from[0], &source, 1,
							  &target, NULL));
		}
		write_through(&hub, 1);
		remove_pair(&hub, 0);
		write_through_all_but(&hub, 0);
		add_pair(&hub, 0, NULL);
		/* The last one is done, so nothing of the earlier ones arrives now. */
		write_through(&hub, 0);
	}
	while (again < MORE && pier_channel_create(world->a.pd, &attr, &more[again]) == 0)
		again++;
	assert_int_equal(again, fit);
	for (int i = 0; i < again; i++)
		expect_ok(pier_channel_destroy(more[i]));
	/* Whether the writes of a destroyed channel arrived is not defined. */
	expect_ok(pier_buffer_copy_to(world->b.area.buffer, place_of(0, 3),
				      world->b.area.image + place_of(0, 3), LENGTH));
	close_hub(&hub);
}

static void reset_channel_keeps_others(void **state)
{
	struct hub hub = open_hub(state);
	struct pier_scatter place = scatter_at(&hub.world->b.area, place_of(2, 2),
					       LENGTH);
	struct pier_work old[2], other;

	for (int round = 0; round < 5; round++) {
		expect_ok(pier_channel_post_recv(hub.to[1], &place, 1, &other));
		for (int n = 0; n < 2; n++)
			expect_ok(pier_channel_post_recv(hub.to[2], &place, 1, &old[n]));
		expect_ok(pier_channel_reset(hub.to[2]));
		expect_ok(pier_channel_reset(hub.from[2]));
		for (int n = 0; n < 2; n++)
			expect_end(hub.to[2], old[n], -ECANCELED);
		connect_pair(&hub, 2);
		write_through_all_but(&hub, -1);
		expect_ok(pier_channel_send(hub.from[1], NULL, 0, PATIENT));
		expect_end(hub.to[1], other, 0);
	}
	close_hub(&hub);
}

static void expect_message(struct hub *hub, int i, uintptr_t number)
{
	struct pier_result result = { 0 };

	expect_result(pier_message_wait(hub->to[i], PATIENT, &result), 1);
	assert_int_equal((uintptr_t)result.context, number);
	assert_int_equal(result.byte_length, LENGTH);
}

/* Both queues are shared: a receive belongs to no channel before its message arrives. */
static void shared_receives_reach_their_channels(void **state)
{
	struct hub hub = empty_hub(state);
	struct world *world = hub.world;
	struct pier_srq_attr attr;
	struct pier_srq *srq;
	int error;

	pier_srq_attr_init(&attr);
	attr.max_wr = PAIRS;
	error = pier_srq_create(world->b.pd, &attr, &srq);
	if (error == -EOPNOTSUPP) {
		expect_ok(pier_cq_destroy(hub.of_from));
		expect_ok(pier_cq_destroy(hub.of_to));
		world_skip(pier_error_message());
	}
	expect_ok(error);
	for (int i = 0; i < PAIRS; i++)
		add_pair(&hub, i, srq);
	for (int i = PAIRS; i-- > 0;) {
		struct pier_gather source = gather_at(&world->a.area, place_of(i, 0),
						      LENGTH);
		struct pier_scatter target = scatter_at(&world->b.area, place_of(i, 0),
							LENGTH);

		expect_ok(pier_srq_post_recv(srq, &target, 1, (void *)(uintptr_t)i));
		expect_ok(pier_channel_send(hub.from[i], &source, 1, PATIENT));
		image_copy(&world->b.area, place_of(i, 0), &world->a.area, place_of(i, 0),
			   LENGTH);
	}
	for (int i = 0; i < PAIRS - 1; i++)
		expect_message(&hub, i, (uintptr_t)i);
	/* The message that nobody takes returns to the queue with its channel. */
	remove_pair(&hub, PAIRS - 1);
	for (int i = 1; i < PAIRS; i++)
		expect_ok(pier_srq_post_recv(srq, NULL, 0, NULL));
	expect_result(pier_srq_post_recv(srq, NULL, 0, NULL), -EAGAIN);
	add_pair(&hub, PAIRS - 1, srq);
	for (int i = 0; i < PAIRS; i++)
		remove_pair(&hub, i);
	expect_ok(pier_srq_destroy(srq));
	expect_ok(pier_cq_destroy(hub.of_from));
	expect_ok(pier_cq_destroy(hub.of_to));
	world_expect(world);
}

/* The sum of what arming reports. 0: the thread may sleep. */
static int arm_rails(const struct hub *hub)
{
	int collected = 0;

	for (int i = 0; i < PAIRS; i++) {
		int from = pier_channel_arm(hub->from[i]);
		int to = pier_channel_arm(hub->to[i]);

		assert_true(from >= 0 && to >= 0);
		collected += from + to;
	}
	return collected;
}

/* Both ends in one thread, which sleeps as <pier/transfer.h> documents. */
static void drive_transfer(const struct hub *hub, struct pier_transfer *transfer,
			   struct pier_receiver *receiver)
{
	struct pollfd fds[] = {
		{ .fd = pier_cq_fd(hub->of_from), .events = POLLIN },
		{ .fd = pier_cq_fd(hub->of_to), .events = POLLIN },
	};
	int sent = 0, came = 0;

	while (sent == 0 || came == 0) {
		sent = pier_transfer_progress(transfer);
		came = pier_receiver_progress(receiver);
		if (sent == 0 && came == 0 && arm_rails(hub) == 0)
			assert_true(poll(fds, 2, PATIENT) > 0);
	}
	assert_int_equal(sent, 1);
	assert_int_equal(came, 1);
}

/* What one rail collects for another is not lost. */
static void rails_share_a_queue(void **state)
{
	struct hub hub = open_hub(state);
	struct world *world = hub.world;
	struct pier_remote remote = remote_at(&world->b.area, 0, AREA_LENGTH);
	struct pier_rail rails[PAIRS];
	struct pier_receiver_rail receivers[PAIRS];
	struct pier_transfer_attr attr;
	struct pier_receiver_attr receiver_attr;
	struct pier_transfer *transfer;
	struct pier_receiver *receiver;

	for (int i = 0; i < PAIRS; i++) {
		rails[i] = (struct pier_rail){ .channel = hub.from[i],
					       .mr = world->a.area.mr,
					       .offset = 100,
					       .parts = &remote,
					       .count = 1,
					       .remote_offset = 5000 };
		receivers[i] = (struct pier_receiver_rail){ .channel = hub.to[i],
							    .mr = world->b.area.mr,
							    .offset = 5000 };
	}
	pier_receiver_attr_init(&receiver_attr);
	receiver_attr.rails = receivers;
	receiver_attr.rail_count = PAIRS;
	receiver_attr.length = BYTES;
	pier_transfer_attr_init(&attr);
	attr.rails = rails;
	attr.rail_count = PAIRS;
	attr.length = BYTES;
	attr.chunk = CHUNK;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	expect_ok(pier_receiver_create(&receiver_attr, &receiver));
	expect_ok(pier_transfer_create(&attr, &transfer));
	drive_transfer(&hub, transfer, receiver);
	expect_ok(pier_transfer_destroy(transfer));
	expect_ok(pier_receiver_destroy(receiver));
	image_copy(&world->b.area, 5000, &world->a.area, 100, BYTES);
	close_hub(&hub);
}

int run_shared_queue_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(one_fd_wakes_for_every_channel),
		world_case(every_waiting_mode_completes_beside_others),
		world_case(failing_channel_does_not_disturb_others),
		world_case(destroyed_channel_makes_room),
		world_case(reset_channel_keeps_others),
		world_case(shared_receives_reach_their_channels),
		world_case(rails_share_a_queue),
	};

	return cmocka_run_group_tests_name("shared queues", cases, NULL, NULL);
}
