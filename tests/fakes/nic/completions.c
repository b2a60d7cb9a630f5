/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "parts.h"

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel;

	if (fake_fails())
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
	if (fake_fails())
		return NULL;
	fake.comp_vector = comp_vector;
	fake.cq = fake.free_cq ? fake.free_cq : calloc(1, sizeof(*fake.cq));
	fake.free_cq = NULL;
	fake.cq->context = context;
	fake.cq->cqe = cqe;
	fake.cq->cq_context = cq_context;
	fake.cq->channel = channel;
	fake.cqs++;
	return fake.cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	fake_drop_events_of(cq);
	if (fake.reuses_cq)
		fake.free_cq = cq;
	else
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

void fake_clean_cq(uint32_t qpn)
{
	int kept = 0;

	for (int i = 0; i < fake.queued; i++) {
		if (fake.queue[i].qp_num != qpn)
			fake.queue[kept++] = fake.queue[i];
	}
	fake.queued = kept;
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

void fake_add_completions(struct pier_provider *provider)
{
	provider->create_comp_channel = create_comp_channel;
	provider->destroy_comp_channel = destroy_comp_channel;
	provider->create_cq = create_cq;
	provider->destroy_cq = destroy_cq;
	provider->get_cq_event = get_cq_event;
	provider->ack_cq_events = ack_cq_events;
	fake.context.ops.poll_cq = poll_cq;
	fake.context.ops.req_notify_cq = req_notify_cq;
}
