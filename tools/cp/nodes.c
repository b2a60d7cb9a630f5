/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "nodes.h"
#include "units.h"

enum {
	MILLISECOND_NS = 1000000,
	TICKS_PER_TIMEOUT = 8,
	TICK_MAX_MS = 1000,
	OUTBOX_MAX = 65536,
};

uint64_t ms_to_ns(uint32_t ms)
{
	return (uint64_t)ms * MILLISECOND_NS;
}

uint32_t tick_ms(const struct hub *hub)
{
	uint32_t tick = hub->timeout_ms / TICKS_PER_TIMEOUT + 1;

	return tick < TICK_MAX_MS ? tick : TICK_MAX_MS;
}

/* The hub's clock. A round takes a tick: what took longer was a stop. */
uint64_t hub_now(const struct hub *hub)
{
	uint64_t passed = now_ns() - hub->system_ns, most = 2 * ms_to_ns(tick_ms(hub));

	return hub->ticked_ns + (passed < most ? passed : most);
}

bool is_left(const struct hub *hub, uint32_t index)
{
	return hub->nodes[index].state != NODE_OUT;
}

bool is_behind(const struct hub *hub, uint32_t index)
{
	const struct node *node = &hub->nodes[index];

	return is_left(hub, index) && node->state != NODE_DONE &&
	       node->outbox.length > OUTBOX_MAX;
}

uint32_t find_neighbour(const struct hub *hub, uint32_t index, enum side side)
{
	uint32_t at = index;

	if (side == BEFORE) {
		do
			at--;
		while (at > 0 && !is_left(hub, at));
		return at;
	}
	do
		at++;
	while (at < hub->count && !is_left(hub, at));
	return at < hub->count ? at : 0;
}

uint32_t count_left(const struct hub *hub)
{
	uint32_t count = 0;

	for (uint32_t i = 1; i < hub->count; i++)
		count += is_left(hub, i);
	return count;
}

/* It has enough to read, which shows it that this side lives. */
static bool needs_no_sign(const struct node *node)
{
	return node->outbox.length > PIPE_BUF;
}

/*
 * A node that is done needs no more. One that has ended is no failure here: it may have
 * reported that it is done.
 */
void send_to(struct hub *hub, uint32_t index, uint32_t type,
	     const struct wire_writer *writer)
{
	struct node *node = &hub->nodes[index];
	bool is_sign = type == FRAME_PING || type == FRAME_KEEPALIVE;

	if (!is_left(hub, index) || node->state == NODE_DONE || node->control.out < 0 ||
	    (is_sign && needs_no_sign(node)))
		return;
	if (control_send_if_open(&node->control, type, writer) < 0)
		lose_node(hub, index);
}

void flush_node(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	size_t before = node->outbox.length;
	bool had_enough = needs_no_sign(node);

	control_flush(&node->control);
	if (!had_enough || node->outbox.length == before)
		return;
	/* It has read: a sign that it lives, and before it opens its destination, work.
	 */
	node->heard_ns = hub_now(hub);
	if (hub->phase == HUB_OPENING)
		node->worked_ns = node->heard_ns;
}

void send_aside(struct hub *hub, uint32_t index, enum side side, uint32_t type,
		const uint8_t *payload, size_t length)
{
	struct wire_writer writer = { .length = 0 };
	bool inside = index > 0 && side == BEHIND;

	if (inside)
		put_u32(&writer, type);
	put_bytes(&writer, payload, length);
	send_to(hub, index, inside ? (uint32_t)FRAME_ONWARD : type, &writer);
}

void send_error(struct hub *hub, uint32_t index, enum side side, int status,
		const char *text)
{
	struct wire_writer writer = { .length = 0 };

	put_u32(&writer, (uint32_t)status);
	put_string(&writer, text);
	send_aside(hub, index, side, FRAME_ERROR, writer.data, writer.length);
}

void send_to_others(struct hub *hub, uint32_t except, uint32_t type,
		    const uint8_t *payload, size_t length)
{
	for (uint32_t i = hub->count; i-- > 0;)
		if (i != except)
			send_aside(hub, i, BEFORE, type, payload, length);
}

