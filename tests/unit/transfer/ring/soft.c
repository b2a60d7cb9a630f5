/* SPDX-License-Identifier: BSD-3-Clause */
/* Rings whose slots are filled over soft0. */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "../soft_fixture.h"

enum {
	SLOTS = 4,
	SLOT_SIZE = 300000, /* not a multiple of anything */
	MANY = 200,	    /* reads; a send queue has room for 16 */
};

/* Source n is the peer's memory through channel n. */
static struct pier_ring_source sources[MAX_RAILS];
static struct pier_ring *ring;
static uint8_t image[SLOTS][SLOT_SIZE]; /* the expected contents of the slots */

static void make_ring(struct pair *pair, uint32_t channels)
{
	struct pier_ring_attr attr;

	pier_ring_attr_init(&attr);
	attr.spec = "memfd";
	attr.slots = SLOTS;
	attr.slot_size = SLOT_SIZE;
	expect_ok(pier_ring_create(pair->here.pd, &attr, &ring));
	for (uint32_t i = 0; i < channels; i++) {
		connect_rail(pair, i);
		sources[i] = (struct pier_ring_source){ pair->here.channels[i],
							pair->parts, PARTS };
	}
	memset(image, 0, sizeof(image));
}

static int setup_ring(void **state)
{
	setup(state);
	make_ring(*state, 2);
	return 0;
}

static int teardown_ring(void **state)
{
	expect_ok(pier_ring_destroy(ring));
	ring = NULL;
	return teardown(state);
}

/* Reads that follow each other in the slot, with gaps, from anywhere. */
static void choose_reads(struct pair *pair, uint32_t count, uint32_t source_count,
			 struct pier_ring_read *reads)
{
	uint64_t offset = 0, room = SLOT_SIZE / (count ? count : 1);

	for (uint32_t i = 0; i < count; i++) {
		uint64_t length = test_random_below(&pair->random, room);

		reads[i] = (struct pier_ring_read){
			.offset = offset,
			.length = (uint32_t)length,
			.source = (uint32_t)test_random_below(&pair->random,
							      source_count),
			.remote_offset = test_random_below(&pair->random, AREA - length),
		};
		offset += room;
	}
}

static void note_reads(struct pair *pair, uint32_t number,
		       const struct pier_ring_read *reads, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		memcpy(image[number] + reads[i].offset,
		       pair->there.memory + reads[i].remote_offset, reads[i].length);
}

/* Begin a fill of `count` random reads. Returns the number of the slot. */
static uint32_t begin(struct pair *pair, uint32_t count, uint32_t source_count)
{
	struct pier_ring_read reads[MANY] = { 0 };
	uint32_t number;

	choose_reads(pair, count, source_count, reads);
	expect_ok(pier_ring_fill(ring, sources, source_count, reads, count, &number));
	note_reads(pair, number, reads, count);
	return number;
}

static struct pier_ring_slot next(void)
{
	struct pier_ring_slot slot;

	expect_result(pier_ring_next(ring, PATIENT, &slot), 1);
	assert_int_equal(slot.error, 0);
	assert_int_equal(slot.missing, 0);
	return slot;
}

static struct pier_ring_status ring_status(void)
{
	struct pier_ring_status status;

	pier_ring_query(ring, &status, sizeof(status));
	return status;
}

static void expect_slots(void)
{
	const uint8_t *memory;
	void *pointer;

	expect_ok(pier_buffer_map(ring_status().buffer, &pointer));
	memory = pointer;
	for (uint32_t i = 0; i < SLOTS; i++)
		if (memcmp(memory + i * SLOT_SIZE, image[i], SLOT_SIZE) != 0)
			fail_msg("slot %u has other bytes", i);
}

static void fills_slots_with_any_number_of_reads(void **state)
{
	static const uint32_t counts[] = { 0, 1, 2, 15, 16, 17, 31, 32, 33, 64, MANY };
	struct pair *pair = *state;

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		uint32_t number = begin(pair, counts[i], 2);
		struct pier_ring_slot slot = next();

		assert_int_equal(slot.number, number);
		assert_int_equal(slot.reads, counts[i]);
		assert_int_equal(slot.sequence, i);
		assert_ptr_equal(slot.iova, pier_mr_iova(ring_status().mr) + slot.offset);
		assert_memory_equal(slot.pointer, image[number], SLOT_SIZE);
		expect_slots();
		expect_ok(pier_ring_release(ring, &slot));
	}
	expect_image(&pair->there, pair->target);
}

