/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>
#include <unistd.h>

#include "soft.h"

/*
 * The contexts that this process has open: two queue pairs of one process find
 * each other here. Of necessity global, as device names are.
 */
static struct {
	pthread_mutex_t lock;
	struct pier_list contexts;
} registry = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.contexts = { &registry.contexts, &registry.contexts },
};

void pier_soft_register(struct soft_context *context)
{
	pthread_mutex_lock(&registry.lock);
	pier_list_append(&registry.contexts, &context->registered);
	pthread_mutex_unlock(&registry.lock);
}

void pier_soft_unregister(struct soft_context *context)
{
	pthread_mutex_lock(&registry.lock);
	pier_list_remove(&context->registered);
	pthread_mutex_unlock(&registry.lock);
}

struct soft_context *pier_soft_hold_registry(const union ibv_gid *gid)
{
	pthread_mutex_lock(&registry.lock);
	pier_list_for_each(link, &registry.contexts) {
		struct soft_context *context = pier_container_of(
			link, struct soft_context, registered);

		/* What a parent opened before fork(2) has no engine here. */
		if (context->pid == getpid() &&
		    memcmp(&context->gid, gid, sizeof(*gid)) == 0)
			return context;
	}
	return NULL;
}

void pier_soft_release_registry(void)
{
	pthread_mutex_unlock(&registry.lock);
}
