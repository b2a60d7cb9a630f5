/* SPDX-License-Identifier: BSD-3-Clause */
#include <stddef.h>

#include "event_name.h"

/* See ibv_get_async_event(3). */
static const char *const names[] = {
#define EVENT(name) [IBV_EVENT_##name] = #name
	EVENT(CQ_ERR),
	EVENT(QP_FATAL),
	EVENT(QP_REQ_ERR),
	EVENT(QP_ACCESS_ERR),
	EVENT(COMM_EST),
	EVENT(SQ_DRAINED),
	EVENT(PATH_MIG),
	EVENT(PATH_MIG_ERR),
	EVENT(DEVICE_FATAL),
	EVENT(PORT_ACTIVE),
	EVENT(PORT_ERR),
	EVENT(LID_CHANGE),
	EVENT(PKEY_CHANGE),
	EVENT(SM_CHANGE),
	EVENT(SRQ_ERR),
	EVENT(SRQ_LIMIT_REACHED),
	EVENT(QP_LAST_WQE_REACHED),
	EVENT(CLIENT_REREGISTER),
	EVENT(GID_CHANGE),
#undef EVENT
};

const char *pier_event_name(enum ibv_event_type event)
{
	size_t count = sizeof(names) / sizeof(names[0]);

	return (size_t)event < count && names[event] ? names[event] : "unknown event";
}
