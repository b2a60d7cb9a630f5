/* SPDX-License-Identifier: BSD-3-Clause */
#include <infiniband/verbs.h>

#include "provider/soft/device.h"

/* Asynchronous events. */

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *ret_event)
{
	return pier_soft_verbs.get_async_event(context, ret_event);
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	pier_soft_verbs.ack_async_event(event);
}