/* Many reads on the first channel, few on the second, whose slot is filled first. */
static void returns_slots_in_the_order_of_their_beginning(void **state)
{
	struct pair *pair = *state;
	struct pier_ring_read reads[MANY], one = { .length = 1, .source = 1 };
	struct pier_ring_slot slots[SLOTS];
	uint32_t numbers[SLOTS];

	for (int round = 0; round < 10; round++) {
		for (uint32_t i = 0; i < SLOTS; i++) {
			bool long_fill = i % 2 == 0;

			choose_reads(pair, MANY, 1, reads);
			expect_ok(pier_ring_fill(ring, sources, 2,
						 long_fill ? reads : &one,
						 long_fill ? MANY : 1, &numbers[i]));
			note_reads(pair, numbers[i], long_fill ? reads : &one,
				   long_fill ? MANY : 1);
		}
		expect_result(pier_ring_fill(ring, sources, 2, &one, 1, NULL), -EAGAIN);
		for (uint32_t i = 0; i < SLOTS; i++) {
			slots[i] = next();
			assert_int_equal(slots[i].number, numbers[i]);
			assert_int_equal(slots[i].sequence, round * SLOTS + i);
		}
		expect_slots();
		/* In another order than they were taken. */
		for (uint32_t i = 0; i < SLOTS; i++)
			expect_ok(pier_ring_release(ring, &slots[(i + 2) % SLOTS]));
	}
}

/* A slot has an owner until it is released, once, with the handle of this fill. */
static void released_slots_are_filled_again(void **state)
{
	struct pair *pair = *state;
	struct pier_ring_slot slot, other;
	uint32_t first = begin(pair, 3, 1);

	slot = next();
	for (uint32_t i = 1; i < SLOTS; i++)
		begin(pair, 3, 1);
	expect_result(pier_ring_fill(ring, sources, 1, NULL, 0, NULL), -EAGAIN);
	other = slot;
	other.sequence++;
	expect_result(pier_ring_release(ring, &other), -ESTALE);
	expect_result(pier_ring_release(ring, NULL), -EINVAL);
	expect_ok(pier_ring_release(ring, &slot));
	expect_result(pier_ring_release(ring, &slot), -ESTALE);
	assert_int_equal(begin(pair, 3, 1), first);
	expect_result(pier_ring_release(ring, &slot), -ESTALE);
	for (uint32_t i = 0; i < SLOTS; i++) {
		slot = next();
		expect_ok(pier_ring_release(ring, &slot));
	}
	expect_slots();
}

static void held_slots_keep_the_ring(void **state)
{
	struct pier_ring_slot slot;

	begin(*state, 3, 1);
	slot = next();
	expect_result(pier_ring_destroy(ring), -EBUSY);
	assert_non_null(strstr(pier_error_message(), "1 of its 4 slots"));
	expect_ok(pier_ring_release(ring, &slot));
}

/* Teardown destroys the ring, and the channel still works. */
static void can_be_destroyed_while_filling(void **state)
{
	struct pair *pair = *state;
	struct pier_scatter piece;

	for (uint32_t i = 0; i < SLOTS; i++)
		begin(pair, MANY, 2);
	expect_ok(pier_ring_destroy(ring));
	ring = NULL;
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(pier_channel_outstanding(pair->here.channels[i]), 0);
		expect_ok(pier_mr_scatter(pair->here.mr,
					  pier_buffer_address(pair->here.buffer), 8,
					  &piece));
		expect_ok(pier_channel_read(pair->here.channels[i], &piece, 1,
					    &pair->parts[0], PATIENT));
	}
}

static void next_needs_a_fill(void **state)
{
	struct pier_ring_slot slot;

	(void)state;
	expect_result(pier_ring_next(ring, PATIENT, &slot), -ENODATA);
	assert_int_equal(slot.error, 0);
	expect_result(pier_ring_next(ring, -7, &slot), -EINVAL);
}

