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

enum {
	FAKE_MLX5_ENTRIES = 64,
};

/* The last request that gave a key its bytes. */
struct fake_mlx5_list {
	uint32_t key, access;
	unsigned int flags; /* wr_flags */
	uint16_t count;
	struct ibv_sge entries[FAKE_MLX5_ENTRIES];
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
	int mkey_error, destroy_error;
	int mkeys;		/* alive */
	uint16_t mkey_entries;	/* that the last one has room for */
	struct ibv_pd *mkey_pd; /* of the last one */
	struct fake_mlx5_list list;
	int lists; /* posted */
};

#endif
