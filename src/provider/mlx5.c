/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <pier/backend.h>

#include "mlx5.h"
#include "provider.h"

/*
 * The functions of libmlx5 beyond verbs, found at run time: few machines have the
 * library, and older ones lack those of Data Direct (rdma-core 54, MLX5_1.25 in
 * libmlx5.map).
 */

enum {
	/* MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT in mlx5_api.h. */
	DATA_DIRECT = 1,
	/* MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS in mlx5dv.h. */
	HAS_CREATE_FLAGS = 1,
	/* MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE. */
	DISABLE_SCATTER_TO_CQE = 1 << 3,
	/* MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS. */
	HAS_SEND_OPS = 1 << 2,
	/* MLX5DV_QP_EX_WITH_MR_LIST. */
	WITH_MR_LIST = 1 << 1,
	/* MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT. */
	INDIRECT = 1 << 0,
	/* Of struct mlx5_wqe_data_seg and mlx5_wqe_inl_data_seg, in bytes. */
	ENTRY_SIZE = 16,
	INLINE_HEADER = 4,
};

/* struct mlx5dv_qp_init_attr. */
struct qp_attr {
	uint64_t comp_mask;
	uint32_t create_flags;
	struct {
		uint32_t dc_type;
		uint64_t dct_access_key;
	} dc_init_attr;
	uint64_t send_ops_flags;
};

/* struct mlx5dv_mkey_init_attr, mlx5dv_mkey and the first members of mlx5dv_qp_ex. */
struct mkey_attr {
	struct ibv_pd *pd;
	uint32_t create_flags;
	uint16_t max_entries;
};

struct mkey {
	uint32_t lkey;
	uint32_t rkey;
};

struct join_qp {
	uint64_t comp_mask;
	void (*wr_set_dc_addr)(void);
	void (*wr_mr_interleaved)(void);
	void (*wr_mr_list)(struct join_qp *qp, struct mkey *mkey, uint32_t access,
			   uint16_t count, struct ibv_sge *parts);
};

/* The region that is made of an indirect key. */
struct joined {
	struct ibv_mr mr; /* must be first */
	struct mkey *mkey;
};

typedef struct mkey *create_mkey_function(struct mkey_attr *attr);
typedef int destroy_mkey_function(struct mkey *mkey);
typedef struct ibv_qp_ex *extend_qp_function(struct ibv_qp *qp);
typedef struct join_qp *join_qp_function(struct ibv_qp_ex *qp);
typedef bool is_supported_function(struct ibv_device *device);
typedef int get_path_function(struct ibv_context *context, char *ret_path, size_t size);
typedef struct ibv_mr *reg_function(struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access, int mlx5_access);
typedef struct ibv_qp *create_qp_function(struct ibv_context *context,
					  struct ibv_qp_init_attr_ex *attr,
					  struct qp_attr *mlx5_attr);

/* The library stays loaded, so the function stays valid. */
static void *find_in(const char *file, const char *name)
{
	void *library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
	void *function;

	if (!library)
		return NULL;
	function = dlsym(library, name);
	dlclose(library);
	return function;
}

/*
 * Where there is an mlx5 device, libibverbs has loaded the library: its plug-in is a link
 * to it (rdma_shared_provider() in rdma-core's buildlib/rdma_functions.cmake).
 */
static void *find_function(const char *name)
{
	return find_in("libmlx5.so.1", name);
}

static bool is_mlx5(const struct ibv_context *context)
{
	is_supported_function *is_supported = (is_supported_function *)find_function(
		"mlx5dv_is_supported");

	return is_supported && is_supported(context->device);
}

int pier_mlx5_query_data_direct(struct ibv_context *context, char *ret_path, size_t size)
{
	get_path_function *get_path;
	int error;

	if (!is_mlx5(context))
		return EOPNOTSUPP;
	get_path = (get_path_function *)find_function(
		"mlx5dv_get_data_direct_sysfs_path");
	if (!get_path || !find_function("mlx5dv_reg_dmabuf_mr"))
		return -pier_fail(ENODEV,
				  "libmlx5.so.1 has no "
				  "mlx5dv_get_data_direct_sysfs_path(): Data Direct came "
				  "with rdma-core 54; install a newer one");
	error = get_path(context, ret_path, size);
	if (!error)
		return 0;
	/* EOPNOTSUPP means another thing here, of a kernel without the operation. */
	return -pier_fail(ENODEV, "the NIC has no Data Direct engine (%s)",
			  error == ENODEV ? "ENODEV" : "its kernel driver fails");
}

struct ibv_mr *pier_mlx5_reg_data_direct_mr(struct ibv_pd *pd, uint64_t offset,
					    size_t length, uint64_t iova, int fd,
					    int access)
{
	reg_function *reg = (reg_function *)find_function("mlx5dv_reg_dmabuf_mr");

	if (reg)
		return reg(pd, offset, length, iova, fd, access, DATA_DIRECT);
	errno = EOPNOTSUPP;
	return NULL;
}

/*
 * As mlx5_create_qp() in libmlx5 does, with more flags. mlx5dv_create_qp() is older than
 * mlx5dv_is_supported() (MLX5_1.3 and 1.8 in libmlx5.map).
 */
