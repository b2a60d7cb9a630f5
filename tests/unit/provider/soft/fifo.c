/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/soft/engine.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"

/* The memory that two ends share, and the control messages beside it. */

static const struct fixture_options stepped = { .stepped = 1 };

static struct soft_link *link_of(const struct soft_fixture *fixture)
{
	return &((struct soft_qp *)fixture->qp)->link;
}

static struct soft_fifo *fifo_of(const struct soft_fixture *fixture)
{
	struct soft_fifo *fifo = link_of(fixture)->fifo;

	assert_non_null(fifo);
	return fifo;
}

/* As if this many bytes had gone through the FIFO in that direction. */
static void move_fifo(struct soft_fixture *from, struct soft_fixture *to,
		      uint64_t position)
{
	struct soft_direction *direction = fifo_of(from)->out;

	assert_int_equal(fifo_of(from)->put, fifo_of(to)->taken);
	fifo_of(from)->put = fifo_of(to)->taken = position;
	atomic_store(&direction->head, position);
	atomic_store(&direction->tail, position);
}

static void write_and_check(struct soft_fixture *a, struct soft_fixture *b,
			    const struct fixture_endpoint *to_b, uint32_t length,
			    unsigned int flags)
{
	memset(b->memory, 0, 1024);
	for (uint32_t i = 0; i < length; i++)
		a->memory[i] = (uint8_t)(i * 7 + length);
	assert_int_equal(fixture_post(a, IBV_WR_RDMA_WRITE, 1, 0, length, to_b, 100,
				      flags | IBV_SEND_SIGNALED),
			 0);
	fixture_expect(a, a->send_cq, b, 1, IBV_WC_SUCCESS);
	assert_int_equal(b->memory[99], 0);
	assert_memory_equal(b->memory + 100, a->memory, length);
	assert_int_equal(b->memory[100 + length], 0);
}

static void read_and_check(struct soft_fixture *a, struct soft_fixture *b,
			   const struct fixture_endpoint *to_b, uint32_t length)
{
	memset(a->memory, 0, 1024);
	for (uint32_t i = 0; i < length; i++)
		b->memory[i] = (uint8_t)(i * 5 + length);
	assert_int_equal(fixture_post(a, IBV_WR_RDMA_READ, 2, 100, length, to_b, 0,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(a, a->send_cq, b, 2, IBV_WC_SUCCESS);
	assert_int_equal(a->memory[99], 0);
	assert_memory_equal(a->memory + 100, b->memory, length);
	assert_int_equal(a->memory[100 + length], 0);
}

/* The end of the FIFO falls on each byte of a frame once, including the counter. */
static void wraps_at_every_byte(void **state)
{
	const uint64_t ends[] = { SOFT_FIFO_SIZE, 0 };
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &stepped);
	fixture_describe(&b, &to_b);
	for (int end = 0; end < 2; end++) {
		for (uint32_t k = 0; k <= SOFT_HEADER_SIZE + 60; k++) {
			move_fifo(&a, &b, ends[end] - k);
			write_and_check(&a, &b, &to_b, 60, IBV_SEND_INLINE);
			move_fifo(&a, &b, ends[end] - k);
			write_and_check(&a, &b, &to_b, 60, 0);
			move_fifo(&b, &a, ends[end] - k);
			read_and_check(&a, &b, &to_b, 60);
		}
	}
	fixture_close(&a);
	fixture_close(&b);
}

/* More than the FIFO holds, starting at each of its quarters. */
static void moves_messages_larger_than_the_fifo(void **state)
{
	const uint32_t length = 3 * SOFT_FIFO_SIZE + 5;
	uint8_t *memory = malloc(2 * (size_t)length);
	struct fixture_endpoint to_b;
	struct ibv_mr *from, *to;
	struct soft_fixture a, b;

	(void)state;
	assert_non_null(memory);
	fixture_open_pair(&a, &b, &stepped);
	fixture_describe(&b, &to_b);
	from = pier_soft_provider.reg_mr(a.pd, memory, length, (uintptr_t)memory, 0);
	to = pier_soft_provider.reg_mr(b.pd, memory + length, length,
				       (uintptr_t)memory + length,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	assert_non_null(from);
	assert_non_null(to);
	for (uint32_t quarter = 0; quarter < 4; quarter++) {
		struct ibv_sge sge = {
			.addr = (uintptr_t)memory,
			.length = length,
			.lkey = from->lkey,
		};
		struct ibv_send_wr *bad, wr = {
			.wr_id = 3,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
		};

		wr.wr.rdma.rkey = to->rkey;
		wr.wr.rdma.remote_addr = (uintptr_t)memory + length;
		for (uint32_t i = 0; i < length; i++)
			memory[i] = (uint8_t)(i * 11 + (i >> 9) + quarter);
		memset(memory + length, 0, length);
		move_fifo(&a, &b, quarter * (SOFT_FIFO_SIZE / 4) + 3);
		assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
		fixture_expect(&a, a.send_cq, &b, 3, IBV_WC_SUCCESS);
		assert_memory_equal(memory, memory + length, length);
	}
	assert_int_equal(pier_soft_provider.dereg_mr(from), 0);
	assert_int_equal(pier_soft_provider.dereg_mr(to), 0);
	fixture_close(&a);
	fixture_close(&b);
	free(memory);
}

static void step_until_broken(struct soft_fixture *a, struct soft_fixture *b)
{
	uint64_t deadline = fixture_milliseconds() + FIXTURE_DEADLINE_MS;

	while (link_of(a)->fifo || link_of(b)->fifo) {
		assert_true(fixture_milliseconds() < deadline);
		fixture_step(a, b);
	}
}

/* An impossible position breaks the link; no byte is read from it. */
static void rejects_an_impossible_head(void **state)
{
	const uint64_t beyond[] = { SOFT_FIFO_SIZE + 1, UINT64_MAX, UINT64_MAX / 2 };
	const struct soft_header send = { .opcode = SOFT_SEND };

	(void)state;
	for (size_t i = 0; i < sizeof(beyond) / sizeof(beyond[0]); i++) {
		struct soft_fixture a, b;

		fixture_open_pair(&a, &b, &stepped);
		assert_int_equal(fixture_post_recv(&b, 11, 0, 100), 0);
		/* Would be a message if the position were valid. */
		pier_soft_pack_header(&send,
				      (uint8_t *)fifo_of(&a)->memory->layout +
					      SOFT_FIFOS_OFFSET +
					      (fifo_of(&a)->out -
					       fifo_of(&a)->memory->layout->directions) *
						      SOFT_FIFO_SIZE);
		atomic_store(&fifo_of(&a)->out->head, fifo_of(&b)->taken + beyond[i]);
		step_until_broken(&a, &b);
		fixture_expect(&b, b.recv_cq, NULL, 11, IBV_WC_WR_FLUSH_ERR);
		for (int k = 0; k < FIXTURE_MEMORY; k++)
			assert_int_equal(b.memory[k], 0);
		fixture_close(&a);
		fixture_close(&b);
	}
}

static void rejects_an_impossible_tail(void **state)
{
	const uint64_t before[] = { 1, SOFT_FIFO_SIZE, UINT64_MAX / 2 };

	(void)state;
	for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++) {
		struct soft_fixture a, b;

		fixture_open_pair(&a, &b, &stepped);
		atomic_store(&fifo_of(&a)->out->tail, fifo_of(&a)->put + before[i]);
		assert_int_equal(fixture_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0,
					      IBV_SEND_SIGNALED),
				 0);
		fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_RETRY_EXC_ERR);
		step_until_broken(&a, &b);
		fixture_close(&a);
		fixture_close(&b);
	}
}

