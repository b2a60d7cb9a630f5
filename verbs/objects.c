/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <pier/error.h>

#include "core/log.h"
#include "provider/provider.h"
#include "provider/soft/device.h"

/* The devices of this process: soft0, and no other, also beside a real NIC. */

struct ibv_device **ibv_get_device_list(int *ret_count)
{
	return pier_soft_provider.get_device_list(ret_count);
}

void ibv_free_device_list(struct ibv_device **list)
{
	pier_soft_provider.free_device_list(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	(void)device;
	return pier_soft_verbs.get_device_guid();
}

/* The kernel does not know the device, so it has no index there: rdma-core returns -1. */
int ibv_get_device_index(struct ibv_device *device)
{
	(void)device;
	return -1;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context = pier_soft_verbs.open_device();
	int error = errno;

	(void)device;
	/* The program has no other way to learn the reason. */
	if (!context)
		pier_warning("ibv_open_device: %s (%s)", pier_error_message(),
			     strerror(error));
	errno = error;
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	return pier_soft_verbs.close_device(context);
}

/* Protection domains and regions. */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	return pier_soft_provider.alloc_pd(context);
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	return pier_soft_provider.dealloc_pd(pd);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	return pier_soft_provider.reg_mr(pd, addr, length, iova, (int)access);
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
			       uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				 uint64_t iova, int fd, int access)
{
	return pier_soft_provider.reg_dmabuf_mr(pd, offset, length, iova, fd, access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	return pier_soft_provider.dereg_mr(mr);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		 size_t length, int access)
{
	return pier_soft_verbs.rereg_mr(mr, flags, pd, addr, length, access);
}

/* Completion channels, completion queues, shared receive queues and queue pairs. */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	return pier_soft_provider.create_comp_channel(context);
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	return pier_soft_provider.destroy_comp_channel(channel);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int comp_vector)
{
	return pier_soft_provider.create_cq(context, cqe, cq_context, channel,
					    comp_vector);
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	return pier_soft_verbs.resize_cq(cq, cqe);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	return pier_soft_provider.destroy_cq(cq);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
		     void **ret_cq_context)
{
	return pier_soft_provider.get_cq_event(channel, ret_cq, ret_cq_context);
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	pier_soft_provider.ack_cq_events(cq, count);
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	return pier_soft_provider.create_srq(pd, attr);
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	return pier_soft_provider.modify_srq(srq, attr, mask);
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *ret_attr)
{
	return pier_soft_provider.query_srq(srq, ret_attr);
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	return pier_soft_provider.destroy_srq(srq);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return pier_soft_provider.create_qp(pd, attr);
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return pier_soft_provider.modify_qp(qp, attr, mask);
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
		 struct ibv_qp_init_attr *ret_init_attr)
{
	return pier_soft_provider.query_qp(qp, ret_attr, mask, ret_init_attr);
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	return pier_soft_provider.destroy_qp(qp);
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return pier_soft_verbs.qp_to_qp_ex(qp);
}

/* Asynchronous events. */

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *ret_event)
{
	return pier_soft_verbs.get_async_event(context, ret_event);
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	pier_soft_verbs.ack_async_event(event);
}

/* Address handles, and where a datagram came from. */

/*
 * As in libibverbs, for the GRHs of soft0: a GRH is before the payload of each datagram
 * and has the form of IPv6.
 */
int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
			struct ibv_grh *grh, struct ibv_ah_attr *ret_attr)
{
	uint32_t word = be32toh(grh->version_tclass_flow);
	union ibv_gid own;

	*ret_attr = (struct ibv_ah_attr){
		.sl = wc->sl,
		.dlid = wc->slid,
		.src_path_bits = wc->dlid_path_bits,
		.port_num = port,
	};
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	if (ibv_query_gid(context, port, 0, &own))
		return -1;
	if (memcmp(&own, &grh->dgid, sizeof(own)) != 0) {
		errno = EINVAL;
		return -1;
	}
	ret_attr->is_global = 1;
	ret_attr->grh = (struct ibv_global_route){
		.dgid = grh->sgid,
		.flow_label = word & 0xfffff,
		.hop_limit = grh->hop_limit,
		.traffic_class = word >> 20 & 0xff,
	};
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	return pier_soft_verbs.create_ah(pd, attr);
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc,
				     struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;

	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	return pier_soft_verbs.destroy_ah(ah);
}