/* The other end of a channel is gone: its fills fail, and continue elsewhere. */
static void failed_fills_continue_on_another_channel(void **state)
{
	struct pair *pair = *state;
	struct pier_ring_source replicas[2] = { sources[1], sources[1] };
	struct pier_ring_slot slot;
	uint32_t numbers[2], indices[MANY];

	numbers[0] = begin(pair, MANY, 1);
	expect_ok(pier_channel_destroy(pair->there.channels[0]));
	pair->there.channels[0] = NULL;
	numbers[1] = begin(pair, MANY, 1);
	for (int i = 0; i < 2; i++) {
		/* The error stays until the fill is continued. */
		for (int again = 0; again < 2; again++) {
			assert_true(pier_ring_next(ring, PATIENT, &slot) < 0);
			assert_true(slot.error < 0);
			assert_int_equal(slot.number, numbers[i]);
			assert_true(slot.missing > 0);
			expect_result(pier_ring_missing(ring, slot.number, indices, MANY),
				      (int)slot.missing);
		}
		expect_ok(pier_ring_retry(ring, slot.number, replicas, 2));
		expect_result(pier_ring_release(ring, &slot), -ESTALE);
		slot = next();
		assert_int_equal(slot.number, numbers[i]);
		assert_int_equal(slot.sequence, i);
		expect_result(pier_ring_retry(ring, slot.number, replicas, 2), -ENOENT);
		expect_ok(pier_ring_release(ring, &slot));
	}
	expect_slots();
}

/* The bytes that had arrived are not read again: the peer has changed them. */
static void only_missing_reads_are_repeated(void **state)
{
	struct pair *pair = *state;
	struct pier_ring_read reads[2] = {
		{ .length = 1000 },
		{ .offset = 1000, .remote_offset = 1000, .length = 1000, .source = 1 },
	};
	struct pier_ring_slot slot;
	uint32_t number, index;

	note_reads(pair, 0, reads, 2);
	expect_ok(pier_channel_destroy(pair->there.channels[1]));
	pair->there.channels[1] = NULL;
	expect_ok(pier_ring_fill(ring, sources, 2, reads, 2, &number));
	assert_true(pier_ring_next(ring, PATIENT, &slot) < 0);
	expect_result(pier_ring_missing(ring, number, &index, 1), 1);
	assert_int_equal(index, 1);
	memset(pair->there.memory, 0x55, 1000);
	/* Source 0 is not looked at. */
	sources[1].channel = sources[0].channel;
	sources[0].channel = NULL;
	expect_ok(pier_ring_retry(ring, number, sources, 2));
	slot = next();
	expect_slots();
	expect_ok(pier_ring_release(ring, &slot));
}

static void failed_fills_can_be_given_up(void **state)
{
	struct pair *pair = *state;
	const struct pier_ring_read one = { .length = 1, .source = 1 };
	struct pier_ring_status status;
	struct pier_ring_slot slot;
	uint32_t failed = begin(pair, MANY, 1), number;

	expect_ok(pier_channel_cancel(pair->here.channels[0]));
	expect_ok(pier_ring_fill(ring, sources, 2, &one, 1, &number));
	note_reads(pair, number, &one, 1);
	assert_true(pier_ring_next(ring, PATIENT, &slot) < 0);
	assert_int_equal(slot.number, failed);
	expect_ok(pier_ring_release(ring, &slot));
	pier_ring_query(ring, &status, sizeof(status));
	assert_int_equal(status.free, SLOTS - 1);
	expect_result(pier_ring_retry(ring, failed, sources, 1), -ENOENT);
	slot = next();
	assert_int_equal(slot.number, number);
	expect_ok(pier_ring_release(ring, &slot));
	pier_ring_query(ring, &status, sizeof(status));
	assert_int_equal(status.free, SLOTS);
	assert_int_equal(status.filling + status.ended + status.held + status.in_flight,
			 0);
}

