/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "nic.h"

struct fake_nic fake;

static bool fails(void)
{
	errno = ENOSPC;
	return ++fake.calls == fake.fail_call;
}

static int query_port(struct ibv_context *context, uint8_t port,
		      struct ibv_port_attr *ret_attr)
{
	(void)context, (void)port;
	if (fails())
		return ENOSPC;
	*ret_attr = fake.port;
	return 0;
}

static int query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret_entry)
{
	(void)context, (void)port;
	if (fails())
		return ENOSPC;
	if (index >= FAKE_GIDS) {
		if (!fake.gid_beyond || index != 256)
			return ENODATA;
		/* A GID of an IPv4 address. */
		*ret_entry = (struct ibv_gid_entry){
			.gid.raw = { [10] = 0xff, [11] = 0xff, [12] = 10 },
			.gid_index = index,
			.gid_type = IBV_GID_TYPE_ROCE_V2,
		};
		return 0;
	}
	if (fake.gids[index].gid.raw[0] == 0 && fake.gids[index].gid.raw[15] == 0)
		return ENODATA;
	*ret_entry = fake.gids[index];
	ret_entry->gid_index = index;
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     int access)
{
	struct ibv_mr *mr;

	if (fails())
		return NULL;
	mr = calloc(1, sizeof(*mr));
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = (uint32_t)(0x100 + fake.calls);
	mr->rkey = (uint32_t)(0x10000 + fake.calls);
	fake.last_mr = *mr;
	fake.last_mr_iova = iova;
	fake.last_mr_access = access;
	fake.mrs++;
	return mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	if (fails())
		return ENOSPC;
	free(mr);
	fake.mrs--;
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw;

	if (fails())
		return NULL;
	mw = calloc(1, sizeof(*mw));
	mw->context = pd->context;
	mw->pd = pd;
	mw->type = type;
	mw->rkey = FAKE_MW_KEY;
	fake.last_mw_type = type;
	fake.mws++;
	return mw;
}

static int dealloc_mw(struct ibv_mw *mw)
{
	if (fails())
		return ENOSPC;
	free(mw);
	fake.mws--;
	return 0;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel;

	if (fails())
		return NULL;
	channel = calloc(1, sizeof(*channel));
	channel->context = context;
	channel->fd = eventfd(0, EFD_CLOEXEC);
	fake.channels++;
	return channel;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	fake.channels--;
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel, int comp_vector)
{
	if (fails())
		return NULL;
	fake.comp_vector = comp_vector;
	fake.cq = calloc(1, sizeof(*fake.cq));
	fake.cq->context = context;
	fake.cq->cqe = cqe;
	fake.cq->cq_context = cq_context;
	fake.cq->channel = channel;
	fake.cqs++;
	return fake.cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	fake.cq = NULL;
	fake.cqs--;
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			void **ret_context)
{
	uint64_t count;

	if (fake.removed) {
		errno = EIO;
		return -1;
	}
	if (read(channel->fd, &count, sizeof(count)) < 0)
		return -1;
	fake.events_given++;
	*ret_cq = fake.cq;
	*ret_context = fake.cq->cq_context;
	return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	(void)cq;
	fake.events_acked += (int)count;
}

/* As mlx5_calc_send_wqe() of libmlx5: 192 bytes, for a window, and the elements. */
static bool fits_send_queue(const struct ibv_qp_cap *cap)
{
	uint32_t request = (192 + 16 * cap->max_send_sge + 63) / 64 * 64;
	uint64_t size = 64;

	while (size < (uint64_t)cap->max_send_wr * request)
		size *= 2;
	return fake.send_blocks == 0 || size / 64 <= fake.send_blocks;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp;

	if (fails())
		return NULL;
	errno = EINVAL;
	if (!fits_send_queue(&attr->cap))
		return NULL;
	qp = calloc(1, sizeof(*qp));
	qp->context = pd->context;
	qp->pd = pd;
	qp->qp_num = FAKE_QPN + fake.qps_created++;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->srq = attr->srq;
	fake.last_qp = *attr;
	fake.cap = attr->cap;
	attr->cap.max_inline_data -= fake.less_inline;
	fake.qps++;
	return qp;
}

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq *srq;

	if (fails())
		return NULL;
	srq = calloc(1, sizeof(*srq));
	srq->context = pd->context;
	srq->pd = pd;
	fake.last_srq = attr->attr;
	fake.srqs++;
	return srq;
}

static int destroy_srq(struct ibv_srq *srq)
{
	if (fails())
		return ENOSPC;
	free(srq);
	fake.srqs--;
	return 0;
}

