/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"
#include "provider/provider.h"
#include "core/error.h"
#include "pass.h"
#include "provider/soft/connect/address.h"
#include "provider/soft/connect/gid.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/queues/atomic.h"
#include "provider/soft/queues/channel.h"
#include "provider/soft/queues/cq.h"
#include "provider/soft/queues/events.h"
#include "provider/soft/queues/modify.h"
#include "provider/soft/queues/poll.h"
#include "provider/soft/queues/post.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/queues/srq.h"
#include "provider/soft/regions/keys.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/regions/window.h"
#include "registry.h"
#include "soft.h"
#include "thread.h"

static struct ibv_device soft_device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "soft0",
	.dev_name = "soft0",
};

static struct ibv_device **get_device_list(int *ret_count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (!list)
		return NULL;
	list[0] = &soft_device;
	if (ret_count)
		*ret_count = 1;
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	free(list);
}

static struct soft_context *allocate_context(void)
{
	struct soft_context *context = calloc(1, sizeof(*context));
	struct soft_engine *engine;

	if (!context)
		return NULL;
	engine = &context->engine;
	engine->ops = &pier_soft_engine_ops;
	engine->epoll_fd = engine->wake_fd = engine->timer_fd = -1;
	engine->staging.fd = -1;
	context->listeners.unix_fd = context->listeners.tcp_fd = -1;
	context->pid = getpid();
	context->ibv.device = &soft_device;
	context->ibv.cmd_fd = context->ibv.async_fd = -1;
	context->ibv.num_comp_vectors = 1;
	context->ibv.ops.post_send = pier_soft_post_send;
	context->ibv.ops.post_recv = pier_soft_post_recv;
	context->ibv.ops.post_srq_recv = pier_soft_post_srq_recv;
	context->ibv.ops.poll_cq = pier_soft_poll_cq;
	context->ibv.ops.req_notify_cq = pier_soft_req_notify_cq;
	pthread_mutex_init(&context->ibv.mutex, NULL);
	pier_list_init(&context->registered);
	return context;
}

static void free_context(struct soft_context *context)
{
	pier_soft_stop_engine(context);
	pier_soft_close_listeners(context);
	pier_soft_close_events(context);
	pthread_mutex_destroy(&context->ibv.mutex);
	pier_soft_free_keys(&context->mrs);
	free(context);
}

static struct ibv_context *open_context(bool stepped)
{
	struct soft_context *context = allocate_context();
	int error;

	if (!context)
		return NULL;
	error = pier_soft_open_events(context);
	if (!error && !(pier_soft_init_sodium() && pier_soft_make_gid(&context->gid)))
		error = -EIO;
	if (!error)
		error = pier_soft_start_engine(context, stepped);
	if (!error)
		error = pier_soft_open_listeners(context);
	if (error) {
		free_context(context);
		errno = -error;
		return NULL;
	}
	pier_soft_register(context);
	return &context->ibv;
}

struct ibv_context *pier_soft_open_stepped(void)
{
	return open_context(true);
}

static struct ibv_context *open_device(struct ibv_device *device)
{
	(void)device;
	return open_context(false);
}

static int close_device(struct ibv_context *ibv_context)
{
	struct soft_context *context = soft_context(ibv_context);

	if (atomic_load(&context->users) > 0) {
		pier_fail(EBUSY,
			  "soft0: protection domains, CQs or channels are still open");
		errno = EBUSY;
		return -1;
	}
	pier_soft_unregister(context);
	free_context(context);
	return 0;
}

