/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a channel adds to libibverbs' own calls, in instructions:
 *
 *	valgrind --tool=callgrind --toggle-collect=measure pier-instructions WAY COUNT
 *
 * runs COUNT writes of one element, each posted and completed, on a device that does
 * nothing, and callgrind counts what happens below measure(). WAY is one of
 *
 *	bare       ibv_post_send() and ibv_poll_cq()
 *	unchecked  elements and remote parts without checks, posted on a channel
 *	checked    the same with all checks
 *	quiet      as unchecked, and nobody asks for a single request
 *
 * and with -batch behind it, BATCH writes under one doorbell, of which the last is
 * signalled, by pier_channel_post_batch(); with -pairs by pier_channel_post_writes().
 * Every way makes its element and its remote part anew for each write.
 *
 * With INLINE defined, the plain calls are those of <pier/inline.h>.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include <pier/pier.h>
#ifdef INLINE
#include <pier/inline.h>
#endif

#include "device/device.h"
#include "region/mr.h"

#define PROGRAM "pier-instructions"
#include "bench.h"

enum {
	BATCH = 16,
	RING = 64,
	LENGTH = 64,
	PIECES = 64, /* segments of the region */
};

/* The device: signalled requests complete immediately. */
static uint64_t completed[RING];
static uint64_t head, tail;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp, (void)bad;
	for (; wr; wr = wr->next) {
		if (wr->send_flags & IBV_SEND_SIGNALED)
			completed[head++ % RING] = wr->wr_id;
	}
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc)
{
	int taken = 0;

	(void)cq;
	for (; taken < count && tail != head; taken++) {
		ret_wc[taken].wr_id = completed[tail++ % RING];
		ret_wc[taken].status = IBV_WC_SUCCESS;
		ret_wc[taken].opcode = IBV_WC_RDMA_WRITE;
		ret_wc[taken].wc_flags = 0;
	}
	return taken;
}

static int query_port(struct ibv_context *context, uint8_t port,
		      struct ibv_port_attr *ret_attr)
{
	(void)context, (void)port;
	*ret_attr = (struct ibv_port_attr){ .state = IBV_PORT_ACTIVE,
					    .active_mtu = IBV_MTU_4096,
					    .gid_tbl_len = 1,
					    .max_msg_sz = UINT32_C(1) << 30,
					    .lid = 1 };
	return 0;
}

static int query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret_entry)
{
	(void)context, (void)port;
	*ret_entry = (struct ibv_gid_entry){ .gid_index = index };
	return 0;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	static struct ibv_comp_channel channel;

	channel.context = context;
	channel.fd = dup(STDERR_FILENO);
	return &channel;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel, int comp_vector)
{
	static struct ibv_cq cq;

	(void)cqe, (void)comp_vector;
	cq.context = context;
	cq.cq_context = cq_context;
	cq.channel = channel;
	return &cq;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	static struct ibv_qp qp;

	qp.context = pd->context;
	qp.pd = pd;
	qp.send_cq = qp.recv_cq = attr->send_cq;
	qp.qp_num = 5;
	return &qp;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp, (void)attr, (void)mask;
	return 0;
}

static const struct pier_provider provider = {
	.name = "null",
	.query_port = query_port,
	.query_gid = query_gid,
	.create_comp_channel = create_comp_channel,
	.create_cq = create_cq,
	.create_qp = create_qp,
	.modify_qp = modify_qp,
};

static struct ibv_context context = {
	.ops = { .post_send = post_send, .poll_cq = poll_cq },
};
static struct ibv_pd verbs_pd = { .context = &context };
static struct pier_device device = {
	.provider = &provider,
	.context = &context,
	.limits = { .max_qp_wr = 64, .max_sge = 16, .max_cqe = 128, .phys_port_cnt = 1 },
	.name = "null0",
};
static struct pier_pd pd = { .device = &device, .pd = &verbs_pd };

/* A region without a real registration, which is not measured. */
static struct ibv_mr verbs_mr = { .lkey = 7, .rkey = 9 };
static struct pier_mr mr = { .pd = &pd,
			     .mr = &verbs_mr,
			     .lkey = 7,
			     .uses = PIER_HOT_GATHER | PIER_HOT_SCATTER,
			     .iova = 0x100000,
			     .length = LENGTH * PIECES,
			     .access = PIER_ACCESS_SHARED };

struct bench {
	struct pier_channel *channel;
	struct pier_remote remote; /* all of the peer's region */
	uint64_t count;
};

