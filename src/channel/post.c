/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>

#include "channel.h"
#include "status.h"
#include "util/error.h"

/* Elements go to the provider as they are. */
#define SAME_FIELD(type, field)                                             \
	(offsetof(struct type, field) == offsetof(struct ibv_sge, field) && \
	 sizeof(((struct type *)0)->field) == sizeof(((struct ibv_sge *)0)->field))
#define SAME_AS_SGE(type)                                                           \
	(sizeof(struct type) == sizeof(struct ibv_sge) && SAME_FIELD(type, addr) && \
	 SAME_FIELD(type, length) && SAME_FIELD(type, lkey))
_Static_assert(SAME_AS_SGE(pier_gather), "struct pier_gather is struct ibv_sge");
_Static_assert(SAME_AS_SGE(pier_scatter), "struct pier_scatter is struct ibv_sge");

/* One request of the send queue, before it has a slot. */
struct request {
	enum ibv_wr_opcode verb;
	enum pier_opcode opcode;
	const struct ibv_sge *sg_list;
	int num_sge;
	const struct pier_remote *remote;
	uint32_t immediate;
	uint64_t length;
};

static int check_elements(const struct pier_channel *channel,
			  const struct ibv_sge *sg_list, int num_sge, uint32_t max_sge,
			  uint64_t *ret_length)
{
	uint64_t length = 0;

	if (num_sge < 0 || (uint32_t)num_sge > max_sge)
		return pier_fail(EINVAL, "%d elements; this channel takes 0 to %u",
				 num_sge, max_sge);
	/* At most 2^31 lengths of 32 bits: no overflow. */
	for (int i = 0; i < num_sge; i++)
		length += sg_list[i].length;
	if (length > channel->max_msg_size)
		return pier_fail(EMSGSIZE,
				 "message of %llu bytes; the port's max_msg_size is %u",
				 (unsigned long long)length, channel->max_msg_size);
	*ret_length = length;
	return 0;
}

static inline int check_state(const struct pier_channel *channel, bool receive)
{
	if (pier_inherited(&channel->object))
		return pier_fail_inherited(&channel->object);
	if (channel->broken)
		return pier_fail_broken(channel);
	if (channel->state == PIER_CHANNEL_CONNECTED ||
	    (receive && channel->state == PIER_CHANNEL_PREPARED))
		return 0;
	return pier_fail(ENOTCONN, "the channel is not connected");
}

/*
 * A full queue may be full of requests that have completed and nobody asks for.
 * NULL: *error tells why; if it is set before, nothing is taken.
 */
static struct pier_slot *take_slot(struct pier_channel *channel, bool receive, int *error)
{
	struct pier_slot *slot = NULL;
	int count;

	if (*error)
		return NULL;
	slot = pier_take_slot(&channel->slots, receive);
	if (slot)
		return slot;
	count = pier_collect(channel);
	if (count >= 0 && !channel->broken)
		slot = pier_take_slot(&channel->slots, receive);
	if (slot)
		return slot;
	if (count < 0)
		*error = count;
	else if (channel->broken)
		*error = pier_fail_broken(channel);
	else
		*error = pier_fail(
			EAGAIN, "the %s queue is full with %u requests: wait for one",
			receive ? "receive" : "send",
			receive ? channel->attr.max_recv_wr : channel->attr.max_send_wr);
	return NULL;
}

static int check_send(const struct pier_channel *channel, struct request *request)
{
	int error = check_state(channel, false);

	if (!error)
		error = check_elements(channel, request->sg_list, request->num_sge,
				       request->opcode == PIER_OP_READ
					       ? channel->max_read_sge
					       : channel->attr.max_send_sge,
				       &request->length);
	if (error)
		return error;
	if (!request->remote && request->opcode != PIER_OP_SEND && request->length)
		return pier_fail(EINVAL, "%s of %llu bytes: remote is NULL",
				 pier_opcode_name(request->opcode),
				 (unsigned long long)request->length);
	if (request->remote && request->remote->length < request->length)
		return pier_fail(ERANGE, "%s of %llu bytes; the remote region has %llu",
				 pier_opcode_name(request->opcode),
				 (unsigned long long)request->length,
				 (unsigned long long)request->remote->length);
	if (request->opcode == PIER_OP_READ && channel->read_depth == 0)
		return pier_fail(EOPNOTSUPP,
				 "no reads on this channel: max_rd_atomic of one "
				 "of its ends is 0");
	return 0;
}

static struct ibv_send_wr make_wr(const struct pier_channel *channel,
				  const struct request *request, uint64_t id)
{
	struct ibv_send_wr wr = {
		.wr_id = id,
		.sg_list = (struct ibv_sge *)request->sg_list,
		.num_sge = request->num_sge,
		.opcode = request->verb,
		.imm_data = htonl(request->immediate),
	};

	if (request->remote) {
		wr.wr.rdma.remote_addr = request->remote->addr;
		wr.wr.rdma.rkey = request->remote->rkey;
	}
	if (request->length <= channel->attr.max_inline && request->length > 0 &&
	    request->opcode != PIER_OP_READ)
		wr.send_flags = IBV_SEND_INLINE;
	return wr;
}

