/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_fake.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/link.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"

/* Compare-and-swap and fetch-and-add. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	WORD_AT = 64,
	LANDING = 256
};

static const struct fixture_options stepped = { .access = ACCESS, .stepped = 1 };

struct atomic {
	enum ibv_wr_opcode opcode;
	uint64_t first, second;
	struct ibv_sge sges[3];
	int count;
	uint64_t address;
	uint32_t key;
	unsigned int flags;
};

static int post_atomic(struct soft_fixture *fixture, uint64_t wr_id,
		       struct atomic *atomic)
{
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = atomic->sges,
		.num_sge = atomic->count,
		.opcode = atomic->opcode,
		.send_flags = atomic->flags | IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = atomic->address,
			       .compare_add = atomic->first,
			       .swap = atomic->second,
			       .rkey = atomic->key },
	};
	struct ibv_send_wr *bad;

	return ibv_post_send(fixture->qp, &wr, &bad);
}

static struct atomic make_atomic(const struct soft_fixture *from,
				 const struct soft_fixture *to, enum ibv_wr_opcode opcode,
				 uint64_t first, uint64_t second)
{
	return (struct atomic){
		.opcode = opcode,
		.first = first,
		.second = second,
		.sges[0] = fixture_sge(from, LANDING, 8),
		.count = 1,
		.address = (uintptr_t)to->memory + WORD_AT,
		.key = to->mr->rkey,
	};
}

static uint64_t word_of(const struct soft_fixture *fixture, uint64_t offset)
{
	uint64_t word;

	memcpy(&word, fixture->memory + offset, sizeof(word));
	return word;
}

static void set_word(struct soft_fixture *fixture, uint64_t offset, uint64_t word)
{
	memcpy(fixture->memory + offset, &word, sizeof(word));
}

/* All bytes except [at, at + length) are still `fill`. */
static void expect_untouched(const struct soft_fixture *fixture, uint64_t at,
			     uint64_t length, uint8_t fill)
{
	for (uint64_t i = 0; i < FIXTURE_MEMORY; i++) {
		if (i < at || i >= at + length)
			assert_int_equal(fixture->memory[i], fill);
	}
}

static void open_filled(struct soft_fixture *a, struct soft_fixture *b,
			const struct fixture_options *options)
{
	fixture_open_pair(a, b, options);
	memset(a->memory, 0xa5, FIXTURE_MEMORY);
	memset(b->memory, 0x5a, FIXTURE_MEMORY);
}

static void close_pair(struct soft_fixture *a, struct soft_fixture *b)
{
	fixture_close(a);
	fixture_close(b);
}

static void expect_done(struct soft_fixture *a, struct soft_fixture *b, uint64_t wr_id,
			enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = fixture_wait(a, a->send_cq, b);

	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, opcode);
	assert_int_equal(wc.byte_len, 8);
}

static void check_values(const struct fixture_options *options)
{
	const uint64_t was = UINT64_C(0x1122334455667788);
	struct atomic atomic;
	struct soft_fixture a, b;

	open_filled(&a, &b, options);
	set_word(&b, WORD_AT, was);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, UINT64_MAX, 99);
	assert_int_equal(post_atomic(&a, 1, &atomic), 0);
	expect_done(&a, &b, 1, IBV_WC_FETCH_ADD);
	assert_int_equal(word_of(&a, LANDING), was);
	assert_int_equal(word_of(&b, WORD_AT), was - 1);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_CMP_AND_SWP, was, 7);
	assert_int_equal(post_atomic(&a, 2, &atomic), 0);
	expect_done(&a, &b, 2, IBV_WC_COMP_SWAP);
	assert_int_equal(word_of(&a, LANDING), was - 1);
	assert_int_equal(word_of(&b, WORD_AT), was - 1);
	atomic.first = was - 1;
	assert_int_equal(post_atomic(&a, 3, &atomic), 0);
	expect_done(&a, &b, 3, IBV_WC_COMP_SWAP);
	assert_int_equal(word_of(&a, LANDING), was - 1);
	assert_int_equal(word_of(&b, WORD_AT), 7);
	expect_untouched(&a, LANDING, 8, 0xa5);
	expect_untouched(&b, WORD_AT, 8, 0x5a);
	close_pair(&a, &b);
}

static void changes_the_word_and_returns_the_old_value(void **state)
{
	struct fixture_options options = stepped;

	(void)state;
	check_values(&options);
	options.stepped = 0;
	check_values(&options);
}

