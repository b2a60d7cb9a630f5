/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "region.h"
#include "fault.h"
#include "persona.h"
#include "post.h"

/* Allocated before the device registers, so that nothing has to be undone. */
static struct ibv_mr *wrap_mr(struct ibv_pd *pd, struct fault_mr *mr)
{
	if (!mr->under) {
		int error = errno;

		free(mr);
		errno = error;
		return NULL;
	}
	mr->ibv = *mr->under;
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	pier_list_init(&mr->link);
	return &mr->ibv;
}

/* Sets errno if the persona refuses the region. */
static bool persona_refuses(struct ibv_pd *pd, size_t length, int access, bool dmabuf)
{
	const struct pier_persona *persona = fault_context(pd->context)->plan.persona;
	int error = 0;

	/* A provider of libibverbs without the call is given this errno by the library.
	 */
	if (persona && dmabuf && !persona->dmabuf)
		error = EOPNOTSUPP;
	else if (persona)
		error = pier_persona_check_region(persona, length, access);
	if (error)
		errno = error;
	return error != 0;
}

struct ibv_mr *pier_fault_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				 uint64_t iova, int access)
{
	struct fault_mr *mr;

	if (fault_fails(pd->context, FAULT_REG_MR) ||
	    persona_refuses(pd, length, access, false))
		return NULL;
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	mr->under = fault_context(pd->context)
			    ->beneath->reg_mr(fault_under_pd(pd), addr, length, iova,
					      access);
	if (!wrap_mr(pd, mr))
		return NULL;
	pier_fault_reach_region(mr, addr, length, iova);
	return &mr->ibv;
}

typedef struct ibv_mr *reg_fd_function(struct ibv_pd *pd, uint64_t offset, size_t length,
				       uint64_t iova, int fd, int access);

static struct ibv_mr *reg_fd(reg_fd_function *reg, struct ibv_pd *pd, uint64_t offset,
			     size_t length, uint64_t iova, int fd, int access)
{
	struct fault_mr *mr;

	if (fault_fails(pd->context, FAULT_REG_DMABUF_MR) ||
	    persona_refuses(pd, length, access, true))
		return NULL;
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	mr->under = reg(fault_under_pd(pd), offset, length, iova, fd, access);
	if (!wrap_mr(pd, mr))
		return NULL;
	pier_fault_reach_dmabuf(mr, fd, offset, length, iova);
	return &mr->ibv;
}

struct ibv_mr *pier_fault_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
					uint64_t iova, int fd, int access)
{
	return reg_fd(fault_context(pd->context)->beneath->reg_dmabuf_mr, pd, offset,
		      length, iova, fd, access);
}

struct ibv_mr *pier_fault_reg_data_direct_mr(struct ibv_pd *pd, uint64_t offset,
					     size_t length, uint64_t iova, int fd,
					     int access)
{
	return reg_fd(fault_context(pd->context)->beneath->reg_data_direct_mr, pd, offset,
		      length, iova, fd, access);
}

struct ibv_mr *pier_fault_reg_parts(struct ibv_pd *pd,
				    const struct pier_provider_part *parts,
				    uint32_t count, uint64_t iova, int access,
				    const uint32_t *key)
{
	struct fault_mr *mr;

	if (fault_fails(pd->context, FAULT_REG_PARTS))
		return NULL;
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	mr->under = fault_context(pd->context)
			    ->beneath->reg_parts(fault_under_pd(pd), parts, count, iova,
						 access, key);
	return wrap_mr(pd, mr);
}

int pier_fault_dereg_mr(struct ibv_mr *ibv)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_mr *mr = pier_container_of(ibv, struct fault_mr, ibv);
	int error = fault_fails(ibv->context, FAULT_DEREG_MR);

	if (!error)
		error = context->beneath->dereg_mr(mr->under);
	if (!error) {
		pier_fault_leave_region(mr);
		free(mr);
	}
	return error;
}

struct ibv_mw *pier_fault_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	const struct pier_persona *persona = fault_context(pd->context)->plan.persona;
	struct fault_mw *mw;

	if (fault_fails(pd->context, FAULT_ALLOC_MW))
		return NULL;
	if (persona && !persona->windows) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	mw = calloc(1, sizeof(*mw));
	if (!mw)
		return NULL;
	mw->under =
		fault_context(pd->context)->beneath->alloc_mw(fault_under_pd(pd), type);
	if (!mw->under) {
		int error = errno;

		free(mw);
		errno = error;
		return NULL;
	}
	mw->ibv = *mw->under;
	mw->ibv.context = pd->context;
	mw->ibv.pd = pd;
	return &mw->ibv;
}

int pier_fault_dealloc_mw(struct ibv_mw *ibv)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_mw *mw = pier_container_of(ibv, struct fault_mw, ibv);
	int error = fault_fails(ibv->context, FAULT_DEALLOC_MW);

	if (!error)
		error = context->beneath->dealloc_mw(mw->under);
	if (!error)
		free(mw);
	return error;
}

void pier_fault_set_padding(struct ibv_mr *mr, uint64_t length)
{
	fault_context(mr->context)->beneath->set_padding(fault_under_mr(mr), length);
}

int pier_fault_bind_counter(struct ibv_mr *mr, struct pier_provider_counter *counter)
{
	struct fault_context *context = fault_context(mr->context);
	int error = fault_fails(mr->context, FAULT_BIND_COUNTER);

	return error ? error
		     : context->beneath->bind_counter(fault_under_mr(mr), counter);
}
