/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/mlx5dv.h>

#include "mlx5/mlx5.h"

/*
 * libmlx5.so.1 as far as Data Direct, scatter to CQE and indirect keys go, from the man
 * pages mlx5dv_reg_dmabuf_mr(3), mlx5dv_get_data_direct_sysfs_path(3),
 * mlx5dv_create_qp(3), mlx5dv_create_mkey(3) and mlx5dv_wr_post(3) of rdma-core, and the
 * functions that comments name. With FAKE_MLX5_OLD it is the library before rdma-core 54,
 * which lacks the second function.
 */

__attribute__((visibility("default"))) struct fake_mlx5 fake_mlx5;

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

__attribute__((visibility("default"))) bool mlx5dv_is_supported(struct ibv_device *device)
{
	return device == fake_mlx5.device;
}

__attribute__((visibility("default"))) struct ibv_mr *mlx5dv_reg_dmabuf_mr(
	struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
	int access, int mlx5_access)
{
	static struct ibv_mr mr;

	/* reg_user_mr_dmabuf_by_data_direct() in the kernel's mlx5 driver. */
	if (iova % (uint64_t)sysconf(_SC_PAGESIZE) != 0 ||
	    access & IBV_ACCESS_ON_DEMAND) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	fake_mlx5.last = (struct fake_mlx5_registration){ pd, offset, length,	  iova,
							  fd, access, mlx5_access };
	return &mr;
}

/* struct verbs_qp of libibverbs' driver.h, which ibv_qp_to_qp_ex() reads. */
struct fake_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex qp_ex;
	};
	uint32_t comp_mask;
	void *xrcd;
	struct mlx5dv_qp_ex dv;
	uint32_t max_inline_data;
	int error; /* of the requests since wr_start() */
};

enum {
	VERBS_QP_EX = 1 << 1,
	/* max_sq_desc_sz of ConnectX-4 to 7. */
	SEND_SIZE = 1024,
	/* _sq_overhead() with an operation on keys: the segments, and 64 bytes of list.
	 */
	OVERHEAD = 16 + 48 + 64 + 64,
	BLOCK = 64,
	HEADER = 4,
	ENTRY = 16,
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
};

struct fake_mkey {
	struct mlx5dv_mkey mkey;
	uint16_t entries;
};

static struct fake_qp fake_qp;

static uint32_t align_up(uint32_t size, uint32_t step)
{
	return (size + step - 1) / step * step;
}

static void wr_start(struct ibv_qp_ex *qp)
{
	(void)qp;
	fake_qp.error = 0;
	memset(&fake_mlx5.list, 0, sizeof(fake_mlx5.list));
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	(void)qp;
	fake_mlx5.lists += !fake_qp.error;
	return fake_qp.error;
}

/* mlx5_send_wr_mr_list() in libmlx5's qp.c: the first error stays. */
static void wr_mr_list(struct mlx5dv_qp_ex *qp, struct mlx5dv_mkey *mkey, uint32_t access,
		       uint16_t count, struct ibv_sge *entries)
{
	const struct fake_mkey *key = (const struct fake_mkey *)mkey;
	uint32_t most = (fake_qp.max_inline_data + HEADER) / ENTRY;

	(void)qp;
	if (!(fake_qp.qp_ex.wr_flags & IBV_SEND_INLINE))
		fake_qp.error = EOPNOTSUPP;
	else if (access & ~(uint32_t)ACCESS)
		fake_qp.error = EINVAL;
	else if (count > most || count > key->entries)
		fake_qp.error = ENOMEM;
	if (fake_qp.error || count > FAKE_MLX5_ENTRIES)
		return;
	fake_mlx5.list.key = mkey->lkey;
	fake_mlx5.list.access = access;
	fake_mlx5.list.flags = fake_qp.qp_ex.wr_flags;
	fake_mlx5.list.count = count;
	memcpy(fake_mlx5.list.entries, entries, count * sizeof(*entries));
}

