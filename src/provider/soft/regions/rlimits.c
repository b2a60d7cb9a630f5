/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "rlimits.h"
#include "core/checked.h"
#include "core/fd.h"

/*
 * How much of the fds, the address space and the mappings of the process soft0 leaves to
 * others.
 *
 * Peers choose the size of their regions. So the mappings of regions that they grant
 * have bounds of their own, far below those of the process: 2^47 bytes of user space on
 * x86-64, and vm.max_map_count mappings (65530 by default). Global of necessity, as the
 * address space is.
 */

enum {
	MAX_MAPPED_PIECES = 8192
};

#define MAX_MAPPED_BYTES (UINT64_C(1) << 42)

static struct {
	_Atomic uint64_t bytes;
	_Atomic uint64_t segments;
} mapped;

bool pier_soft_is_spare(int fd)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd < limit.rlim_cur / 2;
}

bool pier_soft_may_write(uint64_t offset, uint64_t length)
{
	struct rlimit limit;
	uint64_t end;

	return pier_add_u64(offset, length, &end) &&
	       getrlimit(RLIMIT_FSIZE, &limit) == 0 && end <= limit.rlim_cur;
}

/*
 * A peer can punch holes into a file that it shares, and the pages of a memfd are
 * accounted when they are touched (VM_NORESERVE). With vm.overcommit_memory=2 that fails
 * at the commit limit, which is a SIGBUS: shmem_fault() in the kernel. Without /proc the
 * answer is no.
 */
bool pier_soft_may_touch_holes(void)
{
	pier_auto_fd fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	char mode = '2';

	return fd >= 0 && read(fd, &mode, 1) == 1 && mode != '2';
}

static uint64_t max_mapped_bytes(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur / 4 < MAX_MAPPED_BYTES)
		return limit.rlim_cur / 4;
	return MAX_MAPPED_BYTES;
}

static bool reserve_below(_Atomic uint64_t *used, uint64_t wanted, uint64_t limit)
{
	uint64_t before = atomic_load(used);

	do {
		if (wanted > limit || before > limit - wanted)
			return false;
	} while (!atomic_compare_exchange_weak(used, &before, before + wanted));
	return true;
}

bool pier_soft_reserve_mapping(uint64_t bytes, uint32_t segments)
{
	if (!reserve_below(&mapped.bytes, bytes, max_mapped_bytes()))
		return false;
	if (reserve_below(&mapped.segments, segments, MAX_MAPPED_PIECES))
		return true;
	atomic_fetch_sub(&mapped.bytes, bytes);
	return false;
}

void pier_soft_release_mapping(uint64_t bytes, uint32_t segments)
{
	atomic_fetch_sub(&mapped.bytes, bytes);
	atomic_fetch_sub(&mapped.segments, segments);
}
