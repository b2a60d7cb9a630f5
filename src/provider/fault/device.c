/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "fault.h"
#include "failure.h"
#include "channel.h"
#include "core/error.h"
#include "core/log.h"
#include "cq.h"
#include "persona.h"
#include "post.h"
#include "qp.h"
#include "reach.h"

static void free_context(struct fault_context *context)
{
	pier_fault_end_plan(&context->plan);
	pthread_mutex_destroy(&context->lock);
	pthread_mutex_destroy(&context->ibv.mutex);
	free(context);
}

/* As ibv_close_device(3): -1 and errno. */
static int close_device(struct ibv_context *ibv)
{
	struct fault_context *context = fault_context(ibv);
	int error;

	if (fault_fails(ibv, FAULT_CLOSE_DEVICE))
		return -1;
	error = context->beneath->close_device(context->under);
	if (error)
		return error;
	free_context(context);
	return 0;
}

static int query_device(struct ibv_context *ibv, struct ibv_device_attr *ret_attr)
{
	struct fault_context *context = fault_context(ibv);
	int error = fault_call(context, FAULT_QUERY_DEVICE, query_device, context->under,
			       ret_attr);

	if (!error && context->plan.persona)
		pier_persona_change_limits(context->plan.persona, ret_attr);
	return error;
}

static int query_port(struct ibv_context *ibv, uint8_t port,
		      struct ibv_port_attr *ret_attr)
{
	struct fault_context *context = fault_context(ibv);
	int error = fault_call(context, FAULT_QUERY_PORT, query_port, context->under,
			       port, ret_attr);

	if (!error && context->plan.persona)
		pier_persona_change_port(context->plan.persona, ret_attr);
	pthread_mutex_lock(&context->lock);
	if (!error && port == 1 && context->port_down)
		ret_attr->state = IBV_PORT_DOWN;
	pthread_mutex_unlock(&context->lock);
	return error;
}

static int query_gid(struct ibv_context *ibv, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret_entry)
{
	struct fault_context *context = fault_context(ibv);
	const struct pier_persona *persona = context->plan.persona;
	uint32_t type = 0;
	uint32_t under = persona ? pier_persona_find_gid(persona, index, &type) : index;
	int error = fault_call(context, FAULT_QUERY_GID, query_gid, context->under, port,
			       under, ret_entry);

	if (!error && persona) {
		ret_entry->gid_index = index;
		ret_entry->gid_type = type;
	}
	return error;
}

static int query_on_demand(struct ibv_context *ibv, bool *ret_on_demand)
{
	struct fault_context *context = fault_context(ibv);
	int error = fault_call(context, FAULT_QUERY_ON_DEMAND, query_on_demand,
			       context->under, ret_on_demand);

	if (!error && context->plan.persona && !context->plan.persona->on_demand)
		*ret_on_demand = false;
	return error;
}

static int query_data_direct(struct ibv_context *ibv, char *ret_path, size_t size)
{
	struct fault_context *context = fault_context(ibv);

	return context->beneath->query_data_direct(context->under, ret_path, size);
}

static struct ibv_pd *alloc_pd(struct ibv_context *ibv)
{
	struct fault_context *context = fault_context(ibv);
	struct fault_pd *pd = fault_allocate(ibv, FAULT_ALLOC_PD, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->under = context->beneath->alloc_pd(context->under);
	if (!pd->under)
		return fault_free(pd);
	pd->ibv = *pd->under;
	pd->ibv.context = ibv;
	return &pd->ibv;
}

static int dealloc_pd(struct ibv_pd *ibv)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_pd *pd = fault_pd(ibv);
	int error = fault_call(context, FAULT_DEALLOC_PD, dealloc_pd, pd->under);

	if (!error)
		free(pd);
	return error;
}

/* Sets errno if the persona refuses the region. */
static bool persona_refuses(struct ibv_pd *pd, size_t length, int access, bool dmabuf)
{
	const struct pier_persona *persona = fault_context(pd->context)->plan.persona;
	int error = 0;

	/* A provider of libibverbs without the call is given this errno by the library.
	 */
	if (persona && dmabuf && !persona->dmabuf)
		error = EOPNOTSUPP;
	else if (persona)
		error = pier_persona_check_region(persona, length, access);
	if (error)
		errno = error;
	return error != 0;
}

