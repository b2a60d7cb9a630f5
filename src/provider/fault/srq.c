/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "srq.h"
#include "core/error.h"
#include "fault.h"
#include "persona.h"
#include "scatter.h"

static void free_srq(struct fault_srq *srq)
{
	int error = errno;

	pier_fault_forget_receives(&srq->receives);
	pthread_mutex_destroy(&srq->ibv.mutex);
	pthread_cond_destroy(&srq->ibv.cond);
	free(srq);
	errno = error;
}

struct ibv_srq *pier_fault_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct fault_context *context = fault_context(pd->context);
	int error = fault_fails(pd->context, FAULT_CREATE_SRQ);
	struct fault_srq *srq;

	if (!error && context->plan.persona)
		error = pier_persona_check_srq(context->plan.persona, &attr->attr);
	if (error) {
		errno = error;
		return NULL;
	}
	srq = calloc(1, sizeof(*srq));
	if (!srq)
		return NULL;
	pthread_mutex_init(&srq->ibv.mutex, NULL);
	pthread_cond_init(&srq->ibv.cond, NULL);
	pier_list_init(&srq->receives);
	srq->under = context->beneath->create_srq(fault_under_pd(pd), attr);
	if (!srq->under) {
		free_srq(srq);
		return NULL;
	}
	srq->ibv.context = pd->context;
	srq->ibv.pd = pd;
	srq->ibv.srq_context = attr->srq_context;
	srq->ibv.handle = srq->under->handle;
	return &srq->ibv;
}

int pier_fault_destroy_srq(struct ibv_srq *ibv)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_srq *srq = fault_srq(ibv);
	int error = fault_fails(ibv->context, FAULT_DESTROY_SRQ);

	if (!error)
		error = context->beneath->destroy_srq(srq->under);
	if (!error)
		free_srq(srq);
	return error;
}

/* For a persona whose queue pairs may scatter; the lock keeps the list and the order. */
static int post_and_note(struct fault_srq *srq, struct ibv_recv_wr *under)
{
	struct fault_context *context = fault_context(srq->ibv.context);
	struct ibv_recv_wr *bad;
	int error = 0;

	pthread_mutex_lock(&context->lock);
	if (!pier_fault_note_receive(&srq->receives, under))
		error = ENOMEM;
	if (!error) {
		error = ibv_post_srq_recv(srq->under, under, &bad);
		if (error)
			pier_fault_forget_receive(&srq->receives);
	}
	pthread_mutex_unlock(&context->lock);
	return error;
}

/* The device beneath has a lock of its own for it. */
int pier_fault_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr,
			     struct ibv_recv_wr **bad_wr)
{
	struct fault_context *context = fault_context(ibv->context);
	int error = 0;

	if (!context->beneath->explains_posts)
		pier_clear_error();
	for (; wr && !error; wr = wr->next) {
		struct ibv_recv_wr under = *wr, *bad;

		under.next = NULL;
		error = pier_fault_fails(&context->plan, FAULT_POST_RECV);
		if (!error && context->plan.persona && context->plan.persona->max_scatter)
			error = post_and_note(fault_srq(ibv), &under);
		else if (!error)
			error = ibv_post_srq_recv(fault_srq(ibv)->under, &under, &bad);
		if (error)
			*bad_wr = wr;
	}
	return pier_persona_post_errno(context->plan.persona, error);
}