static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
				uint32_t more, struct qp_attr *flags)
{
	create_qp_function *create = (create_qp_function *)find_function(
		"mlx5dv_create_qp");
	struct ibv_qp_init_attr_ex extended = { 0 };
	struct ibv_qp *qp;

	if (!create) {
		pier_fail(EOPNOTSUPP, "libmlx5.so.1 has no mlx5dv_create_qp(): install a "
				      "newer rdma-core");
		errno = EOPNOTSUPP;
		return NULL;
	}
	/* The members are the first ones of the extended structure. */
	memcpy(&extended, attr, sizeof(*attr));
	extended.comp_mask = IBV_QP_INIT_ATTR_PD | more;
	extended.pd = pd;
	qp = create(pd->context, &extended, flags);
	if (qp)
		attr->cap = extended.cap;
	return qp;
}

struct ibv_qp *pier_mlx5_create_direct_qp(struct ibv_pd *pd,
					  struct ibv_qp_init_attr *attr)
{
	struct qp_attr flags = { .comp_mask = HAS_CREATE_FLAGS,
				 .create_flags = DISABLE_SCATTER_TO_CQE };

	if (!is_mlx5(pd->context))
		return ibv_create_qp(pd, attr);
	return create_qp(pd, attr, 0, &flags);
}

/*
 * Whether the device needs more (DEVX, which virtual functions may lack) shows when the
 * key is created. rdma-core 22 has the functions (MLX5_1.10 in libmlx5.map).
 */
bool pier_mlx5_can_join(struct ibv_context *context)
{
	return is_mlx5(context) && find_function("mlx5dv_create_mkey") &&
	       find_function("mlx5dv_destroy_mkey") &&
	       find_function("mlx5dv_qp_ex_from_ibv_qp_ex") &&
	       find_in("libibverbs.so.1", "ibv_qp_to_qp_ex");
}

/*
 * The list travels in the request: mlx5_send_wr_set_mkey_layout() counts how many entries
 * fit in max_inline_data and its header, and umr_sg_list_create() fills up the last four.
 */
struct ibv_qp *pier_mlx5_create_join_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
					uint32_t count)
{
	struct qp_attr flags = { .comp_mask = HAS_CREATE_FLAGS | HAS_SEND_OPS,
				 .create_flags = DISABLE_SCATTER_TO_CQE,
				 .send_ops_flags = WITH_MR_LIST };

	/* max_entries of a key has 16 bits. */
	if (count > UINT16_MAX) {
		errno = EINVAL;
		return NULL;
	}
	attr->cap.max_inline_data = (count + 3) / 4 * 4 * ENTRY_SIZE - INLINE_HEADER;
	return create_qp(pd, attr, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, &flags);
}

/* mlx5dv_wr_post(3). 0 or a positive errno. */
static int post_join(struct ibv_qp *qp, struct mkey *mkey, const struct ibv_sge *parts,
		     uint32_t count, int access)
{
	extend_qp_function *extend = (extend_qp_function *)find_in("libibverbs.so.1",
								   "ibv_qp_to_qp_ex");
	join_qp_function *find = (join_qp_function *)find_function(
		"mlx5dv_qp_ex_from_ibv_qp_ex");
	struct ibv_qp_ex *extended = extend ? extend(qp) : NULL;
	struct join_qp *join = extended && find ? find(extended) : NULL;

	if (!join)
		return EOPNOTSUPP;
	ibv_wr_start(extended);
	extended->wr_id = 0;
	extended->wr_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
	join->wr_mr_list(join, mkey, (uint32_t)(access & PIER_JOIN_ACCESS),
			 (uint16_t)count, (struct ibv_sge *)parts);
	return ibv_wr_complete(extended);
}

static int destroy_mkey(struct mkey *mkey)
{
	destroy_mkey_function *destroy = (destroy_mkey_function *)find_function(
		"mlx5dv_destroy_mkey");

	return destroy ? destroy(mkey) : EOPNOTSUPP;
}

struct ibv_mr *pier_mlx5_join_mrs(struct ibv_qp *qp, const struct ibv_sge *parts,
				  uint32_t count, int access)
{
	create_mkey_function *create = (create_mkey_function *)find_function(
		"mlx5dv_create_mkey");
	struct mkey_attr attr = { .pd = qp->pd,
				  .create_flags = INDIRECT,
				  .max_entries = (uint16_t)count };
	struct joined *joined = calloc(1, sizeof(*joined));
	int error;

	if (!joined)
		return NULL;
	joined->mkey = create ? create(&attr) : NULL;
	if (!joined->mkey) {
		error = create ? errno : EOPNOTSUPP;
		free(joined);
		errno = error;
		return NULL;
	}
	joined->mr.context = qp->context;
	joined->mr.pd = qp->pd;
	joined->mr.lkey = joined->mkey->lkey;
	joined->mr.rkey = joined->mkey->rkey;
	error = post_join(qp, joined->mkey, parts, count, access);
	if (error) {
		destroy_mkey(joined->mkey);
		free(joined);
		errno = error;
		return NULL;
	}
	return &joined->mr;
}

int pier_mlx5_unjoin_mrs(struct ibv_mr *mr)
{
	struct joined *joined = (struct joined *)mr;
	int error = destroy_mkey(joined->mkey);

	if (!error)
		free(joined);
	return error;
}
