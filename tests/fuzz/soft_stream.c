/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A connected queue pair of the software NIC whose peer writes arbitrary bytes into the
 * stream. The peer may write into the region whose key it has, and into receives, but
 * into no other byte.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/provider/soft/soft_fixture.h"
#include "fuzz.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/link.h"
#include "provider/soft/queues/pass.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"

enum {
	LONGEST_INPUT = 65536, /* fits a socket's buffer, so writing never blocks */
	MAX_STEPS = 100000,
	GUARD = 4096,
	REGION = 4096,
	IOVA = 0x10000,
	WINDOW_AT = 64, /* offset in the region */
	WINDOW = 1024,
	/* In the fixture's memory: two receives, and the target of a read. */
	RECEIVE = 256,
	LANDING = 3 * RECEIVE,
	PATTERN = 0x5a
};

/* Keys are random: this mark in an input is replaced by the region's key. */
static const uint8_t key_mark[4] = { 'r', 'k', 'e', 'y' };
/* And this mark by the key of a window on a part of the region. */
static const uint8_t window_mark[4] = { 'w', 'k', 'e', 'y' };

struct stage {
	struct soft_fixture fixture;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	uint8_t *guarded; /* the region with a guard on either side */
	int peer;	  /* the other end of the queue pair's stream */
};

static void open_stage(struct stage *stage)
{
	const struct fixture_options options = {
		.stepped = 1,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct fixture_endpoint self;

	fixture_open(&stage->fixture, &options);
	fixture_describe(&stage->fixture, &self);
	fixture_connect(&stage->fixture, &self);
	stage->guarded = aligned_alloc(4096, GUARD + REGION + GUARD);
	FUZZ_CHECK(stage->guarded);
	memset(stage->guarded, PATTERN, GUARD + REGION + GUARD);
	stage->mr = pier_soft_provider.reg_mr(
		stage->fixture.pd, stage->guarded + GUARD, REGION, IOVA,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
			IBV_ACCESS_MW_BIND);
	FUZZ_CHECK(stage->mr);
	stage->mw = pier_soft_provider.alloc_mw(stage->fixture.pd, IBV_MW_TYPE_2);
	FUZZ_CHECK(stage->mw);
}

static void run(struct stage *stage)
{
	uint8_t sink[4096];

	for (int i = 0; i < MAX_STEPS; i++) {
		bool moved = pier_soft_step(soft_context(stage->fixture.context));

		while (read(stage->peer, sink, sizeof(sink)) > 0)
			moved = true;
		if (!moved)
			return;
	}
	FUZZ_CHECK(!"it comes to rest");
}

static void bind_window(struct stage *stage)
{
	struct ibv_send_wr *bad, wr = {
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = {
			.mw = stage->mw,
			.rkey = ibv_inc_rkey(stage->mw->rkey),
			.bind_info = {
				.mr = stage->mr,
				.addr = IOVA + WINDOW_AT,
				.length = WINDOW,
				.mw_access_flags = IBV_ACCESS_REMOTE_WRITE |
						   IBV_ACCESS_REMOTE_READ,
			},
		},
	};

	FUZZ_CHECK(!ibv_post_send(stage->fixture.qp, &wr, &bad));
	stage->mw->rkey = wr.bind_mw.rkey;
	run(stage);
	FUZZ_CHECK(((struct soft_mr *)stage->mr)->windows == 1);
}

/* Replaces the queue pair's stream to itself. */
static void attach_peer(struct stage *stage)
{
	struct soft_context *context = soft_context(stage->fixture.context);
	int fds[2];

	FUZZ_CHECK(
		!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds));
	pier_soft_lock(&context->engine);
	FUZZ_CHECK(!pier_soft_attach_link(&((struct soft_qp *)stage->fixture.qp)->link,
					  fds[0], fds[0], NULL, NULL));
	pier_soft_unlock(&context->engine);
	stage->peer = fds[1];
}

static void post_atomic(struct soft_fixture *fixture)
{
	struct ibv_sge sge = fixture_sge(fixture, 2 * RECEIVE, 8);
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.wr.atomic = { .remote_addr = IOVA, .compare_add = 1, .rkey = 1 },
	};
	struct ibv_send_wr *bad;

	FUZZ_CHECK(!ibv_post_send(fixture->qp, &wr, &bad));
}

/* Post requests of our own, so that answers match something. */
static void post_requests(struct stage *stage)
{
	struct fixture_endpoint nowhere = { .rkey = 1, .address = IOVA };

	FUZZ_CHECK(!fixture_post_recv(&stage->fixture, 1, 0, RECEIVE));
	FUZZ_CHECK(!fixture_post_recv(&stage->fixture, 2, RECEIVE, RECEIVE));
	FUZZ_CHECK(!fixture_post(&stage->fixture, IBV_WR_RDMA_READ, 3, 2 * RECEIVE,
				 RECEIVE, &nowhere, 0, IBV_SEND_SIGNALED));
	FUZZ_CHECK(!fixture_post(&stage->fixture, IBV_WR_SEND, 4, 2 * RECEIVE, RECEIVE,
				 NULL, 0, IBV_SEND_SIGNALED));
	post_atomic(&stage->fixture);
}

static void feed(struct stage *stage, const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size + 1);

	FUZZ_CHECK(copy);
	memcpy(copy, data, size);
	for (size_t i = 0; i + sizeof(key_mark) <= size; i++)
		if (!memcmp(copy + i, key_mark, sizeof(key_mark)))
			memcpy(copy + i, &stage->mr->rkey, sizeof(key_mark));
		else if (!memcmp(copy + i, window_mark, sizeof(window_mark)))
			memcpy(copy + i, &stage->mw->rkey, sizeof(window_mark));
	/* No SIGPIPE if the queue pair has already closed the stream. */
	send(stage->peer, copy, size, MSG_NOSIGNAL);
	free(copy);
	run(stage);
	close(stage->peer);
	stage->peer = open("/dev/null", O_RDONLY | O_CLOEXEC);
	run(stage);
}

static void check_guards(const struct stage *stage)
{
	for (int i = 0; i < GUARD; i++) {
		FUZZ_CHECK(stage->guarded[i] == PATTERN);
		FUZZ_CHECK(stage->guarded[GUARD + REGION + i] == PATTERN);
	}
	for (int i = LANDING; i < FIXTURE_MEMORY; i++)
		FUZZ_CHECK(!stage->fixture.memory[i]);
}

static void close_stage(struct stage *stage)
{
	FUZZ_CHECK(!pier_soft_provider.dealloc_mw(stage->mw));
	FUZZ_CHECK(!pier_soft_provider.dereg_mr(stage->mr));
	fixture_close(&stage->fixture);
	close(stage->peer);
	free(stage->guarded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int before = fixture_count_fds();
	struct stage stage;

	if (size > LONGEST_INPUT)
		return 0;
	open_stage(&stage);
	attach_peer(&stage);
	bind_window(&stage);
	post_requests(&stage);
	feed(&stage, data, size);
	check_guards(&stage);
	close_stage(&stage);
	FUZZ_CHECK(fixture_count_fds() == before);
	return 0;
}
