/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "advise.h"
#include "core/error.h"
#include "host.h"
#include "keys.h"
#include "provider/soft/engine.h"
#include "provider/soft/soft.h"
#include "region.h"

/* On-demand regions are of host memory, in one piece or several. */
static int check_range(const struct ibv_pd *pd, const struct ibv_sge *sge, bool write)
{
	struct soft_context *context = soft_context(pd->context);
	const struct soft_mr *mr = pier_soft_find_key(&context->mrs, sge->lkey);

	if (!mr)
		return ENOENT;
	if (mr->ibv.pd != pd || !(mr->access & IBV_ACCESS_ON_DEMAND) ||
	    (write && !(mr->access & IBV_ACCESS_LOCAL_WRITE)))
		return EPERM;
	if (mr->count != 1 ||
	    !pier_soft_find_mr(context, mr->ibv.pd, sge->lkey, sge->addr, sge->length, 0))
		return EFAULT;
	return 0;
}

static char *find_memory(const struct ibv_pd *pd, const struct ibv_sge *sge)
{
	const struct soft_mr *mr = pier_soft_find_key(&soft_context(pd->context)->mrs,
						      sge->lkey);

	return mr->segments[0].memory + (sge->addr - mr->iova);
}

static int prefetch_range(const struct ibv_pd *pd, const struct ibv_sge *sge, bool write)
{
	struct soft_context *context = soft_context(pd->context);
	char *memory = NULL;
	int error;

	pier_soft_lock(context);
	error = check_range(pd, sge, write);
	if (!error)
		memory = find_memory(pd, sge);
	pier_soft_unlock(context);
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
	/* What is mapped already needs nothing. */
	if (advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return 0;
	for (uint32_t i = 0; i < count && !error; i++)
		error = prefetch_range(pd, &sges[i],
				       advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE);
	return error;
}
