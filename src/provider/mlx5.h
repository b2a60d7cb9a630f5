/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PROVIDER_MLX5_H
#define PIER_PROVIDER_MLX5_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * Members of the provider verbs: query_data_direct(), reg_data_direct_mr(),
 * create_direct_qp(), can_join(), create_join_qp(), join_mrs() and unjoin_mrs().
 */
int pier_mlx5_query_data_direct(struct ibv_context *context, char *ret_path, size_t size);
struct ibv_mr *pier_mlx5_reg_data_direct_mr(struct ibv_pd *pd, uint64_t offset,
					    size_t length, uint64_t iova, int fd,
					    int access);
struct ibv_qp *pier_mlx5_create_direct_qp(struct ibv_pd *pd,
					  struct ibv_qp_init_attr *attr);
bool pier_mlx5_can_join(struct ibv_context *context);
struct ibv_qp *pier_mlx5_create_join_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
					uint32_t count);
struct ibv_mr *pier_mlx5_join_mrs(struct ibv_qp *qp, const struct ibv_sge *parts,
				  uint32_t count, int access);
int pier_mlx5_unjoin_mrs(struct ibv_mr *mr);

#endif