/* NULL: errno. */
static struct ibv_mr *wrap_mr(struct ibv_pd *pd, struct fault_mr *mr)
{
	if (!mr->under)
		return fault_free(mr);
	mr->ibv = *mr->under;
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	pier_list_init(&mr->link);
	return &mr->ibv;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     int access)
{
	struct fault_mr *mr = fault_allocate(pd->context, FAULT_REG_MR, sizeof(*mr));

	if (!mr)
		return NULL;
	if (!persona_refuses(pd, length, access, false))
		mr->under = fault_context(pd->context)
				    ->beneath->reg_mr(fault_pd(pd)->under, addr, length,
						      iova, access);
	if (!wrap_mr(pd, mr))
		return NULL;
	pier_fault_reach_region(mr, addr, length, iova);
	return &mr->ibv;
}

typedef struct ibv_mr *reg_fd_function(struct ibv_pd *pd, uint64_t offset, size_t length,
				       uint64_t iova, int fd, int access);

static struct ibv_mr *reg_fd(reg_fd_function *reg, struct ibv_pd *pd, uint64_t offset,
			     size_t length, uint64_t iova, int fd, int access)
{
	struct fault_mr *mr = fault_allocate(pd->context, FAULT_REG_DMABUF_MR,
					     sizeof(*mr));

	if (!mr)
		return NULL;
	if (!persona_refuses(pd, length, access, true))
		mr->under = reg(fault_pd(pd)->under, offset, length, iova, fd, access);
	if (!wrap_mr(pd, mr))
		return NULL;
	pier_fault_reach_dmabuf(mr, fd, offset, length, iova);
	return &mr->ibv;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access)
{
	return reg_fd(fault_context(pd->context)->beneath->reg_dmabuf_mr, pd, offset,
		      length, iova, fd, access);
}

static struct ibv_mr *reg_data_direct_mr(struct ibv_pd *pd, uint64_t offset,
					 size_t length, uint64_t iova, int fd, int access)
{
	return reg_fd(fault_context(pd->context)->beneath->reg_data_direct_mr, pd, offset,
		      length, iova, fd, access);
}

/* None of the personas has DMA handles. */
static struct ibv_dmah *alloc_dmah(struct ibv_context *ibv, struct pier_dmah_attr *attr)
{
	struct fault_context *context = fault_context(ibv);

	if (!context->plan.persona)
		return context->beneath->alloc_dmah(context->under, attr);
	errno = EOPNOTSUPP;
	return NULL;
}

/* Counts as the older call for the same memory. */
static struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct pier_reg_attr *attr)
{
	bool dmabuf = attr->comp_mask & PIER_REG_FD;
	struct fault_mr *mr = fault_allocate(
		pd->context, dmabuf ? FAULT_REG_DMABUF_MR : FAULT_REG_MR, sizeof(*mr));

	if (!mr)
		return NULL;
	mr->under =
		fault_context(pd->context)->beneath->reg_mr_ex(fault_pd(pd)->under, attr);
	if (!wrap_mr(pd, mr))
		return NULL;
	if (dmabuf)
		pier_fault_reach_dmabuf(mr, attr->fd, attr->fd_offset, attr->length,
					attr->iova);
	else
		pier_fault_reach_region(mr, attr->addr, attr->length, attr->iova);
	return &mr->ibv;
}

/* The memory is that of the device beneath, and none of the personas has any. */
static struct ibv_dm *alloc_dm(struct ibv_context *ibv, struct ibv_alloc_dm_attr *attr)
{
	struct fault_context *context = fault_context(ibv);

	if (fault_fails(ibv, FAULT_ALLOC_DM))
		return NULL;
	if (!context->plan.persona)
		return context->beneath->alloc_dm(context->under, attr);
	errno = EOPNOTSUPP;
	return NULL;
}

static struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
				size_t length, unsigned int access)
{
	struct fault_mr *mr = fault_allocate(pd->context, FAULT_REG_DM_MR, sizeof(*mr));

	if (!mr)
		return NULL;
	mr->under = fault_context(pd->context)
			    ->beneath->reg_dm_mr(fault_pd(pd)->under, dm, offset, length,
						 access);
	return wrap_mr(pd, mr);
}

static struct ibv_mr *reg_parts(struct ibv_pd *pd, const struct pier_provider_part *parts,
				uint32_t count, uint64_t iova, int access,
				const uint32_t *key)
{
	struct fault_mr *mr = fault_allocate(pd->context, FAULT_REG_PARTS, sizeof(*mr));

	if (!mr)
		return NULL;
	mr->under = fault_context(pd->context)
			    ->beneath->reg_parts(fault_pd(pd)->under, parts, count, iova,
						 access, key);
	return wrap_mr(pd, mr);
}

/* Of the personas, that of mlx5 is a NIC with indirect keys. */
static bool can_join(struct ibv_context *ibv)
{
	struct fault_context *context = fault_context(ibv);
	const struct pier_persona *persona = context->plan.persona;

	return (!persona || persona->joins) && context->beneath->can_join(context->under);
}

