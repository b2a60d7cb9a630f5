/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The thread rules of channels, shared receive queues and receive pools, on soft0 and
 * for the thread sanitizer: everything that the headers allow happens at once.
 */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <pier/pier.h>

#include "channel/recv/srq.h"

enum {
	PAIRS = 3,
	SLOTS = 16,
	LENGTH = 256,
	MESSAGES = 400, /* of each pair */
	TIME_MS = 60000,
	PIECE = 64,
	MEMORY = 4096,
};

/* Threads do not assert: the first failure is kept, and reported at the end. */
struct world {
	struct test_census before;
	struct pier_device *devices[2];
	struct pier_pd *pds[2];
	struct pier_channel *from[PAIRS], *to[PAIRS];
	struct pier_srq *srq;
	struct pier_mr *slots_mr;
	uint8_t slots[SLOTS * LENGTH];
	atomic_int failures;
	atomic_bool done;
};

#define CHECK(world, condition)                                                \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, \
				#condition, pier_error_message());             \
			atomic_fetch_add(&(world)->failures, 1);               \
		}                                                              \
	} while (0)

static void open_world(struct world *world)
{
	memset(world, 0, sizeof(*world));
	world->before = test_take_census();
	for (int i = 0; i < 2; i++) {
		expect_ok(pier_device_open("soft0", &world->devices[i]));
		expect_ok(pier_pd_alloc(world->devices[i], &world->pds[i]));
	}
	expect_ok(pier_mr_reg(world->pds[1], world->slots, sizeof(world->slots),
			      PIER_ACCESS_LOCAL_WRITE, &world->slots_mr));
}

static void close_world(struct world *world)
{
	assert_int_equal(atomic_load(&world->failures), 0);
	expect_ok(pier_mr_dereg(world->slots_mr));
	for (int i = 0; i < 2; i++) {
		expect_ok(pier_pd_dealloc(world->pds[i]));
		expect_ok(pier_device_close(world->devices[i]));
	}
	test_assert_census(&world->before);
}

static struct pier_channel_attr patient_attr(void)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.rnr_retry_count = 7;
	attr.min_rnr_timer = 1;
	attr.max_send_sge = attr.max_recv_sge = 1;
	return attr;
}

/* In any thread. */
static int make_pair(struct world *world, struct pier_srq *srq,
		     struct pier_channel **ret_from, struct pier_channel **ret_to)
{
	struct pier_channel_attr attr = patient_attr();
	struct pier_endpoint from, to;
	int error = pier_channel_create(world->pds[0], &attr, ret_from);

	attr.srq = srq;
	if (!error)
		error = pier_channel_create(world->pds[1], &attr, ret_to);
	if (!error)
		error = pier_channel_endpoint(*ret_from, &from);
	if (!error)
		error = pier_channel_endpoint(*ret_to, &to);
	if (!error)
		error = pier_channel_connect(*ret_from, &to);
	return error ? error : pier_channel_connect(*ret_to, &from);
}

static void make_pairs(struct world *world, struct pier_srq *srq)
{
	for (int i = 0; i < PAIRS; i++)
		expect_ok(make_pair(world, srq, &world->from[i], &world->to[i]));
}

static void destroy_pairs(struct world *world)
{
	for (int i = 0; i < PAIRS; i++) {
		expect_ok(pier_channel_destroy(world->to[i]));
		expect_ok(pier_channel_destroy(world->from[i]));
	}
}

struct task {
	struct world *world;
	int number;
	struct pier_recv_pool *pool;
	pthread_mutex_t *lock;
};

static uint32_t length_of(int pair, uint32_t number)
{
	return (number * 7 + (uint32_t)pair) % PIECE + 1;
}

static uint8_t byte_of(int pair, uint32_t number)
{
	return (uint8_t)(number * 3 + (uint32_t)pair);
}

/* From memory that is registered for each message. */
static int send_one(struct world *world, int pair, uint32_t number, uint8_t *bytes)
{
	uint32_t length = length_of(pair, number);
	struct pier_gather source;
	struct pier_mr *mr;
	int error = pier_mr_reg(world->pds[0], bytes, PIECE, 0, &mr);

	if (error)
		return error;
	memset(bytes, byte_of(pair, number), length);
	error = pier_mr_gather(mr, pier_mr_iova(mr), length, &source);
	if (!error)
		error = test_channel_send_imm(world->from[pair], &source, 1, number,
					      TIME_MS);
	return error ? error : pier_mr_dereg(mr);
}

