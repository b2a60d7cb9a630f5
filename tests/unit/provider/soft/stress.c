/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "provider/soft/engine.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"

/*
 * Two ends, each with a random script that both know, in rounds. One end posts the
 * requests of a round in random portions; the other posts receives late and in random
 * portions, so that RNR NAKs occur. The last request of a round is a SEND: when it has
 * arrived, the bytes of the whole round are compared. Each end allows the next round
 * through a pipe. PIER_SEED repeats the scripts of a run, PIER_STRESS_MS sets the
 * duration.
 */

enum {
	DEPTH = 16,
	ROUND = 24,
	/* More than a socket holds: a NAK arrives while a frame is being sent. */
	MAX_BYTES = 500000,
	GUARD = 64,
	STRIDE = MAX_BYTES + 2 * GUARD,
	/* Whole pages. */
	AREA = (ROUND * STRIDE + FIXTURE_PAGE - 1) / FIXTURE_PAGE * FIXTURE_PAGE,
	GUARD_BYTE = 0xee,
	STALL_MS = 15000,
	LEAST_ROUNDS = 2 /* a busy machine may spend all the time on the first */
};

enum area {
	SOURCE,	 /* what we send and write */
	LANDING, /* where the peer writes */
	FETCHED, /* what we read from the peer */
	PATTERN, /* what the peer may read */
	RECEIVED,
	AREAS
};

/* In a thread or child, where cmocka's asserts would jump into the wrong stack. */
#define CHECK(condition)                                                          \
	do {                                                                      \
		if (!(condition)) {                                               \
			fprintf(stderr, "%s:%d: %s: seed %llu end %d round %u\n", \
				__FILE__, __LINE__, #condition,                   \
				(unsigned long long)base_seed, end->number,       \
				end->out.round);                                  \
			abort();                                                  \
		}                                                                 \
	} while (0)

static uint64_t base_seed;

/* splitmix64 */
static uint64_t next(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static uint32_t below(uint64_t *state, uint32_t limit)
{
	return (uint32_t)(next(state) % limit);
}

struct op {
	enum ibv_wr_opcode opcode;
	unsigned int flags;
	uint32_t length, offset;
	uint8_t content;
};

struct script {
	uint64_t random;
	uint32_t round, count;
	struct op ops[ROUND];
};

static uint32_t random_length(uint64_t *random)
{
	switch (below(random, 10)) {
	case 0:
		return 0;
	case 1:
		return below(random, MAX_BYTES + 1);
	case 2:
	case 3:
		return below(random, 10000);
	default:
		return below(random, 100);
	}
}

static void write_round(struct script *script)
{
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_SEND,	   IBV_WR_SEND_WITH_IMM,
		IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
		IBV_WR_RDMA_READ,
	};
	uint64_t *random = &script->random;

	script->round++;
	script->count = 1 + below(random, ROUND);
	for (uint32_t i = 0; i < script->count; i++) {
		struct op *op = &script->ops[i];
		bool last = i + 1 == script->count;

		op->opcode = last ? IBV_WR_SEND_WITH_IMM : opcodes[below(random, 7)];
		op->length = random_length(random);
		op->offset = below(random, MAX_BYTES - op->length + 1);
		op->content = (uint8_t)next(random);
		op->flags = below(random, 3) == 0 ? IBV_SEND_FENCE : 0;
		if (last || i % 4 == 3 || below(random, 2))
			op->flags |= IBV_SEND_SIGNALED;
		if (op->length <= 64 && op->opcode != IBV_WR_RDMA_READ &&
		    below(random, 2))
			op->flags |= IBV_SEND_INLINE;
		if (below(random, 4) == 0)
			op->flags |= IBV_SEND_SOLICITED;
	}
}

static bool takes_recv(const struct op *op)
{
	return op->opcode != IBV_WR_RDMA_WRITE && op->opcode != IBV_WR_RDMA_READ;
}

static uint8_t byte_at(uint8_t content, uint32_t i)
{
	return (uint8_t)(content + i * 7 + (i >> 8) * 13);
}