static int finish_post(struct pier_channel *channel, struct pier_slot *slot, int error,
		       const struct ibv_sge *sg_list, int num_sge,
		       struct pier_work *ret_work)
{
	if (error) {
		pier_give_slot(&channel->slots, slot);
		return pier_fail_because(error, "post a %s",
					 pier_opcode_name(slot->opcode));
	}
	pier_slot_posted(&channel->slots, slot, ret_work != NULL, sg_list, num_sge);
	if (ret_work)
		ret_work->id = slot->id;
	return 0;
}

static int post(struct pier_channel *channel, struct request request,
		struct pier_work *ret_work)
{
	struct ibv_send_wr wr, *bad;
	struct pier_slot *slot;
	int error = check_send(channel, &request);

	slot = take_slot(channel, false, &error);
	if (!slot)
		return error;
	pier_slot_set_opcode(slot, request.opcode);
	slot->length = (uint32_t)request.length;
	wr = make_wr(channel, &request, slot->id);
	pier_clear_error();
	error = ibv_post_send(channel->qp, &wr, &bad);
	return finish_post(channel, slot, error, request.sg_list,
			   wr.send_flags & IBV_SEND_INLINE ? 0 : request.num_sge,
			   ret_work);
}

int pier_post_local(struct pier_channel *channel, struct ibv_send_wr *wr,
		    enum pier_opcode opcode, struct pier_work *ret_work)
{
	struct pier_slot *slot = NULL;
	struct ibv_send_wr *bad;
	int error = check_state(channel, false);

	slot = take_slot(channel, false, &error);
	if (!slot)
		return error;
	pier_slot_set_opcode(slot, opcode);
	wr->wr_id = slot->id;
	pier_clear_error();
	return finish_post(channel, slot, ibv_post_send(channel->qp, wr, &bad), NULL, 0,
			   ret_work);
}

int pier_post_send(struct pier_channel *channel, const struct pier_gather *sg_list,
		   int num_sge, struct pier_work *ret_work)
{
	return post(channel,
		    (struct request){ .verb = IBV_WR_SEND,
				      .opcode = PIER_OP_SEND,
				      .sg_list = (const struct ibv_sge *)sg_list,
				      .num_sge = num_sge },
		    ret_work);
}

int pier_post_send_imm(struct pier_channel *channel, const struct pier_gather *sg_list,
		       int num_sge, uint32_t immediate, struct pier_work *ret_work)
{
	return post(channel,
		    (struct request){ .verb = IBV_WR_SEND_WITH_IMM,
				      .opcode = PIER_OP_SEND,
				      .sg_list = (const struct ibv_sge *)sg_list,
				      .num_sge = num_sge,
				      .immediate = immediate },
		    ret_work);
}

int pier_post_write(struct pier_channel *channel, const struct pier_gather *sg_list,
		    int num_sge, const struct pier_remote *remote,
		    struct pier_work *ret_work)
{
	return post(channel,
		    (struct request){ .verb = IBV_WR_RDMA_WRITE,
				      .opcode = PIER_OP_WRITE,
				      .sg_list = (const struct ibv_sge *)sg_list,
				      .num_sge = num_sge,
				      .remote = remote },
		    ret_work);
}

int pier_post_write_imm(struct pier_channel *channel, const struct pier_gather *sg_list,
			int num_sge, const struct pier_remote *remote, uint32_t immediate,
			struct pier_work *ret_work)
{
	return post(channel,
		    (struct request){ .verb = IBV_WR_RDMA_WRITE_WITH_IMM,
				      .opcode = PIER_OP_WRITE,
				      .sg_list = (const struct ibv_sge *)sg_list,
				      .num_sge = num_sge,
				      .remote = remote,
				      .immediate = immediate },
		    ret_work);
}

int pier_post_read(struct pier_channel *channel, const struct pier_scatter *sg_list,
		   int num_sge, const struct pier_remote *remote,
		   struct pier_work *ret_work)
{
	return post(channel,
		    (struct request){ .verb = IBV_WR_RDMA_READ,
				      .opcode = PIER_OP_READ,
				      .sg_list = (const struct ibv_sge *)sg_list,
				      .num_sge = num_sge,
				      .remote = remote },
		    ret_work);
}

int pier_post_recv(struct pier_channel *channel, const struct pier_scatter *sg_list,
		   int num_sge, struct pier_work *ret_work)
{
	struct ibv_recv_wr wr = { .sg_list = (struct ibv_sge *)sg_list,
				  .num_sge = num_sge },
			   *bad;
	struct pier_slot *slot = NULL;
	uint64_t length;
	int error = check_state(channel, true);

	if (!error)
		error = check_elements(channel, wr.sg_list, num_sge,
				       channel->attr.max_recv_sge, &length);
	slot = take_slot(channel, true, &error);
	if (!slot)
		return error;
	pier_slot_set_opcode(slot, PIER_OP_RECV);
	wr.wr_id = slot->id;
	pier_clear_error();
	error = ibv_post_recv(channel->qp, &wr, &bad);
	return finish_post(channel, slot, error, wr.sg_list, num_sge, ret_work);
}
