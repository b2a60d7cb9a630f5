/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "soft_fake.h"
#include "tests/support/random.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/link/link.h"
#include "provider/soft/regions/keys.h"
#include "provider/soft/soft.h"

/* Memory windows of type 2, and messages that invalidate them. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	ALL = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	AT = 1000,
	LENGTH = 500
};

static const struct fixture_options stepped = {
	.access = IBV_ACCESS_LOCAL_WRITE | ALL,
	.stepped = 1,
	.rnr_retry = 7,
	.min_rnr_timer = 1,
};

/* The owner of windows and its peer. The underlying region gives the peer no access. */
struct pair {
	struct soft_fixture owner, peer;
	struct ibv_mr *base;
	struct ibv_mw *mw;
};

static struct ibv_mr *register_base(struct soft_fixture *owner, int access)
{
	struct ibv_mr *base = soft->reg_mr(owner->pd, owner->memory, FIXTURE_MEMORY,
					   (uintptr_t)owner->memory, access);

	assert_non_null(base);
	return base;
}

static void open_pair(struct pair *pair)
{
	fixture_open_pair(&pair->owner, &pair->peer, &stepped);
	pair->base = register_base(&pair->owner,
				   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	pair->mw = soft->alloc_mw(pair->owner.pd, IBV_MW_TYPE_2);
	assert_non_null(pair->mw);
}

static void close_pair(struct pair *pair)
{
	if (pair->mw)
		assert_int_equal(soft->dealloc_mw(pair->mw), 0);
	assert_int_equal(soft->dereg_mr(pair->base), 0);
	fixture_close(&pair->owner);
	fixture_close(&pair->peer);
}

/* Local writing is allowed and without effect, as with rxe. */
static struct ibv_send_wr binding(const struct pair *pair, int access)
{
	return (struct ibv_send_wr){
		.wr_id = 100,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {
			.mw = pair->mw,
			.rkey = ibv_inc_rkey(pair->mw->rkey),
			.bind_info = {
				.mr = pair->base,
				.addr = (uintptr_t)pair->owner.memory + AT,
				.length = LENGTH,
				.mw_access_flags = (unsigned int)access |
						   IBV_ACCESS_LOCAL_WRITE,
			},
		},
	};
}

static int post(struct soft_fixture *fixture, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;

	return ibv_post_send(fixture->qp, wr, &bad);
}

static int post_invalidate(struct soft_fixture *fixture, uint64_t wr_id, uint32_t key)
{
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.opcode = IBV_WR_LOCAL_INV,
		.send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = key,
	};

	return post(fixture, &wr);
}

static int post_send_inv(struct soft_fixture *fixture, uint64_t wr_id, uint32_t key,
			 uint32_t length)
{
	struct ibv_sge sge = fixture_sge(fixture, 0, length);
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = length > 0,
		.opcode = IBV_WR_SEND_WITH_INV,
		.send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = key,
	};

	return post(fixture, &wr);
}

static void expect_local(struct soft_fixture *fixture, struct soft_fixture *other,
			 uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = fixture_wait(fixture, fixture->send_cq, other);

	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, opcode);
}

static void bind_window(struct pair *pair, int access)
{
	struct ibv_send_wr wr = binding(pair, access);

	assert_int_equal(post(&pair->owner, &wr), 0);
	expect_local(&pair->owner, &pair->peer, 100, IBV_WC_BIND_MW);
	pair->mw->rkey = wr.bind_mw.rkey; /* as ibv_bind_mw(3) leaves it to the caller */
}

/* By the peer, at an offset in the window. */
static void try_access(struct pair *pair, enum ibv_wr_opcode opcode, int64_t offset,
		       uint32_t length, enum ibv_wc_status status)
{
	struct ibv_sge sge = fixture_sge(&pair->peer, 0, length);
	uint64_t address = (uintptr_t)pair->owner.memory + AT + (uint64_t)offset;
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
	};

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = address;
		wr.wr.atomic.rkey = pair->mw->rkey;
		wr.wr.atomic.compare_add = 0x0101010101010101;
	} else {
		wr.wr.rdma.remote_addr = address;
		wr.wr.rdma.rkey = pair->mw->rkey;
	}
	assert_int_equal(post(&pair->peer, &wr), 0);
	fixture_expect(&pair->peer, pair->peer.send_cq, &pair->owner, 1, status);
}

static void expect_bytes(const struct soft_fixture *fixture, uint64_t at, uint64_t length,
			 uint8_t value)
{
	for (uint64_t i = 0; i < FIXTURE_MEMORY; i++)
		assert_int_equal(fixture->memory[i],
				 i >= at && i < at + length ? value : 0);
}