struct end {
	int number;
	struct soft_fixture fixture;
	struct ibv_mr *mr;
	uint8_t *memory;
	struct fixture_endpoint peer;
	int pipe;
	uint64_t random; /* for choices that need not repeat */
	uint64_t stop_at;
	struct script out, in;
	/* As initiator, in this round. */
	uint32_t posted, known_done;
	bool running, compared;
	/* As target. */
	uint32_t arrived; /* requests of the round */
	uint64_t recvs_posted, recvs_done;
	bool peer_stopped, stopped;
	uint64_t last_progress;
};

static uint8_t *slot(const struct end *end, enum area area, uint32_t index)
{
	return end->memory + (size_t)area * AREA + (size_t)index * STRIDE + GUARD;
}

static void fill(uint8_t *at, uint32_t length, uint8_t content)
{
	for (uint32_t i = 0; i < length; i++)
		at[i] = byte_at(content, i);
}

static void check_bytes(const struct end *end, const uint8_t *at, uint32_t length,
			uint8_t content)
{
	for (uint32_t i = 0; i < length; i++)
		CHECK(at[i] == byte_at(content, i));
	for (int i = 1; i <= GUARD; i++)
		CHECK(at[-i] == GUARD_BYTE);
	for (int i = 0; i < GUARD; i++)
		CHECK(at[length + i] == GUARD_BYTE);
}

/* At most 4 elements, some of which may be empty. */
static int split(struct end *end, uint8_t *at, uint32_t length, struct ibv_sge *ret_sges)
{
	int count = 1 + (int)below(&end->random, 4);

	for (int i = 0; i < count; i++) {
		uint32_t part = i + 1 == count ? length : below(&end->random, length + 1);

		ret_sges[i] = (struct ibv_sge){
			.addr = (uintptr_t)at,
			.length = part,
			.lkey = end->mr->lkey,
		};
		at += part;
		length -= part;
	}
	return count;
}

static uint64_t remote(const struct end *end, enum area area, uint32_t index)
{
	return end->peer.address + (uint64_t)area * AREA + (uint64_t)index * STRIDE +
	       GUARD;
}

static void post_one(struct end *end)
{
	uint32_t i = end->posted;
	const struct op *op = &end->out.ops[i];
	bool reads = op->opcode == IBV_WR_RDMA_READ;
	uint8_t *at = slot(end, reads ? FETCHED : SOURCE, i);
	struct ibv_sge sges[4];
	struct ibv_send_wr *bad, wr = {
		.wr_id = i,
		.sg_list = sges,
		.num_sge = split(end, at, op->length, sges),
		.opcode = op->opcode,
		.send_flags = op->flags,
		.imm_data = htobe32(end->out.round * ROUND + i),
	};

	wr.wr.rdma.rkey = end->peer.rkey;
	wr.wr.rdma.remote_addr = reads ? remote(end, PATTERN, 0) + op->offset
				       : remote(end, LANDING, i);
	if (!reads)
		fill(at, op->length, op->content);
	CHECK(ibv_post_send(end->fixture.qp, &wr, &bad) == 0);
	if (op->flags & IBV_SEND_INLINE)
		memset(at, 0x55, op->length);
	end->posted++;
}

static bool post_some(struct end *end)
{
	uint32_t room = DEPTH - (end->posted - end->known_done);
	uint32_t left = end->out.count - end->posted;
	uint32_t count = left < room ? left : room;

	if (!end->running || count == 0)
		return false;
	count = 1 + below(&end->random, count);
	for (uint32_t i = 0; i < count; i++)
		post_one(end);
	return true;
}

static void check_fetched(const struct end *end)
{
	for (uint32_t i = 0; i < end->out.count; i++) {
		const struct op *op = &end->out.ops[i];
		uint8_t *at = slot(end, FETCHED, i);

		if (op->opcode != IBV_WR_RDMA_READ)
			continue;
		for (uint32_t k = 0; k < op->length; k++)
			CHECK(at[k] == byte_at(1, op->offset + k));
		for (int k = 0; k < GUARD; k++)
			CHECK(at[-1 - k] == GUARD_BYTE &&
			      at[op->length + k] == GUARD_BYTE);
		memset(at, GUARD_BYTE, op->length);
	}
}