/* The old value is scattered over elements of 1, 5 and 2 bytes. */
static void scatters_the_old_value(void **state)
{
	const uint8_t was[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct atomic atomic;
	struct soft_fixture a, b;

	(void)state;
	open_filled(&a, &b, &stepped);
	memcpy(b.memory + WORD_AT, was, 8);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
	atomic.sges[0] = fixture_sge(&a, 11, 1);
	atomic.sges[1] = fixture_sge(&a, 13, 5);
	atomic.sges[2] = fixture_sge(&a, 101, 2);
	atomic.count = 3;
	assert_int_equal(post_atomic(&a, 1, &atomic), 0);
	expect_done(&a, &b, 1, IBV_WC_FETCH_ADD);
	assert_memory_equal(a.memory + 11, was, 1);
	assert_memory_equal(a.memory + 13, was + 1, 5);
	assert_memory_equal(a.memory + 101, was + 6, 2);
	assert_int_equal(a.memory[12], 0xa5);
	assert_int_equal(a.memory[18], 0xa5);
	assert_int_equal(a.memory[103], 0xa5);
	close_pair(&a, &b);
}

/* One request that fails, on a pair of its own; the word is unchanged. */
static void check_refused(const struct fixture_options *options,
			  void (*spoil)(struct soft_fixture *a, struct soft_fixture *b,
					struct atomic *atomic),
			  enum ibv_wc_status status)
{
	struct atomic atomic;
	struct soft_fixture a, b;

	open_filled(&a, &b, options);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
	spoil(&a, &b, &atomic);
	assert_int_equal(post_atomic(&a, 1, &atomic), 0);
	assert_int_equal(post_atomic(&a, 2, &atomic), 0);
	fixture_expect(&a, a.send_cq, &b, 1, status);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_WR_FLUSH_ERR);
	expect_untouched(&a, 0, 0, 0xa5);
	expect_untouched(&b, 0, 0, 0x5a);
	close_pair(&a, &b);
}

static void misalign(struct soft_fixture *a, struct soft_fixture *b,
		     struct atomic *atomic)
{
	(void)a, (void)b;
	atomic->address += 4;
}

static void leave_region(struct soft_fixture *a, struct soft_fixture *b,
			 struct atomic *atomic)
{
	(void)a;
	atomic->address = (uintptr_t)b->memory + FIXTURE_MEMORY;
}

static void shorten(struct soft_fixture *a, struct soft_fixture *b, struct atomic *atomic)
{
	(void)a, (void)b;
	atomic->sges[0].length = 7;
}

static void lengthen(struct soft_fixture *a, struct soft_fixture *b,
		     struct atomic *atomic)
{
	(void)b;
	atomic->sges[1] = fixture_sge(a, 0, 1);
	atomic->count = 2;
}

static void forget_elements(struct soft_fixture *a, struct soft_fixture *b,
			    struct atomic *atomic)
{
	(void)a, (void)b;
	atomic->count = 0;
}

static void wrong_lkey(struct soft_fixture *a, struct soft_fixture *b,
		       struct atomic *atomic)
{
	(void)a, (void)b;
	atomic->sges[0].lkey ^= 1;
}

static void forbid_in_qp(struct soft_fixture *a, struct soft_fixture *b,
			 struct atomic *atomic)
{
	struct ibv_qp_attr attr = { .qp_access_flags = ACCESS &
						       ~IBV_ACCESS_REMOTE_ATOMIC };