static void gives_the_requested_rights(void **state)
{
	struct pair pair;

	(void)state;
	open_pair(&pair);
	bind_window(&pair, ALL);
	memset(pair.peer.memory, 3, LENGTH);
	try_access(&pair, IBV_WR_RDMA_WRITE, 0, LENGTH, IBV_WC_SUCCESS);
	expect_bytes(&pair.owner, AT, LENGTH, 3);
	memset(pair.peer.memory, 0, LENGTH);
	try_access(&pair, IBV_WR_RDMA_READ, LENGTH - 7, 7, IBV_WC_SUCCESS);
	expect_bytes(&pair.peer, 0, 7, 3);
	memset(pair.owner.memory + AT, 0, LENGTH);
	try_access(&pair, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 8, IBV_WC_SUCCESS);
	expect_bytes(&pair.owner, AT + 8, 8, 1);
	close_pair(&pair);
}

static void gives_no_other_rights(void **state)
{
	const struct {
		enum ibv_wr_opcode opcode;
		int access;
		int64_t offset;
		uint32_t length;
	} cases[] = {
		{ IBV_WR_RDMA_WRITE, ALL, -1, 8 },
		{ IBV_WR_RDMA_WRITE, ALL, LENGTH - 7, 8 },
		{ IBV_WR_RDMA_READ, ALL, -1, 1 },
		{ IBV_WR_RDMA_READ, ALL, LENGTH, 1 },
		{ IBV_WR_RDMA_WRITE, ALL, 0, LENGTH + 1 },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, ALL, -8, 8 },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, ALL, 496, 8 }, /* 4 of them in it */
		{ IBV_WR_RDMA_WRITE, ALL & ~IBV_ACCESS_REMOTE_WRITE, 0, 8 },
		{ IBV_WR_RDMA_READ, ALL & ~IBV_ACCESS_REMOTE_READ, 0, 8 },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, ALL & ~IBV_ACCESS_REMOTE_ATOMIC, 0, 8 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pair pair;

		open_pair(&pair);
		bind_window(&pair, cases[i].access);
		try_access(&pair, cases[i].opcode, cases[i].offset, cases[i].length,
			   IBV_WC_REM_ACCESS_ERR);
		expect_bytes(&pair.owner, 0, 0, 0);
		expect_bytes(&pair.peer, 0, 0, 0);
		close_pair(&pair);
	}
}

