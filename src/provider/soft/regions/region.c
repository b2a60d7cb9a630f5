/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "region.h"
#include "core/checked.h"
#include "core/error.h"
#include "keys.h"
#include "provider/provider.h"
#include "provider/soft/engine.h"
#include "segments.h"

/* The rules and their order are those of the kernel's ib_uverbs_reg_mr(). */
static int check_page_rule(const struct pier_provider_part *part, uint64_t iova)
{
	uint64_t page = sysconf(_SC_PAGESIZE);

	if (part->fd == -1 && ((iova ^ (uintptr_t)part->addr) & (page - 1)))
		return pier_fail(EINVAL,
				 "soft0: address %p and iova %#llx differ modulo the "
				 "page of %llu bytes",
				 part->addr, (unsigned long long)iova,
				 (unsigned long long)page);
	if (part->fd != -1 && ((iova ^ part->offset) & (page - 1)))
		return pier_fail(EINVAL,
				 "soft0: offset %#llx and iova %#llx differ modulo the "
				 "page of %llu bytes",
				 (unsigned long long)part->offset,
				 (unsigned long long)iova, (unsigned long long)page);
	return 0;
}

/* The kernel allows neither for dma-bufs: UVERBS_METHOD_REG_DMABUF_MR. */
static int check_host_only(const struct pier_provider_part *parts, uint32_t count,
			   int access)
{
	const int host_only = IBV_ACCESS_ON_DEMAND | IBV_ACCESS_MW_BIND;

	for (uint32_t i = 0; i < count && (access & host_only); i++) {
		if (parts[i].fd != -1)
			return pier_fail(EINVAL,
					 "soft0: access flags %#x: only host memory can "
					 "be registered on demand, or for windows",
					 access);
	}
	return 0;
}

enum {
	/* Devices that do not know them ignore them: IB_ACCESS_OPTIONAL of the kernel. */
	HINTS = IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE
};

/* The rules of ib_check_mr_access(). */
static int check_access(int access)
{
	const int allowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
			    IBV_ACCESS_ON_DEMAND | IBV_ACCESS_MW_BIND | HINTS;
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

static int check_lengths(const struct pier_provider_part *parts, uint32_t count,
			 uint64_t iova)
{
	uint64_t sum = 0, last;

	for (uint32_t i = 0; i < count; i++) {
		if (!pier_add_u64(sum, parts[i].length, &sum))
			return pier_fail(
				EINVAL,
				"soft0: the lengths of %u segments add up to more "
				"than 64 bits hold",
				count);
	}
	if (sum > 0 && !pier_add_u64(iova, sum - 1, &last))
		return pier_fail(EINVAL,
				 "soft0: iova %#llx plus length %llu is past the end of "
				 "memory",
				 (unsigned long long)iova, (unsigned long long)sum);
	return 0;
}

/* Several segments may begin anywhere: the page rule is for one segment only. */
static int check_registration(const struct pier_provider_part *parts, uint32_t count,
			      uint64_t iova, int access, const uint32_t *key)
{
	int error = 0;

	if (count == 0)
		return pier_fail(EINVAL, "soft0: a region has no memory");
	if (count > SOFT_MAX_PARTS)
		return pier_fail(E2BIG, "soft0: a region of %u segments, the limit is %d",
				 count, SOFT_MAX_PARTS);
	if (key && (*key == 0 || *key > SOFT_MAX_KEY))
		return pier_fail(EKEYREJECTED,
				 "soft0: key %u; keys from 1 to %d can be asked for",
				 *key, SOFT_MAX_KEY);
	if (count == 1)
		error = check_page_rule(parts, iova);
	if (!error)
		error = check_access(access);
	if (!error)
		error = check_host_only(parts, count, access);
	if (!error)
		error = check_lengths(parts, count, iova);
	return error;
}

static int add_to_table(struct soft_mr *mr, struct ibv_pd *pd, const uint32_t *key)
{
	struct soft_pd *owner = soft_pd(pd);
	int error;

	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	pier_soft_lock(owner->engine);
	error = pier_soft_take_key(owner->mrs, mr, key);
	pier_soft_unlock(owner->engine);
	if (!error)
		atomic_fetch_add(&owner->users, 1);
	return error;
}

/* A region without a key; `key`: only checked. NULL with errno. */
static struct soft_mr *create_region(const struct pier_provider_part *parts,
				     uint32_t count, uint64_t iova, int access,
				     const uint32_t *key)
{
	int error = check_registration(parts, count, iova, access, key);
	struct soft_mr *mr = NULL;

	if (!error)
		mr = pier_soft_allocate_mr(parts, count, iova, access);
	if (mr)
		error = pier_soft_attach_parts(mr, parts, count);
	if (mr && !error)
		return mr;
	if (mr)
		pier_soft_free_mr(mr);
	return pier_null_with(error ? error : -ENOMEM);
}

struct ibv_mr *pier_soft_reg_parts(struct ibv_pd *pd,
				   const struct pier_provider_part *parts, uint32_t count,
				   uint64_t iova, int access, const uint32_t *key)
{
	struct soft_mr *mr = create_region(parts, count, iova, access, key);
	int error;

	if (!mr)
		return NULL;
	error = add_to_table(mr, pd, key);
	if (!error)
		return &mr->ibv;
	pier_soft_free_mr(mr);
	return pier_null_with(error);
}

struct ibv_mr *pier_soft_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, int access)
{
	const struct pier_provider_part part = {
		.fd = -1,
		.addr = addr,
		.length = length,
	};

