/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "core/error.h"
#include "pass.h"
#include "provider/provider.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/connect/meeting.h"
#include "provider/soft/connect/node.h"
#include "provider/soft/link/seal.h"
#include "provider/soft/queues/cq.h"
#include "provider/soft/queues/create.h"
#include "provider/soft/queues/events.h"
#include "provider/soft/queues/modify.h"
#include "provider/soft/queues/poll.h"
#include "provider/soft/queues/post.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/queues/srq.h"
#include "provider/soft/regions/keys.h"
#include "provider/soft/regions/region.h"
#include "query.h"
#include "soft.h"
#include "thread.h"

/*
 * Drivers of rdma-core that are asked whether a device is theirs look behind the
 * ibv_device, into the verbs_device of libibverbs/driver.h (is_mlx5_dev() of
 * providers/mlx5): zeros there are nobody's.
 */
static struct {
	struct ibv_device ibv;
	uint64_t verbs_device[32];
} soft_device = {
	.ibv = {
		.node_type = IBV_NODE_CA,
		.transport_type = IBV_TRANSPORT_IB,
		.name = "soft0",
		.dev_name = "soft0",
		.dev_path = "/sys/class/infiniband_verbs/soft0",
		.ibdev_path = "/sys/class/infiniband/soft0",
	},
};

static struct ibv_device **get_device_list(int *ret_count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (!list)
		return NULL;
	list[0] = &soft_device.ibv;
	if (ret_count)
		*ret_count = 1;
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	free(list);
}

/*
 * For the inline functions of <infiniband/verbs.h>, which find what is not in the ops
 * through the struct around the context. A member that is NULL is refused by them.
 */
static void init_verbs_context(struct verbs_context *verbs)
{
	struct ibv_context *context = &verbs->context;

	verbs->sz = sizeof(*verbs);
	verbs->query_port = pier_soft_query_sized_port;
	verbs->query_device_ex = pier_soft_query_device_ex;
	verbs->query_rt_values = pier_soft_query_values;
	verbs->advise_mr = pier_soft_advise_mr;
	verbs->create_cq_ex = pier_soft_create_cq_ex;
	verbs->create_qp_ex = pier_soft_create_qp_ex;
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->device = &soft_device.ibv;
	context->cmd_fd = context->async_fd = -1;
	context->num_comp_vectors = 1;
	context->ops.alloc_mw = pier_soft_alloc_mw;
	context->ops.dealloc_mw = pier_soft_dealloc_mw;
	context->ops.bind_mw = pier_soft_bind_mw;
	context->ops.post_send = pier_soft_post_send;
	context->ops.post_recv = pier_soft_post_recv;
	context->ops.post_srq_recv = pier_soft_post_srq_recv;
	context->ops.poll_cq = pier_soft_poll_cq;
	context->ops.req_notify_cq = pier_soft_req_notify_cq;
	pthread_mutex_init(&context->mutex, NULL);
}

static struct soft_context *allocate_context(void)
{
	struct soft_context *context = calloc(1, sizeof(*context));
	struct soft_engine *engine;
	struct soft_node *node;

	if (!context)
		return NULL;
	engine = &context->engine;
	engine->ops = &pier_soft_engine_ops;
	engine->epoll_fd = engine->wake_fd = engine->timer_fd = -1;
	node = &context->node;
	node->engine = engine;
	node->staging.fd = -1;
	node->listeners.unix_fd = node->listeners.tcp_fd = -1;
	node->listeners.datagram_fd = -1;
	node->pid = getpid();
	pier_list_init(&node->registered);
	return context;
}

static void free_context(struct soft_context *context)
{
	struct soft_node *node = &context->node;

	pier_soft_stop_engine(context);
	pier_soft_close_listeners(node);
	pier_soft_close_staging(&node->staging);
	pier_soft_free_keys(&context->mrs);
	explicit_bzero(node->meeting.key, sizeof(node->meeting.key));
	free(context);
}

static int start_context(struct soft_context *context, bool stepped, bool meets)
{
	int error = pier_soft_init_sodium() ? 0 : -EIO;

	if (!error && meets)
		error = pier_soft_join_meeting(&context->node.meeting,
					       pier_soft_unix_allowed());
	if (!error)
		error = pier_soft_start_engine(context, stepped);
	if (!error)
		error = pier_soft_open_listeners(&context->node);
	return error;
}

