/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include <infiniband/mlx5dv.h>

#include "mlx5/mlx5.h"

/*
 * libmlx5.so.1 as far as Data Direct and scatter to CQE go, from the man pages
 * mlx5dv_reg_dmabuf_mr(3), mlx5dv_get_data_direct_sysfs_path(3) and mlx5dv_create_qp(3)
 * of rdma-core. With FAKE_MLX5_OLD it is the library before rdma-core 54, which lacks the
 * second function.
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

__attribute__((visibility("default"))) struct ibv_qp *mlx5dv_create_qp(
	struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
	struct mlx5dv_qp_init_attr *mlx5_attr)
{
	static struct ibv_qp qp;

	/* create_qp() in libmlx5's verbs.c. */
	errno = fake_mlx5.qp_error;
	if (errno || attr->comp_mask != IBV_QP_INIT_ATTR_PD)
		return NULL;
	fake_mlx5.last_qp = *attr;
	fake_mlx5.qp_mask = mlx5_attr->comp_mask;
	fake_mlx5.qp_flags = mlx5_attr->create_flags;
	fake_mlx5.qp_ops = mlx5_attr->send_ops_flags;
	attr->cap.max_inline_data = 60;
	qp.context = context;
	return &qp;
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
