/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"

/*
 * With PIER_PRELOAD=peermem, access(2) finds the modules of peer memory. Without them,
 * some programs copy through host memory and never register that of a GPU, for example
 * NCCL (ibGdrSupportInitOnce() in net_ib) and UCC
 * (ucc_tl_mlx5_check_gpudirect_driver_cuda()). docs/preload.md lists where the answer is
 * not true.
 */
static bool names_peer_memory(const char *path)
{
	static const char *const names[] = {
		"/sys/kernel/mm/memory_peers/nv_mem/version",
		"/sys/kernel/mm/memory_peers/nv_mem_nc/version",
		"/sys/kernel/mm/memory_peers/nvidia-peermem/version",
		"/sys/module/nv_peer_mem/version",
		"/sys/module/nvidia_peermem/version",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(path, names[i]) == 0)
			return true;
	return false;
}

int access(const char *path, int mode)
{
	if ((mode & ~R_OK) == 0 && path[0] == '/' && names_peer_memory(path) &&
	    preload_mode() == PRELOAD_PEERMEM)
		return 0;
	return faccessat(AT_FDCWD, path, mode, 0);
}
