/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "mlx5.h"
#include "provider.h"
#include "verbs_functions.h"

/*
 * The provider of libibverbs. A few of its functions are macros or inline in
 * <infiniband/verbs.h>, and so have no address: they get a body here.
 */

static int query_port(struct ibv_context *context, uint8_t port,
		      struct ibv_port_attr *ret_attr)
{
	return ibv_query_port(context, port, ret_attr);
}

static int query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret_entry)
{
	return ibv_query_gid_ex(context, port, index, ret_entry, 0);
}

static ssize_t query_gid_table(struct ibv_context *context,
			       struct ibv_gid_entry *ret_entries, size_t size)
{
	return ibv_query_gid_table(context, ret_entries, size, 0);
}

/* If the driver does not answer, libibverbs returns capabilities that are all 0. */
static int query_on_demand(struct ibv_context *context, bool *ret_on_demand)
{
	struct ibv_device_attr_ex attr;
	int error = ibv_query_device_ex(context, NULL, &attr);

	if (error == EOPNOTSUPP || error == ENOSYS)
		memset(&attr, 0, sizeof(attr));
	else if (error)
		return error;
	*ret_on_demand = attr.odp_caps.general_caps & IBV_ODP_SUPPORT;
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     int access)
{
	/*
	 * The macro ibv_reg_mr_iova() calls ibv_reg_mr_iova2(), which drops relaxed
	 * ordering if the kernel does not support it.
	 */
	return ibv_reg_mr_iova(pd, addr, length, iova, access);
}

/* EOPNOTSUPP if the driver has no windows. */
static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	return ibv_alloc_mw(pd, type);
}

static int dealloc_mw(struct ibv_mw *mw)
{
	return ibv_dealloc_mw(mw);
}

#define MEMBER(name, ...) .name = ibv_##name,
const struct pier_provider pier_verbs_provider = {
	.name = "verbs",
	.open_device = ibv_open_device,
	.close_device = ibv_close_device,
	.query_port = query_port,
	.get_async_event = ibv_get_async_event,
	.ack_async_event = ibv_ack_async_event,
	.query_gid_table = query_gid_table,
	.query_gid = query_gid,
	.query_on_demand = query_on_demand,
	.reg_mr = reg_mr,
	.query_data_direct = pier_mlx5_query_data_direct,
	.reg_data_direct_mr = pier_mlx5_reg_data_direct_mr,
	.alloc_mw = alloc_mw,
	.dealloc_mw = dealloc_mw,
	.create_direct_qp = pier_mlx5_create_direct_qp,
	PIER_VERBS_FUNCTIONS(MEMBER)
};
