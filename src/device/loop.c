/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "gid_table.h"
#include "loop.h"

enum {
	TIMEOUT_MS = 5000,
};

struct pier_loop {
	struct pier_device *device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_port_attr port;
	uint8_t port_number;
	int64_t deadline;	/* of the call: see core/deadline.h */
	struct pier_loop *next; /* of those that are left in a protection domain */
};

struct pier_read_back {
	struct pier_loop *loop;
	struct ibv_mr *mr;
	uint8_t byte; /* where the bytes go */
};

static int register_byte(struct pier_pd *pd, struct pier_read_back *reader)
{
	errno = 0;
	reader->mr = pd->device->provider->reg_mr(
		pd->pd, &reader->byte, 1, (uintptr_t)&reader->byte,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	return reader->mr ? 0 : pier_fail_because(pier_last_errno(), "register a byte");
}

static int start_read_back(struct pier_pd *pd, int64_t deadline)
{
	int error;

	pd->read_back = calloc(1, sizeof(*pd->read_back));
	if (!pd->read_back)
		return pier_fail(ENOMEM, "no memory for a queue pair");
	pier_clear_error();
	error = register_byte(pd, pd->read_back);
	if (!error)
		error = pier_loop_create(pd->device, pd->pd, deadline,
					 &pd->read_back->loop);
	return error;
}

static void end_read_back(struct pier_pd *pd)
{
	struct pier_read_back *reader = pd->read_back;

	if (!reader)
		return;
	pier_loop_destroy(reader->loop);
	if (reader->mr)
		pd->device->provider->dereg_mr(reader->mr);
	free(reader);
	pd->read_back = NULL;
}

static int read_byte(struct pier_pd *pd, struct ibv_sge *byte)
{
	int64_t deadline = pier_deadline(TIMEOUT_MS);
	int error = pd->read_back ? 0 : start_read_back(pd, deadline);

	if (!error)
		error = pier_loop_run(pd->read_back->loop, IBV_WR_RDMA_WRITE, byte,
				      (uintptr_t)&pd->read_back->byte,
				      pd->read_back->mr->rkey, deadline);
	if (error)
		end_read_back(pd);
	return error;
}

int pier_read_back(struct pier_pd *pd, uint32_t lkey, uint64_t address)
{
	struct ibv_sge byte = { .addr = address, .length = 1, .lkey = lkey };
	int error;

	pthread_mutex_lock(&pd->read_back_lock);
	error = read_byte(pd, &byte);
	pthread_mutex_unlock(&pd->read_back_lock);
	if (error)
		return pier_fail_because(-error, "letting %s read back a byte",
					 pd->device->name);
	return 0;
}

void pier_end_loops(struct pier_pd *pd)
{
	struct pier_loop *loop;

	end_read_back(pd);
	while ((loop = pd->left_loops)) {
		pd->left_loops = loop->next;
		pier_loop_destroy(loop);
	}
}

enum {
	ADDRESS_TIMEOUT = 14, /* 4.096 us << 14 = 67 ms, 7 times */
	RNR_TIMER = 12,	      /* 0.64 ms */
	HOP_LIMIT = 64,
};

static int find_port(struct pier_loop *loop)
{
	const struct pier_device *device = loop->device;
	int error, last = 0;

	pier_clear_error();
	for (unsigned int port = 1; port <= device->limits.phys_port_cnt; port++) {
		loop->port_number = (uint8_t)port;
		error = device->provider->query_port(device->context, loop->port_number,
						     &loop->port);
		if (!error && loop->port.state == IBV_PORT_ACTIVE)
			return 0;
		last = error ? error : last;
	}
	if (last)
		return pier_fail_because(last, "query a port of %s", device->name);
	return pier_fail(ENETDOWN, "no port of %s is active", device->name);
}

/* parts: that a request joins, or 0 */
static int create_objects(struct pier_loop *loop, struct ibv_pd *pd, uint32_t parts)
{
	const struct pier_device *device = loop->device;
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 1,
			 .max_recv_wr = 1,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	pier_clear_error();
	errno = 0;
	loop->cq = device->provider->create_cq(device->context, 2, NULL, NULL, 0);
	if (!loop->cq)
		return pier_fail_because(pier_last_errno(), "create a completion queue");
	init.send_cq = init.recv_cq = loop->cq;
	errno = 0;
	loop->qp = parts ? device->provider->create_join_qp(pd, &init, parts)
			 : pier_create_direct_qp(device->provider, pd, &init);
	if (!loop->qp && parts > PIER_JOIN_PARTS && errno == EINVAL)
		return pier_fail(EINVAL,
				 "%s has no room for them in one request (%d fit in 1024 "
				 "bytes)",
				 device->name, PIER_JOIN_PARTS);
	if (!loop->qp)
		return pier_fail_because(pier_last_errno(), "create a queue pair");
	return 0;
}

/* soft0 needs more than a GID to find a peer, even itself. */
static int tell_address(struct pier_loop *loop)
{
	const struct pier_provider *provider = loop->device->provider;
	uint8_t address[PIER_PROVIDER_ADDRESS_MAX];
	int length;

	if (!provider->get_qp_address)
		return 0;
	length = provider->get_qp_address(loop->qp, address, sizeof(address));
	return length < 0 ? length
			  : provider->set_qp_address(loop->qp, address, (size_t)length);
}

static int move_to_init(struct pier_loop *loop)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = loop->port_number,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_WRITE,
	};

	return loop->device->provider->modify_qp(
		loop->qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

/* gid: NULL: by LID */
static int move_to_rtr(struct pier_loop *loop, const union ibv_gid *gid, int index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = loop->port.active_mtu,
		.dest_qp_num = loop->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = { .port_num = loop->port_number, .dlid = loop->port.lid },
	};

	if (gid) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.dgid = *gid;
		attr.ah_attr.grh.sgid_index = (uint8_t)index;
		attr.ah_attr.grh.hop_limit = HOP_LIMIT;
	}
	return loop->device->provider->modify_qp(
		loop->qp, &attr,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

/*
 * Any GID of the port reaches the port itself, if the kernel resolves it: one of another
 * network namespace may not. So take the first that works, in the order in which channels
 * offer them. The kernel may look for a neighbour for a second
 * (rdma_addr_find_l2_eth_by_grh() calls rdma_resolve_ip() with 1000 ms).
 */
static int route_by_gid(struct pier_loop *loop)
{
	struct pier_shared_gids *gids;
	int error = pier_list_gids(loop->device, loop->port_number,
				   loop->port.gid_tbl_len, &gids);

	if (error)
		return -error;
	pier_clear_error();
	error = EADDRNOTAVAIL;
	for (uint32_t i = 0; i < gids->list.count; i++) {
		error = move_to_rtr(loop, &gids->list.entries[i].gid,
				    (int)gids->list.entries[i].gid_index);
		if (!error)
			break;
		if (pier_now() > loop->deadline) {
			error = EHOSTUNREACH;
			break;
		}
	}
	pier_drop_gids(gids);
	/* The kernel's, of a neighbour that did not answer: no caller's time is over. */
	return error == ETIMEDOUT ? EHOSTUNREACH : error;
}

static int move_to_rts(struct pier_loop *loop)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = ADDRESS_TIMEOUT,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	return loop->device->provider->modify_qp(
		loop->qp, &attr,
		IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static int connect_to_itself(struct pier_loop *loop)
{
	bool by_gid = loop->port.link_layer == IBV_LINK_LAYER_ETHERNET ||
		      (loop->port.flags & IBV_QPF_GRH_REQUIRED);
	int error;

	pier_clear_error();
	error = move_to_init(loop);
	if (error)
		return pier_fail_because(error, "bring a queue pair to INIT");
	error = tell_address(loop);
	if (error)
		return pier_fail_because(-error, "address a queue pair");
	error = by_gid ? route_by_gid(loop) : move_to_rtr(loop, NULL, 0);
	if (!error)
		error = move_to_rts(loop);
	return error ? pier_fail_because(error, "connect a queue pair to itself") : 0;
}

static int create_loop(struct pier_device *device, struct ibv_pd *pd, uint32_t parts,
		       int64_t deadline, struct pier_loop **ret_loop)
{
	struct pier_loop *loop = calloc(1, sizeof(*loop));
	int error;

	if (!loop)
		return pier_fail(ENOMEM, "no memory for a queue pair");
	loop->device = device;
	loop->deadline = deadline;
	error = find_port(loop);
	if (!error)
		error = create_objects(loop, pd, parts);
	if (!error)
		error = connect_to_itself(loop);
	if (error) {
		pier_loop_destroy(loop);
		return error;
	}
	*ret_loop = loop;
	return 0;
}

int pier_loop_create(struct pier_device *device, struct ibv_pd *pd, int64_t deadline,
		     struct pier_loop **ret_loop)
{
	return create_loop(device, pd, 0, deadline, ret_loop);
}

static int wait_for_completion(struct pier_loop *loop)
{
	int64_t start = pier_now(), now = start;
	struct ibv_wc completion;
	int count;

	/* Read the clock before the poll: a process that was stopped polls once more. */
	while ((count = ibv_poll_cq(loop->cq, 1, &completion)) == 0) {
		if (now > loop->deadline)
			return pier_fail(EHOSTUNREACH,
					 "no completion of a request to itself in "
					 "%" PRId64 " ms",
					 (now - start) / 1000000);
		sched_yield();
		now = pier_now();
	}
	if (count < 0)
		return pier_fail(
			EIO, "poll the completion queue: ibv_poll_cq returned %d", count);
	if (completion.status != IBV_WC_SUCCESS)
		return pier_fail(EIO,
				 "a request to itself completes with the error %d (%s), "
				 "vendor error %#x",
				 (int)completion.status,
				 ibv_wc_status_str(completion.status),
				 completion.vendor_err);
	return 0;
}

int pier_loop_run(struct pier_loop *loop, enum ibv_wr_opcode opcode,
		  struct ibv_sge *local, uint64_t remote, uint32_t rkey, int64_t deadline)
{
	struct ibv_send_wr *bad, request = {
		.sg_list = local,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = remote, .rkey = rkey },
	};
	int error;

	loop->deadline = deadline;
	pier_clear_error();
	error = ibv_post_send(loop->qp, &request, &bad);
	if (error)
		return pier_fail_because(error, "post a request to itself");
	return wait_for_completion(loop);
}

/* 0 or a positive errno; the rest can be destroyed by a later call. */
static int destroy_objects(struct pier_loop *loop)
{
	const struct pier_provider *provider = loop->device->provider;
	int error = loop->qp ? provider->destroy_qp(loop->qp) : 0;

	if (error)
		return error;
	loop->qp = NULL;
	error = loop->cq ? provider->destroy_cq(loop->cq) : 0;
	if (!error)
		loop->cq = NULL;
	return error;
}

/* What cannot be destroyed now is destroyed with the protection domain. */
static void leave_loop(struct pier_pd *pd, struct pier_loop *loop)
{
	if (destroy_objects(loop) == 0) {
		free(loop);
		return;
	}
	pthread_mutex_lock(&pd->read_back_lock);
	loop->next = pd->left_loops;
	pd->left_loops = loop;
	pthread_mutex_unlock(&pd->read_back_lock);
}

int pier_loop_join(struct pier_pd *pd, const struct ibv_sge *parts, uint32_t count,
		   int access, struct ibv_mr **ret_mr)
{
	const struct pier_provider *provider = pd->device->provider;
	struct pier_loop *loop = NULL;
	struct ibv_mr *mr;
	int error = create_loop(pd->device, pd->pd, count, pier_deadline(TIMEOUT_MS),
				&loop);

	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	mr = provider->join_mrs(loop->qp, parts, count, access);
	error = mr ? wait_for_completion(loop)
		   : pier_fail_because(pier_last_errno(), "create an indirect key");
	/* First the queue pair, so that no request is left that uses the key. */
	leave_loop(pd, loop);
	if (error && mr && provider->unjoin_mrs(mr))
		pier_warning("%s does not destroy an indirect key", pd->device->name);
	if (!error)
		*ret_mr = mr;
	return error;
}

void pier_loop_destroy(struct pier_loop *loop)
{
	int error;

	if (!loop)
		return;
	error = destroy_objects(loop);
	if (error)
		pier_warning("%s does not destroy a queue pair: error %d",
			     loop->device->name, error);
	free(loop);
}
