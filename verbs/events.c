/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include <infiniband/verbs.h>

/* Asynchronous events. */

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *ret_event)
{
	(void)context;
	(void)ret_event;
	errno = EOPNOTSUPP;
	return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}
