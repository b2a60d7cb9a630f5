/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "mlx5/mlx5.h"

/*
 * libmlx5.so.1 as far as Data Direct goes, from the man pages mlx5dv_reg_dmabuf_mr(3) and
 * mlx5dv_get_data_direct_sysfs_path(3) of rdma-core. With FAKE_MLX5_OLD it is the library
 * before rdma-core 54, which lacks the second function.
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
