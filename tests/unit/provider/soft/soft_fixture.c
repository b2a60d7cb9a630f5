/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "provider/soft/device.h"
#include "provider/soft/engine.h"
#include "provider/soft/queues/pass.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"

static const struct pier_provider *const soft = &pier_soft_provider;

uint64_t fixture_milliseconds(void)
{
	return pier_soft_now() / 1000000;
}

int fixture_count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static char folder[64];

int fixture_make_folder(void **state)
{
	const char *parent = getenv("TMPDIR");

	(void)state;
	snprintf(folder, sizeof(folder), "%s/soft-XXXXXX", parent ? parent : "/tmp");
	assert_non_null(mkdtemp(folder));
	return setenv("XDG_RUNTIME_DIR", folder, 1);
}

int fixture_remove_folder(void **state)
{
	char path[96];

	(void)state;
	snprintf(path, sizeof(path), "%s/pier-soft0/key", folder);
	assert_int_equal(unlink(path), 0);
	*strrchr(path, '/') = 0;
	/* Fails if a socket is left in it. */
	assert_int_equal(rmdir(path), 0);
	return rmdir(folder);
}

static struct ibv_context *open_context(int stepped, int meets)
{
	struct ibv_device **list;
	struct ibv_context *context;

	if (meets)
		return pier_soft_verbs.open_device();
	list = soft->get_device_list(NULL);
	assert_non_null(list);
	context = stepped ? pier_soft_open_stepped() : soft->open_device(list[0]);
	soft->free_device_list(list);
	return context;
}

static int fixture_access(const struct soft_fixture *fixture)
{
	return fixture->options.access
		       ? fixture->options.access
		       : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				 IBV_ACCESS_REMOTE_READ;
}

void fixture_create_qp(struct soft_fixture *fixture)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = fixture->send_cq,
		.recv_cq = fixture->recv_cq,
		.srq = fixture->srq,
		.qp_type = fixture->options.datagrams ? IBV_QPT_UD : IBV_QPT_RC,
		.sq_sig_all = fixture->options.sq_sig_all,
		.cap = {
			.max_send_wr = fixture->options.depth,
			.max_recv_wr = fixture->options.depth,
			.max_send_sge = 4,
			.max_recv_sge = 4,
			.max_inline_data = 64,
		},
	};

	fixture->qp = soft->create_qp(fixture->pd, &attr);
	assert_non_null(fixture->qp);
}

static void create_srq(struct soft_fixture *fixture)
{
	struct ibv_srq_init_attr attr = {
		.attr = { .max_wr = fixture->options.srq_depth, .max_sge = 4 },
	};

	fixture->srq = soft->create_srq(fixture->pd, &attr);
	assert_non_null(fixture->srq);
}

void fixture_open(struct soft_fixture *fixture, const struct fixture_options *options)
{
	memset(fixture, 0, sizeof(*fixture));
	if (options)
		fixture->options = *options;
	if (!fixture->options.depth)
		fixture->options.depth = 16;
	if (!fixture->options.cq_depth)
		fixture->options.cq_depth = 256;
	if (!fixture->options.timeout)
		fixture->options.timeout = 21;
	if (!fixture->options.max_rd_atomic)
		fixture->options.max_rd_atomic = 4;
	fixture->context = open_context(fixture->options.stepped, fixture->options.meets);
	assert_non_null(fixture->context);
	fixture->pd = soft->alloc_pd(fixture->context);
	assert_non_null(fixture->pd);
	if (fixture->options.with_channel) {
		fixture->channel = soft->create_comp_channel(fixture->context);
		assert_non_null(fixture->channel);
	}
	fixture->send_cq = soft->create_cq(fixture->context, fixture->options.cq_depth,
					   fixture, fixture->channel, 0);
	fixture->recv_cq = soft->create_cq(fixture->context, fixture->options.cq_depth,
					   fixture, fixture->channel, 0);
	assert_non_null(fixture->send_cq);
	assert_non_null(fixture->recv_cq);
	if (fixture->options.srq_depth)
		create_srq(fixture);
	fixture->memory = aligned_alloc(FIXTURE_PAGE, FIXTURE_MEMORY);
	assert_non_null(fixture->memory);
	memset(fixture->memory, 0, FIXTURE_MEMORY);
	fixture->mr = soft->reg_mr(fixture->pd, fixture->memory, FIXTURE_MEMORY,
				   (uintptr_t)fixture->memory, fixture_access(fixture));
	assert_non_null(fixture->mr);
	fixture_create_qp(fixture);
}