	return pier_soft_reg_parts(pd, &part, 1, iova, access, NULL);
}

struct ibv_mr *pier_soft_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				       uint64_t iova, int fd, int access)
{
	const struct pier_provider_part part = {
		.fd = fd == -1 ? INT_MIN : fd, /* never host memory */
		.offset = offset,
		.length = length,
	};

	return pier_soft_reg_parts(pd, &part, 1, iova, access, NULL);
}

struct soft_dmah {
	struct ibv_context *context; /* the only member of struct ibv_dmah */
	atomic_uint users;	     /* regions */
};

/* The rules of UVERBS_METHOD_DMAH_ALLOC and of mlx5_ib_alloc_dmah() in the kernel. */
static int check_dmah(const struct pier_dmah_attr *attr)
{
	const uint32_t both = PIER_DMAH_CPU_ID | PIER_DMAH_TPH_MEM_TYPE;
	uint32_t given = attr->comp_mask & both;
	cpu_set_t allowed;

	if (attr->comp_mask & ~(both | PIER_DMAH_PH))
		return pier_fail(EOPNOTSUPP, "soft0: comp_mask %#x of a DMA handle",
				 attr->comp_mask);
	if (!(attr->comp_mask & PIER_DMAH_PH) || attr->ph > 3 ||
	    (given && given != both) || (given && attr->tph_mem_type > 1))
		return pier_fail(EINVAL, "soft0: a DMA handle needs a hint from 0 to 3, "
					 "and a CPU and a kind of memory together");
	if (given && (attr->cpu_id >= CPU_SETSIZE ||
		      sched_getaffinity(0, sizeof(allowed), &allowed) ||
		      !CPU_ISSET(attr->cpu_id, &allowed)))
		return pier_fail(EPERM, "soft0: the process may not run on CPU %u",
				 attr->cpu_id);
	return 0;
}

struct ibv_dmah *pier_soft_alloc_dmah(struct ibv_context *context,
				      struct pier_dmah_attr *attr)
{
	int error = check_dmah(attr);
	struct soft_dmah *dmah = error ? NULL : calloc(1, sizeof(*dmah));

	if (!dmah)
		return pier_null_with(error ? error : -ENOMEM);
	dmah->context = context;
	return (struct ibv_dmah *)dmah;
}

int pier_soft_dealloc_dmah(struct ibv_dmah *ibv_dmah)
{
	struct soft_dmah *dmah = (struct soft_dmah *)ibv_dmah;

	if (atomic_load(&dmah->users) > 0)
		return -pier_fail(EBUSY, "soft0: regions still use the DMA handle");
	free(dmah);
	return 0;
}

/* The region is one more user of a DMA handle or of memory, until it is deregistered. */
static void count_region(struct soft_mr *mr, atomic_uint *users)
{
	mr->used = users;
	atomic_fetch_add(users, 1);
}

/* One of host memory or an fd, as in libibverbs' own reg_mr_ex(). */
static int check_reg_attr(const struct pier_reg_attr *attr)
{
	const uint64_t of_fd = PIER_REG_FD | PIER_REG_FD_OFFSET;
	uint64_t memory = attr->comp_mask & (PIER_REG_ADDR | of_fd);

	if (attr->comp_mask & ~(PIER_REG_ADDR | of_fd | PIER_REG_IOVA | PIER_REG_DMAH))
		return pier_fail(EOPNOTSUPP, "soft0: comp_mask %#llx of a region",
				 (unsigned long long)attr->comp_mask);
	if (memory == PIER_REG_ADDR ||
	    (memory == of_fd && (attr->comp_mask & PIER_REG_IOVA)))
		return 0;
	return pier_fail(EINVAL,
			 "soft0: comp_mask %#llx: a region has an address, or an "
			 "fd, offset and iova",
			 (unsigned long long)attr->comp_mask);
}