/* Let two neighbours connect, again or for the first time. */
static void relink_nodes(struct hub *hub, uint32_t before, uint32_t behind)
{
	hub->nodes[behind].link_failure[0] = '\0';
	hub->nodes[before].stale[BEHIND]++;
	hub->nodes[behind].stale[BEFORE]++;
	send_aside(hub, before, BEHIND, FRAME_RELINK, NULL, 0);
	send_aside(hub, behind, BEFORE, FRAME_RELINK, NULL, 0);
}

/* Let the sender fail; that ends the attempt. */
static void end_attempt(struct hub *hub, const struct failure *failure)
{
	if (hub->phase != HUB_OVER)
		send_error(hub, 0, BEHIND, failure->status, failure->text);
	hub->phase = HUB_OVER;
}

/* Other connections may have failed because of this one: they are tried again, too. */
static void close_gap(struct hub *hub, uint32_t index)
{
	uint32_t before = find_neighbour(hub, index, BEFORE);
	uint32_t behind = find_neighbour(hub, index, BEHIND);

	if (behind)
		relink_nodes(hub, before, behind);
	else
		send_error(hub, before, BEHIND, EXIT_PEER, "no receiver follows");
	for (uint32_t i = 1; i < hub->count; i++)
		if (is_left(hub, i) && hub->nodes[i].link_failure[0])
			relink_nodes(hub, find_neighbour(hub, i, BEFORE), i);
}

static void note_loss(struct hub *hub, const struct node *node)
{
	char sentence[sizeof(node->failure.text) + 64];

	snprintf(sentence, sizeof(sentence), "%s; the copy goes on without it%s",
		 node->failure.text,
		 node->to_be_retried ? ", and is tried once more at the end" : "");
	if (count_left(hub) > 0)
		add_notice(hub->notices, NOTICE_OF_DESTINATION, sentence);
}

/* A server that has closed its pipe. On a busy host, a process takes a while to end. */
static bool has_ended(struct hub *hub, const struct node *node)
{
	uint64_t began = now_ns(), waited_ms;
	bool ended = remote_ends_within(&node->remote, (int)hub->status_ms);

	waited_ms = (now_ns() - began) / MILLISECOND_NS;
	hub->status_ms -= waited_ms < hub->status_ms ? (uint32_t)waited_ms
						     : hub->status_ms;
	return ended;
}

void lose_node(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	enum hub_phase phase = hub->phase;

	if (node->state == NODE_OUT || node->state == NODE_DONE)
		return;
	/* The end of an attempt makes others fail, which are in the next one. */
	if (index == 0 || phase != HUB_OVER || !hub->again)
		node->state = NODE_OUT;
	if (index == 0) {
		hub->phase = HUB_OVER;
		return;
	}
	/*
	 * This one must not hold up the others. A process that has ended leaves a status,
	 * which explains more; one that has only closed its pipe does not.
	 */
	control_try_sending_failure(&node->control);
	control_flush(&node->control);
	if (node->control.peer_closed && has_ended(hub, node))
		end_remote(&node->remote, &node->control);
	control_close(&node->control);
	if (phase == HUB_OVER)
		return;
	note_loss(hub, node);
	if (count_left(hub) == 0) {
		hub->last = index;
		end_attempt(hub, &node->failure);
	} else if (phase == HUB_CONNECTING) {
		hub->again = true;
		end_attempt(hub, &node->failure);
	} else if (phase == HUB_COPYING) {
		close_gap(hub, index);
	}
}

void lose_invalid(struct hub *hub, uint32_t index)
{
	control_fail_invalid(&hub->nodes[index].control, "message");
	lose_node(hub, index);
}

static uint32_t count_addresses(const char *list)
{
	uint32_t count = 1;

	while ((list = strchr(list, ',')) && list++)
		count++;
	return count;
}

void list_addresses(const struct hub *hub, uint32_t index, char *ret_list, size_t size)
{
	uint32_t count = 0;
	size_t used = 0;

	ret_list[0] = '\0';
	for (uint32_t i = index + 1; i < hub->count; i++) {
		const char *more = hub->nodes[i].addresses;

		if (!is_left(hub, i) || strcmp(more, "none") == 0)
			continue;
		count += count_addresses(more);
		if (count > PEER_LIST_MAX || used + strlen(more) + 2 > size)
			return;
		used += (size_t)snprintf(ret_list + used, size - used, "%s%s",
					 used ? "," : "", more);
	}
}

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
