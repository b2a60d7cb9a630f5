/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <pier/error.h>

#include "core/log.h"
#include "provider/provider.h"
#include "provider/soft/device.h"
#include "provider/verbs_functions.h"

/* Functions with an object. The only device is soft0, also beside a real NIC. */

#define FORWARD(table, name, type, parameters, arguments) \
	type(ibv_##name) parameters                       \
	{                                                 \
		return table.name arguments;              \
	}
#define TO_PROVIDER(name, version, type, failure, parameters, arguments) \
	FORWARD(pier_soft_provider, name, type, parameters, arguments)
#define TO_VERBS(name, type, parameters, arguments) \
	FORWARD(pier_soft_verbs, name, type, parameters, arguments)

PIER_VERBS_FUNCTIONS(TO_PROVIDER)
/* clang-format off */
TO_VERBS(close_device, int, (struct ibv_context *context), (context))
TO_VERBS(get_async_event, int,
	 (struct ibv_context *context, struct ibv_async_event *ret_event),
	 (context, ret_event))
TO_VERBS(ack_async_event, void, (struct ibv_async_event *event), (event))
TO_VERBS(rereg_mr, int,
	 (struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
	  int access),
	 (mr, flags, pd, addr, length, access))
TO_VERBS(create_ah, struct ibv_ah *, (struct ibv_pd *pd, struct ibv_ah_attr *attr),
	 (pd, attr))
TO_VERBS(destroy_ah, int, (struct ibv_ah *ah), (ah))
TO_VERBS(resize_cq, int, (struct ibv_cq *cq, int cqe), (cq, cqe))
TO_VERBS(qp_to_qp_ex, struct ibv_qp_ex *, (struct ibv_qp *qp), (qp))
/* clang-format on */

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

/*
 * Since rdma-core 59. Its headers declare them with types that older ones lack, so they
 * have their names in the object file only.
 */
struct ibv_dmah *alloc_dmah(struct ibv_context *context,
			    struct pier_dmah_attr *attr) __asm__("ibv_alloc_dmah");
int dealloc_dmah(struct ibv_dmah *dmah) __asm__("ibv_dealloc_dmah");
struct ibv_mr *reg_mr_ex(struct ibv_pd *pd,
			 struct pier_reg_attr *attr) __asm__("ibv_reg_mr_ex");

struct ibv_dmah *alloc_dmah(struct ibv_context *context, struct pier_dmah_attr *attr)
{
	return pier_soft_provider.alloc_dmah(context, attr);
}

int dealloc_dmah(struct ibv_dmah *dmah)
{
	return pier_soft_provider.dealloc_dmah(dmah);
}

struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct pier_reg_attr *attr)
{
	return pier_soft_provider.reg_mr_ex(pd, attr);
}

/* Since rdma-core 62. The memory is a memfd, which soft0 registers like a dma-buf. */
int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm);

int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm)
{
	return pier_soft_provider.dm_export_dmabuf_fd(dm);
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

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc,
				     struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;

	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}