static int query_device(struct ibv_context *ibv_context, struct ibv_device_attr *ret_attr)
{
	const struct soft_context *context = soft_context(ibv_context);
	struct ibv_device_attr attr = {
		.fw_ver = "1.0",
		.max_mr_size = UINT64_C(1) << 47,
		.page_size_cap = (uint64_t)sysconf(_SC_PAGESIZE),
		.max_qp = SOFT_MAX_QP - 2,
		.max_qp_wr = SOFT_MAX_WR,
		.max_sge = SOFT_MAX_SGE,
		.max_sge_rd = SOFT_MAX_SGE,
		.max_cq = SOFT_MAX_CQ,
		.max_cqe = SOFT_MAX_CQE,
		.device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_SRQ_RESIZE,
		/* max_mr and max_mw share one table. */
		.max_mr = SOFT_MAX_MR - SOFT_FIRST_MR,
		.max_mw = SOFT_MAX_MR - SOFT_FIRST_MR,
		.max_pd = SOFT_MAX_PD,
		.max_srq = SOFT_MAX_SRQ,
		.max_srq_wr = SOFT_MAX_WR,
		.max_srq_sge = SOFT_MAX_SGE,
		.max_qp_rd_atom = SOFT_MAX_RD_ATOMIC,
		.max_qp_init_rd_atom = SOFT_MAX_RD_ATOMIC,
		.max_res_rd_atom = SOFT_MAX_QP * SOFT_MAX_RD_ATOMIC,
		.atomic_cap = pier_soft_atomic_cap(),
		.max_pkeys = 1,
		.phys_port_cnt = 1,
	};

	/* Random, as the GID, and in network byte order. */
	memcpy(&attr.node_guid, context->gid.raw + 8, sizeof(attr.node_guid));
	attr.sys_image_guid = attr.node_guid;
	*ret_attr = attr;
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port,
		      struct ibv_port_attr *ret_attr)
{
	struct ibv_port_attr attr = {
		.state = IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_4096,
		.gid_tbl_len = 1,
		.max_msg_sz = SOFT_MAX_MESSAGE,
		.pkey_tbl_len = 1,
		.max_vl_num = 1,
		.active_width = 2, /* 4x */
		.active_speed = 32,
		.phys_state = 5, /* LinkUp */
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};

	(void)context;
	if (port != 1)
		return -pier_fail(EINVAL, "soft0: port %u; there is only port 1", port);
	*ret_attr = attr;
	return 0;
}

static int query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret_entry)
{
	if (port != 1)
		return -pier_fail(EINVAL, "soft0: port %u; there is only port 1", port);
	if (index != 0)
		return ENODATA;
	*ret_entry = (struct ibv_gid_entry){
		.gid = soft_context(context)->gid,
		.port_num = 1,
		.gid_type = IBV_GID_TYPE_ROCE_V2,
	};
	return 0;
}

static int query_on_demand(struct ibv_context *context, bool *ret_on_demand)
{
	(void)context;
	*ret_on_demand = true;
	return 0;
}

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct soft_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->ibv.context = context;
	atomic_fetch_add(&soft_context(context)->users, 1);
	return &pd->ibv;
}

static int dealloc_pd(struct ibv_pd *ibv_pd)
{
	struct soft_pd *pd = (struct soft_pd *)ibv_pd;

	if (atomic_load(&pd->users) > 0)
		return -pier_fail(EBUSY,
				  "soft0: regions, windows or queues still use the PD");
	atomic_fetch_sub(&soft_context(ibv_pd->context)->users, 1);
	free(pd);
	return 0;
}

const struct pier_provider pier_soft_provider = {
	.name = "soft",
	.takes_memfd = true,
	.explains_posts = true,
	.max_parts = SOFT_MAX_PARTS,
	.max_key = SOFT_MAX_KEY,
	.get_device_list = get_device_list,
	.free_device_list = free_device_list,
	.open_device = open_device,
	.close_device = close_device,
	.query_device = query_device,
	.query_port = query_port,
	.query_gid = query_gid,
	.query_on_demand = query_on_demand,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr = pier_soft_reg_mr,
	.reg_dmabuf_mr = pier_soft_reg_dmabuf_mr,
	.dereg_mr = pier_soft_dereg_mr,
	.alloc_mw = pier_soft_alloc_mw,
	.dealloc_mw = pier_soft_dealloc_mw,
	.reg_parts = pier_soft_reg_parts,
	.set_padding = pier_soft_set_padding,
	.bind_counter = pier_soft_bind_counter,
	.create_comp_channel = pier_soft_create_comp_channel,
	.destroy_comp_channel = pier_soft_destroy_comp_channel,
	.create_cq = pier_soft_create_cq,
	.destroy_cq = pier_soft_destroy_cq,
	.get_cq_event = pier_soft_get_cq_event,
	.ack_cq_events = ibv_ack_cq_events,
	.create_srq = pier_soft_create_srq,
	.modify_srq = pier_soft_modify_srq,
	.query_srq = pier_soft_query_srq,
	.destroy_srq = pier_soft_destroy_srq,
	.create_qp = pier_soft_create_qp,
	.modify_qp = pier_soft_modify_qp,
	.query_qp = pier_soft_query_qp,
	.destroy_qp = pier_soft_destroy_qp,
	.get_qp_address = pier_soft_get_qp_address,
	.set_qp_address = pier_soft_set_qp_address,
};
