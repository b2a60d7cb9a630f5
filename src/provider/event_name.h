/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PROVIDER_EVENT_NAME_H
#define PIER_PROVIDER_EVENT_NAME_H

#include <infiniband/verbs.h>

/* "PORT_ERR": the name in enum ibv_event_type without IBV_EVENT_. */
const char *pier_event_name(enum ibv_event_type event);

#endif