/* mlx5_calc_send_wqe() and mlx5_calc_sq_size() in libmlx5's verbs.c. */
static int size_requests(struct ibv_qp_init_attr_ex *attr)
{
	uint32_t size = OVERHEAD + align_up(HEADER + attr->cap.max_inline_data, ENTRY);

	if (size > SEND_SIZE)
		return EINVAL;
	fake_qp.max_inline_data = align_up(size, BLOCK) - OVERHEAD - HEADER;
	attr->cap.max_inline_data = fake_qp.max_inline_data;
	return 0;
}

__attribute__((visibility("default"))) struct ibv_qp *mlx5dv_create_qp(
	struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
	struct mlx5dv_qp_init_attr *mlx5_attr)
{
	bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

	/* create_qp() in libmlx5's verbs.c. */
	errno = fake_mlx5.qp_error;
	if (errno || (attr->comp_mask & ~(uint32_t)IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) !=
			     IBV_QP_INIT_ATTR_PD)
		return NULL;
	fake_mlx5.last_qp = *attr;
	fake_mlx5.qp_mask = mlx5_attr->comp_mask;
	fake_mlx5.qp_flags = mlx5_attr->create_flags;
	fake_mlx5.qp_ops = mlx5_attr->send_ops_flags;
	memset(&fake_qp, 0, sizeof(fake_qp));
	fake_qp.qp.context = context;
	fake_qp.qp.pd = attr->pd;
	if (!extended) {
		attr->cap.max_inline_data = 60;
		return &fake_qp.qp;
	}
	errno = size_requests(attr);
	if (errno)
		return NULL;
	fake_qp.comp_mask = VERBS_QP_EX;
	fake_qp.qp_ex.wr_start = wr_start;
	fake_qp.qp_ex.wr_complete = wr_complete;
	/* mlx5_qp_fill_wr_pfns(). */
	if ((mlx5_attr->comp_mask & MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS) &&
	    mlx5_attr->send_ops_flags && attr->qp_type == IBV_QPT_RC)
		fake_qp.dv.wr_mr_list = wr_mr_list;
	return &fake_qp.qp;
}

__attribute__((visibility("default"))) struct mlx5dv_qp_ex *mlx5dv_qp_ex_from_ibv_qp_ex(
	struct ibv_qp_ex *qp)
{
	return &((struct fake_qp *)qp)->dv;
}

/* _mlx5dv_create_mkey() in libmlx5's verbs.c. */
__attribute__((visibility("default"))) struct mlx5dv_mkey *mlx5dv_create_mkey(
	struct mlx5dv_mkey_init_attr *attr)
{
	struct fake_mkey *key;

	errno = attr->create_flags == MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT
			? fake_mlx5.mkey_error
			: EOPNOTSUPP;
	if (errno)
		return NULL;
	key = calloc(1, sizeof(*key));
	if (!key)
		return NULL;
	key->entries = (uint16_t)align_up(attr->max_entries, 4);
	key->mkey.lkey = key->mkey.rkey = (uint32_t)(0x700 + fake_mlx5.mkeys++) << 8;
	attr->max_entries = fake_mlx5.mkey_entries = key->entries;
	fake_mlx5.mkey_pd = attr->pd;
	return &key->mkey;
}

__attribute__((visibility("default"))) int mlx5dv_destroy_mkey(struct mlx5dv_mkey *mkey)
{
	if (fake_mlx5.destroy_error)
		return fake_mlx5.destroy_error;
	free(mkey);
	fake_mlx5.mkeys--;
	return 0;
}

#ifndef FAKE_MLX5_OLD
__attribute__((visibility("default"))) int mlx5dv_get_data_direct_sysfs_path(
	struct ibv_context *context, char *buf, size_t buf_len)
{
	(void)context;
	if (fake_mlx5.path_error)
		return fake_mlx5.path_error;
	return snprintf(buf, buf_len, "%s", fake_mlx5.path) < (int)buf_len ? 0 : ENOSPC;
}
#endif