/* Sends control messages over the socket of `from` that its engine would never send. */
static void check_bad_messages(const void *bytes, size_t length, int fd_count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = { 0 };
	struct iovec part = { .iov_base = (void *)bytes, .iov_len = length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct cmsghdr *header = (struct cmsghdr *)control;
	int before = fixture_count_fds(), fds[2];
	struct soft_fixture a, b;

	fixture_open_pair(&a, &b, &stepped);
	fds[0] = fds[1] = link_of(&a)->tx_fd;
	if (fd_count > 0) {
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(header), fds, sizeof(int) * fd_count);
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
	}
	assert_int_equal(fixture_post_recv(&b, 11, 0, 100), 0);
	assert_int_equal(sendmsg(link_of(&a)->tx_fd, &message, 0), (ssize_t)length);
	fixture_expect(&b, b.recv_cq, &a, 11, IBV_WC_WR_FLUSH_ERR);
	step_until_broken(&a, &b);
	fixture_close(&a);
	fixture_close(&b);
	assert_int_equal(fixture_count_fds(), before);
}

static void rejects_invalid_control_messages(void **state)
{
	const uint8_t no_word[] = { 77 }, wake[] = { 1 };
	/* A grant that was not requested, and one with too many pieces. */
	uint8_t grant[40] = { 5, 1 }, large[40] = { 5, 1 };

	(void)state;
	large[20] = 65;
	check_bad_messages(no_word, sizeof(no_word), 0);
	check_bad_messages(wake, sizeof(wake), 1);
	check_bad_messages(wake, sizeof(wake), 2);
	check_bad_messages(grant, sizeof(grant), 1);
	check_bad_messages(large, sizeof(large), 1);
	check_bad_messages(large, sizeof(large), 0);
}

/* Without shared memory everything works as well, through the socket. */
static void check_without(void)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	fixture_open_pair(&a, &b, &stepped);
	assert_null(link_of(&a)->fifo);
	assert_null(link_of(&b)->fifo);
	fixture_describe(&b, &to_b);
	write_and_check(&a, &b, &to_b, 60, 0);
	read_and_check(&a, &b, &to_b, 60);
	fixture_close(&a);
	fixture_close(&b);
}

static void works_without_shared_memory(void **state)
{
	(void)state;
	setenv("PIER_SOFT_SHARED", "off", 1);
	check_without();
	unsetenv("PIER_SOFT_SHARED");
}