/* The request in it is no post of its own. Its completion is one as any other. */
static struct ibv_mr *join_mrs(struct ibv_qp *qp, const struct ibv_sge *parts,
			       uint32_t count, int access)
{
	struct fault_context *context = fault_context(qp->context);
	struct fault_mr *mr = fault_allocate(qp->context, FAULT_JOIN_MRS, sizeof(*mr));

	if (!mr)
		return NULL;
	mr->under = context->beneath->join_mrs(fault_qp(qp)->under, parts, count, access);
	if (!wrap_mr(qp->pd, mr))
		return NULL;
	pthread_mutex_lock(&context->lock);
	fault_qp(qp)->unanswered++;
	pthread_mutex_unlock(&context->lock);
	return &mr->ibv;
}

static int unjoin_mrs(struct ibv_mr *ibv)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_mr *mr = fault_mr(ibv);
	int error = fault_call(context, FAULT_UNJOIN_MRS, unjoin_mrs, mr->under);

	if (!error)
		free(mr);
	return error;
}

static int dereg_mr(struct ibv_mr *ibv)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_mr *mr = fault_mr(ibv);
	int error = fault_call(context, FAULT_DEREG_MR, dereg_mr, mr->under);

	if (!error) {
		pier_fault_leave_region(mr);
		free(mr);
	}
	return error;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	const struct fault_context *context = fault_context(pd->context);
	struct fault_mw *mw = fault_allocate(pd->context, FAULT_ALLOC_MW, sizeof(*mw));

	if (!mw)
		return NULL;
	if (!context->plan.persona || context->plan.persona->windows)
		mw->under = context->beneath->alloc_mw(fault_pd(pd)->under, type);
	else
		errno = EOPNOTSUPP;
	if (!mw->under)
		return fault_free(mw);
	mw->ibv = *mw->under;
	mw->ibv.context = pd->context;
	mw->ibv.pd = pd;
	return &mw->ibv;
}

static int dealloc_mw(struct ibv_mw *ibv)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_mw *mw = fault_mw(ibv);
	int error = fault_call(context, FAULT_DEALLOC_MW, dealloc_mw, mw->under);

	if (!error)
		free(mw);
	return error;
}

static void set_padding(struct ibv_mr *mr, uint64_t length)
{
	fault_context(mr->context)->beneath->set_padding(fault_mr(mr)->under, length);
}

static int bind_counter(struct ibv_mr *mr, struct pier_provider_counter *counter)
{
	struct fault_context *context = fault_context(mr->context);

	return fault_call(context, FAULT_BIND_COUNTER, bind_counter, fault_mr(mr)->under,
			  counter);
}

/* It has no device list: pier_device_open() finds the device beneath. */
static const struct pier_provider everything = {
	.name = "fault",
	.explains_posts = true,
	.close_device = close_device,
	.get_async_event = pier_fault_get_async_event,
	.ack_async_event = pier_fault_ack_async_event,
	.query_device = query_device,
	.query_port = query_port,
	.query_gid = query_gid,
	.query_on_demand = query_on_demand,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr = reg_mr,
	.reg_dmabuf_mr = reg_dmabuf_mr,
	.query_data_direct = query_data_direct,
	.reg_data_direct_mr = reg_data_direct_mr,
	.alloc_dmah = alloc_dmah,
	.reg_mr_ex = reg_mr_ex,
	.alloc_dm = alloc_dm,
	.reg_dm_mr = reg_dm_mr,
	.reg_parts = reg_parts,
	.can_join = can_join,
	.create_join_qp = pier_fault_create_join_qp,
	.join_mrs = join_mrs,
	.unjoin_mrs = unjoin_mrs,
	.dereg_mr = dereg_mr,
	.alloc_mw = alloc_mw,
	.dealloc_mw = dealloc_mw,
	.set_padding = set_padding,
	.bind_counter = bind_counter,
	.create_comp_channel = pier_fault_create_comp_channel,
	.destroy_comp_channel = pier_fault_destroy_comp_channel,
	.create_cq = pier_fault_create_cq,
	.destroy_cq = pier_fault_destroy_cq,
	.get_cq_event = pier_fault_get_cq_event,
	.ack_cq_events = ibv_ack_cq_events,
	.create_srq = pier_fault_create_srq,
	.destroy_srq = pier_fault_destroy_srq,
	.create_qp = pier_fault_create_qp,
	.create_direct_qp = pier_fault_create_direct_qp,
	.modify_qp = pier_fault_modify_qp,
	.query_qp = pier_fault_query_qp,
	.destroy_qp = pier_fault_destroy_qp,
	.get_qp_address = pier_fault_get_qp_address,
	.set_qp_address = pier_fault_set_qp_address,
};