void fixture_close(struct soft_fixture *fixture)
{
	if (fixture->qp)
		assert_int_equal(soft->destroy_qp(fixture->qp), 0);
	if (fixture->srq)
		assert_int_equal(soft->destroy_srq(fixture->srq), 0);
	if (fixture->mr)
		assert_int_equal(soft->dereg_mr(fixture->mr), 0);
	assert_int_equal(soft->destroy_cq(fixture->send_cq), 0);
	assert_int_equal(soft->destroy_cq(fixture->recv_cq), 0);
	if (fixture->channel)
		assert_int_equal(soft->destroy_comp_channel(fixture->channel), 0);
	assert_int_equal(soft->dealloc_pd(fixture->pd), 0);
	assert_int_equal(soft->close_device(fixture->context), 0);
	free(fixture->memory);
}

void fixture_describe(const struct soft_fixture *fixture,
		      struct fixture_endpoint *ret_endpoint)
{
	struct ibv_gid_entry entry;

	memset(ret_endpoint, 0, sizeof(*ret_endpoint));
	assert_int_equal(soft->query_gid(fixture->context, 1, 0, &entry), 0);
	ret_endpoint->gid = entry.gid;
	ret_endpoint->qpn = fixture->qp->qp_num;
	ret_endpoint->rkey = fixture->mr->rkey;
	ret_endpoint->address = (uintptr_t)fixture->memory;
	if (fixture->options.meets)
		return; /* GID and QPN are enough */
	ret_endpoint->blob_length = soft->get_qp_address(fixture->qp, ret_endpoint->blob,
							 sizeof(ret_endpoint->blob));
	assert_true(ret_endpoint->blob_length > 0);
}

int fixture_to(struct soft_fixture *fixture, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return soft->modify_qp(fixture->qp, &attr, IBV_QP_STATE);
}

int fixture_to_init(struct soft_fixture *fixture)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = fixture_access(fixture),
	};

	return soft->modify_qp(fixture->qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       IBV_QP_ACCESS_FLAGS);
}

int fixture_to_rtr(struct soft_fixture *fixture, const struct fixture_endpoint *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = fixture->options.max_rd_atomic,
		.min_rnr_timer = fixture->options.min_rnr_timer,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = peer->gid, .hop_limit = 1 },
		},
	};

	return soft->modify_qp(fixture->qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int fixture_to_rts(struct soft_fixture *fixture)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = fixture->options.timeout,
		.retry_cnt = 0,
		.rnr_retry = fixture->options.rnr_retry,
		.max_rd_atomic = fixture->options.max_rd_atomic,
	};

	return soft->modify_qp(fixture->qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				       IBV_QP_MAX_QP_RD_ATOMIC);
}

void fixture_connect(struct soft_fixture *fixture, const struct fixture_endpoint *peer)
{
	if (peer->blob_length > 0)
		assert_int_equal(
			soft->set_qp_address(fixture->qp, peer->blob, peer->blob_length),
			0);
	assert_int_equal(fixture_to_init(fixture), 0);
	assert_int_equal(fixture_to_rtr(fixture, peer), 0);
	assert_int_equal(fixture_to_rts(fixture), 0);
}

void fixture_open_pair(struct soft_fixture *a, struct soft_fixture *b,
		       const struct fixture_options *options)
{
	struct fixture_endpoint to_a, to_b;

	fixture_open(a, options);
	fixture_open(b, options);
	fixture_describe(a, &to_a);
	fixture_describe(b, &to_b);
	fixture_connect(a, &to_b);
	fixture_connect(b, &to_a);
}