static void refused_fills_take_no_slot(void **state)
{
	struct pair *pair = *state;
	const struct {
		struct pier_ring_read read;
		int error;
	} cases[] = {
		{ { .offset = SLOT_SIZE, .length = 1 }, -ERANGE },
		{ { .offset = UINT64_MAX, .length = 1 }, -ERANGE },
		{ { .offset = SLOT_SIZE + 1 }, -ERANGE },
		{ { .remote_offset = AREA, .length = 1 }, -ERANGE },
		{ { .remote_offset = AREA - 9, .length = 10 }, -ERANGE },
		{ { .remote_offset = UINT64_MAX, .length = 10 }, -ERANGE },
		{ { .length = 1, .source = 2 }, -ERANGE },
		{ { .length = 1, .source = 1 }, -EPIPE },
	};
	struct pier_ring_read reads[2] = { { .length = 1 } };
	struct pier_ring_status status;

	expect_ok(pier_channel_cancel(pair->here.channels[1]));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		reads[1] = cases[i].read;
		expect_result(pier_ring_fill(ring, sources, 2, reads, 2, NULL),
			      cases[i].error);
	}
	sources[1].channel = pair->there.channels[0];
	reads[1] = cases[7].read;
	expect_result(pier_ring_fill(ring, sources, 2, reads, 2, NULL), -EINVAL);
	pier_ring_query(ring, &status, sizeof(status));
	assert_int_equal(status.free, SLOTS);
	assert_int_equal(status.reads, 0);
	expect_slots();
}

static void impossible_attributes_are_refused(void **state)
{
	struct pair *pair = *state;
	struct pier_ring_attr attr, cases[9];
	struct pier_ring *other;
	struct pier_mr *read_only;
	static const int errors[] = { -EINVAL, -EINVAL, -ERANGE, -EINVAL, -EINVAL,
				      -EINVAL, -EINVAL, -ERANGE, -EACCES };

	expect_ok(pier_mr_reg_buffer(pair->here.pd, pair->here.buffer, 0, AREA,
				     PIER_ACCESS_LOCAL_READ, PIER_POLICY_DIRECT,
				     &read_only));
	pier_ring_attr_init(&attr);
	attr.slot_size = 4096;
	for (int i = 0; i < 9; i++)
		cases[i] = attr;
	cases[0].slots = 0;
	cases[1].slot_size = 0;
	cases[2].slot_size = UINT64_MAX / 2;
	cases[3].spec = NULL;
	cases[4].timeout_ms = 0;
	cases[5].stall_ms = 0;
	cases[6].mr = pair->there.mr;
	cases[7].mr = pair->here.mr;
	cases[7].offset = AREA - 4 * 4096 + 1;
	cases[8].mr = read_only;
	for (int i = 0; i < 9; i++)
		expect_result(pier_ring_create(pair->here.pd, &cases[i], &other),
			      errors[i]);
	attr.access = PIER_ACCESS_REMOTE_READ;
	expect_result(pier_ring_create(pair->here.pd, &attr, &other), -EINVAL);
	expect_ok(pier_mr_dereg(read_only));
}

/* The caller's region stays registered as long as the ring. */
static void slots_can_lie_in_a_given_region(void **state)
{
	struct pair *pair = *state;
	struct pier_ring_read read = { .offset = 5, .length = 100 };
	struct pier_ring_attr attr;
	struct pier_ring_slot slot;

	expect_ok(pier_ring_destroy(ring));
	pier_ring_attr_init(&attr);
	attr.mr = pair->here.mr;
	attr.offset = 333;
	attr.slots = 2;
	attr.slot_size = 4096;
	expect_ok(pier_ring_create(pair->here.pd, &attr, &ring));
	assert_null(ring_status().buffer);
	assert_ptr_equal(ring_status().mr, pair->here.mr);
	expect_result(pier_mr_dereg(pair->here.mr), -EBUSY);
	for (int i = 0; i < 2; i++) {
		expect_ok(pier_ring_fill(ring, sources, 1, &read, 1, NULL));
		slot = next();
		assert_null(slot.pointer);
		assert_int_equal(slot.offset, 333 + i * 4096);
		assert_int_equal(slot.length, 105);
		memcpy(pair->source + slot.offset + 5, pair->there.memory, 100);
		expect_image(&pair->here, pair->source);
		expect_ok(pier_ring_release(ring, &slot));
	}
}

