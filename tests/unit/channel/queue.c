/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"

#include "channel/queue.h"

enum {
	DEPTH = 3, /* in a ring of four */
	SGE = 3,
};

static struct pier_queue queue_from(uint64_t first)
{
	struct pier_queue queue;

	assert_int_equal(pier_init_queue(&queue, DEPTH, SGE, first), 0);
	return queue;
}

static struct pier_entry *post(struct pier_queue *queue, bool watched,
			       enum pier_opcode opcode, uint32_t lkey)
{
	const struct ibv_sge list[SGE] = { { 1, 0, 99 }, { 1, 4, 98 }, { 1, 4, lkey } };
	struct pier_entry *entry = pier_queue_entry(queue, queue->head);

	assert_true(pier_queue_make_free(queue, queue->head));
	pier_queue_note(queue, entry, queue->head, watched, opcode, list, SGE, 5, NULL);
	pier_queue_posted(queue, queue->head + 1);
	return entry;
}

static void finish(struct pier_queue *queue, struct pier_entry *entry,
		   uint32_t byte_length)
{
	const struct pier_result result = { .byte_length = byte_length };

	pier_queue_done(queue, entry->id);
	pier_queue_keep(queue, entry, &result);
}

static void completion_covers_earlier_requests(void **state)
{
	struct pier_queue queue = queue_from((UINT64_C(1) << 61) - 2);

	(void)state;
	for (int round = 0; round < 100; round++) {
		assert_int_equal(pier_queue_room(&queue), DEPTH);
		for (uint32_t i = 0; i < DEPTH; i++)
			post(&queue, false, PIER_OP_WRITE, i);
		assert_int_equal(pier_queue_room(&queue), 0);
		pier_queue_done(&queue, queue.head - 2);
		assert_int_equal(pier_queue_outstanding(&queue), 1);
		/* A late completion changes nothing. */
		pier_queue_done(&queue, queue.head - 3);
		assert_int_equal(pier_queue_outstanding(&queue), 1);
		pier_queue_done(&queue, queue.head - 1);
	}
	pier_free_queue(&queue);
}

static void finds_watched_requests(void **state)
{
	struct pier_queue queue = queue_from(100);
	struct pier_entry *entry;

	(void)state;
	assert_null(pier_queue_find(&queue, 100)); /* not posted yet */
	entry = post(&queue, true, PIER_OP_SEND, 1);
	assert_ptr_equal(pier_queue_find(&queue, 100), entry);
	assert_null(pier_queue_find(&queue, 96)); /* with the same place in the ring */
	assert_null(pier_queue_find(&queue, 100 | PIER_ID_RECEIVE));
	post(&queue, false, PIER_OP_SEND, 1);
	assert_null(pier_queue_find(&queue, 101));
	finish(&queue, entry, 0);
	assert_int_equal(queue.kept, 1);
	assert_ptr_equal(pier_queue_find(&queue, 100), entry);
	pier_queue_forget(&queue, entry);
	assert_int_equal(queue.kept, 0);
	assert_null(pier_queue_find(&queue, 100));
	pier_free_queue(&queue);
}

/* Results that nobody asks for survive the wrap-around, up to a limit. */
static void sets_results_aside(void **state)
{
	struct pier_queue queue = queue_from(0);
	uint64_t id;

	(void)state;
	for (id = 0; id < DEPTH + 4; id++) {
		struct pier_entry *entry = post(&queue, true, PIER_OP_SEND, 1);

		finish(&queue, entry, (uint32_t)(1000 + id));
	}
	assert_false(pier_queue_make_free(&queue, queue.head));
	for (id = 0; id < DEPTH + 4; id++)
		assert_int_equal(pier_queue_find(&queue, id)->result.byte_length,
				 1000 + id);
	/* The first of three, then the last, then the middle one. */
	pier_queue_forget(&queue, pier_queue_find(&queue, 0));
	assert_null(pier_queue_find(&queue, 0));
	assert_true(pier_queue_make_free(&queue, queue.head));
	assert_int_equal(pier_queue_find(&queue, 3)->result.byte_length, 1003);
	pier_queue_forget(&queue, pier_queue_find(&queue, 3));
	pier_queue_forget(&queue, pier_queue_find(&queue, 2));
	assert_int_equal(pier_queue_find(&queue, 1)->result.byte_length, 1001);
	pier_queue_forget(&queue, pier_queue_find(&queue, 1));
	assert_int_equal(queue.aside_count, 0);
	assert_int_equal(queue.kept, 3);
	for (id = 4; id < DEPTH + 4; id++)
		assert_int_equal(pier_queue_find(&queue, id)->result.byte_length,
				 1000 + id);
	pier_free_queue(&queue);
}

static void lists_keys_of_outstanding_requests(void **state)
{
	const struct ibv_sge one = { 1, 1, 77 }, none = { 1, 0, 78 };
	struct pier_queue queue = queue_from(41);
	enum pier_opcode opcode = 0;

	(void)state;
	post(&queue, false, PIER_OP_WRITE, 10);
	post(&queue, false, PIER_OP_READ, 11);
	assert_true(pier_queue_uses(&queue, 11, &opcode));
	assert_int_equal(opcode, PIER_OP_READ);
	assert_true(pier_queue_uses(&queue, 10, &opcode));
	assert_int_equal(opcode, PIER_OP_WRITE);
	assert_true(pier_queue_uses(&queue, 98, &opcode));
	assert_false(pier_queue_uses(&queue, 99, &opcode)); /* without bytes */
	pier_queue_done(&queue, 41);
	assert_false(pier_queue_uses(&queue, 10, &opcode));
	assert_true(pier_queue_uses(&queue, 11, &opcode));
	pier_queue_done(&queue, 42);
	assert_false(pier_queue_uses(&queue, 11, &opcode));
	pier_queue_note(&queue, pier_queue_entry(&queue, 43), 43, false, PIER_OP_SEND,
			&one, 1, 0, NULL);
	assert_false(pier_queue_uses(&queue, 77, &opcode)); /* not posted yet */
	pier_queue_posted(&queue, 44);
	assert_true(pier_queue_uses(&queue, 77, &opcode));
	pier_queue_note(&queue, pier_queue_entry(&queue, 44), 44, false, PIER_OP_SEND,
			&none, 1, 0, NULL);
	pier_queue_posted(&queue, 45);
	assert_false(pier_queue_uses(&queue, 78, &opcode));
	pier_free_queue(&queue);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(completion_covers_earlier_requests),
		cmocka_unit_test(finds_watched_requests),
		cmocka_unit_test(sets_results_aside),
		cmocka_unit_test(lists_keys_of_outstanding_requests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