static bool poll_sends(struct end *end)
{
	struct ibv_wc wc;

	CHECK(ibv_poll_cq(end->fixture.send_cq, 0, &wc) == 0);
	if (ibv_poll_cq(end->fixture.send_cq, 1, &wc) != 1)
		return false;
	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "status %d of request %d\n", wc.status, (int)wc.wr_id);
	CHECK(wc.status == IBV_WC_SUCCESS);
	/* In order, and only the signalled ones. */
	while (end->known_done < wc.wr_id)
		CHECK(!(end->out.ops[end->known_done++].flags & IBV_SEND_SIGNALED));
	CHECK(wc.wr_id == end->known_done && end->known_done < end->posted);
	CHECK(end->out.ops[end->known_done].flags & IBV_SEND_SIGNALED);
	end->known_done++;
	if (end->known_done == end->out.count) {
		check_fetched(end);
		end->running = false;
	}
	return true;
}

static bool post_recvs(struct end *end)
{
	uint32_t room = DEPTH - (uint32_t)(end->recvs_posted - end->recvs_done);

	if (room == 0 || below(&end->random, 4))
		return false;
	room = 1 + below(&end->random, room);
	for (uint32_t i = 0; i < room; i++) {
		uint8_t *at = slot(end, RECEIVED, end->recvs_posted % DEPTH);
		struct ibv_sge sges[4];
		struct ibv_recv_wr *bad, wr = {
			.wr_id = end->recvs_posted,
			.sg_list = sges,
			.num_sge = split(end, at, MAX_BYTES, sges),
		};

		CHECK(ibv_post_recv(end->fixture.qp, &wr, &bad) == 0);
		end->recvs_posted++;
	}
	return true;
}

static void check_received(struct end *end, const struct ibv_wc *wc, const struct op *op)
{
	uint8_t *at = slot(end, RECEIVED, wc->wr_id % DEPTH);
	bool writes = op->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;

	CHECK(wc->byte_len == op->length);
	CHECK(wc->opcode == (writes ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV));
	if (op->opcode == IBV_WR_SEND) {
		CHECK(!(wc->wc_flags & IBV_WC_WITH_IMM));
	} else {
		CHECK(wc->wc_flags & IBV_WC_WITH_IMM);
		CHECK(be32toh(wc->imm_data) == end->in.round * ROUND + end->arrived);
	}
	if (!writes) {
		check_bytes(end, at, op->length, op->content);
		memset(at, GUARD_BYTE, op->length);
	}
}

/* All requests before one that was received have taken effect. */
static void check_landed(struct end *end, uint32_t index)
{
	const struct op *op = &end->in.ops[index];
	uint8_t *at = slot(end, LANDING, index);

	if (op->opcode != IBV_WR_RDMA_WRITE && op->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
		return;
	check_bytes(end, at, op->length, op->content);
	memset(at, GUARD_BYTE, op->length);
}

static bool poll_recvs(struct end *end)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(end->fixture.recv_cq, 1, &wc) != 1)
		return false;
	CHECK(wc.status == IBV_WC_SUCCESS);
	CHECK(wc.wr_id == end->recvs_done);
	end->recvs_done++;
	while (!takes_recv(&end->in.ops[end->arrived]))
		check_landed(end, end->arrived++);
	check_received(end, &wc, &end->in.ops[end->arrived]);
	check_landed(end, end->arrived++);
	if (end->arrived == end->in.count) {
		write_round(&end->in);
		end->arrived = 0;
		/*
		 * The peer writes again only after it has read this, but ThreadSanitizer
		 * cannot see the order through the peer's process.
		 */
		pier_soft_lock(&soft_context(end->fixture.context)->engine);
		pier_soft_unlock(&soft_context(end->fixture.context)->engine);
		CHECK(write(end->pipe, "n", 1) == 1);
	}
	return true;
}

/* 'n': our last round was compared. 's': the peer starts no more rounds. */
static bool hear(struct end *end)
{
	char word;

	/* 'm' is for meet(). */
	if (recv(end->pipe, &word, 1, MSG_DONTWAIT | MSG_PEEK) != 1 || word == 'm')
		return false;
	fixture_read_all(end->pipe, &word, 1);
	CHECK(word == 's' || (word == 'n' && !end->compared && !end->stopped));
	end->peer_stopped |= word == 's';
	end->compared |= word == 'n';
	return true;
}

static void begin_round(struct end *end)
{
	write_round(&end->out);
	end->posted = end->known_done = 0;
	end->running = true;
	end->compared = false;
}

