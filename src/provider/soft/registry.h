/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_REGISTRY_H
#define PIER_SOFT_REGISTRY_H

#include <stdbool.h>

#include <infiniband/verbs.h>

/* The contexts that this process has open. */

struct soft_context;

bool pier_soft_init_sodium(void);
/* One more handle for the context of plain verbs of this process; NULL: there is none. */
struct soft_context *pier_soft_share_meeting(void);
/*
 * Returns the context, now with a handle; or, if another thread was faster with one of
 * plain verbs, that one with one more handle, and the caller frees its own.
 */
struct soft_context *pier_soft_register(struct soft_context *context);
/* True: this was the last handle, nobody finds the context now, and the caller frees it.
 */
bool pier_soft_unregister(struct soft_context *context);
/*
 * Finds a context of this process. Also when it returns NULL, the registry stays locked
 * until pier_soft_release_registry().
 */
struct soft_context *pier_soft_hold_registry(const union ibv_gid *gid);
void pier_soft_release_registry(void);

#endif