struct ibv_mr *pier_soft_reg_mr_ex(struct ibv_pd *pd, struct pier_reg_attr *attr)
{
	int error = check_reg_attr(attr);
	struct ibv_mr *mr;

	if (error)
		return pier_null_with(error);
	if (attr->comp_mask & PIER_REG_FD)
		mr = pier_soft_reg_dmabuf_mr(pd, attr->fd_offset, attr->length,
					     attr->iova, attr->fd, attr->access);
	else
		mr = pier_soft_reg_mr(pd, attr->addr, attr->length,
				      attr->comp_mask & PIER_REG_IOVA
					      ? attr->iova
					      : (uintptr_t)attr->addr,
				      attr->access);
	if (mr && (attr->comp_mask & PIER_REG_DMAH))
		count_region((struct soft_mr *)mr,
			     &((struct soft_dmah *)attr->dmah)->users);
	return mr;
}

struct ibv_mr *pier_soft_reg_zero_based(struct ibv_pd *pd, int fd, uint64_t offset,
					size_t length, int access, atomic_uint *users)
{
	uint64_t within = offset & ((uint64_t)sysconf(_SC_PAGESIZE) - 1);
	const struct pier_provider_part part = {
		.fd = fd,
		.offset = offset,
		.length = length,
	};
	struct soft_mr *mr = create_region(&part, 1, within, access, NULL);
	int error;

	if (!mr)
		return NULL;
	mr->iova = 0;
	error = add_to_table(mr, pd, NULL);
	if (error) {
		pier_soft_free_mr(mr);
		return pier_null_with(error);
	}
	count_region(mr, users);
	return &mr->ibv;
}

void pier_soft_set_padding(struct ibv_mr *ibv_mr, uint64_t length)
{
	struct soft_mr *mr = (struct soft_mr *)ibv_mr;
	struct soft_pd *pd = soft_pd(ibv_mr->pd);

	pier_soft_lock(pd->engine);
	mr->padding = length;
	pier_soft_unlock(pd->engine);
}

int pier_soft_bind_counter(struct ibv_mr *ibv_mr, struct pier_provider_counter *counter)
{
	struct soft_mr *mr = (struct soft_mr *)ibv_mr;
	struct soft_pd *pd = soft_pd(ibv_mr->pd);
	bool busy;

	/* The engine holds its lock while it counts. */
	pier_soft_lock(pd->engine);
	busy = counter && mr->counter;
	if (!busy) {
		mr->counter = counter;
		/*
		 * Peers with a grant must now send a header for each write, or need not
		 * any more.
		 */
		pd->engine->ops->revoke_region(mr);
	}
	pier_soft_unlock(pd->engine);
	return busy ? -pier_fail(EBUSY, "soft0: the region has a counter already") : 0;
}

/* A region with windows cannot be deregistered (IBTA 10.6.7.2.6). */
static const char *name_user(const struct soft_mr *mr)
{
	if (mr->counter)
		return "a counter";
	if (mr->joins > 0)
		return "an indirect key";
	return mr->windows > 0 ? "a memory window" : NULL;
}

int pier_soft_dereg_mr(struct ibv_mr *ibv_mr)
{
	struct soft_mr *mr = (struct soft_mr *)ibv_mr;
	struct soft_pd *pd = soft_pd(ibv_mr->pd);
	const char *user;

	/* An engine copies with its lock held, so no copy is in progress here. */
	pier_soft_lock(pd->engine);
	user = name_user(mr);
	if (!user) {
		pier_soft_release_key(pd->mrs, mr);
		pd->engine->ops->revoke_region(mr);
		pier_soft_return_parts(mr);
	}
	pier_soft_unlock(pd->engine);
	if (user)
		return -pier_fail(EBUSY, "soft0: %s is bound to the region", user);
	atomic_fetch_sub(&pd->users, 1);
	if (mr->used)
		atomic_fetch_sub(mr->used, 1);
	pier_soft_free_mr(mr);
	return 0;
}

/* The keys stay. `other` gets what the region had. */
static void swap_memory(struct soft_mr *mr, struct soft_mr *other)
{
	const struct soft_segment segment = mr->segments[0];

	mr->segments[0] = other->segments[0];
	other->segments[0] = segment;
	mr->iova = other->iova;
	mr->access = other->access;
	mr->padding = 0;
	mr->ibv.addr = other->ibv.addr;
	mr->ibv.length = other->ibv.length;
}

