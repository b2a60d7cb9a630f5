/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "util/checked.h"
#include "util/error.h"
#include "soft.h"

static bool encloses(const struct soft_mr *mr, uint64_t address, uint64_t length)
{
	return address >= mr->iova &&
	       pier_range_fits(address - mr->iova, length, mr->ibv.length);
}

struct soft_mr *pier_soft_find_mr(struct soft_context *context, struct ibv_pd *pd,
				  uint32_t key, uint64_t address, uint64_t length,
				  int access)
{
	struct soft_mr *mr = pier_soft_find_key(&context->mrs, key);

	if (!mr || mr->ibv.pd != pd || (mr->access & access) != access)
		return NULL;
	return encloses(mr, address, length) ? mr : NULL;
}

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

/* That of ib_check_mr_access(). */
static int check_access(int access)
{
	const int allowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
			    IBV_ACCESS_RELAXED_ORDERING;
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

static int check_end(const struct pier_provider_part *part, uint64_t iova)
{
	uint64_t last;

	if (part->length == 0 || pier_add_u64(iova, part->length - 1, &last))
		return 0;
	return pier_fail(EINVAL,
			 "soft0: iova %#llx plus length %llu is past the end of memory",
			 (unsigned long long)iova, (unsigned long long)part->length);
}

static void free_mr(struct soft_mr *mr)
{
	pier_soft_detach(&mr->piece);
	free(mr);
}

static int attach(struct soft_mr *mr, const struct pier_provider_part *part)
{
	mr->piece.sync_fd = -1;
	mr->ibv.length = part->length;
	if (part->fd == -1) {
		mr->ibv.addr = part->addr;
		return pier_soft_attach_host(&mr->piece, part, mr->access);
	}
	/* As libibverbs leaves it: the offset, not the iova. */
	mr->ibv.addr = (void *)(uintptr_t)part->offset;
	return pier_soft_attach_fd(&mr->piece, part, mr->access);
}

static int add_to_context(struct soft_mr *mr, struct ibv_pd *pd)
{
	struct soft_context *context = soft_context(pd->context);
	bool taken;

	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	pier_soft_lock(context);
	taken = pier_soft_take_key(&context->mrs, mr);
	pier_soft_unlock(context);
	if (!taken)
		return pier_fail(ENOMEM, "soft0: no room for another memory region");
	atomic_fetch_add(&((struct soft_pd *)pd)->users, 1);
	return 0;
}

static int create(struct ibv_pd *pd, const struct pier_provider_part *part, uint64_t iova,
		  int access, struct soft_mr **ret_mr)
{
	struct soft_mr *mr = calloc(1, sizeof(*mr));
	int error;

	if (!mr)
		return -ENOMEM;
	mr->iova = iova;
	mr->access = access;
	error = attach(mr, part);
	if (!error)
		error = add_to_context(mr, pd);
	if (error)
		free_mr(mr);
	else
		*ret_mr = mr;
	return error;
}

static struct ibv_mr *reg_part(struct ibv_pd *pd, const struct pier_provider_part *part,
			       uint64_t iova, int access)
{
	struct soft_mr *mr = NULL;
	int error = check_page_rule(part, iova);

	if (!error)
		error = check_access(access);
	if (!error)
		error = check_end(part, iova);
	if (!error)
		error = create(pd, part, iova, access, &mr);
	if (error) {
		errno = -error;
		return NULL;
	}
	return &mr->ibv;
}

struct ibv_mr *pier_soft_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, int access)
{
	const struct pier_provider_part part = {
		.fd = -1,
		.addr = addr,
		.length = length,
	};

	return reg_part(pd, &part, iova, access);
}

struct ibv_mr *pier_soft_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				       uint64_t iova, int fd, int access)
{
	const struct pier_provider_part part = {
		.fd = fd == -1 ? INT_MIN : fd, /* never host memory */
		.offset = offset,
		.length = length,
	};

	return reg_part(pd, &part, iova, access);
}

int pier_soft_dereg_mr(struct ibv_mr *ibv_mr)
{
	struct soft_mr *mr = (struct soft_mr *)ibv_mr;
	struct soft_context *context = soft_context(ibv_mr->context);

	/* The engine copies with its lock held only: none is in the region then. */
	pier_soft_lock(context);
	pier_soft_release_key(&context->mrs, mr);
	pier_soft_unlock(context);
	atomic_fetch_sub(&((struct soft_pd *)mr->ibv.pd)->users, 1);
	free_mr(mr);
	return 0;
}