/* Complete the requests of one queue pair with an error. */
static void flush(const uint64_t *ids, const uint32_t *qpns, const int *count,
		  uint32_t qpn)
{
	for (int i = 0; i < *count;) {
		if (qpns[i] == qpn)
			fake_complete(ids[i], IBV_WC_WR_FLUSH_ERR, IBV_WC_BIND_MW,
				      0xdeadbeef);
		else
			i++;
	}
}

static void flush_sends(const struct ibv_qp *qp)
{
	flush(fake.send_ids, fake.send_qpns, &fake.sends, qp->qp_num);
}

static void flush_recvs(const struct ibv_qp *qp)
{
	flush(fake.recv_ids, fake.recv_qpns, &fake.recvs, qp->qp_num);
}

static int keep_others(uint64_t *ids, uint32_t *qpns, int count, uint32_t qpn)
{
	int kept = 0;

	for (int i = 0; i < count; i++) {
		if (qpns[i] == qpn)
			continue;
		ids[kept] = ids[i];
		qpns[kept++] = qpns[i];
	}
	return kept;
}

static void forget_requests(uint32_t qpn)
{
	fake.sends = keep_others(fake.send_ids, fake.send_qpns, fake.sends, qpn);
	fake.recvs = keep_others(fake.recv_ids, fake.recv_qpns, fake.recvs, qpn);
}

/* 0, or the errno with which the NIC refuses the change. */
static int refuse_state(const struct ibv_qp *qp, const struct ibv_qp_attr *attr)
{
	if (fake.stays_in_error && qp->state == IBV_QPS_ERR &&
	    attr->qp_state == IBV_QPS_INIT)
		return EINVAL;
	if (attr->qp_state != IBV_QPS_RTR)
		return 0;
	if (fake.unresolved > 0) {
		fake.unresolved--;
		return ETIMEDOUT;
	}
	if (fake.read_budget && attr->max_dest_rd_atomic > fake.read_budget)
		return EINVAL;
	fake.read_budget -= fake.read_budget ? attr->max_dest_rd_atomic : 0;
	return 0;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int error = refuse_state(qp, attr);

	(void)mask;
	if (fails())
		return ENOSPC;
	if (error)
		return error;
	if (!fake.stays_in_error || qp->state != IBV_QPS_ERR)
		qp->state = attr->qp_state;
	fake.state = attr->qp_state;
	if (fake.changes < FAKE_QUEUE)
		fake.states[fake.changes++] = attr->qp_state;
	if (attr->qp_state == IBV_QPS_RESET)
		forget_requests(qp->qp_num);
	if (attr->qp_state == IBV_QPS_INIT)
		fake.init = *attr;
	if (attr->qp_state == IBV_QPS_RTR)
		fake.rtr = *attr;
	if (attr->qp_state == IBV_QPS_RTS)
		fake.rts = *attr;
	if (attr->qp_state == IBV_QPS_ERR && !fake.never_flushes) {
		flush_sends(qp);
		flush_recvs(qp);
	}
	return 0;
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
		    struct ibv_qp_init_attr *ret_init_attr)
{
	(void)qp, (void)mask;
	if (fails())
		return ENOSPC;
	*ret_attr = (struct ibv_qp_attr){ .qp_state = fake.state, .sq_psn = fake.sq_psn };
	*ret_init_attr = (struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC };
	return 0;
}

static void clean_cq(uint32_t qpn)
{
	int kept = 0;

	for (int i = 0; i < fake.queued; i++) {
		if (fake.queue[i].qp_num != qpn)
			fake.queue[kept++] = fake.queue[i];
	}
	fake.queued = kept;
}

static int destroy_qp(struct ibv_qp *qp)
{
	fake.mws_at_destroy = fake.mws;
	if (fake.cleans_cq)
		clean_cq(qp->qp_num);
	forget_requests(qp->qp_num);
	free(qp);
	fake.qps--;
	return 0;
}

static void log_send(const struct ibv_send_wr *wr)
{
	struct fake_send *send = &fake.log[fake.logged];

	if (fake.logged == FAKE_QUEUE || wr->num_sge > FAKE_SGE)
		return;
	send->wr = *wr;
	for (int i = 0; i < wr->num_sge; i++)
		send->sg_list[i] = wr->sg_list[i];
	fake.logged++;
}

