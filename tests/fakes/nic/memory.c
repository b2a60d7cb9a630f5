/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "parts.h"

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     int access)
{
	struct ibv_mr *mr;

	if (fake_fails())
		return NULL;
	mr = calloc(1, sizeof(*mr));
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = (uint32_t)(0x100 + fake.calls);
	mr->rkey = (uint32_t)(0x10000 + fake.calls);
	fake.last_mr = *mr;
	fake.last_mr_iova = iova;
	fake.last_mr_access = access;
	fake.mrs++;
	return mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	if (fake_fails())
		return ENOSPC;
	free(mr);
	fake.mrs--;
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw;

	if (fake_fails())
		return NULL;
	mw = calloc(1, sizeof(*mw));
	mw->context = pd->context;
	mw->pd = pd;
	mw->type = type;
	mw->rkey = FAKE_MW_KEY;
	fake.last_mw_type = type;
	fake.mws++;
	return mw;
}

static int dealloc_mw(struct ibv_mw *mw)
{
	if (fake_fails())
		return ENOSPC;
	free(mw);
	fake.mws--;
	return 0;
}

void fake_add_memory(struct pier_provider *provider)
{
	provider->reg_mr = reg_mr;
	provider->dereg_mr = dereg_mr;
	provider->alloc_mw = alloc_mw;
	provider->dealloc_mw = dealloc_mw;
}
