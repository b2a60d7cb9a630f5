/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "core/error.h"
#include "core/fd.h"
#include "provider/provider.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/connect/meeting.h"
#include "provider/soft/connect/node.h"
#include "provider/soft/link/crypto.h"
#include "provider/soft/link/link.h"
#include "provider/soft/queues/counter.h"
#include "provider/soft/queues/cq.h"
#include "provider/soft/queues/datagram.h"
#include "provider/soft/queues/events.h"
#include "provider/soft/queues/modify.h"
#include "provider/soft/queues/pass.h"
#include "provider/soft/queues/poll.h"
#include "provider/soft/queues/post.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/queues/responder.h"
#include "provider/soft/queues/srq.h"
#include "provider/soft/regions/dm.h"
#include "provider/soft/regions/keys.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/soft.h"

/*
 * Drivers of rdma-core check whether a device is theirs by the verbs_device of
 * libibverbs/driver.h, which follows the ibv_device (is_mlx5_dev() of providers/mlx5).
 * Zeros there belong to no driver.
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
 * The GUID of the device of plain verbs, in network byte order: the same in all processes
 * of a user on this kernel, until it boots again.
 */
static __be64 host_guid(void)
{
	struct {
		char boot_id[36];
		uid_t user;
	} host = { .user = geteuid() };
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	uint8_t guid[SOFT_MAC_SIZE] = { 0 };
	__be64 result;

	if (fd >= 0 && read(fd, host.boot_id, sizeof(host.boot_id)) < 0)
		memset(host.boot_id, 0, sizeof(host.boot_id));
	pier_close_fd(fd);
	if (pier_soft_open_crypto() == 0)
		pier_soft_hash(&host, sizeof(host), guid);
	guid[0] = (guid[0] & 0xfc) | 2; /* locally administered, of one station */
	memcpy(&result, guid, sizeof(result));
	return result;
}

static int query_device(struct ibv_context *ibv_context, struct ibv_device_attr *ret_attr)
{
	const struct soft_context *context = soft_context(ibv_context);
	struct ibv_device_attr attr = {
		.fw_ver = "1.0",
		.max_mr_size = UINT64_C(1) << 47,
		.vendor_id = 0x027069, /* a locally administered OUI: 2, 'p', 'i' */
		.page_size_cap = (uint64_t)sysconf(_SC_PAGESIZE),
		.max_qp = SOFT_MAX_QP - 2,
		.max_qp_wr = SOFT_MAX_WR,
		.max_sge = SOFT_MAX_SGE,
		.max_sge_rd = SOFT_MAX_SGE,
		.max_cq = SOFT_MAX_CQ,
		.max_cqe = SOFT_MAX_CQE,
		.device_cap_flags = IBV_DEVICE_MEM_WINDOW |
				    IBV_DEVICE_MEM_WINDOW_TYPE_2B |
				    IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE,
		/* max_mr and max_mw share one table. */
		.max_mr = SOFT_MAX_MR - SOFT_FIRST_MR,
		.max_mw = SOFT_MAX_MR - SOFT_FIRST_MR,
		.max_pd = SOFT_MAX_PD,
		.max_ah = SOFT_MAX_AH,
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
	memcpy(&attr.node_guid, context->node.gid.raw + 8, sizeof(attr.node_guid));
	/*
	 * Programs of plain verbs compare the GUID with that of ibv_get_device_guid(3).
	 * UCX uses atomic operations only with IBV_ATOMIC_HCA (ib_md.c), which is less
	 * than IBV_ATOMIC_GLOB.
	 */
	if (context->node.meeting.joined) {
		attr.node_guid = host_guid();
		if (attr.atomic_cap == IBV_ATOMIC_GLOB)
			attr.atomic_cap = IBV_ATOMIC_HCA;
	}
	attr.sys_image_guid = attr.node_guid;
	*ret_attr = attr;
	return 0;
}

/* No sum of `size`: a caller that is older or newer gets what both know. */
static void copy_sized(void *to, size_t size, const void *from, size_t known)
{
	memset(to, 0, size);
	memcpy(to, from, size < known ? size : known);
}

/*
 * `size`: of the caller's struct, which may be that of an older or a newer libibverbs.
 * Members that soft0 does not have are 0.
 */
static int query_device_ex(struct ibv_context *context,
			   const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *ret_attr, size_t size)
{
	const uint32_t on_demand = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
				   IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
				   IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;
	struct ibv_device_attr_ex attr = {
		.odp_caps.general_caps = IBV_ODP_SUPPORT,
		.odp_caps.per_transport_caps.rc_odp_caps = on_demand,
		.odp_caps.per_transport_caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND |
							   IBV_ODP_SUPPORT_RECV,
		.hca_core_clock = 1000000, /* kHz: a tick is 1 ns */
		.completion_timestamp_mask = UINT64_MAX,
		.phys_port_cnt_ex = 1,
		.max_dm_size = SOFT_MAX_DM,
	};

	if (input && input->comp_mask)
		return EINVAL;
	query_device(context, &attr.orig_attr);
	attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags;
	copy_sized(ret_attr, size, &attr, sizeof(attr));
	return 0;
}

/* EINVAL: not port 1. */
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

static int query_sized_port(struct ibv_context *context, uint8_t port,
			    struct ibv_port_attr *ret_attr, size_t size)
{
	struct ibv_port_attr attr;
	int error = query_port(context, port, &attr);

	if (!error)
		copy_sized(ret_attr, size, &attr, sizeof(attr));
	return error;
}

/* EINVAL: not port 1; ENODATA: not index 0. */
static int query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret_entry)
{
	if (port != 1)
		return -pier_fail(EINVAL, "soft0: port %u; there is only port 1", port);
	if (index != 0)
		return ENODATA;
	*ret_entry = (struct ibv_gid_entry){
		.gid = soft_context(context)->node.gid,
		.port_num = 1,
		.gid_type = IBV_GID_TYPE_ROCE_V2,
	};
	return 0;
}