static void *send_all(void *argument)
{
	struct task *task = argument;
	uint8_t bytes[PIECE];
	int error = 0;

	for (uint32_t i = 0; i < MESSAGES && !error; i++)
		error = send_one(task->world, task->number, i, bytes);
	CHECK(task->world, error == 0);
	return NULL;
}

static bool is_right(int pair, uint32_t number, const uint8_t *bytes, uint32_t length,
		     uint32_t immediate)
{
	bool right = immediate == number && length == length_of(pair, number);

	for (uint32_t i = 0; i < length && right; i++)
		right = bytes[i] == byte_of(pair, number);
	return right;
}

static int post_slot(struct world *world, uint8_t *slot)
{
	struct pier_scatter element;
	int error = pier_mr_scatter(world->slots_mr, (uintptr_t)slot, LENGTH, &element);

	return error ? error : pier_srq_post_recv(world->srq, &element, 1, slot);
}

/* One channel of the queue; other channels may get the receives that it posts. */
static void *receive_all(void *argument)
{
	struct task *task = argument;
	struct world *world = task->world;
	struct pier_result result;
	int error = 0;

	for (uint32_t i = 0; i < MESSAGES && !error; i++) {
		error = pier_message_wait(world->to[task->number], TIME_MS, &result);
		if (error != 1)
			break;
		CHECK(world, is_right(task->number, i, result.context, result.byte_length,
				      result.immediate));
		error = post_slot(world, result.context);
	}
	CHECK(world, error == 0);
	return NULL;
}

/* Channels come and go with messages that nobody has taken. */
static void *come_and_go(void *argument)
{
	struct task *task = argument;
	struct world *world = task->world;
	struct pier_channel *from, *to;

	while (!atomic_load(&world->done)) {
		CHECK(world, make_pair(world, world->srq, &from, &to) == 0);
		CHECK(world, pier_channel_send(from, NULL, 0, TIME_MS) == 0);
		CHECK(world, pier_channel_destroy(to) == 0);
		CHECK(world, pier_channel_destroy(from) == 0);
	}
	return NULL;
}

/* Regions that others post with, and other regions. */
static void *deregister(void *argument)
{
	struct task *task = argument;
	struct world *world = task->world;
	struct pier_mr *mr;
	uint8_t bytes[PIECE];

	while (!atomic_load(&world->done)) {
		CHECK(world, pier_mr_dereg(world->slots_mr) == -EBUSY);
		CHECK(world,
		      pier_mr_reg(world->pds[1], bytes, sizeof(bytes), 0, &mr) == 0);
		CHECK(world, pier_mr_dereg(mr) == 0);
	}
	return NULL;
}

static void start(pthread_t *thread, void *(*body)(void *), struct task *task)
{
	assert_int_equal(pthread_create(thread, NULL, body, task), 0);
}