/* 0 or -errno. The engine holds its lock while it uses the region. */
static int replace_region(struct soft_mr *mr, struct soft_mr *replacement,
			  struct ibv_pd *pd)
{
	struct soft_engine *engine = soft_pd(pd)->engine;
	const char *user;

	pier_soft_lock(engine);
	user = name_user(mr);
	if (!user) {
		engine->ops->revoke_region(mr);
		swap_memory(mr, replacement);
		atomic_fetch_sub(&soft_pd(mr->ibv.pd)->users, 1);
		atomic_fetch_add(&soft_pd(pd)->users, 1);
		mr->ibv.pd = pd;
	}
	pier_soft_unlock(engine);
	return user ? pier_fail(EBUSY, "soft0: %s is bound to the region", user) : 0;
}

static int check_change(const struct soft_mr *mr, int flags, const struct ibv_pd *pd,
			const void *addr, size_t length, int access)
{
	if (flags == 0 || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) ||
	    ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) && (!addr || length == 0)) ||
	    ((flags & IBV_REREG_MR_CHANGE_PD) &&
	     (!pd || pd->context != mr->ibv.context)) ||
	    (access && !(flags & IBV_REREG_MR_CHANGE_ACCESS)))
		return pier_fail(EINVAL,
				 "soft0: invalid flags %#x or arguments to change a "
				 "region",
				 flags);
	if (mr->count != 1 || mr->segments[0].mapping || mr->segments[0].lender)
		return pier_fail(EINVAL, "soft0: only a region of host memory can be "
					 "changed: register another one");
	return 0;
}

int pier_soft_rereg_mr(struct ibv_mr *ibv_mr, int flags, struct ibv_pd *pd, void *addr,
		       size_t length, int access)
{
	struct soft_mr *mr = (struct soft_mr *)ibv_mr, *replacement;
	bool moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
	const struct pier_provider_part part = {
		.fd = -1,
		.addr = moves ? addr : ibv_mr->addr,
		.length = moves ? length : ibv_mr->length,
	};
	int error = check_change(mr, flags, pd, addr, length, access);

	if (error) {
		errno = -error;
		return IBV_REREG_MR_ERR_INPUT;
	}
	replacement = create_region(
		&part, 1, moves ? (uintptr_t)addr : mr->iova,
		flags & IBV_REREG_MR_CHANGE_ACCESS ? access : mr->access, NULL);
	if (!replacement)
		return IBV_REREG_MR_ERR_INPUT;
	error = replace_region(mr, replacement,
			       flags & IBV_REREG_MR_CHANGE_PD ? pd : ibv_mr->pd);
	pier_soft_free_mr(replacement);
	if (!error)
		return 0;
	errno = -error;
	return IBV_REREG_MR_ERR_INPUT;
}

/* On-demand regions are of host memory, in one piece or several. */
static int check_range(const struct ibv_pd *pd, const struct ibv_sge *sge, bool write,
		       char **ret_memory)
{
	const struct soft_mr *mr = pier_soft_find_key(soft_pd(pd)->mrs, sge->lkey);

	if (!mr)
		return ENOENT;
	if (mr->ibv.pd != pd || !(mr->access & IBV_ACCESS_ON_DEMAND) ||
	    (write && !(mr->access & IBV_ACCESS_LOCAL_WRITE)))
		return EPERM;
	if (mr->count != 1 ||
	    !pier_soft_find_mr(pd, sge->lkey, sge->addr, sge->length, 0))
		return EFAULT;
	*ret_memory = mr->segments[0].memory + (sge->addr - mr->iova);
	return 0;
}

static int prefetch_range(const struct ibv_pd *pd, const struct ibv_sge *sge, bool write)
{
	struct soft_engine *engine = soft_pd(pd)->engine;
	char *memory = NULL;
	int error;

	pier_soft_lock(engine);
	error = check_range(pd, sge, write, &memory);
	pier_soft_unlock(engine);
	if (error)
		return -pier_fail(error, "soft0: key %#x cannot be prefetched",
				  sge->lkey);
	return pier_soft_populate(memory, sge->length,
				  write ? IBV_ACCESS_LOCAL_WRITE : 0);
}

int pier_soft_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice,
			uint32_t flags, struct ibv_sge *sges, uint32_t count)
{
	int error = 0;

	if (count == 0 || (flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH) ||
	    advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return -pier_fail(EINVAL, "soft0: advice %d, flags %#x, %u elements",
				  (int)advice, flags, count);
	/* Pages that are mapped already need nothing. */
	if (advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return 0;
	for (uint32_t i = 0; i < count && !error; i++)
		error = prefetch_range(pd, &sges[i],
				       advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE);
	return error;
}