struct ibv_sge fixture_sge(const struct soft_fixture *fixture, uint64_t offset,
			   uint32_t length)
{
	return (struct ibv_sge){
		.addr = (uintptr_t)fixture->memory + offset,
		.length = length,
		.lkey = fixture->mr->lkey,
	};
}

int fixture_post(struct soft_fixture *fixture, enum ibv_wr_opcode opcode, uint64_t wr_id,
		 uint64_t offset, uint32_t length, const struct fixture_endpoint *peer,
		 uint64_t peer_offset, unsigned int flags)
{
	struct ibv_sge sge = fixture_sge(fixture, offset, length);
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = length > 0,
		.opcode = opcode,
		.send_flags = flags,
		.imm_data = htobe32(0x12345678),
	};
	struct ibv_send_wr *bad = NULL;

	if (peer) {
		wr.wr.rdma.remote_addr = peer->address + peer_offset;
		wr.wr.rdma.rkey = peer->rkey;
	}
	return ibv_post_send(fixture->qp, &wr, &bad);
}

int fixture_post_recv(struct soft_fixture *fixture, uint64_t wr_id, uint64_t offset,
		      uint32_t length)
{
	struct ibv_sge sge = fixture_sge(fixture, offset, length);
	struct ibv_recv_wr wr = { .wr_id = wr_id,
				  .sg_list = &sge,
				  .num_sge = length > 0 };
	struct ibv_recv_wr *bad = NULL;

	return ibv_post_recv(fixture->qp, &wr, &bad);
}

void fixture_step(struct soft_fixture *a, struct soft_fixture *b)
{
	if (a && a->options.stepped)
		pier_soft_step(soft_context(a->context));
	if (b && b->options.stepped)
		pier_soft_step(soft_context(b->context));
}

struct ibv_wc fixture_wait(struct soft_fixture *fixture, struct ibv_cq *cq,
			   struct soft_fixture *other)
{
	uint64_t deadline = fixture_milliseconds() + FIXTURE_DEADLINE_MS;
	struct ibv_wc wc = { 0 };
	int count, polls = 0;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0) {
		if (fixture_milliseconds() > deadline)
			fail_msg("no completion within %d ms", FIXTURE_DEADLINE_MS);
		fixture_step(fixture, other);
		/* A limit of seconds is awaited: leave the processors to others. */
		if (!fixture->options.stepped && ++polls > 10000)
			usleep(1000);
	}
	assert_int_equal(count, 1);
	return wc;
}

void fixture_expect(struct soft_fixture *fixture, struct ibv_cq *cq,
		    struct soft_fixture *other, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = fixture_wait(fixture, cq, other);

	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.status, status);
	assert_int_equal(wc.qp_num, fixture->qp->qp_num);
}

void fixture_expect_none(struct soft_fixture *fixture, struct ibv_cq *cq)
{
	struct ibv_wc wc;

	(void)fixture;
	assert_int_equal(ibv_poll_cq(cq, 1, &wc), 0);
}

static int wait_ready(int fd, short events)
{
	struct pollfd waited = { .fd = fd, .events = events };

	return poll(&waited, 1, FIXTURE_DEADLINE_MS);
}

void fixture_write_all(int fd, const void *bytes, size_t length)
{
	while (length > 0) {
		ssize_t written;

		assert_int_equal(wait_ready(fd, POLLOUT), 1);
		written = write(fd, bytes, length);
		assert_true(written > 0);
		bytes = (const char *)bytes + written;
		length -= written;
	}
}

void fixture_read_all(int fd, void *ret_bytes, size_t length)
{
	while (length > 0) {
		ssize_t received;

		assert_int_equal(wait_ready(fd, POLLIN), 1);
		received = read(fd, ret_bytes, length);
		assert_true(received > 0);
		ret_bytes = (char *)ret_bytes + received;
		length -= received;
	}
}

void fixture_exchange(int fd, const struct fixture_endpoint *mine,
		      struct fixture_endpoint *ret_its)
{
	fixture_write_all(fd, mine, sizeof(*mine));
	fixture_read_all(fd, ret_its, sizeof(*ret_its));
}
