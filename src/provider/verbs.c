/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include <pier/backend.h>

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

/* Inline functions of libibverbs: EOPNOTSUPP if the driver has no such memory. */
static struct ibv_dm *alloc_dm(struct ibv_context *context,
			       struct ibv_alloc_dm_attr *attr)
{
	return ibv_alloc_dm(context, attr);
}

static int free_dm(struct ibv_dm *dm)
{
	return ibv_free_dm(dm);
}

static struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
				size_t length, unsigned int access)
{
	return ibv_reg_dm_mr(pd, dm, offset, length, access);
}

/*
 * Functions that older libibverbs lack, found at run time. A preloaded library comes
 * first, as in ibverbs.c; libibverbs is open where there is a device of it.
 *
 * since  what came with which release, for the sentence
 */
static void *find_newer(const char *name, const char *version, const char *since)
{
	void *function = dlvsym(RTLD_DEFAULT, name, version);
	void *library;

	if (function)
		return function;
	library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (library) {
		function = dlvsym(library, name, version);
		dlclose(library);
	}
	if (function)
		return function;
	pier_fail(EOPNOTSUPP, "libibverbs.so.1 has no %s(): %s; install a newer one",
		  name, since);
	errno = EOPNOTSUPP;
	return NULL;
}

static void *find_dmah(const char *name)
{
	return find_newer(name, "IBVERBS_1.15", "DMA handles came with rdma-core 59");
}

static int dm_export_dmabuf_fd(struct ibv_dm *dm)
{
	__typeof__(&dm_export_dmabuf_fd) function = find_newer(
		"ibv_dm_export_dmabuf_fd", "IBVERBS_1.16",
		"dma-bufs of a NIC's memory came with rdma-core 62");

	return function ? function(dm) : -1;
}

static struct ibv_dmah *alloc_dmah(struct ibv_context *context,
				   struct pier_dmah_attr *attr)
{
	__typeof__(&alloc_dmah) function = find_dmah("ibv_alloc_dmah");

	return function ? function(context, attr) : NULL;
}

static int dealloc_dmah(struct ibv_dmah *dmah)
{
	__typeof__(&dealloc_dmah) function = find_dmah("ibv_dealloc_dmah");

	return function ? function(dmah) : EOPNOTSUPP;
}

static struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct pier_reg_attr *attr)
{
	__typeof__(&reg_mr_ex) function = find_dmah("ibv_reg_mr_ex");

	return function ? function(pd, attr) : NULL;
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
	.alloc_dmah = alloc_dmah,
	.dealloc_dmah = dealloc_dmah,
	.reg_mr_ex = reg_mr_ex,
	.alloc_dm = alloc_dm,
	.free_dm = free_dm,
	.reg_dm_mr = reg_dm_mr,
	.dm_export_dmabuf_fd = dm_export_dmabuf_fd,
	.can_join = pier_mlx5_can_join,
	.create_join_qp = pier_mlx5_create_join_qp,
	.join_mrs = pier_mlx5_join_mrs,
	.unjoin_mrs = pier_mlx5_unjoin_mrs,
	.alloc_mw = alloc_mw,
	.dealloc_mw = dealloc_mw,
	.create_direct_qp = pier_mlx5_create_direct_qp,
	PIER_VERBS_FUNCTIONS(MEMBER)
};