	(void)a, (void)atomic;
	assert_int_equal(soft->modify_qp(b->qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
}

static void forbid_in_region(struct soft_fixture *a, struct soft_fixture *b,
			     struct atomic *atomic)
{
	(void)a, (void)atomic;
	assert_int_equal(soft->dereg_mr(b->mr), 0);
	b->mr = soft->reg_mr(b->pd, b->memory, FIXTURE_MEMORY, (uintptr_t)b->memory,
			     ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC);
	assert_non_null(b->mr);
	atomic->key = b->mr->rkey;
}

static void refuses_invalid_atomics(void **state)
{
	const struct {
		void (*spoil)(struct soft_fixture *a, struct soft_fixture *b,
			      struct atomic *atomic);
		enum ibv_wc_status status;
	} cases[] = {
		{ misalign, IBV_WC_REM_INV_REQ_ERR },
		{ leave_region, IBV_WC_REM_ACCESS_ERR },
		{ forbid_in_qp, IBV_WC_REM_ACCESS_ERR },
		{ forbid_in_region, IBV_WC_REM_ACCESS_ERR },
		{ shorten, IBV_WC_LOC_LEN_ERR },
		{ lengthen, IBV_WC_LOC_LEN_ERR },
		{ forget_elements, IBV_WC_LOC_LEN_ERR },
		{ wrong_lkey, IBV_WC_LOC_PROT_ERR },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_refused(&stepped, cases[i].spoil, cases[i].status);
}

static void allow_none(struct soft_fixture *a, struct soft_fixture *b,
		       struct atomic *atomic)
{
	(void)b, (void)atomic;
	((struct soft_qp *)a->qp)->attr.max_rd_atomic = 0;
}

static void refuses_atomics_without_resources(void **state)
{
	(void)state;
	check_refused(&stepped, allow_none, IBV_WC_LOC_QP_OP_ERR);
}

/* The memory for the peer's word is read-only. */
static void needs_local_write(void **state)
{
	struct atomic atomic;
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	open_filled(&a, &b, &stepped);
	mr = soft->reg_mr(a.pd, a.memory, FIXTURE_MEMORY, (uintptr_t)a.memory, 0);
	assert_non_null(mr);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
	atomic.sges[0].lkey = mr->lkey;
	assert_int_equal(post_atomic(&a, 1, &atomic), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_LOC_PROT_ERR);
	expect_untouched(&b, 0, 0, 0x5a);
	assert_int_equal(soft->dereg_mr(mr), 0);
	close_pair(&a, &b);
}

/* Two pages; the second one vanishes. The word is the first of it. */
struct vanishing {
	char *memory;
	struct ibv_mr *mr;
	size_t page;
};

static void register_vanishing(struct vanishing *one, struct soft_fixture *b,
			       struct atomic *atomic, int more)
{
	one->mr = soft->reg_mr(b->pd, one->memory, 2 * one->page, (uintptr_t)one->memory,
			       ACCESS | more);
	assert_non_null(one->mr);
	atomic->address = (uintptr_t)one->memory + one->page;
	atomic->key = one->mr->rkey;
}

static void check_vanished(int more, int (*take_away)(void *memory, size_t length))
{
	struct vanishing one = { .page = sysconf(_SC_PAGESIZE) };
	struct atomic atomic;
	struct soft_fixture a, b;

	open_filled(&a, &b, &stepped);
	one.memory = mmap(NULL, 2 * one.page, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_CMP_AND_SWP, 0, 1);
	register_vanishing(&one, &b, &atomic, more);
	assert_int_equal(post_atomic(&a, 1, &atomic), 0);
	expect_done(&a, &b, 1, IBV_WC_COMP_SWAP);
	assert_int_equal(*(uint64_t *)(one.memory + one.page), 1);
	assert_int_equal(take_away(one.memory + one.page, one.page), 0);
	memset(a.memory, 0xa5, FIXTURE_MEMORY);
	assert_int_equal(post_atomic(&a, 2, &atomic), 0);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_REM_ACCESS_ERR);
	expect_untouched(&a, 0, 0, 0xa5);
	assert_int_equal(soft->dereg_mr(one.mr), 0);
	munmap(one.memory, 2 * one.page);
	close_pair(&a, &b);
}

static int protect(void *memory, size_t length)
{
	return mprotect(memory, length, PROT_READ);
}

static void survives_vanished_memory(void **state)
{
	(void)state;
	check_vanished(0, munmap);
	check_vanished(0, protect);
	check_vanished(IBV_ACCESS_ON_DEMAND, munmap);
}

/* An access would raise SIGBUS. */
static void survives_a_truncated_file(void **state)
{
	size_t page = sysconf(_SC_PAGESIZE);
	int fd = memfd_create("test", MFD_CLOEXEC);
	struct atomic atomic;
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	open_filled(&a, &b, &stepped);
	assert_int_equal(ftruncate(fd, (off_t)(2 * page)), 0);
	mr = soft->reg_dmabuf_mr(b.pd, 0, 2 * page, 0, fd, ACCESS);
	assert_non_null(mr);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0);
	atomic.address = page;
	atomic.key = mr->rkey;
	assert_int_equal(post_atomic(&a, 1, &atomic), 0);
	expect_done(&a, &b, 1, IBV_WC_FETCH_ADD);
	assert_int_equal(ftruncate(fd, (off_t)page), 0);
	assert_int_equal(post_atomic(&a, 2, &atomic), 0);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(soft->dereg_mr(mr), 0);
	close(fd);
	close_pair(&a, &b);
}

/* The memory for the old value vanished: the word has changed, and the request fails. */
static void survives_a_vanished_local_buffer(void **state)
{
	size_t page = sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, page, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct atomic atomic;
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	open_filled(&a, &b, &stepped);
	set_word(&b, WORD_AT, 41);
	mr = soft->reg_mr(a.pd, memory, page, (uintptr_t)memory, ACCESS);
	assert_non_null(mr);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
	atomic.sges[0] = (struct ibv_sge){ (uintptr_t)memory, 8, mr->lkey };
	munmap(memory, page);
	assert_int_equal(post_atomic(&a, 1, &atomic), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(word_of(&b, WORD_AT), 42);
	assert_int_equal(soft->dereg_mr(mr), 0);
	close_pair(&a, &b);
}

/* Of pieces that begin at any offset: the word must be aligned and lie in one of them. */
static void works_within_one_piece(void **state)
{
	uint8_t *memory = aligned_alloc(64, 64);
	const struct pier_provider_part parts[] = {
		{ .fd = -1, .addr = memory, .length = 12 },
		{ .fd = -1, .addr = memory + 16, .length = 12 },
		{ .fd = -1, .addr = memory + 32, .length = 16 },
	};
	/* Across a seam; at offset 4 of the second piece; aligned in the third. */
	const struct {
		uint64_t address;
		enum ibv_wc_status status;
	} cases[] = {
		{ 8, IBV_WC_REM_INV_REQ_ERR },
		{ 16, IBV_WC_REM_INV_REQ_ERR },
		{ 24, IBV_WC_SUCCESS },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct atomic atomic;
		struct ibv_mr *mr;
		struct soft_fixture a, b;

		open_filled(&a, &b, &stepped);
		memset(memory, 0, 64);
		mr = soft->reg_parts(b.pd, parts, 3, 0, ACCESS, NULL);
		assert_non_null(mr);
		atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 9, 0);
		atomic.address = cases[i].address;
		atomic.key = mr->rkey;
		assert_int_equal(post_atomic(&a, 1, &atomic), 0);
		fixture_expect(&a, a.send_cq, &b, 1, cases[i].status);
		for (int at = 0; at < 64; at++)
			assert_int_equal(memory[at], i == 2 && at == 32 ? 9 : 0);
		assert_int_equal(soft->dereg_mr(mr), 0);
		close_pair(&a, &b);
	}
	free(memory);
}

/* Atomics behind a SEND that finds no receive are executed once when it is repeated. */
static void executes_once_behind_an_rnr_nak(void **state)
{
	struct fixture_options options = stepped;
	struct atomic atomic;
	struct soft_fixture a, b;

	(void)state;
	options.rnr_retry = 7;
	options.min_rnr_timer = 1;
	open_filled(&a, &b, &options);
	set_word(&b, WORD_AT, 100);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
	assert_int_equal(post_atomic(&a, 1, &atomic), 0);
	assert_int_equal(
		fixture_post(&a, IBV_WR_SEND, 2, 0, 8, NULL, 0, IBV_SEND_SIGNALED), 0);
	atomic.sges[0] = fixture_sge(&a, LANDING + 8, 8);
	assert_int_equal(post_atomic(&a, 3, &atomic), 0);
	expect_done(&a, &b, 1, IBV_WC_FETCH_ADD);
	for (int i = 0; i < 200; i++)
		fixture_step(&a, &b);
	assert_int_equal(word_of(&b, WORD_AT), 101);
	assert_int_equal(fixture_post_recv(&b, 9, 0, 8), 0);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_SUCCESS);
	expect_done(&a, &b, 3, IBV_WC_FETCH_ADD);
	assert_int_equal(word_of(&b, WORD_AT), 102);
	assert_int_equal(word_of(&a, LANDING), 100);
	assert_int_equal(word_of(&a, LANDING + 8), 101);
	close_pair(&a, &b);
}

