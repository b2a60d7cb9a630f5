/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host.h"
#include "core/checked.h"
#include "core/error.h"
#include "provider/provider.h"
#include "region.h"

/* Whether the kernel has MADV_POPULATE_*: tried on memory where it must work. */
static bool kernel_populates(int advice)
{
	size_t page = sysconf(_SC_PAGESIZE);
	void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool known;

	if (memory == MAP_FAILED)
		return true;
	known = madvise(memory, page, advice) == 0;
	munmap(memory, page);
	return known;
}

/*
 * msync(2) fails if a page is not mapped; MS_ASYNC does nothing else since Linux 2.6.19.
 */
bool pier_soft_is_mapped(const char *memory, uint64_t length)
{
	uint64_t skipped = (uintptr_t)memory & ((uint64_t)sysconf(_SC_PAGESIZE) - 1);

	return msync((void *)(memory - skipped), length + skipped, MS_ASYNC) == 0;
}

/*
 * Fails where get_user_pages() would, on memory that
 * is absent, not accessible, or a mapping of page frames (EINVAL here). What writes is as
 * in ib_access_writable().
 */
int pier_soft_populate(const char *memory, uint64_t length, int access)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	char *first = (char *)((uintptr_t)memory & ~(page - 1));
	size_t size = (((uintptr_t)memory + length + page - 1) & ~(page - 1)) -
		      (uintptr_t)first;
	const int writing = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
	int advice = access & writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;

	if (madvise(first, size, advice) == 0)
		return 0;
	if (errno == EINVAL && !kernel_populates(advice)) {
		/* Before Linux 5.14: check at least that all of it is mapped. */
		return pier_soft_is_mapped(first, size) ? 0 : EFAULT;
	}
	return errno == ENOMEM || errno == EINVAL || errno == EPERM ? EFAULT : errno;
}

int pier_soft_attach_host(struct soft_segment *segment,
			  const struct pier_provider_part *part, int access)
{
	uint64_t page = sysconf(_SC_PAGESIZE), end;
	int error;

	if (part->length == 0)
		return pier_fail(EINVAL, "soft0: a segment of memory has length 0");
	if (!pier_add_u64((uintptr_t)part->addr, part->length, &end) ||
	    !pier_round_up_u64(end, page, &end))
		return pier_fail(EINVAL,
				 "soft0: address %p plus length %llu is past the end of "
				 "memory",
				 part->addr, (unsigned long long)part->length);
	segment->memory = part->addr;
	if (access & IBV_ACCESS_ON_DEMAND)
		return 0;
	/* In place of pinning by the kernel. */
	error = pier_soft_populate(part->addr, part->length, access);
	if (error)
		return pier_fail(error,
				 "soft0: memory %p, %llu bytes cannot be pinned: "
				 "it is not all mapped, or not as the access "
				 "flags %#x need it",
				 part->addr, (unsigned long long)part->length, access);
	return 0;
}
