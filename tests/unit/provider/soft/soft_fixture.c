/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "provider/soft/device.h"
#include "provider/soft/engine.h"
#include "provider/soft/pass.h"
#include "soft_fixture.h"

static const struct pier_provider *const soft = &pier_soft_provider;

uint64_t rig_milliseconds(void)
{
	return pier_soft_now() / 1000000;
}

int rig_count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static struct ibv_context *open_context(int stepped)
{
	struct ibv_device **list = soft->get_device_list(NULL);
	struct ibv_context *context;

	assert_non_null(list);
	context = stepped ? pier_soft_open_stepped() : soft->open_device(list[0]);
	soft->free_device_list(list);
	return context;
}

static int rig_access(const struct rig *rig)
{
	return rig->options.access ? rig->options.access
				   : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					     IBV_ACCESS_REMOTE_READ;
}

void rig_create_qp(struct rig *rig)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = rig->send_cq,
		.recv_cq = rig->recv_cq,
		.srq = rig->srq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = rig->options.sq_sig_all,
		.cap = {
			.max_send_wr = rig->options.depth,
			.max_recv_wr = rig->options.depth,
			.max_send_sge = 4,
			.max_recv_sge = 4,
			.max_inline_data = 64,
		},
	};

	rig->qp = soft->create_qp(rig->pd, &attr);
	assert_non_null(rig->qp);
}

static void create_srq(struct rig *rig)
{
	struct ibv_srq_init_attr attr = {
		.attr = { .max_wr = rig->options.srq_depth, .max_sge = 4 },
	};

	rig->srq = soft->create_srq(rig->pd, &attr);
	assert_non_null(rig->srq);
}

void rig_open(struct rig *rig, const struct rig_options *options)
{
	memset(rig, 0, sizeof(*rig));
	if (options)
		rig->options = *options;
	if (!rig->options.depth)
		rig->options.depth = 16;
	if (!rig->options.cq_depth)
		rig->options.cq_depth = 256;
	if (!rig->options.timeout)
		rig->options.timeout = 21;
	if (!rig->options.max_rd_atomic)
		rig->options.max_rd_atomic = 4;
	rig->context = open_context(rig->options.stepped);
	assert_non_null(rig->context);
	rig->pd = soft->alloc_pd(rig->context);
	assert_non_null(rig->pd);
	if (rig->options.with_channel) {
		rig->channel = soft->create_comp_channel(rig->context);
		assert_non_null(rig->channel);
	}
	rig->send_cq = soft->create_cq(rig->context, rig->options.cq_depth, rig,
				       rig->channel, 0);
	rig->recv_cq = soft->create_cq(rig->context, rig->options.cq_depth, rig,
				       rig->channel, 0);
	assert_non_null(rig->send_cq);
	assert_non_null(rig->recv_cq);
	if (rig->options.srq_depth)
		create_srq(rig);
	rig->memory = aligned_alloc(4096, RIG_MEMORY);
	assert_non_null(rig->memory);
	memset(rig->memory, 0, RIG_MEMORY);
	rig->mr = soft->reg_mr(rig->pd, rig->memory, RIG_MEMORY, (uintptr_t)rig->memory,
			       rig_access(rig));
	assert_non_null(rig->mr);
	rig_create_qp(rig);
}

void rig_close(struct rig *rig)
{
	if (rig->qp)
		assert_int_equal(soft->destroy_qp(rig->qp), 0);
	if (rig->srq)
		assert_int_equal(soft->destroy_srq(rig->srq), 0);
	if (rig->mr)
		assert_int_equal(soft->dereg_mr(rig->mr), 0);
	assert_int_equal(soft->destroy_cq(rig->send_cq), 0);
	assert_int_equal(soft->destroy_cq(rig->recv_cq), 0);
	if (rig->channel)
		assert_int_equal(soft->destroy_comp_channel(rig->channel), 0);
	assert_int_equal(soft->dealloc_pd(rig->pd), 0);
	assert_int_equal(soft->close_device(rig->context), 0);
	free(rig->memory);
}

void rig_describe(const struct rig *rig, struct rig_endpoint *ret_endpoint)
{
	struct ibv_gid_entry entry;

	memset(ret_endpoint, 0, sizeof(*ret_endpoint));
	assert_int_equal(soft->query_gid(rig->context, 1, 0, &entry), 0);
	ret_endpoint->gid = entry.gid;
	ret_endpoint->qpn = rig->qp->qp_num;
	ret_endpoint->rkey = rig->mr->rkey;
	ret_endpoint->address = (uintptr_t)rig->memory;
	ret_endpoint->blob_length = soft->get_qp_address(rig->qp, ret_endpoint->blob,
							 sizeof(ret_endpoint->blob));
	assert_true(ret_endpoint->blob_length > 0);
}