/* Between reads and writes of the same word, all in the order of posting. */
static void keeps_the_order_of_posting(void **state)
{
	struct fixture_endpoint to_b;
	struct atomic atomic;
	struct soft_fixture a, b;

	(void)state;
	open_filled(&a, &b, &stepped);
	fixture_describe(&b, &to_b);
	set_word(&a, 0, 5);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &to_b, WORD_AT, 0),
			 0);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 10, 0);
	for (int i = 0; i < 6; i++) {
		atomic.sges[0] = fixture_sge(&a, LANDING + 8 * i, 8);
		assert_int_equal(post_atomic(&a, 2 + i, &atomic), 0);
	}
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_READ, 8, LANDING + 48, 8, &to_b,
				      WORD_AT, IBV_SEND_SIGNALED),
			 0);
	for (int i = 0; i < 6; i++)
		expect_done(&a, &b, 2 + i, IBV_WC_FETCH_ADD);
	fixture_expect(&a, a.send_cq, &b, 8, IBV_WC_SUCCESS);
	for (int i = 0; i < 7; i++)
		assert_int_equal(word_of(&a, LANDING + 8 * i), 5 + 10 * i);
	close_pair(&a, &b);
}

enum {
	ADDERS = 3,
	ADDITIONS = 4000
};

struct adder {
	struct soft_fixture fixture, *target;
	pthread_t thread;
};