/* A region counts writes with its own key. */
static void writes_through_it_are_not_counted(void **state)
{
	struct pier_provider_counter counter = { 0 };
	struct fixture_endpoint to_owner;
	struct pair pair;

	(void)state;
	open_pair(&pair);
	assert_int_equal(soft->dereg_mr(pair.base), 0);
	pair.base = register_base(&pair.owner, IBV_ACCESS_LOCAL_WRITE |
						       IBV_ACCESS_REMOTE_WRITE |
						       IBV_ACCESS_MW_BIND);
	assert_int_equal(soft->bind_counter(pair.base, &counter), 0);
	bind_window(&pair, ALL);
	try_access(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_SUCCESS);
	assert_int_equal(counter.value, 0);
	fixture_describe(&pair.owner, &to_owner);
	to_owner.rkey = pair.base->rkey;
	assert_int_equal(fixture_post(&pair.peer, IBV_WR_RDMA_WRITE, 2, 0, 8, &to_owner,
				      AT, IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&pair.peer, pair.peer.send_cq, &pair.owner, 2, IBV_WC_SUCCESS);
	assert_int_equal(counter.value, 1);
	assert_int_equal(soft->bind_counter(pair.base, NULL), 0);
	close_pair(&pair);
}

/* Before it is bound, with the earlier key, and after it was invalidated. */
static void refuses_stale_keys(void **state)
{
	uint32_t key;
	struct pair pair;

	(void)state;
	open_pair(&pair);
	try_access(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_REM_ACCESS_ERR);
	close_pair(&pair);
	open_pair(&pair);
	key = pair.mw->rkey;
	bind_window(&pair, ALL);
	assert_int_not_equal(pair.mw->rkey, key);
	assert_int_equal(pair.mw->rkey >> 8, key >> 8);
	pair.mw->rkey = key;
	try_access(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_REM_ACCESS_ERR);
	close_pair(&pair);
	open_pair(&pair);
	bind_window(&pair, ALL);
	assert_int_equal(post_invalidate(&pair.owner, 2, pair.mw->rkey), 0);
	expect_local(&pair.owner, &pair.peer, 2, IBV_WC_LOCAL_INV);
	try_access(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_REM_ACCESS_ERR);
	expect_bytes(&pair.owner, 0, 0, 0);
	close_pair(&pair);
}

/* It is no local key, and does not work through another queue pair of the same PD. */
static void works_for_one_queue_pair_only(void **state)
{
	struct soft_fixture other, others_peer;
	struct fixture_endpoint to_other, to_peer;
	struct ibv_sge sge;
	struct pair pair;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };

	(void)state;
	open_pair(&pair);
	bind_window(&pair, ALL);
	other = pair.owner;
	fixture_create_qp(&other);
	fixture_open(&others_peer, &stepped);
	fixture_describe(&other, &to_other);
	fixture_describe(&others_peer, &to_peer);
	fixture_connect(&other, &to_peer);
	fixture_connect(&others_peer, &to_other);
	to_other.rkey = pair.mw->rkey;
	assert_int_equal(
		fixture_post(&others_peer, IBV_WR_RDMA_WRITE, 1, 0, 8, &to_other, AT, 0),
		0);
	fixture_expect(&others_peer, others_peer.send_cq, &other, 1,
		       IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(soft->destroy_qp(other.qp), 0);
	fixture_close(&others_peer);
	sge = fixture_sge(&pair.owner, AT, 8);
	sge.lkey = pair.mw->rkey;
	assert_int_equal(post(&pair.owner, &wr), 0);
	fixture_expect(&pair.owner, pair.owner.send_cq, &pair.peer, 0,
		       IBV_WC_LOC_PROT_ERR);
	close_pair(&pair);
}

/* Every key that the consumer can choose, one after the other. */
static void accepts_every_key(void **state)
{
	struct pair pair;

	(void)state;
	open_pair(&pair);
	for (int i = 0; i < 260; i++) {
		bind_window(&pair, ALL);
		try_access(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_SUCCESS);
		assert_int_equal(post_invalidate(&pair.owner, 2, pair.mw->rkey), 0);
		expect_local(&pair.owner, &pair.peer, 2, IBV_WC_LOCAL_INV);
	}
	close_pair(&pair);
}

static void holds_its_region(void **state)
{
	struct pair pair;
	uint32_t key;

	(void)state;
	open_pair(&pair);
	assert_int_equal(soft->dealloc_pd(pair.owner.pd), EBUSY);
	bind_window(&pair, ALL);
	assert_int_equal(soft->dereg_mr(pair.base), EBUSY);
	try_access(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_SUCCESS);
	/* Bound, and still destroyed. */
	key = pair.mw->rkey;
	assert_int_equal(soft->dealloc_mw(pair.mw), 0);
	assert_int_equal(soft->dereg_mr(pair.base), 0);
	pair.base = register_base(&pair.owner,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	pair.mw = soft->alloc_mw(pair.owner.pd, IBV_MW_TYPE_2);
	assert_int_not_equal(pair.mw->rkey >> 8, key >> 8);
	/* The queue pair goes first: the region is still held. */
	bind_window(&pair, ALL);
	assert_int_equal(soft->destroy_qp(pair.owner.qp), 0);
	assert_int_equal(soft->dereg_mr(pair.base), EBUSY);
	fixture_create_qp(&pair.owner);
	close_pair(&pair);
}

/*
 * One slot, reused repeatedly: the keys differ in the part that the consumer does not
 * choose.
 */
static void reused_slot_gets_another_key(void **state)
{
	struct soft_context *context;
	struct pair pair;
	uint32_t key, index;

	(void)state;
	open_pair(&pair);
	context = soft_context(pair.owner.context);
	key = pair.mw->rkey;
	index = key >> SOFT_GENERATION_BITS;
	assert_int_equal(soft->dealloc_mw(pair.mw), 0);
	assert_null(pier_soft_find_window(&context->mrs, key));
	assert_int_equal(context->mrs.slots[index].generation,
			 ((key | 0xff) + 1) & 0xfff);
	pair.mw = NULL;
	close_pair(&pair);
}

static struct ibv_send_wr *spoiled(struct pair *pair, int which)
{
	static struct ibv_send_wr wr;
	struct ibv_mw_bind_info *info = &wr.bind_mw.bind_info;

	wr = binding(pair, ALL);
	switch (which) {
	case 0:
		info->length = 0;
		break;
	case 1:
		info->mr = NULL;
		break;
	case 2:
		info->addr = (uintptr_t)pair->owner.memory + FIXTURE_MEMORY - LENGTH + 1;
		break;
	case 3:
		info->addr = (uintptr_t)pair->owner.memory - 1;
		break;
	case 4:
		info->mr = pair->owner.mr; /* without MW_BIND */
		break;
	case 5:
		info->mw_access_flags |= IBV_ACCESS_HUGETLB;
		break;
	case 6:
		info->mw_access_flags |= IBV_ACCESS_ZERO_BASED;
		break;
	case 7:
		wr.bind_mw.rkey += 1 << 8;
		break;
	case 8:
		wr.bind_mw.rkey = pair->base->rkey;
		break;
	default:
		return NULL;
	}
	return &wr;
}

static void refuses_invalid_bindings(void **state)
{
	struct ibv_send_wr *wr;
	struct pair pair;

	(void)state;
	for (int i = 0;; i++) {
		open_pair(&pair);
		wr = spoiled(&pair, i);
		if (!wr)
			break;
		assert_int_equal(post(&pair.owner, wr), 0);
		assert_int_equal(post_invalidate(&pair.owner, 2, 0), 0);
		fixture_expect(&pair.owner, pair.owner.send_cq, &pair.peer, 100,
			       IBV_WC_MW_BIND_ERR);
		fixture_expect(&pair.owner, pair.owner.send_cq, &pair.peer, 2,
			       IBV_WC_WR_FLUSH_ERR);
		assert_int_equal(soft->dealloc_mw(pair.mw), 0);
		pair.mw = NULL;
		close_pair(&pair);
	}
	close_pair(&pair);
}

/*
 * A second binding, a region without local write, and windows and regions of another PD.
 */
static void refuses_bindings_of_unsuitable_objects(void **state)
{
	struct ibv_send_wr wr;
	struct pair pair;
	struct ibv_mr *base;
	struct ibv_pd *pd;

	(void)state;
	for (int i = 0; i < 4; i++) {
		open_pair(&pair);
		base = pair.base;
		pd = soft->alloc_pd(pair.owner.context);
		if (i == 0)
			bind_window(&pair, ALL);
		if (i == 1)
			pair.base = register_base(&pair.owner, IBV_ACCESS_MW_BIND);
		if (i == 2)
			pair.base = soft->reg_mr(pd, pair.owner.memory, FIXTURE_MEMORY,
						 (uintptr_t)pair.owner.memory,
						 IBV_ACCESS_LOCAL_WRITE |
							 IBV_ACCESS_MW_BIND);
		if (i == 3) {
			assert_int_equal(soft->dealloc_mw(pair.mw), 0);
			pair.mw = soft->alloc_mw(pd, IBV_MW_TYPE_2);
		}
		wr = binding(&pair, ALL);
		assert_int_equal(post(&pair.owner, &wr), 0);
		fixture_expect(&pair.owner, pair.owner.send_cq, &pair.peer, 100,
			       IBV_WC_MW_BIND_ERR);
		assert_int_equal(soft->dealloc_mw(pair.mw), 0);
		if (pair.base != base)
			assert_int_equal(soft->dereg_mr(base), 0);
		assert_int_equal(soft->dereg_mr(pair.base), 0);
		assert_int_equal(soft->dealloc_pd(pd), 0);
		fixture_close(&pair.owner);
		fixture_close(&pair.peer);
	}
}

/*
 * The state of the objects counts when the request is executed, not when it was posted.
 */
static void survives_destroyed_objects(void **state)
{
	struct ibv_send_wr wr;
	struct pair pair;

	(void)state;
	open_pair(&pair);
	wr = binding(&pair, ALL);
	assert_int_equal(post(&pair.owner, &wr), 0);
	assert_int_equal(soft->dealloc_mw(pair.mw), 0);
	pair.mw = NULL;
	fixture_expect(&pair.owner, pair.owner.send_cq, &pair.peer, 100,
		       IBV_WC_MW_BIND_ERR);
	close_pair(&pair);
}

static void refuses_to_invalidate_unbound_keys(void **state)
{
	struct pair pair;

	(void)state;
	for (int i = 0; i < 3; i++) {
		uint32_t key;

		open_pair(&pair);
		if (i == 0)
			bind_window(&pair, ALL);
		/* Another key of a bound window; that of an unbound one; a region's. */
		key = i == 2 ? pair.base->rkey : pair.mw->rkey ^ (i == 0);
		assert_int_equal(post_invalidate(&pair.owner, 7, key), 0);
		fixture_expect(&pair.owner, pair.owner.send_cq, &pair.peer, 7,
			       IBV_WC_LOC_QP_OP_ERR);
		close_pair(&pair);
	}
}

static void refuses_invalid_requests(void **state)
{
	struct ibv_device_attr attr;
	struct ibv_send_wr wr;
	struct pair pair;

	(void)state;
	open_pair(&pair);
	assert_int_equal(soft->query_device(pair.owner.context, &attr), 0);
	assert_true(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	assert_true(attr.max_mw > 0);
	assert_null(soft->alloc_mw(pair.owner.pd, (enum ibv_mw_type)3));
	assert_int_equal(errno, EINVAL);
	wr = binding(&pair, ALL);
	wr.send_flags = IBV_SEND_INLINE;
	assert_int_equal(post(&pair.owner, &wr), EINVAL);
	wr = binding(&pair, ALL);
	wr.bind_mw.mw = NULL;
	assert_int_equal(post(&pair.owner, &wr), EINVAL);
	close_pair(&pair);
}

/*
 * Bind, send the key, and the peer uses it: all posted at once, with RNR NAKs in between.
 * Each is executed once.
 */
static void executes_each_request_once_in_order(void **state)
{
	struct ibv_send_wr bind, more;
	struct pair pair;

	(void)state;
	open_pair(&pair);
	bind = binding(&pair, ALL);
	more = bind;
	more.wr_id = 103;
	more.bind_mw.rkey = ibv_inc_rkey(bind.bind_mw.rkey);
	/* Refused at first; the local requests behind it wait, or are not repeated. */
	assert_int_equal(fixture_post(&pair.owner, IBV_WR_SEND, 1, 0, 8, NULL, 0,
				      IBV_SEND_SIGNALED),
			 0);
	assert_int_equal(post(&pair.owner, &bind), 0);
	assert_int_equal(fixture_post(&pair.owner, IBV_WR_SEND, 2, 0, 8, NULL, 0, 0), 0);
	assert_int_equal(post_invalidate(&pair.owner, 3, bind.bind_mw.rkey), 0);
	assert_int_equal(post(&pair.owner, &more), 0);
	for (int i = 0; i < 300; i++)
		fixture_step(&pair.owner, &pair.peer);
	fixture_expect_none(&pair.owner, pair.owner.send_cq);
	assert_int_equal(fixture_post_recv(&pair.peer, 1, 0, 8), 0);
	assert_int_equal(fixture_post_recv(&pair.peer, 2, 0, 8), 0);
	fixture_expect(&pair.owner, pair.owner.send_cq, &pair.peer, 1, IBV_WC_SUCCESS);
	expect_local(&pair.owner, &pair.peer, 100, IBV_WC_BIND_MW);
	expect_local(&pair.owner, &pair.peer, 3, IBV_WC_LOCAL_INV);
	expect_local(&pair.owner, &pair.peer, 103, IBV_WC_BIND_MW);
	fixture_expect(&pair.peer, pair.peer.recv_cq, &pair.owner, 1, IBV_WC_SUCCESS);
	fixture_expect(&pair.peer, pair.peer.recv_cq, &pair.owner, 2, IBV_WC_SUCCESS);
	pair.mw->rkey = more.bind_mw.rkey;
	try_access(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_SUCCESS);
	close_pair(&pair);
}

/* Without the peer, and even before there is one. */
static void works_without_a_link(void **state)
{
	struct fixture_endpoint nowhere;
	struct pair pair;

	(void)state;
	open_pair(&pair);
	assert_int_equal(fixture_to(&pair.owner, IBV_QPS_RESET), 0);
	fixture_describe(&pair.owner, &nowhere);
	memset(nowhere.gid.raw + 8, 0, 8); /* in no context; the lowest name is called */
	assert_int_equal(
		soft->set_qp_address(pair.owner.qp, nowhere.blob, nowhere.blob_length),
		0);
	assert_int_equal(fixture_to_init(&pair.owner), 0);
	assert_int_equal(fixture_to_rtr(&pair.owner, &nowhere), 0);
	assert_int_equal(fixture_to_rts(&pair.owner), 0);
	bind_window(&pair, ALL);
	assert_int_equal(post_invalidate(&pair.owner, 2, pair.mw->rkey), 0);
	expect_local(&pair.owner, &pair.peer, 2, IBV_WC_LOCAL_INV);
	close_pair(&pair);
}

/* Local requests have no sequence number; an invalidation waits, a binding does not. */
static void local_requests_are_not_on_the_wire(void **state)
{
	struct pollfd waited = { .events = POLLIN };
	struct ibv_send_wr bind;
	struct pair pair = { 0 };
	struct soft_fixture *fixture = &pair.owner;
	struct fake fake;

	(void)state;
	fixture_open(fixture, &stepped);
	fake_make(&fake, fixture);
	fake_connect(fixture, &fake);
	waited.fd = fake_call_stepped(&fake, fixture);
	pair.base = register_base(fixture, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	pair.mw = soft->alloc_mw(fixture->pd, IBV_MW_TYPE_2);
	bind = binding(&pair, ALL);
	assert_int_equal(
		fixture_post(fixture, IBV_WR_SEND, 1, 0, 0, NULL, 0, IBV_SEND_SIGNALED),
		0);
	assert_int_equal(post(fixture, &bind), 0);
	assert_int_equal(
		fixture_post(fixture, IBV_WR_SEND, 2, 0, 0, NULL, 0, IBV_SEND_SIGNALED),
		0);
	assert_int_equal(post_invalidate(fixture, 3, bind.bind_mw.rkey), 0);
	assert_int_equal(
		fixture_post(fixture, IBV_WR_SEND, 4, 0, 0, NULL, 0, IBV_SEND_SIGNALED),
		0);
	fake_step(fixture);
	assert_int_equal(fake_next(waited.fd).msn, 0);
	assert_int_equal(fake_next(waited.fd).msn, 1);
	assert_int_equal(poll(&waited, 1, 0), 0);
	fixture_expect_none(fixture, fixture->send_cq);
	fake_send(waited.fd, (struct soft_header){ .opcode = SOFT_ACK, .msn = 1 });
	fixture_expect(fixture, fixture->send_cq, NULL, 1, IBV_WC_SUCCESS);
	expect_local(fixture, NULL, 100, IBV_WC_BIND_MW);
	fixture_expect_none(fixture, fixture->send_cq);
	fake_send(waited.fd, (struct soft_header){ .opcode = SOFT_ACK, .msn = 2 });
	fixture_expect(fixture, fixture->send_cq, NULL, 2, IBV_WC_SUCCESS);
	expect_local(fixture, NULL, 3, IBV_WC_LOCAL_INV);
	fake_step(fixture);
	assert_int_equal(fake_next(waited.fd).msn, 2);
	fake_send(waited.fd, (struct soft_header){ .opcode = SOFT_ACK, .msn = 3 });
	fixture_expect(fixture, fixture->send_cq, NULL, 4, IBV_WC_SUCCESS);
	/* Sequence numbers are unused up to here: the last binding has none either. */
	bind.bind_mw.rkey = ibv_inc_rkey(bind.bind_mw.rkey);
	assert_int_equal(post(fixture, &bind), 0);
	expect_local(fixture, NULL, 100, IBV_WC_BIND_MW);
	assert_int_equal(fixture_post_recv(fixture, 9, 0, 8), 0);
	fake_send(waited.fd, (struct soft_header){ .opcode = SOFT_ACK, .msn = 4 });
	fixture_expect(fixture, fixture->recv_cq, NULL, 9, IBV_WC_WR_FLUSH_ERR);
	close(waited.fd);
	assert_int_equal(soft->dealloc_mw(pair.mw), 0);
	assert_int_equal(soft->dereg_mr(pair.base), 0);
	fixture_close(fixture);
}

/* A fenced binding waits for the READ before it. */
static void fenced_binding_waits_for_reads(void **state)
{
	struct fixture_endpoint to_peer;
	struct ibv_send_wr bind;
	struct pair pair;

	(void)state;
	open_pair(&pair);
	fixture_describe(&pair.peer, &to_peer);
	bind = binding(&pair, ALL);
	bind.send_flags |= IBV_SEND_FENCE;
	assert_int_equal(fixture_post(&pair.owner, IBV_WR_RDMA_READ, 1, 0, 8, &to_peer, 0,
				      IBV_SEND_SIGNALED),
			 0);
	assert_int_equal(post(&pair.owner, &bind), 0);
	for (int i = 0; i < 20; i++)
		fixture_step(&pair.owner, NULL);
	assert_int_equal(((struct soft_mr *)pair.base)->windows, 0);
	fixture_expect(&pair.owner, pair.owner.send_cq, &pair.peer, 1, IBV_WC_SUCCESS);
	expect_local(&pair.owner, &pair.peer, 100, IBV_WC_BIND_MW);
	assert_int_equal(((struct soft_mr *)pair.base)->windows, 1);
	close_pair(&pair);
}

static void send_invalidates_the_window(void **state)
{
	struct pair pair;
	struct ibv_wc wc;

	(void)state;
	open_pair(&pair);
	bind_window(&pair, ALL);
	memset(pair.peer.memory, 6, 16);
	assert_int_equal(fixture_post_recv(&pair.owner, 5, 0, 16), 0);
	assert_int_equal(post_send_inv(&pair.peer, 1, pair.mw->rkey, 16), 0);
	wc = fixture_wait(&pair.owner, pair.owner.recv_cq, &pair.peer);
	assert_int_equal(wc.wr_id, 5);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RECV);
	assert_int_equal(wc.byte_len, 16);
	assert_int_equal(wc.wc_flags, IBV_WC_WITH_INV);
	assert_int_equal(wc.invalidated_rkey, pair.mw->rkey);
	wc = fixture_wait(&pair.peer, pair.peer.send_cq, &pair.owner);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_SEND);
	expect_bytes(&pair.owner, 0, 16, 6);
	/* It is free: the region can be deregistered, and the window bound again. */
	assert_int_equal(soft->dereg_mr(pair.base), 0);
	pair.base = register_base(&pair.owner,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	bind_window(&pair, IBV_ACCESS_REMOTE_WRITE);
	memset(pair.owner.memory, 0, 16);
	try_access(&pair, IBV_WR_RDMA_WRITE, 3, 16, IBV_WC_SUCCESS);
	expect_bytes(&pair.owner, AT + 3, 16, 6);
	close_pair(&pair);
}

/* Not bound; a region's key; and that of another queue pair's window. */
static void refuses_to_invalidate_foreign_keys(void **state)
{
	struct pair pair;
	struct soft_fixture other;

	(void)state;
	for (int i = 0; i < 3; i++) {
		uint32_t key;

		open_pair(&pair);
		other = pair.owner;
		if (i == 2) {
			/* The window is bound to a queue pair without a peer. */
			struct fixture_endpoint self;
			struct ibv_send_wr wr = binding(&pair, ALL);

			fixture_create_qp(&other);
			fixture_describe(&other, &self);
			fixture_connect(&other, &self);
			assert_int_equal(post(&other, &wr), 0);
			expect_local(&other, NULL, 100, IBV_WC_BIND_MW);
			pair.mw->rkey = wr.bind_mw.rkey;
		}
		key = i == 1 ? pair.owner.mr->rkey : pair.mw->rkey;
		assert_int_equal(fixture_post_recv(&pair.owner, 5, 0, 16), 0);
		assert_int_equal(fixture_post_recv(&pair.owner, 6, 0, 16), 0);
		assert_int_equal(post_send_inv(&pair.peer, 1, key, 16), 0);
		fixture_expect(&pair.owner, pair.owner.recv_cq, &pair.peer, 5,
			       IBV_WC_REM_INV_REQ_ERR);
		fixture_expect(&pair.owner, pair.owner.recv_cq, &pair.peer, 6,
			       IBV_WC_WR_FLUSH_ERR);
		fixture_expect(&pair.peer, pair.peer.send_cq, &pair.owner, 1,
			       IBV_WC_REM_ACCESS_ERR);
		if (i == 2) {
			assert_int_equal(((struct soft_mr *)pair.base)->windows, 1);
			assert_int_equal(soft->destroy_qp(other.qp), 0);
		}
		close_pair(&pair);
	}
}

/* The window is valid when the message begins, and not when it ends. */
static void survives_invalidation_during_a_message(void **state)
{
	struct pair pair = { 0 };
	struct soft_fixture *fixture = &pair.owner;
	struct soft_header answer;
	struct fake fake;
	int fd;

	(void)state;
	fixture_open(fixture, &stepped);
	fake_make(&fake, fixture);
	fake_connect(fixture, &fake);
	fd = fake_call_stepped(&fake, fixture);
	pair.base = register_base(fixture, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	pair.mw = soft->alloc_mw(fixture->pd, IBV_MW_TYPE_2);
	bind_window(&pair, ALL);
	assert_int_equal(fixture_post_recv(fixture, 5, 0, 16), 0);
	fake_send(fd, (struct soft_header){ .opcode = SOFT_SEND_INV,
					    .key = pair.mw->rkey,
					    .length = 8 });
	fixture_write_all(fd, "1234", 4);
	fake_step(fixture);
	assert_int_equal(soft->dealloc_mw(pair.mw), 0);
	fixture_write_all(fd, "5678", 4);
	fixture_expect(fixture, fixture->recv_cq, NULL, 5, IBV_WC_REM_INV_REQ_ERR);
	fake_step(fixture);
	answer = fake_next(fd);
	assert_int_equal(answer.opcode, SOFT_NAK);
	assert_int_equal(answer.msn, 0);
	assert_int_equal(answer.syndrome, SOFT_NAK_ACCESS);
	close(fd);
	assert_int_equal(soft->dereg_mr(pair.base), 0);
	fixture_close(fixture);
}

enum {
	REQUESTS = 600
};

/* One random request of the owner, and its expected status. */
static enum ibv_wc_opcode post_any(struct pair *pair, struct test_random *random,
				   const struct fixture_endpoint *to_peer, bool *bound,
				   uint64_t wr_id)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE,
						      IBV_WR_RDMA_READ };
	static const enum ibv_wc_opcode completed[] = { IBV_WC_SEND, IBV_WC_RDMA_WRITE,
							IBV_WC_RDMA_READ };
	struct ibv_send_wr wr = binding(pair, ALL);
	uint64_t choice = test_random_below(random, 6);

	if (choice < 3) {
		assert_int_equal(fixture_post(&pair->owner, opcodes[choice], wr_id, 0, 8,
					      choice ? to_peer : NULL, 0,
					      IBV_SEND_SIGNALED),
				 0);
		return completed[choice];
	}
	*bound = !*bound;
	if (!*bound) {
		assert_int_equal(post_invalidate(&pair->owner, wr_id, pair->mw->rkey), 0);
		return IBV_WC_LOCAL_INV;
	}
	wr.wr_id = wr_id;
	assert_int_equal(post(&pair->owner, &wr), 0);
	pair->mw->rkey = wr.bind_mw.rkey;
	return IBV_WC_BIND_MW;
}

/* Everything mixed, with late receives: all done in order and once. */
static void survives_random_requests(void **state)
{
	struct test_random random = test_random_start();
	enum ibv_wc_opcode expected[16];
	struct fixture_endpoint to_peer;
	bool bound = false;
	uint64_t posted = 0;
	struct pair pair;
	struct ibv_wc wc;

	(void)state;
	open_pair(&pair);
	fixture_describe(&pair.peer, &to_peer);
	for (uint64_t done = 0; done < REQUESTS;) {
		while (posted < REQUESTS && posted - done < 16 &&
		       test_random_below(&random, 4)) {
			expected[posted % 16] = post_any(&pair, &random, &to_peer, &bound,
							 posted);
			posted++;
		}
		if (test_random_below(&random, 8) == 0)
			fixture_post_recv(&pair.peer, 0, 0, 8);
		while (ibv_poll_cq(pair.peer.recv_cq, 1, &wc) == 1)
			assert_int_equal(wc.status, IBV_WC_SUCCESS);
		for (uint64_t i = test_random_below(&random, 20); i > 0; i--)
			fixture_step(&pair.owner, &pair.peer);
		while (ibv_poll_cq(pair.owner.send_cq, 1, &wc) == 1) {
			assert_int_equal(wc.status, IBV_WC_SUCCESS);
			assert_int_equal(wc.wr_id, done);
			assert_int_equal(wc.opcode, expected[done % 16]);
			done++;
		}
	}
	assert_int_equal(((struct soft_mr *)pair.base)->windows, bound);
	close_pair(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gives_the_requested_rights),
		cmocka_unit_test(gives_no_other_rights),
		cmocka_unit_test(writes_through_it_are_not_counted),
		cmocka_unit_test(refuses_stale_keys),
		cmocka_unit_test(works_for_one_queue_pair_only),
		cmocka_unit_test(accepts_every_key),
		cmocka_unit_test(holds_its_region),
		cmocka_unit_test(reused_slot_gets_another_key),
		cmocka_unit_test(refuses_invalid_bindings),
		cmocka_unit_test(refuses_bindings_of_unsuitable_objects),
		cmocka_unit_test(survives_destroyed_objects),
		cmocka_unit_test(refuses_to_invalidate_unbound_keys),
		cmocka_unit_test(refuses_invalid_requests),
		cmocka_unit_test(executes_each_request_once_in_order),
		cmocka_unit_test(works_without_a_link),
		cmocka_unit_test(local_requests_are_not_on_the_wire),
		cmocka_unit_test(fenced_binding_waits_for_reads),
		cmocka_unit_test(send_invalidates_the_window),
		cmocka_unit_test(refuses_to_invalidate_foreign_keys),
		cmocka_unit_test(survives_invalidation_during_a_message),
		cmocka_unit_test(survives_random_requests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
