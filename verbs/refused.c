/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <infiniband/verbs.h>

/*
 * What soft0 does not have. Each function fails as libibverbs does for a driver without
 * it (libibverbs/dummy_ops.c). Left out, the real libibverbs would be called with an
 * object of soft0.
 */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Newer than the libibverbs for which pier is built. */
struct ibv_buf;
struct ibv_buf_attr;
struct ibv_comp_cntr;
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_dmah;
struct ibv_dmah_init_attr;
struct ibv_mr_init_attr;
struct ibv_qp_attach_comp_cntr_attr;
struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context,
				struct ibv_dmah_init_attr *attr);
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **ret_buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr,
			      size_t length, int access);
int ibv_dealloc_dmah(struct ibv_dmah *dmah);
int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm);
void ibv_free_buf(struct ibv_buf *buf);
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);
int _ibv_query_comp_cntr_caps(struct ibv_context *context,
			      struct ibv_comp_cntr_caps *ret_caps, size_t size);
struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context,
					   struct ibv_comp_cntr_init_attr *attr);
int ibv_destroy_comp_cntr(struct ibv_comp_cntr *counter);
int ibv_set_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_set_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_inc_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_read_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *ret_value);
int ibv_read_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *ret_value);
int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
			    struct ibv_qp_attach_comp_cntr_attr *attr);

static void *no_object(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

static int no_function(void)
{
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}

/* A positive errno would pass for a descriptor. */
static int no_descriptor(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

struct ibv_context *ibv_import_device(int fd)
{
	return no_object();
}

struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
	return no_object();
}

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	return no_object();
}

struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle)
{
	return no_object();
}

struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context,
				struct ibv_dmah_init_attr *attr)
{
	return no_object();
}

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
	return no_object();
}

void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **ret_buf)
{
	return no_object();
}

struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr,
			      size_t length, int access)
{
	return no_object();
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return no_function();
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return no_function();
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ret_ece)
{
	return no_function();
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	return no_function();
}

int ibv_dealloc_dmah(struct ibv_dmah *dmah)
{
	return no_function();
}

int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm)
{
	return no_descriptor();
}

int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf)
{
	return no_descriptor();
}

int _ibv_query_comp_cntr_caps(struct ibv_context *context,
			      struct ibv_comp_cntr_caps *ret_caps, size_t size)
{
	memset(ret_caps, 0, size);
	return no_function();
}

struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context,
					   struct ibv_comp_cntr_init_attr *attr)
{
	return no_object();
}

int ibv_destroy_comp_cntr(struct ibv_comp_cntr *counter)
{
	return no_function();
}

int ibv_set_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value)
{
	return no_function();
}

int ibv_set_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value)
{
	return no_function();
}

int ibv_inc_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount)
{
	return no_function();
}

int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount)
{
	return no_function();
}

int ibv_read_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *ret_value)
{
	return no_function();
}

int ibv_read_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *ret_value)
{
	return no_function();
}

int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
			    struct ibv_qp_attach_comp_cntr_attr *attr)
{
	return no_function();
}

void ibv_unimport_pd(struct ibv_pd *pd)
{
}

void ibv_unimport_mr(struct ibv_mr *mr)
{
}

void ibv_unimport_dm(struct ibv_dm *dm)
{
}

void ibv_free_buf(struct ibv_buf *buf)
{
}

/* soft0 makes no promise about the order of bytes within a message. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	return 0;
}

/* A GID of soft0 belongs to no interface of the kernel. */
int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
				uint8_t ret_mac[ETHERNET_LL_SIZE], uint16_t *ret_vlan)
{
	return -EHOSTUNREACH;
}