static void join(pthread_t *threads, int count)
{
	for (int i = 0; i < count; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void threads_share_a_receive_queue(void **state)
{
	static struct world world;
	struct pier_srq_attr attr;
	pthread_t threads[2 * PAIRS], others[2];
	struct task tasks[2 * PAIRS], other = { .world = &world };

	pier_srq_attr_init(&attr);
	(void)state;
	open_world(&world);
	attr.max_wr = SLOTS;
	expect_ok(pier_srq_create(world.pds[1], &attr, &world.srq));
	for (int i = 0; i < SLOTS; i++)
		expect_ok(post_slot(&world, world.slots + (size_t)i * LENGTH));
	make_pairs(&world, world.srq);
	start(&others[0], come_and_go, &other);
	start(&others[1], deregister, &other);
	for (int i = 0; i < 2 * PAIRS; i++) {
		tasks[i] = (struct task){ .world = &world, .number = i / 2 };
		start(&threads[i], i % 2 ? receive_all : send_all, &tasks[i]);
	}
	join(threads, 2 * PAIRS);
	atomic_store(&world.done, true);
	join(others, 2);
	assert_int_equal(world.srq->used, SLOTS);
	destroy_pairs(&world);
	expect_ok(pier_srq_destroy(world.srq));
	close_world(&world);
}

/* A message is read without the lock. */
static bool is_plain(const struct pier_pool_message *message)
{
	const uint8_t *bytes = message->pointer;
	bool plain = message->length >= 1 && message->length <= PIECE;

	for (uint32_t i = 1; plain && i < message->length; i++)
		plain = bytes[i] == bytes[0];
	return plain;
}

/* The next message, unless all were taken. The caller holds the lock. */
static bool take_next(struct task *task, struct pier_pool_message *ret_message)
{
	int done;

	if (task->number == PAIRS * MESSAGES)
		return false;
	done = pier_recv_pool_wait(task->pool, TIME_MS, ret_message);
	CHECK(task->world, done == 1);
	CHECK(task->world, ret_message->sequence == (uint64_t)task->number);
	task->number++;
	return done == 1;
}

/* The pool moves to another thread after every message. */
static void *take_turns(void *argument)
{
	struct task *task = argument;
	struct pier_pool_message message;
	bool more;

	for (;;) {
		pthread_mutex_lock(task->lock);
		more = take_next(task, &message);
		pthread_mutex_unlock(task->lock);
		if (!more)
			return NULL;
		CHECK(task->world, is_plain(&message));
		pthread_mutex_lock(task->lock);
		CHECK(task->world, pier_recv_pool_release(task->pool, &message) == 0);
		pthread_mutex_unlock(task->lock);
	}
}

/* Many senders, and a pool whose threads take turns under a mutex. */
static void threads_share_a_pool_under_a_mutex(void **state)
{
	static struct world world;
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct pier_recv_pool_attr attr;
	struct task senders[PAIRS], taker = { .world = &world, .lock = &lock };
	pthread_t threads[PAIRS], takers[2];

	pier_recv_pool_attr_init(&attr);
	(void)state;
	open_world(&world);
	attr.count = SLOTS;
	attr.length = LENGTH;
	expect_ok(pier_recv_pool_create(world.pds[1], &attr, &taker.pool));
	make_pairs(&world, pier_recv_pool_srq(taker.pool));
	for (int i = 0; i < PAIRS; i++) {
		senders[i] = (struct task){ .world = &world, .number = i };
		start(&threads[i], send_all, &senders[i]);
	}
	for (int i = 0; i < 2; i++)
		start(&takers[i], take_turns, &taker);
	join(threads, PAIRS);
	join(takers, 2);
	destroy_pairs(&world);
	expect_ok(pier_recv_pool_destroy(taker.pool));
	close_world(&world);
}

/* Each step in another thread: create, connect, receive, destroy. */
static void *receive_one(void *argument)
{
	struct task *task = argument;
	struct pier_pool_message message;

	CHECK(task->world, pier_recv_pool_wait(task->pool, TIME_MS, &message) == 1);
	CHECK(task->world, is_right(0, (uint32_t)task->number, message.pointer,
				    message.length, message.result.immediate));
	CHECK(task->world, pier_recv_pool_release(task->pool, &message) == 0);
	return NULL;
}

static void *make_first_pair(void *argument)
{
	struct task *task = argument;
	struct world *world = task->world;
	struct pier_recv_pool_attr attr;

	pier_recv_pool_attr_init(&attr);
	attr.count = 5;
	attr.length = LENGTH;
	CHECK(world, make_pair(world, NULL, &world->from[0], &world->to[0]) == 0);
	CHECK(world, test_recv_pool_create(world->pds[1], world->to[0], &attr,
					   &task->pool) == 0);
	return NULL;
}

static void *destroy_first_pair(void *argument)
{
	struct task *task = argument;

	CHECK(task->world, pier_recv_pool_destroy(task->pool) == 0);
	CHECK(task->world, pier_channel_destroy(task->world->to[0]) == 0);
	CHECK(task->world, pier_channel_destroy(task->world->from[0]) == 0);
	return NULL;
}

static void channel_moves_between_joined_threads(void **state)
{
	static struct world world;
	struct task task = { .world = &world };
	uint8_t bytes[PIECE];
	pthread_t thread;

	(void)state;
	open_world(&world);
	start(&thread, make_first_pair, &task);
	join(&thread, 1);
	for (; task.number < 50; task.number++) {
		expect_ok(send_one(&world, 0, (uint32_t)task.number, bytes));
		start(&thread, receive_one, &task);
		join(&thread, 1);
	}
	start(&thread, destroy_first_pair, &task);
	join(&thread, 1);
	close_world(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_share_a_receive_queue),
		cmocka_unit_test(threads_share_a_pool_under_a_mutex),
		cmocka_unit_test(channel_moves_between_joined_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
