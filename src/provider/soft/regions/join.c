/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>

#include "core/error.h"
#include "keys.h"
#include "provider/provider.h"
#include "region.h"
#include "segments.h"

/*
 * A part of a region, with an fd of its own: the region that grants it decides whether
 * its peer gets the fd. That of a memfd is optional.
 */
static int borrow_segment(const struct soft_mr *from, uint64_t offset, uint64_t length,
			  struct soft_mr *mr)
{
	const struct soft_segment *lent = pier_soft_find_segment(from, offset);
	struct soft_segment *segment = &mr->segments[mr->count];
	uint64_t skipped = offset - lent->start;

	*segment = *lent;
	segment->start = mr->ibv.length;
	segment->end = segment->start + length;
	segment->memory += skipped;
	segment->offset += skipped;
	segment->mapping = NULL;
	segment->lender = NULL;
	segment->fd_shared = false;
	if (lent->fd >= 0)
		segment->fd = fcntl(lent->fd, F_DUPFD_CLOEXEC, 0);
	mr->ibv.length = segment->end;
	mr->count++;
	return segment->dmabuf && segment->fd < 0 ? -errno : 0;
}

/* With the engine locked. A part lies in one piece of memory that is pinned. */
static int borrow_part(struct soft_mr *mr, const struct ibv_pd *pd,
		       const struct ibv_sge *part)
{
	struct soft_mr *from = pier_soft_find_mr(pd, part->lkey, part->addr, part->length,
						 mr->access);
	int error;

	if (!from || part->length == 0 || from->count > 1 ||
	    (from->access & IBV_ACCESS_ON_DEMAND))
		return pier_fail(EINVAL,
				 "soft0: key %#x has no %u bytes at %#llx with access "
				 "flags %#x that another key could cover",
				 part->lkey, part->length, (unsigned long long)part->addr,
				 mr->access);
	error = borrow_segment(from, part->addr - from->iova, part->length, mr);
	if (error)
		return error;
	mr->segments[mr->count - 1].lender = from;
	from->joins++;
	return 0;
}

static int make_key(struct soft_mr *mr, struct ibv_pd *pd, const struct ibv_sge *parts,
		    uint32_t count)
{
	struct soft_pd *owner = soft_pd(pd);
	int error = 0;

	pier_soft_lock(owner->engine);
	for (uint32_t i = 0; i < count && !error; i++)
		error = borrow_part(mr, pd, &parts[i]);
	if (!error)
		error = pier_soft_take_key(owner->mrs, mr, NULL);
	if (error)
		pier_soft_return_parts(mr);
	pier_soft_unlock(owner->engine);
	if (!error)
		atomic_fetch_add(&owner->users, 1);
	return error;
}

/* Of no bytes, so it only shows that the queue pair works. 0 or a positive errno. */
static int post_request(struct ibv_qp *qp, uint32_t rkey)
{
	struct ibv_send_wr *bad, request = {
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma.rkey = rkey,
	};

	return ibv_post_send(qp, &request, &bad);
}

struct ibv_mr *pier_soft_join_mrs(struct ibv_qp *qp, const struct ibv_sge *parts,
				  uint32_t count, int access)
{
	const struct pier_provider_part nowhere = { .fd = -1 };
	struct soft_mr *mr;
	int error;

	/* As mlx5_send_wr_set_mkey_layout() says it. */
	if (count > PIER_JOIN_PARTS)
		return pier_null_with(-ENOMEM);
	mr = pier_soft_allocate_mr(&nowhere, count, 0, access & PIER_JOIN_ACCESS);
	if (!mr)
		return pier_null_with(-ENOMEM);
	mr->ibv.context = qp->context;
	mr->ibv.pd = qp->pd;
	error = make_key(mr, qp->pd, parts, count);
	if (error) {
		pier_soft_free_mr(mr);
		return pier_null_with(error);
	}
	error = post_request(qp, mr->ibv.rkey);
	if (!error)
		return &mr->ibv;
	pier_soft_dereg_mr(&mr->ibv);
	return pier_null_with(-error);
}
