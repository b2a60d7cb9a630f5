/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_MLX5_H
#define TESTS_FAKES_MLX5_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

struct fake_mlx5_registration {
	struct ibv_pd *pd;
	uint64_t offset;
	size_t length;
	uint64_t iova;
	int fd, access, mlx5_access;
};

/* The symbol fake_mlx5 of the library: settings, and the last calls. */
struct fake_mlx5 {
	struct ibv_device *device; /* the only one of mlx5 */
	int path_error;		   /* ENODEV: no engine; 0: it has one */
	const char *path;	   /* of the engine */
	struct fake_mlx5_registration last;
	struct ibv_qp_init_attr_ex last_qp;
	uint64_t
		qp_mask; /* comp_mask, create_flags and send_ops_flags of the same call */
	uint32_t qp_flags;
	uint64_t qp_ops;
	int qp_error; /* of the next one; 0: it is created */
};

#endif