/* No cmocka asserts here: they would jump into the wrong stack. */
static void *add_by_nic(void *argument)
{
	struct adder *adder = argument;
	struct atomic atomic = make_atomic(&adder->fixture, adder->target,
					   IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
	struct ibv_wc wc;
	int count;

	for (int i = 0; i < ADDITIONS; i++) {
		if (post_atomic(&adder->fixture, i, &atomic))
			abort();
		while ((count = ibv_poll_cq(adder->fixture.send_cq, 1, &wc)) == 0)
			;
		if (count != 1 || wc.status != IBV_WC_SUCCESS)
			abort();
	}
	return NULL;
}

struct processor {
	uint64_t *word, additions;
	atomic_bool stop;
	pthread_t thread;
};

/* Runs while the others add, so that it is in between. */
static void *add_by_processor(void *argument)
{
	struct processor *processor = argument;

	while (!atomic_load(&processor->stop)) {
		__atomic_fetch_add(processor->word, 1, __ATOMIC_SEQ_CST);
		processor->additions++;
	}
	return NULL;
}

static void open_adder(struct adder *adder, struct soft_fixture *target,
		       struct soft_fixture *ends)
{
	struct fixture_options options = { .access = ACCESS };
	struct fixture_endpoint to_adder, to_end;

	fixture_open(&adder->fixture, &options);
	fixture_open(ends, &options);
	fixture_describe(&adder->fixture, &to_adder);
	fixture_describe(ends, &to_end);
	fixture_connect(&adder->fixture, &to_end);
	fixture_connect(ends, &to_adder);
	adder->target = target;
}

/*
 * Several contexts, each with its own engine, have registered the same memory; the CPU
 * adds too. No addition is lost: atomic_cap is GLOB.
 */
static void loses_no_addition_among_many(void **state)
{
	struct adder adders[ADDERS];
	struct soft_fixture ends[ADDERS], shared[ADDERS];
	struct ibv_device_attr attr;
	struct ibv_mr *mrs[ADDERS];
	uint64_t *word = aligned_alloc(FIXTURE_PAGE, FIXTURE_PAGE);
	struct processor processor = { .word = word };

	(void)state;
	*word = 0;
	for (int i = 0; i < ADDERS; i++) {
		open_adder(&adders[i], &shared[i], &ends[i]);
		mrs[i] = soft->reg_mr(ends[i].pd, word, 4096, (uintptr_t)word, ACCESS);
		assert_non_null(mrs[i]);
		shared[i].mr = mrs[i];
		shared[i].memory = (uint8_t *)word - WORD_AT;
	}
	assert_int_equal(soft->query_device(ends[0].context, &attr), 0);
	assert_int_equal(attr.atomic_cap, IBV_ATOMIC_GLOB);
	for (int i = 0; i < ADDERS; i++)
		assert_int_equal(
			pthread_create(&adders[i].thread, NULL, add_by_nic, &adders[i]),
			0);
	assert_int_equal(
		pthread_create(&processor.thread, NULL, add_by_processor, &processor), 0);
	for (int i = 0; i < ADDERS; i++)
		pthread_join(adders[i].thread, NULL);
	atomic_store(&processor.stop, true);
	pthread_join(processor.thread, NULL);
	assert_true(*word == ADDERS * ADDITIONS + processor.additions);
	for (int i = 0; i < ADDERS; i++) {
		assert_int_equal(soft->dereg_mr(mrs[i]), 0);
		fixture_close(&adders[i].fixture);
		fixture_close(&ends[i]);
	}
	free(word);
}

static void send_atomic(int fd, const struct fake *fake, uint32_t msn)
{
	const uint64_t operands[2] = { htole64(3), 0 };

	fake_send(fd, (struct soft_header){ .opcode = SOFT_FETCH_ADD,
					    .msn = msn,
					    .length = 8,
					    .key = fake->to_fixture.rkey,
					    .address = fake->to_fixture.address });
	fixture_write_all(fd, operands, sizeof(operands));
}

/* More than max_dest_rd_atomic at once; READs and atomics count together. */
static void refuses_too_many_at_once(void **state)
{
	struct fixture_options options = stepped;
	struct soft_header answer;
	struct fake fake;
	struct soft_fixture fixture;
	uint8_t word[8];
	int fd;

	(void)state;
	options.max_rd_atomic = 2;
	fixture_open(&fixture, &options);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	fd = fake_call_stepped(&fake, &fixture);
	/* So that no response leaves before all requests have arrived. */
	((struct soft_qp *)fixture.qp)->link.tx_broken = true;
	send_atomic(fd, &fake, 0);
	fake_send(fd, (struct soft_header){ .opcode = SOFT_READ,
					    .msn = 1,
					    .key = fake.to_fixture.rkey,
					    .address = fake.to_fixture.address });
	send_atomic(fd, &fake, 2);
	fake_step(&fixture);
	((struct soft_qp *)fixture.qp)->link.tx_broken = false;
	pier_soft_lock(&soft_context(fixture.context)->engine);
	pier_soft_activate(&((struct soft_qp *)fixture.qp)->end.work);
	pier_soft_unlock(&soft_context(fixture.context)->engine);
	fake_step(&fixture);
	assert_int_equal(fake_next(fd).opcode, SOFT_ATOMIC_RESPONSE);
	fixture_read_all(fd, word, sizeof(word));
	assert_int_equal(word[0], 0);
	assert_int_equal(fake_next(fd).opcode, SOFT_READ_RESPONSE);
	answer = fake_next(fd);
	assert_int_equal(answer.opcode, SOFT_NAK);
	assert_int_equal(answer.msn, 2);
	assert_int_equal(answer.syndrome, SOFT_NAK_INVALID_REQUEST);
	assert_int_equal(word_of(&fixture, 0), 3);
	close(fd);
	fixture_close(&fixture);
}

/* The region is deregistered between the header and the operands. */
static void survives_a_deregistered_region(void **state)
{
	const uint64_t operands[2] = { htole64(3), 0 };
	struct soft_header answer;
	struct fake fake;
	struct soft_fixture fixture;
	int fd;

	(void)state;
	fixture_open(&fixture, &stepped);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	fd = fake_call_stepped(&fake, &fixture);
	fake_send(fd, (struct soft_header){ .opcode = SOFT_FETCH_ADD,
					    .length = 8,
					    .key = fake.to_fixture.rkey,
					    .address = fake.to_fixture.address });
	fixture_write_all(fd, operands, 9);
	fake_step(&fixture);
	assert_int_equal(soft->dereg_mr(fixture.mr), 0);
	fixture.mr = NULL;
	fixture_write_all(fd, (const char *)operands + 9, 7);
	fake_step(&fixture);
	answer = fake_next(fd);
	assert_int_equal(answer.opcode, SOFT_NAK);
	assert_int_equal(answer.msn, 0);
	assert_int_equal(answer.syndrome, SOFT_NAK_ACCESS);
	expect_untouched(&fixture, 0, 0, 0);
	close(fd);
	fixture_close(&fixture);
}

static void fence_waits_for_atomics(void **state)
{
	struct fixture_options options = stepped;
	struct pollfd waited = { .events = POLLIN };
	const uint64_t was = htole64(77);
	uint8_t operands[SOFT_OPERANDS_SIZE];
	struct soft_header request;
	struct atomic atomic;
	struct fake fake;
	struct soft_fixture fixture;

	(void)state;
	options.max_rd_atomic = 1;
	fixture_open(&fixture, &options);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	waited.fd = fake_call_stepped(&fake, &fixture);
	atomic = make_atomic(&fixture, &fixture, IBV_WR_ATOMIC_CMP_AND_SWP, 1, 2);
	assert_int_equal(post_atomic(&fixture, 1, &atomic), 0);
	assert_int_equal(post_atomic(&fixture, 2, &atomic), 0);
	assert_int_equal(
		fixture_post(&fixture, IBV_WR_SEND, 3, 0, 0, NULL, 0, IBV_SEND_FENCE), 0);
	for (uint32_t i = 0; i < 2; i++) {
		fake_step(&fixture);
		request = fake_next(waited.fd);
		assert_int_equal(request.opcode, SOFT_COMPARE_SWAP);
		assert_int_equal(request.msn, i);
		fixture_read_all(waited.fd, operands, sizeof(operands));
		assert_int_equal(operands[0], 1); /* little-endian: compare, swap */
		assert_int_equal(operands[8], 2);
		/* max_rd_atomic is 1, and the SEND is fenced. */
		assert_int_equal(poll(&waited, 1, 0), 0);
		fake_send(waited.fd, (struct soft_header){ .opcode = SOFT_ATOMIC_RESPONSE,
							   .msn = i,
							   .length = 8 });
		fixture_write_all(waited.fd, &was, sizeof(was));
	}
	fake_step(&fixture);
	assert_int_equal(fake_next(waited.fd).opcode, SOFT_SEND);
	assert_int_equal(word_of(&fixture, LANDING), 77);
	close(waited.fd);
	fixture_close(&fixture);
}

/*
 * An atomic operation gets the data of a READ, a READ gets an atomic's answer, and both
 * get an ACK.
 */
static void rejects_wrong_answers(void **state)
{
	const struct soft_header answers[] = {
		{ .opcode = SOFT_READ_RESPONSE, .length = 8 },
		{ .opcode = SOFT_ATOMIC_RESPONSE, .length = 8 },
		{ .opcode = SOFT_ACK, .msn = 1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		struct atomic atomic;
		struct fake fake;
		struct soft_fixture fixture;
		int fd;

		fixture_open(&fixture, &stepped);
		fake_make(&fake, &fixture);
		fake_connect(&fixture, &fake);
		fd = fake_call_stepped(&fake, &fixture);
		atomic = make_atomic(&fixture, &fixture, IBV_WR_ATOMIC_CMP_AND_SWP, 1, 2);
		if (i == 1)
			atomic.opcode = IBV_WR_RDMA_READ;
		assert_int_equal(post_atomic(&fixture, 1, &atomic), 0);
		fake_step(&fixture);
		fake_send(fd, answers[i]);
		fixture_expect(&fixture, fixture.send_cq, NULL, 1, IBV_WC_BAD_RESP_ERR);
		expect_untouched(&fixture, 0, 0, 0);
		close(fd);
		fixture_close(&fixture);
	}
}

static void refuses_inline_atomics(void **state)
{
	struct atomic atomic;
	struct soft_fixture a, b;

	(void)state;
	open_filled(&a, &b, &stepped);
	atomic = make_atomic(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
	atomic.flags = IBV_SEND_INLINE;
	assert_int_equal(post_atomic(&a, 1, &atomic), EINVAL);
	close_pair(&a, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(changes_the_word_and_returns_the_old_value),
		cmocka_unit_test(scatters_the_old_value),
		cmocka_unit_test(refuses_invalid_atomics),
		cmocka_unit_test(refuses_atomics_without_resources),
		cmocka_unit_test(needs_local_write),
		cmocka_unit_test(survives_vanished_memory),
		cmocka_unit_test(survives_a_truncated_file),
		cmocka_unit_test(survives_a_vanished_local_buffer),
		cmocka_unit_test(works_within_one_piece),
		cmocka_unit_test(executes_once_behind_an_rnr_nak),
		cmocka_unit_test(keeps_the_order_of_posting),
		cmocka_unit_test(loses_no_addition_among_many),
		cmocka_unit_test(refuses_too_many_at_once),
		cmocka_unit_test(survives_a_deregistered_region),
		cmocka_unit_test(fence_waits_for_atomics),
		cmocka_unit_test(rejects_wrong_answers),
		cmocka_unit_test(refuses_inline_atomics),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