int rig_to(struct rig *rig, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return soft->modify_qp(rig->qp, &attr, IBV_QP_STATE);
}

int rig_to_init(struct rig *rig)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = rig_access(rig),
	};

	return soft->modify_qp(rig->qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       IBV_QP_ACCESS_FLAGS);
}

int rig_to_rtr(struct rig *rig, const struct rig_endpoint *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = rig->options.max_rd_atomic,
		.min_rnr_timer = rig->options.min_rnr_timer,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = peer->gid, .hop_limit = 1 },
		},
	};

	return soft->modify_qp(rig->qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int rig_to_rts(struct rig *rig)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = rig->options.timeout,
		.retry_cnt = 0,
		.rnr_retry = rig->options.rnr_retry,
		.max_rd_atomic = rig->options.max_rd_atomic,
	};

	return soft->modify_qp(rig->qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				       IBV_QP_MAX_QP_RD_ATOMIC);
}

void rig_connect(struct rig *rig, const struct rig_endpoint *peer)
{
	assert_int_equal(soft->set_qp_address(rig->qp, peer->blob, peer->blob_length), 0);
	assert_int_equal(rig_to_init(rig), 0);
	assert_int_equal(rig_to_rtr(rig, peer), 0);
	assert_int_equal(rig_to_rts(rig), 0);
}

void rig_open_pair(struct rig *a, struct rig *b, const struct rig_options *options)
{
	struct rig_endpoint to_a, to_b;

	rig_open(a, options);
	rig_open(b, options);
	rig_describe(a, &to_a);
	rig_describe(b, &to_b);
	rig_connect(a, &to_b);
	rig_connect(b, &to_a);
}

struct ibv_sge rig_sge(const struct rig *rig, uint64_t offset, uint32_t length)
{
	return (struct ibv_sge){
		.addr = (uintptr_t)rig->memory + offset,
		.length = length,
		.lkey = rig->mr->lkey,
	};
}

int rig_post(struct rig *rig, enum ibv_wr_opcode opcode, uint64_t wr_id, uint64_t offset,
	     uint32_t length, const struct rig_endpoint *peer, uint64_t peer_offset,
	     unsigned int flags)
{
	struct ibv_sge sge = rig_sge(rig, offset, length);
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
	return ibv_post_send(rig->qp, &wr, &bad);
}

int rig_post_recv(struct rig *rig, uint64_t wr_id, uint64_t offset, uint32_t length)
{
	struct ibv_sge sge = rig_sge(rig, offset, length);
	struct ibv_recv_wr wr = { .wr_id = wr_id,
				  .sg_list = &sge,
				  .num_sge = length > 0 };
	struct ibv_recv_wr *bad = NULL;

	return ibv_post_recv(rig->qp, &wr, &bad);
}

void rig_step(struct rig *a, struct rig *b)
{
	if (a && a->options.stepped)
		pier_soft_step(a->context);
	if (b && b->options.stepped)
		pier_soft_step(b->context);
}

struct ibv_wc rig_wait(struct rig *rig, struct ibv_cq *cq, struct rig *other)
{
	uint64_t deadline = rig_milliseconds() + RIG_DEADLINE_MS;
	struct ibv_wc wc = { 0 };
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0) {
		if (rig_milliseconds() > deadline)
			fail_msg("no completion within %d ms", RIG_DEADLINE_MS);
		rig_step(rig, other);
	}
	assert_int_equal(count, 1);
	return wc;
}

void rig_expect(struct rig *rig, struct ibv_cq *cq, struct rig *other, uint64_t wr_id,
		enum ibv_wc_status status)
{
	struct ibv_wc wc = rig_wait(rig, cq, other);

	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.status, status);
	assert_int_equal(wc.qp_num, rig->qp->qp_num);
}

void rig_expect_none(struct rig *rig, struct ibv_cq *cq)
{
	struct ibv_wc wc;

	(void)rig;
	assert_int_equal(ibv_poll_cq(cq, 1, &wc), 0);
}

static int wait_ready(int fd, short events)
{
	struct pollfd waited = { .fd = fd, .events = events };

	return poll(&waited, 1, RIG_DEADLINE_MS);
}

void rig_write_all(int fd, const void *bytes, size_t length)
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

void rig_read_all(int fd, void *ret_bytes, size_t length)
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

void rig_exchange(int fd, const struct rig_endpoint *mine, struct rig_endpoint *ret_its)
{
	rig_write_all(fd, mine, sizeof(*mine));
	rig_read_all(fd, ret_its, sizeof(*ret_its));
}