/* Each request of a list counts as a call for `fail_call`. */
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	fake.doorbells++;
	for (; wr; wr = wr->next) {
		if (fails()) {
			*bad = wr;
			return fake.fail_result;
		}
		fake.last_send = *wr;
		log_send(wr);
		fake.send_qpns[fake.sends] = qp->qp_num;
		fake.send_ids[fake.sends++] = wr->wr_id;
		if (fake.completes)
			fake_complete(wr->wr_id, fake.completes_with, IBV_WC_SEND, 0);
		if (fake.completes && fake.completes_with != IBV_WC_SUCCESS)
			flush_recvs(qp);
	}
	return 0;
}

/* As for sends, each request of a list counts as a call. */
static int take_recvs(struct ibv_recv_wr *wr, struct ibv_recv_wr **bad, uint64_t *ids,
		      int *count)
{
	fake.recv_doorbells++;
	for (; wr; wr = wr->next) {
		if (fails()) {
			*bad = wr;
			return fake.fail_result;
		}
		fake.last_recv = *wr;
		if (wr->num_sge > 0)
			fake.last_recv_sge = wr->sg_list[0];
		ids[(*count)++] = wr->wr_id;
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int error, before = fake.recvs;

	error = take_recvs(wr, bad, fake.recv_ids, &fake.recvs);
	for (int i = before; i < fake.recvs; i++)
		fake.recv_qpns[i] = qp->qp_num;
	return error;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
			 struct ibv_recv_wr **bad)
{
	(void)srq;
	return take_recvs(wr, bad, fake.shared_ids, &fake.shared);
}

static void complete_oldest_send(void)
{
	fake.complete_at_poll = 0;
	if (fake.sends > 0)
		fake_complete(fake.send_ids[0], IBV_WC_SUCCESS, IBV_WC_SEND, 0);
}

static int take_completions(int count, struct ibv_wc *ret_wc)
{
	if (count > fake.queued)
		count = fake.queued;
	memcpy(ret_wc, fake.queue, (size_t)count * sizeof(*ret_wc));
	fake.queued -= count;
	memmove(fake.queue, fake.queue + count,
		(size_t)fake.queued * sizeof(fake.queue[0]));
	return count;
}

/*
 * A caller that has armed the CQ and polls it once more is about to sleep. A send
 * scheduled for a later poll then completes right after this one, and raises the event.
 */
static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc)
{
	(void)cq;
	if (++fake.polls == fake.complete_at_poll)
		complete_oldest_send();
	if (fake.poll_error)
		return fake.poll_error;
	count = take_completions(count, ret_wc);
	if (fake.armed && count == 0 && fake.polls < fake.complete_at_poll)
		complete_oldest_send();
	return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)cq, (void)solicited_only;
	fake.notifies++;
	fake.armed = true;
	return 0;
}

static int get_async_event(struct ibv_context *context, struct ibv_async_event *ret_event)
{
	(void)context;
	if (fake.device_event_count == 0) {
		errno = EAGAIN;
		return -1;
	}
	*ret_event = fake.device_events[0];
	fake.device_event_count--;
	memmove(fake.device_events, fake.device_events + 1,
		(size_t)fake.device_event_count * sizeof(fake.device_events[0]));
	return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	(void)event;
	fake.device_events_acked++;
}

static void report(const struct ibv_async_event *event)
{
	if (fake.device_event_count == FAKE_EVENTS)
		abort();
	fake.device_events[fake.device_event_count++] = *event;
	fake.device.takes_events = true;
}

void fake_report(enum ibv_event_type type, int port)
{
	report(&(struct ibv_async_event){ .element.port_num = port, .event_type = type });
}

void fake_report_queue_pair(enum ibv_event_type type, struct ibv_qp *qp)
{
	report(&(struct ibv_async_event){ .element.qp = qp, .event_type = type });
}

void fake_remove(void)
{
	int fds[2];

	/* The write end of a pipe that nobody reads has POLLERR: poll(2). */
	if (pipe2(fds, O_CLOEXEC) || dup2(fds[1], fake.cq->channel->fd) < 0)
		abort();
	close(fds[0]);
	close(fds[1]);
	fake.removed = true;
}

static const struct pier_provider provider = {
	.name = "fake",
	.get_async_event = get_async_event,
	.ack_async_event = ack_async_event,
	.query_port = query_port,
	.query_gid = query_gid,
	.reg_mr = reg_mr,
	.dereg_mr = dereg_mr,
	.alloc_mw = alloc_mw,
	.dealloc_mw = dealloc_mw,
	.create_comp_channel = create_comp_channel,
	.destroy_comp_channel = destroy_comp_channel,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.get_cq_event = get_cq_event,
	.ack_cq_events = ack_cq_events,
	.create_srq = create_srq,
	.destroy_srq = destroy_srq,
	.create_qp = create_qp,
	.modify_qp = modify_qp,
	.query_qp = query_qp,
	.destroy_qp = destroy_qp,
};

