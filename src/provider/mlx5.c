/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>

#include <pier/backend.h>

#include "mlx5.h"

/*
 * The functions of libmlx5 beyond verbs, found at run time: few machines have the
 * library, and older ones lack the last function (rdma-core 54, MLX5_1.25 in
 * libmlx5.map).
 */

enum {
	/* MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT in mlx5_api.h. */
	DATA_DIRECT = 1,
};

typedef bool is_supported_function(struct ibv_device *device);
typedef int get_path_function(struct ibv_context *context, char *ret_path, size_t size);
typedef struct ibv_mr *reg_function(struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access, int mlx5_access);

/*
 * Where there is an mlx5 device, libibverbs has loaded the library: its plug-in is a link
 * to it (rdma_shared_provider() in rdma-core's buildlib/rdma_functions.cmake). It stays
 * loaded, so the function stays valid.
 */
static void *find_function(const char *name)
{
	void *library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *function;

	if (!library)
		return NULL;
	function = dlsym(library, name);
	dlclose(library);
	return function;
}

int pier_mlx5_query_data_direct(struct ibv_context *context, char *ret_path, size_t size)
{
	is_supported_function *is_supported = (is_supported_function *)find_function(
		"mlx5dv_is_supported");
	get_path_function *get_path;
	int error;

	if (!is_supported || !is_supported(context->device))
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
