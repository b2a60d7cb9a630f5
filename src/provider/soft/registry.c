/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "registry.h"
#include "core/fork.h"
#include "soft.h"

/*
 * The contexts that this process has open: two queue pairs of one process find each
 * other here. Global of necessity, as device names are.
 */
static struct {
	struct pier_fork_mutex lock;
	struct pier_list contexts;
} registry = {
	.lock = PIER_FORK_MUTEX,
	.contexts = { &registry.contexts, &registry.contexts },
};

bool pier_soft_init_sodium(void)
{
	bool ready;

	/*
	 * A forked child must not find libsodium's own lock held: fork(2) waits for this
	 * one.
	 */
	pier_fork_lock(&registry.lock);
	ready = sodium_init() >= 0;
	pier_fork_unlock(&registry.lock);
	return ready;
}

static struct soft_context *find_meeting_locked(void)
{
	pier_list_for_each(link, &registry.contexts) {
		struct soft_context *context = pier_container_of(
			link, struct soft_context, registered);

		if (context->pid == getpid() && context->meeting.joined)
			return context;
	}
	return NULL;
}

struct soft_context *pier_soft_share_meeting(void)
{
	struct soft_context *context;

	pier_fork_lock(&registry.lock);
	context = find_meeting_locked();
	if (context)
		context->handles++;
	pier_fork_unlock(&registry.lock);
	return context;
}

struct soft_context *pier_soft_register(struct soft_context *context)
{
	struct soft_context *known = NULL;

	pier_fork_lock(&registry.lock);
	if (context->meeting.joined)
		known = find_meeting_locked();
	if (!known) {
		pier_list_append(&registry.contexts, &context->registered);
		known = context;
	}
	known->handles++;
	pier_fork_unlock(&registry.lock);
	return known;
}

bool pier_soft_unregister(struct soft_context *context)
{
	bool last;

	pier_fork_lock(&registry.lock);
	last = --context->handles == 0;
	if (last)
		pier_list_remove(&context->registered);
	pier_fork_unlock(&registry.lock);
	return last;
}

struct soft_context *pier_soft_hold_registry(const union ibv_gid *gid)
{
	pier_fork_lock(&registry.lock);
	pier_list_for_each(link, &registry.contexts) {
		struct soft_context *context = pier_container_of(
			link, struct soft_context, registered);

		/*
		 * A context that the parent opened before fork(2) has no engine in the
		 * child.
		 */
		if (context->pid == getpid() &&
		    memcmp(&context->gid, gid, sizeof(*gid)) == 0)
			return context;
	}
	return NULL;
}

void pier_soft_release_registry(void)
{
	pier_fork_unlock(&registry.lock);
}
