/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_VANISHED_SCENE_H
#define TESTS_UNIT_VANISHED_SCENE_H

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_fixture.h"

#include "explore.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/queues/pass.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"

/* Two stepped NICs, their memory, and the actions on it. For vanished.c only. */

enum {
	MOST_REQUESTS = 3,
	RECEIVES = 100, /* added to the wr_ids of receives */
	NEAR_NANOSECONDS = 2000000,
};

/* Possible next actions; the first possible one is the usual one. */
enum action {
	POST_FIRST,
	POST_SECOND,
	POST_RECEIVE,
	STEP_FIRST,
	STEP_SECOND,
	VANISH_FIRST,
	VANISH_SECOND,
	ACTIONS
};

enum size {
	NONE, /* there is no such request */
	SMALL,
	LARGE, /* takes several steps */
};

struct request {
	enum ibv_wr_opcode opcode;
	enum size size;
	bool kept, peer_kept; /* the local and remote memory that does not vanish */
};

struct story {
	const char *name;
	struct request requests[2][MOST_REQUESTS];
	bool vanishes[2];
	unsigned int receives; /* of the second end, after it has refused a send */
	unsigned int deviations;
};

enum way {
	BY_SOCKETS,
	BY_FIFOS,
	DIRECTLY,
	BY_ADDRESS,
	WAYS
};

/*
 * Memory of an end. If it has an fd, the peer's NIC may copy directly into and out of it.
 */
struct area {
	uint8_t *memory;
	struct ibv_mr *mr;
};

struct end {
	struct soft_fixture fixture;
	struct area kept, vanishing;
	unsigned int posted, completed, failed;
	enum ibv_wc_status first_failure;
};

struct exchange {
	const struct story *story;
	enum way way;
	size_t behind, area; /* offset, behind all requests, of the receive buffer */
	struct end ends[2];
	bool vanished[2];
	unsigned int receives, received;
	unsigned int deviations;
	struct explorer explorer;
	unsigned long good, bad;
};

static const struct pier_provider *const soft = &pier_soft_provider;

/* More than a socket holds, half of a FIFO, and the most that is copied in one step. */
static const uint32_t large_lengths[WAYS] = {
	[BY_SOCKETS] = 5 << 18,
	[BY_FIFOS] = SOFT_FIFO_SIZE + SOFT_FIFO_SIZE / 2,
	[DIRECTLY] = 5 << 18,
	[BY_ADDRESS] = 5 << 18,
};

static uint32_t length_of(const struct exchange *exchange, const struct request *request)
{
	const uint32_t lengths[] = {
		[NONE] = 0,
		[SMALL] = 1000,
		[LARGE] = large_lengths[exchange->way],
	};

	return lengths[request->size];
}

/* In whole pages, so that vanishing memory shares no page with another area. */
static uint64_t size_of(const struct exchange *exchange, const struct request *request)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return (length_of(exchange, request) + page - 1) / page * page;
}

/* Each request has memory of its own. */
static uint64_t offset_of(const struct exchange *exchange, unsigned int at,
			  unsigned int index)
{
	const struct request *all = exchange->story->requests[0];
	uint64_t offset = 0;

	for (unsigned int i = 0; i < at * MOST_REQUESTS + index; i++)
		offset += size_of(exchange, &all[i]);
	return offset;
}

static void open_area(struct area *area, struct soft_fixture *fixture, size_t size,
		      bool has_fd)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ;
	int fd = -1;

	if (has_fd) {
		fd = memfd_create("area", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		assert_int_equal(ftruncate(fd, (off_t)size), 0);
		assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	}
	area->memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    has_fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	assert_ptr_not_equal(area->memory, MAP_FAILED);
	area->mr = has_fd ? soft->reg_dmabuf_mr(fixture->pd, 0, size,
						(uintptr_t)area->memory, fd, access)
			  : soft->reg_mr(fixture->pd, area->memory, size,
					 (uintptr_t)area->memory, access);
	assert_non_null(area->mr);
	if (has_fd)
		close(fd);
}

static void close_area(struct area *area, size_t size)
{
	assert_int_equal(soft->dereg_mr(area->mr), 0);
	munmap(area->memory, size);
}