static void run_bare(const struct bench *bench)
{
	struct ibv_qp *qp = pier_channel_verbs_qp(bench->channel);
	struct ibv_cq *cq = pier_channel_verbs_cq(bench->channel);
	struct ibv_send_wr wr = { .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_sge sge = { .length = LENGTH, .lkey = verbs_mr.lkey };
	struct ibv_wc wc;

	wr.sg_list = &sge;
	wr.wr.rdma.rkey = bench->remote.rkey;
	for (uint64_t i = 0; i < bench->count; i++) {
		sge.addr = mr.iova + i % PIECES * LENGTH;
		wr.wr_id = i;
		wr.wr.rdma.remote_addr = bench->remote.addr + i % PIECES * LENGTH;
		if (ibv_post_send(qp, &wr, &bad))
			die("post");
		while (ibv_poll_cq(cq, 1, &wc) == 0)
			;
		if (wc.status != IBV_WC_SUCCESS)
			die("completion");
	}
}

static void run_bare_batch(const struct bench *bench)
{
	struct ibv_qp *qp = pier_channel_verbs_qp(bench->channel);
	struct ibv_cq *cq = pier_channel_verbs_cq(bench->channel);
	struct ibv_send_wr wrs[BATCH] = { 0 }, *bad;
	struct ibv_sge sges[BATCH];
	struct ibv_wc wc;

	for (uint64_t i = 0; i < bench->count; i += BATCH) {
		for (uint64_t j = 0; j < BATCH; j++) {
			uint64_t offset = (i + j) % PIECES * LENGTH;

			sges[j] = (struct ibv_sge){ mr.iova + offset, LENGTH,
						    verbs_mr.lkey };
			wrs[j].wr_id = i + j;
			wrs[j].sg_list = &sges[j];
			wrs[j].num_sge = 1;
			wrs[j].opcode = IBV_WR_RDMA_WRITE;
			wrs[j].send_flags = j == BATCH - 1 ? IBV_SEND_SIGNALED : 0;
			wrs[j].next = j == BATCH - 1 ? NULL : &wrs[j + 1];
			wrs[j].wr.rdma.remote_addr = bench->remote.addr + offset;
			wrs[j].wr.rdma.rkey = bench->remote.rkey;
		}
		if (ibv_post_send(qp, wrs, &bad))
			die("post");
		while (ibv_poll_cq(cq, 1, &wc) == 0)
			;
		if (wc.status != IBV_WC_SUCCESS)
			die("completion");
	}
}

static inline __attribute__((always_inline)) void finish(const struct bench *bench,
							 struct pier_work work)
{
	struct pier_result result = { 0 };
	int done;

	do {
		done = pier_work_poll(bench->channel, work, &result);
	} while (done == 0);
	if (done < 0 || result.error)
		die("completion");
}

static void run_unchecked(const struct bench *bench)
{
	struct pier_work work;

	for (uint64_t i = 0; i < bench->count; i++) {
		uint64_t offset = i % PIECES * LENGTH;
		struct pier_gather element = pier_mr_gather_unchecked(
			&mr, mr.iova + offset, LENGTH);
		struct pier_remote part = pier_remote_sub_unchecked(&bench->remote,
								    offset, LENGTH);

		if (pier_channel_post_write(bench->channel, &element, 1, &part, &work))
			die("post");
		finish(bench, work);
	}
}

static void run_quiet(const struct bench *bench)
{
	for (uint64_t i = 0; i < bench->count; i++) {
		uint64_t offset = i % PIECES * LENGTH;
		struct pier_gather element = pier_mr_gather_unchecked(
			&mr, mr.iova + offset, LENGTH);
		struct pier_remote part = pier_remote_sub_unchecked(&bench->remote,
								    offset, LENGTH);

		if (pier_channel_post_write(bench->channel, &element, 1, &part, NULL))
			die("post");
		while (pier_channel_poll(bench->channel) == 0)
			;
	}
}

static void run_checked(const struct bench *bench)
{
	struct pier_gather element;
	struct pier_remote part;
	struct pier_work work;

	for (uint64_t i = 0; i < bench->count; i++) {
		uint64_t offset = i % PIECES * LENGTH;

		if (pier_mr_gather(&mr, mr.iova + offset, LENGTH, &element) ||
		    pier_remote_sub(&bench->remote, offset, LENGTH, &part) ||
		    pier_channel_post_write(bench->channel, &element, 1, &part, &work))
			die("post");
		finish(bench, work);
	}
}

static void run_unchecked_batch(const struct bench *bench)
{
	struct pier_request requests[BATCH] = { 0 };
	struct pier_gather elements[BATCH];
	struct pier_remote parts[BATCH];
	struct pier_work work;

	for (uint64_t i = 0; i < bench->count; i += BATCH) {
		for (uint64_t j = 0; j < BATCH; j++) {
			uint64_t offset = (i + j) % PIECES * LENGTH;

			elements[j] = pier_mr_gather_unchecked(&mr, mr.iova + offset,
							       LENGTH);
			parts[j] = pier_remote_sub_unchecked(&bench->remote, offset,
							     LENGTH);
			requests[j].opcode = PIER_OP_WRITE;
			requests[j].gather = &elements[j];
			requests[j].num_sge = 1;
			requests[j].remote = &parts[j];
		}
		if (pier_channel_post_batch(bench->channel, requests, BATCH, &work))
			die("post");
		finish(bench, work);
	}
}

static void run_checked_batch(const struct bench *bench)
{
	struct pier_request requests[BATCH] = { 0 };
	struct pier_gather elements[BATCH];
	struct pier_remote parts[BATCH];
	struct pier_work work;

	for (uint64_t i = 0; i < bench->count; i += BATCH) {
		for (uint64_t j = 0; j < BATCH; j++) {
			uint64_t offset = (i + j) % PIECES * LENGTH;

			if (pier_mr_gather(&mr, mr.iova + offset, LENGTH, &elements[j]) ||
			    pier_remote_sub(&bench->remote, offset, LENGTH, &parts[j]))
				die("element");
			requests[j].opcode = PIER_OP_WRITE;
			requests[j].gather = &elements[j];
			requests[j].num_sge = 1;
			requests[j].remote = &parts[j];
		}
		if (pier_channel_post_batch(bench->channel, requests, BATCH, &work))
			die("post");
		finish(bench, work);
	}
}

static void run_pairs(const struct bench *bench)
{
	struct pier_write_pair pairs[BATCH];
	struct pier_work work;

	for (uint64_t i = 0; i < bench->count; i += BATCH) {
		for (uint64_t j = 0; j < BATCH; j++) {
			uint64_t offset = (i + j) % PIECES * LENGTH;

			pairs[j].gather = pier_mr_gather_unchecked(&mr, mr.iova + offset,
								   LENGTH);
			pairs[j].remote = pier_remote_sub_unchecked(&bench->remote,
								    offset, LENGTH);
		}
		if (pier_channel_post_writes(bench->channel, pairs, BATCH, &work))
			die("post");
		finish(bench, work);
	}
}

static void run_checked_pairs(const struct bench *bench)
{
	struct pier_write_pair pairs[BATCH];
	struct pier_work work;

	for (uint64_t i = 0; i < bench->count; i += BATCH) {
		for (uint64_t j = 0; j < BATCH; j++) {
			uint64_t offset = (i + j) % PIECES * LENGTH;

			if (pier_mr_gather(&mr, mr.iova + offset, LENGTH,
					   &pairs[j].gather) ||
			    pier_remote_sub(&bench->remote, offset, LENGTH,
					    &pairs[j].remote))
				die("element");
		}
		if (pier_channel_post_writes(bench->channel, pairs, BATCH, &work))
			die("post");
		finish(bench, work);
	}
}

static const struct way {
	const char *name;
	void (*run)(const struct bench *bench);
} ways[] = {
	{ "bare", run_bare },
	{ "unchecked", run_unchecked },
	{ "checked", run_checked },
	{ "quiet", run_quiet },
	{ "bare-batch", run_bare_batch },
	{ "unchecked-batch", run_unchecked_batch },
	{ "checked-batch", run_checked_batch },
	{ "unchecked-pairs", run_pairs },
	{ "checked-pairs", run_checked_pairs },
};

void measure(const struct way *way, const struct bench *bench);

__attribute__((noinline)) void measure(const struct way *way, const struct bench *bench)
{
	way->run(bench);
}

int main(int argc, char **argv)
{
	static const struct pier_endpoint peer = { .qpn = 9, .lid = 2 };
	struct pier_channel_attr attr;
	struct bench bench = { .remote = { 0x900000, LENGTH * PIECES, 9 } };

	pier_channel_attr_init(&attr);
	pthread_mutex_init(&pd.lock, NULL);
	pier_list_init(&pd.users);
	if (argc != 3 || pier_channel_create(&pd, &attr, &bench.channel) ||
	    pier_channel_connect(bench.channel, &peer))
		die("usage: pier-instructions WAY COUNT");
	bench.count = strtoull(argv[2], NULL, 10) / BATCH * BATCH;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		if (strcmp(ways[i].name, argv[1]) == 0) {
			measure(&ways[i], &bench);
			return head == tail && head > 0 ? 0 : 1;
		}
	}
	die("no such way");
}