/* The clock of completion timestamps, in tv_nsec alone as mlx5 does. */
static int query_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	(void)context;
	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EINVAL;
	if (values->comp_mask)
		values->raw_clock = (struct timespec){ .tv_nsec = (long)pier_soft_now() };
	return 0;
}

static struct ibv_dm *alloc_dm(struct ibv_context *context,
			       struct ibv_alloc_dm_attr *attr)
{
	struct ibv_dm *dm = pier_soft_alloc_dm(context, attr);

	if (dm)
		pier_soft_use_handle(context);
	return dm;
}

static int free_dm(struct ibv_dm *dm)
{
	struct ibv_context *context = dm->context;
	int error = pier_soft_free_dm(dm);

	if (!error)
		pier_soft_leave_handle(context);
	return error;
}

/*
 * For the inline functions of <infiniband/verbs.h>, which find what is not in the ops
 * through the struct around the context. A member that is NULL is refused by them.
 */
static void init_verbs_context(struct verbs_context *verbs)
{
	struct ibv_context *context = &verbs->context;

	verbs->sz = sizeof(*verbs);
	verbs->query_port = query_sized_port;
	verbs->query_device_ex = query_device_ex;
	verbs->query_rt_values = query_values;
	verbs->advise_mr = pier_soft_advise_mr;
	verbs->alloc_dm = alloc_dm;
	verbs->free_dm = free_dm;
	verbs->reg_dm_mr = pier_soft_reg_dm_mr;
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
	engine->epoll_fd = engine->wake_fd = engine->timer_fd = -1;
	node = &context->node;
	node->engine = engine;
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
	pier_soft_free_keys(&context->mrs);
	explicit_bzero(node->meeting.key, sizeof(node->meeting.key));
	free(context);
}

static int start_context(struct soft_context *context, bool stepped, bool meets)
{
	int error = pier_soft_open_crypto();

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
		return pier_null_with(error);
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
	return pier_null_with(error);
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

static struct ibv_context *open_verbs(void)
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

static int close_verbs(struct ibv_context *context)
{
	/* A forked child leaves its parent's connections alone. */
	if (soft_context(context)->node.pid == getpid())
		fail_queues(context);
	pier_soft_leave_handle(context);
	return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	struct soft_cq *cq = (struct soft_cq *)event->element.cq;
	struct soft_srq *srq = (struct soft_srq *)event->element.srq;
	struct soft_qp *qp = (struct soft_qp *)event->element.qp;

	if (event->event_type == IBV_EVENT_CQ_ERR)
		pier_soft_ack_source(cq->ibv.context, &cq->events);
	else if (event->event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
		pier_soft_ack_source(srq->ibv.context, &srq->events);
	else
		pier_soft_ack_source(qp->ibv.context, &qp->events);
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

static bool can_join(struct ibv_context *context)
{
	(void)context;
	return true;
}

static struct ibv_qp *create_join_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
				     uint32_t count)
{
	return count > PIER_JOIN_PARTS ? pier_null_with(-EINVAL)
				       : pier_soft_create_qp(pd, attr);
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
	.alloc_dmah = pier_soft_alloc_dmah,
	.dealloc_dmah = pier_soft_dealloc_dmah,
	.reg_mr_ex = pier_soft_reg_mr_ex,
	.dereg_mr = pier_soft_dereg_mr,
	.alloc_dm = alloc_dm,
	.free_dm = free_dm,
	.reg_dm_mr = pier_soft_reg_dm_mr,
	.dm_export_dmabuf_fd = pier_soft_export_dm,
	.alloc_mw = pier_soft_alloc_mw,
	.dealloc_mw = pier_soft_dealloc_mw,
	.reg_parts = pier_soft_reg_parts,
	.can_join = can_join,
	.create_join_qp = create_join_qp,
	.join_mrs = pier_soft_join_mrs,
	.unjoin_mrs = pier_soft_dereg_mr,
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

const struct pier_comp_counter_functions pier_soft_comp_counters = {
	.query_caps = pier_soft_query_counter_caps,
	.create = pier_soft_create_counter,
	.destroy = pier_soft_destroy_counter,
	.attach = pier_soft_attach_counter,
	.set = pier_soft_set_successes,
	.set_errors = pier_soft_set_errors,
	.add = pier_soft_add_successes,
	.add_errors = pier_soft_add_errors,
	.read = pier_soft_read_successes,
	.read_errors = pier_soft_read_errors,
};

const struct soft_verbs pier_soft_verbs = {
	.get_device_guid = host_guid,
	.open_device = open_verbs,
	.close_device = close_verbs,
	.get_async_event = pier_soft_get_async_event,
	.ack_async_event = ack_async_event,
	.rereg_mr = pier_soft_rereg_mr,
	.create_ah = pier_soft_create_ah,
	.destroy_ah = pier_soft_destroy_ah,
	.resize_cq = pier_soft_resize_cq,
	.qp_to_qp_ex = pier_soft_qp_to_qp_ex,
};
