/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "node.h"
#include "core/fork.h"

/*
 * The nodes that this process has open: two queue pairs of one process find each
 * other here. Global of necessity, as device names are.
 */
static struct {
	struct pier_fork_mutex lock;
	struct pier_list nodes;
} registry = {
	.lock = PIER_FORK_MUTEX,
	.nodes = { &registry.nodes, &registry.nodes },
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

static struct soft_node *find_meeting_locked(void)
{
	pier_list_for_each(link, &registry.nodes) {
		struct soft_node *node = pier_container_of(link, struct soft_node,
							   registered);

		if (node->pid == getpid() && node->meeting.joined)
			return node;
	}
	return NULL;
}

struct soft_node *pier_soft_share_meeting(void)
{
	struct soft_node *node;

	pier_fork_lock(&registry.lock);
	node = find_meeting_locked();
	if (node)
		node->handles++;
	pier_fork_unlock(&registry.lock);
	return node;
}

struct soft_node *pier_soft_register(struct soft_node *node)
{
	struct soft_node *known = NULL;

	pier_fork_lock(&registry.lock);
	if (node->meeting.joined)
		known = find_meeting_locked();
	if (!known) {
		pier_list_append(&registry.nodes, &node->registered);
		known = node;
	}
	known->handles++;
	pier_fork_unlock(&registry.lock);
	return known;
}

bool pier_soft_unregister(struct soft_node *node)
{
	bool last;

	pier_fork_lock(&registry.lock);
	last = --node->handles == 0;
	if (last)
		pier_list_remove(&node->registered);
	pier_fork_unlock(&registry.lock);
	return last;
}

struct soft_node *pier_soft_hold_registry(const union ibv_gid *gid)
{
	pier_fork_lock(&registry.lock);
	pier_list_for_each(link, &registry.nodes) {
		struct soft_node *node = pier_container_of(link, struct soft_node,
							   registered);

		/*
		 * A node that the parent opened before fork(2) has no engine in the
		 * child.
		 */
		if (node->pid == getpid() && memcmp(&node->gid, gid, sizeof(*gid)) == 0)
			return node;
	}
	return NULL;
}

void pier_soft_release_registry(void)
{
	pier_fork_unlock(&registry.lock);
}
