/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PROVIDER_MLX5_H
#define PIER_PROVIDER_MLX5_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * query_data_direct(), reg_data_direct_mr() and create_direct_qp() of the provider verbs.
 */
int pier_mlx5_query_data_direct(struct ibv_context *context, char *ret_path, size_t size);
struct ibv_mr *pier_mlx5_reg_data_direct_mr(struct ibv_pd *pd, uint64_t offset,
					    size_t length, uint64_t iova, int fd,
					    int access);
struct ibv_qp *pier_mlx5_create_direct_qp(struct ibv_pd *pd,
					  struct ibv_qp_init_attr *attr);

#endif