static int post(struct exchange *exchange, unsigned int at, const struct request *request,
		uint64_t offset)
{
	struct end *end = &exchange->ends[at], *peer = &exchange->ends[!at];
	const struct area *here = request->kept ? &end->kept : &end->vanishing;
	const struct area *there = request->peer_kept ? &peer->kept : &peer->vanishing;
	struct ibv_sge sge = { (uintptr_t)here->memory + offset,
			       length_of(exchange, request), here->mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = end->posted,
					.sg_list = &sge,
					.num_sge = 1,
					.opcode = request->opcode,
					.send_flags = IBV_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = (uintptr_t)there->memory + offset;
	wr.wr.rdma.rkey = there->mr->rkey;
	return ibv_post_send(end->fixture.qp, &wr, &bad);
}

static bool post_next(struct exchange *exchange, unsigned int at)
{
	struct end *end = &exchange->ends[at];
	const struct request *request = &exchange->story->requests[at][end->posted];

	if (end->posted == MOST_REQUESTS || request->size == NONE)
		return false;
	assert_int_equal(
		post(exchange, at, request, offset_of(exchange, at, end->posted)), 0);
	end->posted++;
	return true;
}

static bool was_refused(const struct exchange *exchange)
{
	return ((const struct soft_qp *)exchange->ends[0].fixture.qp)->sq.rnr_until > 0;
}

/* Into kept memory, behind the target of the first end. */
static bool post_receive(struct exchange *exchange)
{
	struct area *area = &exchange->ends[1].kept;
	struct ibv_sge sge = { (uintptr_t)area->memory + exchange->behind,
			       (uint32_t)(exchange->area - exchange->behind),
			       area->mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = RECEIVES + exchange->receives,
					.sg_list = &sge,
					.num_sge = 1 };

	if (exchange->receives == exchange->story->receives || !was_refused(exchange))
		return false;
	assert_int_equal(ibv_post_recv(exchange->ends[1].fixture.qp, &wr, &bad), 0);
	exchange->receives++;
	return true;
}

/* Its address stays reserved: no other mapping takes its place. */
static bool vanish(struct exchange *exchange, unsigned int at)
{
	if (!exchange->story->vanishes[at] || exchange->vanished[at])
		return false;
	assert_int_equal(
		mprotect(exchange->ends[at].vanishing.memory, exchange->area, PROT_NONE),
		0);
	exchange->vanished[at] = true;
	return true;
}

/* Timers that expire soon have always expired. */
static bool step(struct exchange *exchange, unsigned int at)
{
	struct ibv_context *context = exchange->ends[at].fixture.context;
	const struct soft_engine *engine = &soft_context(context)->engine;
	uint64_t now = pier_soft_now();

	while (engine->deadline > now && engine->deadline - now < NEAR_NANOSECONDS)
		now = pier_soft_now();
	return pier_soft_step(soft_context(context));
}

/* At the second use of a key the NIC asks whether it may copy directly. */
static void use_key(struct exchange *exchange, unsigned int at)
{
	struct request request = { .opcode = IBV_WR_RDMA_WRITE,
				   .size = SMALL,
				   .kept = true,
				   .peer_kept = true };
	struct soft_fixture *fixture = &exchange->ends[at].fixture;

	for (int i = 0; i < (exchange->way == BY_ADDRESS ? 4 : 2); i++) {
		request.peer_kept = i < 2;
		assert_int_equal(post(exchange, at, &request, exchange->behind), 0);
		fixture_expect(fixture, fixture->send_cq, &exchange->ends[!at].fixture, 0,
			       IBV_WC_SUCCESS);
	}
	while (step(exchange, 0) || step(exchange, 1))
		continue;
}

/* The first byte of each request, and the last. */
static void fill(const struct exchange *exchange, unsigned int at)
{
	const struct request *requests = exchange->story->requests[at];
	const struct end *end = &exchange->ends[at];

	for (unsigned int i = 0; i < MOST_REQUESTS && requests[i].size != NONE; i++) {
		uint64_t first = offset_of(exchange, at, i);
		uint64_t last = first + length_of(exchange, &requests[i]) - 1;

		end->kept.memory[first] = end->kept.memory[last] = 'k';
		end->vanishing.memory[first] = end->vanishing.memory[last] = 'v';
	}
}

static void open_exchange(struct exchange *exchange)
{
	const struct fixture_options options = { .stepped = 1,
						 .rnr_retry = 7,
						 .min_rnr_timer = 1 };

	memset(exchange->ends, 0, sizeof(exchange->ends));
	memset(exchange->vanished, 0, sizeof(exchange->vanished));
	exchange->receives = exchange->received = exchange->deviations = 0;
	fixture_open_pair(&exchange->ends[0].fixture, &exchange->ends[1].fixture,
			  &options);
	for (int i = 0; i < 2; i++) {
		open_area(&exchange->ends[i].kept, &exchange->ends[i].fixture,
			  exchange->area, exchange->way == DIRECTLY);
		open_area(&exchange->ends[i].vanishing, &exchange->ends[i].fixture,
			  exchange->area, false);
	}
	for (unsigned int i = 0; exchange->way >= DIRECTLY && i < 2; i++)
		use_key(exchange, i);
	fill(exchange, 0);
	fill(exchange, 1);
}

static void close_exchange(struct exchange *exchange)
{
	for (int i = 0; i < 2; i++) {
		close_area(&exchange->ends[i].kept, exchange->area);
		close_area(&exchange->ends[i].vanishing, exchange->area);
		fixture_close(&exchange->ends[i].fixture);
	}
}

#endif