static struct soft_context *context_of(struct soft_node *node)
{
	return pier_container_of(node, struct soft_context, node);
}

static struct soft_context *create_context(bool stepped, bool meets)
{
	struct soft_context *context = allocate_context();
	struct soft_node *known;
	int error;

	if (!context)
		return NULL;
	error = start_context(context, stepped, meets);
	if (error) {
		free_context(context);
		errno = -error;
		return NULL;
	}
	known = pier_soft_register(&context->node);
	if (known != &context->node)
		free_context(context);
	return context_of(known);
}

static void free_handle(struct soft_handle *handle)
{
	pier_soft_close_events(handle);
	pthread_mutex_destroy(&handle->verbs.context.mutex);
	free(handle);
}

static void close_handle(struct soft_handle *handle)
{
	if (pier_soft_unregister(&handle->context->node))
		free_context(handle->context);
	free_handle(handle);
}

static struct soft_handle *allocate_handle(void)
{
	struct soft_handle *handle = calloc(1, sizeof(*handle));
	int error;

	if (!handle)
		return NULL;
	init_verbs_context(&handle->verbs);
	handle->close = close_handle;
	atomic_init(&handle->users, 1);
	error = pier_soft_open_events(handle);
	if (!error) {
		/*
		 * Programs duplicate it for ibv_import_device(3), which tells them then
		 * that there is no such thing here. Nothing else is done with it.
		 */
		handle->verbs.context.cmd_fd = handle->verbs.context.async_fd;
		return handle;
	}
	free_handle(handle);
	errno = -error;
	return NULL;
}

static struct ibv_context *open_handle(bool stepped, bool meets)
{
	struct soft_handle *handle = allocate_handle();
	struct soft_node *shared;

	if (!handle)
		return NULL;
	shared = meets ? pier_soft_share_meeting() : NULL;
	handle->context = shared ? context_of(shared) : create_context(stepped, meets);
	if (handle->context)
		return &handle->verbs.context;
	free_handle(handle);
	return NULL;
}

struct ibv_context *pier_soft_open_stepped(void)
{
	return open_handle(true, false);
}

struct ibv_context *pier_soft_open_verbs(void)
{
	return open_handle(false, true);
}

static struct ibv_context *open_device(struct ibv_device *device)
{
	(void)device;
	return open_handle(false, false);
}

static int close_device(struct ibv_context *context)
{
	struct soft_handle *handle = soft_handle(context);

	if (atomic_load(&handle->users) > 1) {
		pier_fail(EBUSY,
			  "soft0: protection domains, CQs or channels are still open");
		errno = EBUSY;
		return -1;
	}
	pier_soft_leave_handle(context);
	return 0;
}

/* Other handles may destroy theirs meanwhile. */
static struct ibv_qp *find_qp_of(struct ibv_context *context, uint32_t index)
{
	struct soft_engine *engine = &soft_context(context)->engine;
	struct soft_qp *qp;
	bool own;

	pier_soft_lock(engine);
	qp = pier_soft_qp_at(soft_context(context), index);
	own = qp && qp->ibv.context == context;
	pier_soft_unlock(engine);
	return own ? &qp->ibv : NULL;
}

static void fail_queues(struct ibv_context *context)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	for (uint32_t i = 0; i < SOFT_MAX_QP; i++) {
		struct ibv_qp *qp = find_qp_of(context, i);

		if (qp)
			pier_soft_modify_qp(qp, &attr, IBV_QP_STATE);
	}
}

int pier_soft_close_verbs(struct ibv_context *context)
{
	/* A forked child leaves its parent's connections alone. */
	if (soft_context(context)->node.pid == getpid())
		fail_queues(context);
	pier_soft_leave_handle(context);
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
	pd->engine = &soft_context(context)->engine;
	pd->mrs = &soft_context(context)->mrs;
	pier_soft_use_handle(context);
	return &pd->ibv;
}

static int dealloc_pd(struct ibv_pd *ibv_pd)
{
	struct soft_pd *pd = soft_pd(ibv_pd);

	if (atomic_load(&pd->users) > 0)
		return -pier_fail(EBUSY,
				  "soft0: regions, windows or queues still use the PD");
	pier_soft_leave_handle(ibv_pd->context);
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
	.query_device = pier_soft_query_device,
	.query_port = pier_soft_query_port,
	.query_gid = pier_soft_query_gid,
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
	.ack_cq_events = pier_soft_ack_cq_events,
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