/* A member that the provider beneath lacks must be missing here, too. */
static struct pier_provider provider_over(const struct pier_provider *beneath,
					  const struct pier_fault_plan *plan)
{
	struct pier_provider provider = everything;

	provider.takes_memfd = beneath->takes_memfd;
	provider.max_parts = beneath->max_parts;
	provider.max_key = beneath->max_key;
	/* DMA handles and memory are those beneath. */
	provider.dealloc_dmah = beneath->dealloc_dmah;
	provider.free_dm = beneath->free_dm;
	provider.dm_export_dmabuf_fd = beneath->dm_export_dmabuf_fd;
	if (!beneath->get_async_event && !pier_fault_plans(plan, FAULT_ASYNC)) {
		provider.get_async_event = NULL;
		provider.ack_async_event = NULL;
	}
#define OMIT_IF_MISSING(member) \
	if (!beneath->member)   \
		provider.member = NULL;
	OMIT_IF_MISSING(query_on_demand)
	OMIT_IF_MISSING(query_data_direct)
	OMIT_IF_MISSING(reg_parts)
	OMIT_IF_MISSING(can_join)
	OMIT_IF_MISSING(alloc_mw)
	OMIT_IF_MISSING(dealloc_mw)
	OMIT_IF_MISSING(create_srq)
	OMIT_IF_MISSING(destroy_srq)
	OMIT_IF_MISSING(set_padding)
	OMIT_IF_MISSING(bind_counter)
	OMIT_IF_MISSING(get_qp_address)
	OMIT_IF_MISSING(set_qp_address)
#undef OMIT_IF_MISSING
	return provider;
}

/*
 * Only the operations that channels call: the other ones of a driver know only its own
 * objects.
 */
static void adopt_context(struct fault_context *context, struct ibv_context *under)
{
	const struct pier_persona *persona = context->plan.persona;

	context->under = under;
	context->device = *under->device;
	if (persona) {
		context->device.node_type = persona->node_type;
		context->device.transport_type = persona->transport_type;
		pier_persona_change_provider(&context->provider);
	}
	context->ibv.device = &context->device;
	context->ibv.cmd_fd = under->cmd_fd;
	context->ibv.async_fd = under->async_fd;
	context->ibv.num_comp_vectors = under->num_comp_vectors;
	context->ibv.ops.post_send = pier_fault_post_send;
	context->ibv.ops.post_recv = pier_fault_post_recv;
	context->ibv.ops.post_srq_recv = pier_fault_post_srq_recv;
	context->ibv.ops.poll_cq = pier_fault_poll_cq;
	context->ibv.ops.req_notify_cq = pier_fault_req_notify_cq;
}

int pier_fault_open(const struct pier_provider *beneath, struct ibv_device *device,
		    const char *plan, size_t length,
		    const struct pier_provider **ret_provider,
		    struct ibv_context **ret_context)
{
	struct fault_context *context = calloc(1, sizeof(*context));
	struct ibv_context *under = NULL;
	int error;

	if (!context)
		return pier_fail(ENOMEM, "no memory for a fault plan");
	error = pier_fault_read_plan(plan, length, &context->plan);
	if (error) {
		free(context);
		return error;
	}
	context->beneath = beneath;
	context->provider = provider_over(beneath, &context->plan);
	pthread_mutex_init(&context->lock, NULL);
	pthread_mutex_init(&context->ibv.mutex, NULL);
	pier_list_init(&context->qps);
	pier_list_init(&context->mrs);
	if (!pier_fault_fails(&context->plan, FAULT_OPEN_DEVICE))
		under = beneath->open_device(device);
	if (!under) {
		error = errno ? -errno : -EIO;
		free_context(context);
		return error;
	}
	adopt_context(context, under);
	error = beneath->query_device(under, &context->limits);
	if (error) {
		beneath->close_device(under);
		free_context(context);
		return -error;
	}
	*ret_provider = &context->provider;
	*ret_context = &context->ibv;
	return 0;
}

void pier_fault_opened(struct ibv_context *ibv)
{
	struct fault_context *context = fault_context(ibv);

	pthread_mutex_lock(&context->plan.lock);
	context->plan.opening = false;
	pthread_mutex_unlock(&context->plan.lock);
	pier_info("fault plan: seed=%llu and %u rules over %s",
		  (unsigned long long)context->plan.seed, context->plan.count,
		  context->under->device->name);
}