/* Half of the fds are left for other uses. */
static void limits_shared_fds(void **state)
{
	struct rlimit old, few;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = (rlim_t)fixture_count_fds() + 20;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	check_without();
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

static int count_shared_memories(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int count = 0;

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "/memfd:pier-soft") != NULL;
	fclose(maps);
	return count;
}

/* Both ends in one process share one mapping; nothing is left afterwards. */
static void leaves_nothing_behind(void **state)
{
	int before = fixture_count_fds();
	struct fixture_endpoint self;
	struct soft_fixture a, b;

	(void)state;
	assert_int_equal(count_shared_memories(), 0);
	fixture_open_pair(&a, &b, &stepped);
	assert_int_equal(count_shared_memories(), 1);
	fixture_close(&a);
	assert_int_equal(count_shared_memories(), 1);
	fixture_close(&b);
	assert_int_equal(count_shared_memories(), 0);
	fixture_open(&a, NULL);
	fixture_describe(&a, &self);
	fixture_connect(&a, &self);
	assert_int_equal(count_shared_memories(), 1);
	assert_ptr_equal(fifo_of(&a)->in, fifo_of(&a)->out);
	fixture_close(&a);
	assert_int_equal(count_shared_memories(), 0);
	/* Parked, and never adopted. */
	fixture_open(&a, &stepped);
	fixture_open(&b, &stepped);
	fixture_describe(&b, &self);
	fixture_connect(&a, &self);
	assert_int_equal(count_shared_memories(), 1);
	fixture_close(&b);
	fixture_close(&a);
	assert_int_equal(count_shared_memories(), 0);
	assert_int_equal(fixture_count_fds(), before);
}

/* A sleeping end is woken for bytes and for room; the request comes at each byte once. */
static void wakes_a_sleeping_reader(void **state)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &stepped);
	fixture_describe(&b, &to_b);
	for (int i = 0; i < 10; i++)
		fixture_step(&a, &b);
	pier_soft_lock(&soft_context(b.context)->engine);
	assert_true(pier_soft_sleep_on_fifo(&((struct soft_qp *)b.qp)->link));
	assert_false(fifo_of(&b)->is_polled);
	pier_soft_unlock(&soft_context(b.context)->engine);
	assert_int_equal(atomic_load(&fifo_of(&b)->in->reader_sleeps), 1);
	write_and_check(&a, &b, &to_b, 60, 0);
	assert_true(fifo_of(&b)->is_polled);
	/* Finds bytes that arrived just before, and does not sleep. */
	fixture_post(&a, IBV_WR_RDMA_WRITE, 5, 0, 8, &to_b, 0, IBV_SEND_SIGNALED);
	fixture_step(&a, NULL);
	pier_soft_lock(&soft_context(b.context)->engine);
	assert_false(pier_soft_sleep_on_fifo(&((struct soft_qp *)b.qp)->link));
	pier_soft_unlock(&soft_context(b.context)->engine);
	assert_true(fifo_of(&b)->is_polled);
	assert_int_equal(atomic_load(&fifo_of(&b)->in->reader_sleeps), 0);
	fixture_expect(&a, a.send_cq, &b, 5, IBV_WC_SUCCESS);
	fixture_close(&a);
	fixture_close(&b);
}

/* A writer sleeps until there is room. */
static void wakes_a_sleeping_writer(void **state)
{
	struct soft_link *link;
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &stepped);
	fixture_describe(&b, &to_b);
	link = link_of(&a);
	/* A FIFO so full that nothing fits; the other end has not noticed yet. */
	move_fifo(&a, &b, SOFT_FIFO_SIZE);
	atomic_store(&link->fifo->out->tail, 0);
	assert_int_equal(
		fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &to_b, 0, IBV_SEND_SIGNALED),
		0);
	for (int i = 0; i < 10; i++)
		fixture_step(&a, NULL);
	assert_false(link->writable);
	pier_soft_lock(&soft_context(a.context)->engine);
	assert_true(pier_soft_sleep_on_fifo(&((struct soft_qp *)a.qp)->link));
	pier_soft_unlock(&soft_context(a.context)->engine);
	assert_int_equal(atomic_load(&link->fifo->out->writer_sleeps), 1);
	/* The reader drains the FIFO, and sees the waiting writer. */
	atomic_store(&link->fifo->out->tail, SOFT_FIFO_SIZE);
	pier_soft_lock(&soft_context(b.context)->engine);
	pier_soft_wake_peer(&((struct soft_qp *)b.qp)->link,
			    &fifo_of(&b)->in->writer_sleeps);
	pier_soft_unlock(&soft_context(b.context)->engine);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_SUCCESS);
	fixture_close(&a);
	fixture_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wraps_at_every_byte),
		cmocka_unit_test(moves_messages_larger_than_the_fifo),
		cmocka_unit_test(rejects_an_impossible_head),
		cmocka_unit_test(rejects_an_impossible_tail),
		cmocka_unit_test(rejects_invalid_control_messages),
		cmocka_unit_test(works_without_shared_memory),
		cmocka_unit_test(limits_shared_fds),
		cmocka_unit_test(leaves_nothing_behind),
		cmocka_unit_test(wakes_a_sleeping_reader),
		cmocka_unit_test(wakes_a_sleeping_writer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
