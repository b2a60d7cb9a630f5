/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include "blame.h"

/* Alone, because a neighbour may be to blame. */
void retry_at_end(struct node *node)
{
	node->to_be_retried = !node->retried;
}

void lose_silent(struct hub *hub, uint32_t index, uint32_t silence_ms)
{
	fail(&hub->nodes[index].failure, EXIT_PEER,
	     "%s did not respond for %g s (see --timeout)",
	     control_peer_name(&hub->nodes[index].control), silence_ms / 1e3);
	lose_node(hub, index);
}

uint32_t find_silent(const struct hub *hub, uint32_t silence_ms)
{
	for (uint32_t i = 1; i < hub->count; i++) {
		const struct node *node = &hub->nodes[i];
		uint64_t since = node->read_ns;

		if (hub->phase >= HUB_CONNECTING && node->heard_ns < since)
			since = node->heard_ns;
		if (is_left(hub, i) && node->state != NODE_DONE &&
		    hub->ticked_ns > since + ms_to_ns(silence_ms))
			return i;
	}
	return 0;
}

void note_failed_link(struct hub *hub, uint32_t behind, const char *reason)
{
	struct node *node = &hub->nodes[behind];

	if (node->link_failure[0])
		return;
	snprintf(node->link_failure, sizeof(node->link_failure), "%s", reason);
	node->failed_ns = hub_now(hub);
}

/*
 * Who is to blame for a failed connection? One that has failed with both neighbours, or
 * just with another one behind it; otherwise the one behind.
 */
static uint32_t find_guilty(const struct hub *hub, uint32_t before, uint32_t behind)
{
	const struct node *node = &hub->nodes[before];
	uint32_t next = find_neighbour(hub, behind, BEHIND);
	uint64_t lately = 4 * ms_to_ns(hub->timeout_ms);

	if (!before || (next && hub->nodes[next].link_failure[0]))
		return behind;
	if (node->link_failure[0] ||
	    (node->blamed_ns && node->blamed_ns + lately > hub->ticked_ns))
		return before;
	return behind;
}

/*
 * While this process was stopped, no host got messages from the others, so they gave each
 * other up. A connection that has another fault fails again.
 */
static bool forgive_failed_link(struct hub *hub, uint32_t before, uint32_t behind)
{
	uint64_t failed = hub->nodes[behind].failed_ns, tick = ms_to_ns(tick_ms(hub));

	if (hub->phase != HUB_COPYING || !hub->stopped_ns ||
	    failed + tick < hub->stopped_ns || failed > hub->stopped_ns + tick)
		return false;
	relink_nodes(hub, before, behind);
	return true;
}

void judge_failed_link(struct hub *hub, uint32_t behind)
{
	uint32_t before = find_neighbour(hub, behind, BEFORE);
	uint32_t guilty = find_guilty(hub, before, behind);
	struct node *node = &hub->nodes[guilty];

	if (forgive_failed_link(hub, before, behind))
		return;
	hub->nodes[before].blamed_ns = hub->ticked_ns;
	fail(&node->failure, EXIT_PEER, "the connection from %s to %s failed: %.900s",
	     before ? control_peer_name(&hub->nodes[before].control) : "this host",
	     control_peer_name(&hub->nodes[behind].control),
	     hub->nodes[behind].link_failure);
	/* Alone, it would meet the same neighbour again. */
	if (before)
		retry_at_end(node);
	lose_node(hub, guilty);
}

void judge_failed_links(struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++) {
		const struct node *node = &hub->nodes[i];

		if (is_left(hub, i) && node->link_failure[0] &&
		    hub->ticked_ns > node->failed_ns + ms_to_ns(tick_ms(hub))) {
			judge_failed_link(hub, i);
			return;
		}
	}
}

bool may_be_neighbours_fault(const struct hub *hub, uint32_t index)
{
	const struct node *node = &hub->nodes[index];
	int status = node->failure.status;

	return hub->phase > HUB_CONNECTING && node->control.failure_from_peer &&
	       (status == EXIT_PEER || status == EXIT_VERIFY) && node->had_before;
}

uint32_t blame_slower(struct hub *hub, uint32_t index)
{
	uint32_t behind = hub->nodes[index].said[BEFORE] < SAID_ALL
				  ? index
				  : find_neighbour(hub, index, BEHIND);
	uint32_t before = find_neighbour(hub, behind, BEFORE);
	bool less = before &&
		    hub->nodes[before].said[BEHIND] < hub->nodes[behind].said[BEFORE];
	uint32_t slower = less ? before : behind;

	/* In a dry run, none connects. */
	if (hub->nodes[slower].state == NODE_DONE)
		slower = index;
	/* Alone, it would meet the same neighbour again. */
	if (before)
		retry_at_end(&hub->nodes[slower]);
	return slower;
}
