/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#ifdef PIER_HAVE_CUDA
#include "backends/cuda/unit.h"
#endif
#include "core/environment.h"
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

/*
 * Whether pier can do what the module would. If the driver exports nothing, a program
 * that would have copied through host memory would fail to register instead.
 */
static bool replaces_peer_memory(void)
{
	if (preload_mode() != PRELOAD_PEERMEM || pier_switched_off("PIER_DMABUF"))
		return false;
#ifdef PIER_HAVE_CUDA
	return pier_cuda_exports();
#else
	return false;
#endif
}

int access(const char *path, int mode)
{
	int before = errno;
	int result = faccessat(AT_FDCWD, path, mode, 0);

	/* The kernel has read the whole path, so it can be read here. */
	if (result == 0 || errno != ENOENT || (mode & ~R_OK) || !names_peer_memory(path))
		return result;
	if (replaces_peer_memory()) {
		errno = before;
		return 0;
	}
	errno = ENOENT;
	return result;
}