static void can_be_driven_by_epoll(void **state)
{
	struct pair *pair = *state;
	int epoll = epoll_create1(EPOLL_CLOEXEC), collected;
	struct epoll_event event = { .events = EPOLLIN };

	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD,
					   pier_channel_fd(sources[i].channel), &event),
				 0);
	begin(pair, MANY, 2);
	while (pier_ring_progress(ring) == 0) {
		collected = 0;
		for (uint32_t i = 0; i < 2; i++)
			collected += pier_channel_arm(sources[i].channel);
		if (!collected)
			assert_true(epoll_wait(epoll, &event, 1, PATIENT) > 0);
	}
	close(epoll);
	expect_slots();
}

/* Channels of one completion queue, whose completions any call may collect. */
static void channels_may_share_a_completion_queue(void **state)
{
	struct pair *pair = *state;
	struct pier_channel *channels[2];
	struct pier_channel_attr attr;
	struct pier_endpoint mine, theirs;
	struct pier_ring_slot slot;
	struct pier_cq *cq;

	expect_ok(pier_cq_create(pair->here.pd, NULL, &cq));
	pier_channel_attr_init(&attr);
	attr.cq = cq;
	for (int i = 0; i < 2; i++) {
		struct pier_channel **there = &pair->there.channels[i];

		expect_ok(pier_channel_destroy(*there));
		expect_ok(pier_channel_create(pair->there.pd, NULL, there));
		expect_ok(pier_channel_create(pair->here.pd, &attr, &channels[i]));
		expect_ok(pier_channel_endpoint(channels[i], &mine));
		expect_ok(pier_channel_endpoint(*there, &theirs));
		expect_ok(pier_channel_connect(channels[i], &theirs));
		expect_ok(pier_channel_connect(*there, &mine));
		sources[i].channel = channels[i];
	}
	for (int round = 0; round < 20; round++) {
		begin(pair, MANY, 2);
		begin(pair, 3, 2);
		for (int i = 0; i < 2; i++) {
			slot = next();
			expect_ok(pier_ring_release(ring, &slot));
		}
		expect_slots();
	}
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_destroy(channels[i]));
	expect_ok(pier_cq_destroy(cq));
}

/* Consumers check their slots and release them, while this thread fills others. */
static struct {
	struct pier_ring_slot slots[1000];
	uint8_t expected[1000];
	sem_t count;
	atomic_int taken, wrong;
} work;

static void *consume_slots(void *argument)
{
	(void)argument;
	for (;;) {
		const struct pier_ring_slot *slot;
		const uint8_t *bytes;
		int index;

		sem_wait(&work.count);
		index = atomic_fetch_add(&work.taken, 1);
		if (index >= 1000)
			return NULL;
		slot = &work.slots[index];
		bytes = slot->pointer;
		for (uint32_t i = 0; i < slot->length; i++)
			work.wrong += bytes[i] != work.expected[index];
		work.wrong += pier_ring_release(ring, slot) != 0;
	}
}

/* Fills of 64 bytes, all of the same value, which is the number of the block. */
static void begin_block(int sequence)
{
	struct pier_ring_read reads[8];

	for (uint32_t i = 0; i < 8; i++)
		reads[i] = (struct pier_ring_read){
			.offset = i * 8,
			.remote_offset = (uint64_t)(sequence % 256) * 64 + i * 8,
			.length = 8,
			.source = i % 2,
		};
	expect_ok(pier_ring_fill(ring, sources, 2, reads, 8, NULL));
}

static bool has_free_slot(void)
{
	struct pier_ring_status status;

	pier_ring_query(ring, &status, sizeof(status));
	return status.free > 0;
}