struct pier_pd *fake_reset(void)
{
	for (int i = 0; i < PIER_GID_PORTS; i++)
		pier_drop_gids(fake.device.gids[i].gids);
	memset(&fake, 0, sizeof(fake));
	fake.fail_result = ENOSPC;
	fake.context.async_fd = -1;
	fake.receiver = FAKE_QPN;
	fake.context.num_comp_vectors = 3;
	fake.context.ops.post_send = post_send;
	fake.context.ops.post_recv = post_recv;
	fake.context.ops.post_srq_recv = post_srq_recv;
	fake.context.ops.poll_cq = poll_cq;
	fake.context.ops.req_notify_cq = req_notify_cq;
	fake.port = (struct ibv_port_attr){
		.state = IBV_PORT_ACTIVE,
		.active_mtu = IBV_MTU_2048,
		.gid_tbl_len = FAKE_GIDS,
		.max_msg_sz = UINT32_C(1) << 30,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};
	fake.gids[1].gid.raw[0] = 0xfd;
	fake.gids[1].gid_type = IBV_GID_TYPE_ROCE_V2;
	fake.device = (struct pier_device){
		.provider = &provider,
		.context = &fake.context,
		.limits = { .max_mr_size = UINT64_MAX,
			    .max_qp_wr = 100,
			    .max_sge = 8,
			    .max_sge_rd = 4,
			    .max_cqe = 128,
			    .max_srq = 4,
			    .max_srq_wr = 64,
			    .max_srq_sge = 4,
			    .phys_port_cnt = 2,
			    .max_qp_rd_atom = 8,
			    .max_qp_init_rd_atom = 6 },
		.name = "fake0",
	};
	snprintf(fake.verbs_device.name, sizeof(fake.verbs_device.name), "fake0");
	fake.context.device = &fake.verbs_device;
	fake.verbs_pd.context = &fake.context;
	fake.pd.device = &fake.device;
	fake.pd.pd = &fake.verbs_pd;
	pthread_mutex_init(&fake.device.events_lock, NULL);
	pthread_mutex_init(&fake.device.gids_lock, NULL);
	pthread_mutex_init(&fake.pd.lock, NULL);
	pier_list_init(&fake.pd.users);
	return &fake.pd;
}

/* qpns: NULL for shared receives. Returns the queue pair, or 0. */
static uint32_t forget(uint64_t *ids, uint32_t *qpns, int *count, uint64_t id)
{
	for (int i = 0; i < *count; i++) {
		uint32_t qpn = qpns ? qpns[i] : fake.receiver;

		if (ids[i] != id)
			continue;
		*count -= 1;
		memmove(ids + i, ids + i + 1, (size_t)(*count - i) * sizeof(*ids));
		if (qpns)
			memmove(qpns + i, qpns + i + 1,
				(size_t)(*count - i) * sizeof(*qpns));
		return qpn;
	}
	return 0;
}

static void complete(const struct ibv_wc *wc)
{
	static const uint64_t one = 1;

	uint32_t qpn = forget(fake.send_ids, fake.send_qpns, &fake.sends, wc->wr_id);

	if (!qpn)
		qpn = forget(fake.recv_ids, fake.recv_qpns, &fake.recvs, wc->wr_id);
	if (!qpn)
		qpn = forget(fake.shared_ids, NULL, &fake.shared, wc->wr_id);
	fake.queue[fake.queued] = *wc;
	fake.queue[fake.queued++].qp_num = qpn;
	if (fake.armed && write(fake.cq->channel->fd, &one, sizeof(one)) < 0)
		abort();
	fake.armed = false;
}

void fake_complete(uint64_t id, enum ibv_wc_status status, enum ibv_wc_opcode opcode,
		   uint32_t length)
{
	complete(&(struct ibv_wc){ .wr_id = id,
				   .status = status,
				   .opcode = opcode,
				   .vendor_err = status ? 0x77 : 0,
				   .byte_len = length });
}

void fake_complete_imm(uint64_t id, enum ibv_wc_opcode opcode, uint32_t length,
		       uint32_t network_order)
{
	complete(&(struct ibv_wc){ .wr_id = id,
				   .opcode = opcode,
				   .byte_len = length,
				   .wc_flags = IBV_WC_WITH_IMM,
				   .imm_data = network_order });
}