static bool go_on(struct end *end)
{
	if (end->running || !end->compared)
		return false;
	if (fixture_milliseconds() < end->stop_at || end->out.round < LEAST_ROUNDS) {
		begin_round(end);
		return true;
	}
	end->compared = false;
	end->stopped = true;
	CHECK(write(end->pipe, "s", 1) == 1);
	return true;
}

static void take_events(struct end *end)
{
	struct pollfd waited = { .fd = end->fixture.channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;

	while (poll(&waited, 1, 0) == 1) {
		CHECK(pier_soft_provider.get_cq_event(end->fixture.channel, &cq,
						      &context) == 0);
		pier_soft_provider.ack_cq_events(cq, 1);
	}
}

static bool turn(struct end *end)
{
	bool moved = false;

	moved |= hear(end);
	moved |= go_on(end);
	moved |= post_some(end);
	moved |= poll_sends(end);
	moved |= poll_recvs(end);
	if (moved)
		end->last_progress = fixture_milliseconds();
	CHECK(fixture_milliseconds() - end->last_progress < STALL_MS);
	return moved | post_recvs(end);
}

/*
 * Without a poll, so that only an event can end the wait. Waits only if an event must
 * come: all receives are posted, and the peer has something to send.
 */
static void sleep_on_channel(struct end *end)
{
	struct pollfd waited[2] = {
		{ .fd = end->fixture.channel->fd, .events = POLLIN },
		{ .fd = end->pipe, .events = POLLIN },
	};

	while (end->recvs_posted - end->recvs_done < DEPTH)
		post_recvs(end);
	CHECK(ibv_req_notify_cq(end->fixture.send_cq, 0) == 0);
	CHECK(ibv_req_notify_cq(end->fixture.recv_cq, 0) == 0);
	if (turn(end))
		return;
	if (poll(waited, 2, STALL_MS) == 0)
		CHECK(!"woken");
	take_events(end);
	end->last_progress = fixture_milliseconds();
}

static void dawdle(struct end *end)
{
	switch (below(&end->random, 8)) {
	case 0:
		usleep(below(&end->random, 1000));
		break;
	case 1:
	case 2:
		if (!end->stopped || !end->peer_stopped)
			sleep_on_channel(end);
		break;
	case 3:
		sched_yield();
		break;
	default:
		break;
	}
}

static void open_end(struct end *end)
{
	const struct fixture_options options = {
		.depth = DEPTH,
		.rnr_retry = 7,
		.min_rnr_timer = 1,
		.max_rd_atomic = 3,
		.with_channel = 1,
	};
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ;
	struct fixture_endpoint mine;

	fixture_open(&end->fixture, &options);
	end->memory = aligned_alloc(FIXTURE_PAGE, (size_t)AREAS * AREA);
	CHECK(end->memory);
	memset(end->memory, GUARD_BYTE, (size_t)AREAS * AREA);
	fill(slot(end, PATTERN, 0), MAX_BYTES, 1);
	end->mr = pier_soft_provider.reg_mr(end->fixture.pd, end->memory,
					    (size_t)AREAS * AREA, (uintptr_t)end->memory,
					    access);
	CHECK(end->mr);
	fixture_describe(&end->fixture, &mine);
	mine.rkey = end->mr->rkey;
	mine.address = (uintptr_t)end->memory;
	fixture_exchange(end->pipe, &mine, &end->peer);
	fixture_connect(&end->fixture, &end->peer);
}

/* With requests in flight: each returns once, in order, and none is missing. */
static void check_flush(struct end *end)
{
	uint32_t flushed_from = UINT32_MAX;
	struct ibv_wc wc;

	begin_round(end);
	while (post_some(end))
		;
	CHECK(fixture_to(&end->fixture, IBV_QPS_ERR) == 0);
	while (end->known_done < end->posted &&
	       ibv_poll_cq(end->fixture.send_cq, 1, &wc) == 1) {
		for (; end->known_done < wc.wr_id; end->known_done++) {
			CHECK(!(end->out.ops[end->known_done].flags & IBV_SEND_SIGNALED));
			CHECK(flushed_from == UINT32_MAX);
		}
		CHECK(wc.wr_id == end->known_done++);
		if (wc.status != IBV_WC_SUCCESS && flushed_from == UINT32_MAX)
			flushed_from = (uint32_t)wc.wr_id;
		CHECK((wc.status == IBV_WC_SUCCESS) == (wc.wr_id < flushed_from));
	}
	/* The last ones may have succeeded unsignalled, which leaves no completion. */
	for (; end->known_done < end->posted; end->known_done++)
		CHECK(!(end->out.ops[end->known_done].flags & IBV_SEND_SIGNALED) &&
		      flushed_from == UINT32_MAX);
	CHECK(ibv_poll_cq(end->fixture.send_cq, 1, &wc) == 0);
	while (end->recvs_done < end->recvs_posted) {
		CHECK(ibv_poll_cq(end->fixture.recv_cq, 1, &wc) == 1);
		CHECK(wc.wr_id == end->recvs_done++);
	}
	CHECK(ibv_poll_cq(end->fixture.recv_cq, 1, &wc) == 0);
}

static void meet(const struct end *end)
{
	char word;

	fixture_write_all(end->pipe, "m", 1);
	fixture_read_all(end->pipe, &word, 1);
	CHECK(word == 'm');
}

static void run_end(struct end *end)
{
	uint64_t seed = base_seed;

	open_end(end);
	end->out.random = seed * 2 + (uint64_t)end->number;
	end->in.random = seed * 2 + (uint64_t)!end->number;
	end->random = seed * 3 + (uint64_t)end->number;
	begin_round(end);
	write_round(&end->in);
	end->last_progress = fixture_milliseconds();
	while (!end->stopped || !end->peer_stopped) {
		if (!turn(end))
			dawdle(end);
	}
	CHECK(end->out.round >= LEAST_ROUNDS);
	meet(end);
	check_flush(end);
	meet(end);
	CHECK(pier_soft_provider.dereg_mr(end->mr) == 0);
	fixture_close(&end->fixture);
	free(end->memory);
	close(end->pipe);
}

static void *run_thread(void *argument)
{
	run_end(argument);
	return NULL;
}

static uint64_t duration(void)
{
	const char *wanted = getenv("PIER_STRESS_MS");

	return (wanted ? strtoull(wanted, NULL, 10) : 9000) / 3;
}

static void make_ends(struct end *ends)
{
	uint64_t stop_at = fixture_milliseconds() + duration();
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	for (int i = 0; i < 2; i++)
		ends[i] = (struct end){ .number = i, .pipe = fds[i], .stop_at = stop_at };
}

static void survives_stress_between_threads(void **state)
{
	struct end *ends = calloc(2, sizeof(*ends));
	pthread_t thread;

	(void)state;
	assert_non_null(ends);
	make_ends(ends);
	assert_int_equal(pthread_create(&thread, NULL, run_thread, &ends[1]), 0);
	run_end(&ends[0]);
	assert_int_equal(pthread_join(thread, NULL), 0);
	free(ends);
}

static void run_processes(void)
{
	struct end *ends = calloc(2, sizeof(*ends));
	int status;
	pid_t child;

	assert_non_null(ends);
	make_ends(ends);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0].pipe);
		run_end(&ends[1]);
		free(ends);
		_exit(0);
	}
	close(ends[1].pipe);
	run_end(&ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	free(ends);
}

static void survives_stress_over_a_unix_socket(void **state)
{
	(void)state;
	run_processes();
}

static void survives_stress_over_tcp(void **state)
{
	(void)state;
	setenv("PIER_SOFT_UNIX", "off", 1);
	setenv("PIER_SOFT_ADDRESS", "127.0.0.1", 1);
	run_processes();
	unsetenv("PIER_SOFT_UNIX");
	unsetenv("PIER_SOFT_ADDRESS");
}

int main(void)
{
	const char *wanted = getenv("PIER_SEED");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(survives_stress_between_threads),
		cmocka_unit_test(survives_stress_over_a_unix_socket),
		cmocka_unit_test(survives_stress_over_tcp),
	};

	if (wanted)
		base_seed = strtoull(wanted, NULL, 0);
	else if (!pier_soft_random(&base_seed, sizeof(base_seed)))
		return 1;
	print_message("PIER_SEED=%llu\n", (unsigned long long)base_seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