static void slots_are_released_by_other_threads(void **state)
{
	struct pair *pair = *state;
	pthread_t threads[3];
	int begun = 0;

	for (int i = 0; i < 256; i++)
		memset(pair->there.memory + i * 64, i, 64);
	sem_init(&work.count, 0, 0);
	work.taken = work.wrong = 0;
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, consume_slots, NULL),
				 0);
	for (int done = 0; done < 1000; done++) {
		while (!has_free_slot())
			expect_result(pier_ring_wait(ring, PATIENT), 1);
		begin_block(begun++);
		work.slots[done] = next();
		work.expected[done] = (uint8_t)done;
		sem_post(&work.count);
	}
	for (int i = 0; i < 3; i++)
		sem_post(&work.count);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	sem_destroy(&work.count);
	assert_int_equal(work.wrong, 0);
}

static bool is_readable(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLIN };

	return poll(&look, 1, 0) == 1;
}

static void *wake_ring(void *argument)
{
	(void)argument;
	pier_ring_wake(ring);
	return NULL;
}

/* A release, a wake-up and a fill that ended are noticed once each, before or after. */
static void waits_end_for_each_reason(void **state)
{
	struct pier_ring_slot slot;
	pthread_t thread;

	begin(*state, 1, 1);
	expect_result(pier_ring_wait(ring, PATIENT), 1);
	expect_result(pier_ring_wait(ring, PATIENT), 1);
	slot = next();
	expect_result(pier_ring_wait(ring, 0), 0);
	expect_result(pier_ring_wait(ring, 20), -ETIMEDOUT);
	expect_result(pier_ring_wait(ring, -7), -EINVAL);
	expect_ok(pier_ring_release(ring, &slot));
	expect_result(pier_ring_wait(ring, PATIENT), 1);
	expect_result(pier_ring_wait(ring, 0), 0);
	expect_ok(pier_ring_wake(ring));
	expect_ok(pier_ring_wake(ring));
	assert_true(is_readable(pier_ring_fd(ring)));
	expect_result(pier_ring_wait(ring, 0), 1);
	assert_false(is_readable(pier_ring_fd(ring)));
	expect_result(pier_ring_wait(ring, 0), 0);
	assert_int_equal(pthread_create(&thread, NULL, wake_ring, NULL), 0);
	expect_result(pier_ring_wait(ring, PATIENT), 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
	expect_ok(pier_ring_wake(ring));
	expect_result(pier_ring_progress(ring), 1);
	assert_false(is_readable(pier_ring_fd(ring)));
}

/* What was not posted fails, what was posted arrives; both channels work. */
static void cancelled_fills_can_be_continued(void **state)
{
	struct pair *pair = *state;
	struct pier_ring_slot slot;
	int error;

	for (int i = 0; i < 3; i++)
		begin(pair, MANY, 2);
	expect_result(pier_ring_uses(ring, sources[0].channel), 1);
	expect_ok(pier_ring_cancel(ring));
	expect_result(pier_ring_uses(ring, sources[0].channel), 0);
	for (int i = 0; i < 3; i++) {
		error = pier_ring_next(ring, PATIENT, &slot);
		assert_int_equal(error, -ECANCELED);
		expect_ok(pier_ring_retry(ring, slot.number, sources, 2));
		slot = next();
		expect_ok(pier_ring_release(ring, &slot));
	}
	expect_slots();
}

#define ring_test(body) cmocka_unit_test_setup_teardown(body, setup_ring, teardown_ring)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ring_test(fills_slots_with_any_number_of_reads),
		ring_test(returns_slots_in_the_order_of_their_beginning),
		ring_test(released_slots_are_filled_again),
		ring_test(held_slots_keep_the_ring),
		ring_test(can_be_destroyed_while_filling),
		ring_test(next_needs_a_fill),
		ring_test(failed_fills_continue_on_another_channel),
		ring_test(only_missing_reads_are_repeated),
		ring_test(failed_fills_can_be_given_up),
		ring_test(refused_fills_take_no_slot),
		ring_test(impossible_attributes_are_refused),
		ring_test(slots_can_lie_in_a_given_region),
		ring_test(can_be_driven_by_epoll),
		ring_test(channels_may_share_a_completion_queue),
		ring_test(slots_are_released_by_other_threads),
		ring_test(waits_end_for_each_reason),
		ring_test(cancelled_fills_can_be_continued),
	};

	return cmocka_run_group_tests_name("ring_soft", tests, NULL, NULL);
}
