/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util/checked.h"
#include "util/error.h"
#include "util/fd.h"
#include "soft.h"

enum {
	GENERATION_BITS = 12,
	GENERATION_MASK = (1 << GENERATION_BITS) - 1
};

static bool encloses(const struct soft_mr *mr, uint64_t address, uint64_t length)
{
	return address >= mr->iova &&
	       pier_range_fits(address - mr->iova, length, mr->ibv.length);
}

struct soft_mr *pier_soft_find_mr(struct soft_context *context, struct ibv_pd *pd,
				  uint32_t key, uint64_t address, uint64_t length,
				  int access)
{
	const struct soft_mr_table *table = &context->mrs;
	uint32_t index = key >> GENERATION_BITS;
	const struct soft_mr_slot *slot;

	if (index >= table->capacity)
		return NULL;
	slot = &table->slots[index];
	if (!slot->mr || slot->generation != (key & GENERATION_MASK))
		return NULL;
	if (slot->mr->ibv.pd != pd || (slot->mr->access & access) != access)
		return NULL;
	return encloses(slot->mr, address, length) ? slot->mr : NULL;
}

/* The rule is that of ib_check_mr_access() in the kernel. */
int pier_soft_check_access(int access, int allowed)
{
	const int remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

	if (access & ~allowed)
		return pier_fail(EINVAL, "soft0: access flags %#x are not known here",
				 access & ~allowed);
	if ((access & remote) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return pier_fail(EINVAL,
				 "soft0: access flags %#x: remote write and "
				 "atomic access need local write access",
				 access);
	return 0;
}

/* Slot 0 stays empty, so that no key is 0 and 0 can end the free list. */
static bool grow(struct soft_mr_table *table)
{
	uint32_t capacity = table->capacity ? table->capacity * 2 : 64;
	struct soft_mr_slot *slots;
	uint32_t generation;

	if (capacity > SOFT_MAX_MR || !pier_soft_random(&generation, sizeof(generation)))
		return false;
	slots = realloc(table->slots, capacity * sizeof(*slots));
	if (!slots)
		return false;
	table->slots = slots;
	for (uint32_t i = table->capacity; i < capacity; i++) {
		slots[i].mr = NULL;
		slots[i].generation = generation & GENERATION_MASK;
		slots[i].next_free = i + 1 < capacity ? i + 1 : 0;
	}
	table->first_free = table->capacity ? table->capacity : 1;
	table->last_free = capacity - 1;
	table->capacity = capacity;
	return true;
}

static bool take_slot(struct soft_mr_table *table, struct soft_mr *mr)
{
	uint32_t index;

	if (table->first_free == 0 && !grow(table))
		return false;
	index = table->first_free;
	table->first_free = table->slots[index].next_free;
	table->slots[index].mr = mr;
	mr->ibv.lkey = index << GENERATION_BITS | table->slots[index].generation;
	mr->ibv.rkey = mr->ibv.lkey;
	mr->ibv.handle = index;
	return true;
}

static void free_slot(struct soft_mr_table *table, uint32_t index)
{
	struct soft_mr_slot *slot = &table->slots[index];

	slot->mr = NULL;
	slot->generation = (slot->generation + 1) & GENERATION_MASK;
	slot->next_free = 0;
	if (table->first_free == 0)
		table->first_free = index;
	else
		table->slots[table->last_free].next_free = index;
	table->last_free = index;
}

/* Owns `mr` on success only. */
struct ibv_mr *pier_soft_add_mr(struct ibv_pd *pd, struct soft_mr *mr)
{
	struct soft_context *context = soft_context(pd->context);
	bool taken;

	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	pier_soft_lock(context);
	taken = take_slot(&context->mrs, mr);
	pier_soft_unlock(context);
	if (!taken) {
		pier_fail(ENOMEM, "soft0: no room for another memory region");
		errno = ENOMEM;
		return NULL;
	}
	atomic_fetch_add(&((struct soft_pd *)pd)->users, 1);
	return &mr->ibv;
}

/* Whether the kernel knows MADV_POPULATE_*, asked with memory that must work. */
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
 * Stands for the kernel's pinning: fails where get_user_pages() would, which is
 * memory that is absent, forbidden, or a mapping of page frames (EINVAL here).
 */
static int populate(char *first, size_t length, int access)
{
	int advice = access & ~IBV_ACCESS_REMOTE_READ & ~IBV_ACCESS_RELAXED_ORDERING
			     ? MADV_POPULATE_WRITE
			     : MADV_POPULATE_READ;

	if (madvise(first, length, advice) == 0)
		return 0;
	if (errno == EINVAL && !kernel_populates(advice)) {
		/* Before Linux 5.14: at least see that something is mapped. */
		return msync(first, length, MS_ASYNC) == 0 ? 0 : EFAULT;
	}
	return errno == ENOMEM || errno == EINVAL || errno == EPERM ? EFAULT : errno;
}

static int check_host_range(void *addr, size_t length, uint64_t iova, int access)
{
	uint64_t page = sysconf(_SC_PAGESIZE), end;
	uintptr_t first = (uintptr_t)addr & ~(page - 1);
	int error;

	if (length == 0)
		return pier_fail(EINVAL, "soft0: a region of length 0");
	if (!pier_add_u64((uintptr_t)addr, length, &end) || end > UINT64_MAX - page ||
	    !pier_add_u64(iova, length - 1, &end))
		return pier_fail(EINVAL,
				 "soft0: address %p or iova %#llx plus length "
				 "%zu is past the end of memory",
				 addr, (unsigned long long)iova, length);
	if ((iova ^ (uintptr_t)addr) & (page - 1))
		return pier_fail(EINVAL,
				 "soft0: address %p and iova %#llx differ modulo "
				 "the page of %llu bytes",
				 addr, (unsigned long long)iova,
				 (unsigned long long)page);
	end = ((uintptr_t)addr + length + page - 1) & ~(page - 1);
	error = populate((char *)first, end - first, access);
	if (error)
		return pier_fail(error,
				 "soft0: memory %p, %zu bytes cannot be pinned: "
				 "it is not all mapped, or not as the access "
				 "flags %#x need it",
				 addr, length, access);
	return 0;
}

struct ibv_mr *pier_soft_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, int access)
{
	const int allowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
			    IBV_ACCESS_RELAXED_ORDERING;
	struct soft_mr *mr;
	struct ibv_mr *added;
	int error = pier_soft_check_access(access, allowed);

	if (error == 0)
		error = check_host_range(addr, length, iova, access);
	if (error) {
		errno = -error;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	mr->ibv.addr = addr;
	mr->ibv.length = length;
	mr->memory = addr;
	mr->iova = iova;
	mr->access = access;
	mr->sync_fd = -1;
	added = pier_soft_add_mr(pd, mr);
	if (!added)
		free(mr);
	return added;
}

int pier_soft_dereg_mr(struct ibv_mr *ibv_mr)
{
	struct soft_mr *mr = (struct soft_mr *)ibv_mr;
	struct soft_context *context = soft_context(ibv_mr->context);

	/* The engine copies with its lock held only: none is in the region then. */
	pier_soft_lock(context);
	free_slot(&context->mrs, mr->ibv.handle);
	pier_soft_unlock(context);
	atomic_fetch_sub(&((struct soft_pd *)mr->ibv.pd)->users, 1);
	if (mr->window)
		munmap(mr->window, mr->window_size);
	pier_close_fd(mr->sync_fd);
	free(mr);
	return 0;
}
