/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#ifdef PIER_HAVE_CUDA
#include "backends/cuda/unit.h"
#endif
#include "core/environment.h"
#include "preload.h"

typedef int asker(const char *path, int mode);

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

/* Another library that was preloaded may stand before the kernel, as libpier-verbs. */
static int ask_next(const char *path, int mode)
{
	static _Atomic(asker *) next;
	asker *found = atomic_load_explicit(&next, memory_order_relaxed);

	if (!found) {
		found = (asker *)dlsym(RTLD_NEXT, "access");
		atomic_store_explicit(&next, found, memory_order_relaxed);
	}
	return found ? found(path, mode) : faccessat(AT_FDCWD, path, mode, 0);
}

int access(const char *path, int mode)
{
	int before = errno;
	int result = ask_next(path, mode);

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
