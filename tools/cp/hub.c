/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub.h"
#include "units.h"

enum {
	SAID_ALL = 3, /* frames by which two neighbours connect */
	/* In each tick, for the end of servers that have closed their pipe. */
	STATUS_MS = 1000,
	MILLISECOND_NS = 1000000,
	TICKS_PER_TIMEOUT = 8,
	TICK_MAX_MS = 1000,
	OUTBOX_MAX = 65536,
};

static uint64_t ms_to_ns(uint32_t ms)
{
	return (uint64_t)ms * MILLISECOND_NS;
}

/* How often the hub looks at the time. */
static uint32_t tick_ms(const struct hub *hub)
{
	uint32_t tick = hub->timeout_ms / TICKS_PER_TIMEOUT + 1;

	return tick < TICK_MAX_MS ? tick : TICK_MAX_MS;
}

/* The hub's clock. A round takes a tick: what took longer was a stop. */
static uint64_t hub_now(const struct hub *hub)
{
	uint64_t passed = now_ns() - hub->system_ns, most = 2 * ms_to_ns(tick_ms(hub));

	return hub->ticked_ns + (passed < most ? passed : most);
}

static bool is_left(const struct hub *hub, uint32_t index)
{
	return hub->nodes[index].state != NODE_OUT;
}

/* Whether too much waits in the outbox: more waits in the inboxes of those who say it. */
static bool is_behind(const struct hub *hub, uint32_t index)
{
	const struct node *node = &hub->nodes[index];

	return is_left(hub, index) && node->state != NODE_DONE &&
	       node->outbox.length > OUTBOX_MAX;
}

/* The neighbour on this side that is left; 0: the sender, or none behind the last one. */
static uint32_t find_neighbour(const struct hub *hub, uint32_t index, enum side side)
{
	do
		index = side == BEFORE ? index - 1 : index + 1;
	while (index > 0 && index < hub->count && !is_left(hub, index));
	return index < hub->count ? index : 0;
}

/* Of the destinations. */
static uint32_t count_left(const struct hub *hub)
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
 * Put a frame of the conversation with the neighbour on this side into the node's outbox,
 * where it waits for room in the pipe. A node that is done needs no more. One that has
 * ended is no failure here: it may have reported that it is done.
 */
static void send_to(struct hub *hub, uint32_t index, enum side side, uint32_t type,
		    const struct wire_writer *writer)
{
	struct node *node = &hub->nodes[index];
	bool is_sign = type == FRAME_PING || type == FRAME_KEEPALIVE;

	if (!is_left(hub, index) || node->state == NODE_DONE || node->control.out < 0 ||
	    (is_sign && needs_no_sign(node)))
		return;
	if (index > 0 && side == BEHIND)
		type |= FRAME_ONWARD;
	if (control_send_if_open(&node->control, type, writer) < 0)
		lose_node(hub, index);
}

static void flush_node(struct hub *hub, uint32_t index)
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

static void send_error(struct hub *hub, uint32_t index, enum side side, int status,
		       const char *text)
{
	struct wire_writer writer = { .length = 0 };

	put_u32(&writer, (uint32_t)status);
	put_string(&writer, text);
	send_to(hub, index, side, FRAME_ERROR, &writer);
}

/* To all but one. In reverse: who has heard of the end no longer needs those before. */
static void send_to_others(struct hub *hub, uint32_t except, uint32_t type,
			   const struct wire_writer *writer)
{
	for (uint32_t i = hub->count; i-- > 0;)
		if (i != except)
			send_to(hub, i, BEFORE, type, writer);
}

/* Let two neighbours connect, again or for the first time. */
static void relink_nodes(struct hub *hub, uint32_t before, uint32_t behind)
{
	hub->nodes[behind].hop_failure[0] = '\0';
	hub->nodes[before].stale[BEHIND]++;
	hub->nodes[behind].stale[BEFORE]++;
	send_to(hub, before, BEHIND, FRAME_RELINK, NULL);
	send_to(hub, behind, BEFORE, FRAME_RELINK, NULL);
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
		if (is_left(hub, i) && hub->nodes[i].hop_failure[0])
			relink_nodes(hub, find_neighbour(hub, i, BEFORE), i);
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
	char sentence[sizeof(node->failure.text) + 64];
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
	if (count_left(hub) == 0) {
		hub->last = index;
		end_attempt(hub, &node->failure);
		return;
	}
	snprintf(sentence, sizeof(sentence), "%s; the copy goes on without it%s",
		 node->failure.text,
		 node->to_be_retried ? ", and is tried once more at the end" : "");
	add_notice(hub->notices, NOTICE_OF_DESTINATION, sentence);
	if (phase == HUB_CONNECTING) {
		hub->again = true;
		end_attempt(hub, &node->failure);
	} else if (phase == HUB_COPYING) {
		close_gap(hub, index);
	}
}

/* The same, because it has sent an invalid message. */
static void lose_invalid(struct hub *hub, uint32_t index)
{
	control_fail_invalid(&hub->nodes[index].control, "message");
	lose_node(hub, index);
}

void list_addresses(const struct hub *hub, uint32_t index, char *ret_list, size_t size)
{
	uint32_t count = 0;
	size_t used = 0;

	ret_list[0] = '\0';
	for (uint32_t i = index + 1; i < hub->count; i++) {
		const char *more = hub->nodes[i].addresses.list;

		if (!is_left(hub, i) || strcmp(more, "none") == 0)
			continue;
		for (const char *comma = more; comma; comma = strchr(comma + 1, ','))
			count++;
		if (count > PEER_LIST_MAX || used + strlen(more) + 2 > size)
			return;
		used += (size_t)snprintf(ret_list + used, size - used, "%s%s",
					 used ? "," : "", more);
	}
}

/* Leave out one that did not respond for this time. */
static void lose_silent(struct hub *hub, uint32_t index, uint32_t silence_ms)
{
	fail(&hub->nodes[index].failure, EXIT_PEER,
	     "%s did not respond for %g s (see --timeout)",
	     control_peer_name(&hub->nodes[index].control), silence_ms / 1e3);
	lose_node(hub, index);
}

/*
 * A destination that has said nothing for this time, or has not read; 0: none. One that
 * starts, or opens its destination, need not answer.
 */
static uint32_t find_silent(const struct hub *hub, uint32_t silence_ms)
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

/*
 * The connection to this one from the one before it failed. Both ends wait. The other
 * connections of the guilty one may fail, too: it is judged a tick later.
 */
static void note_failed_hop(struct hub *hub, uint32_t behind, const char *reason)
{
	struct node *node = &hub->nodes[behind];

	if (node->hop_failure[0])
		return;
	snprintf(node->hop_failure, sizeof(node->hop_failure), "%s", reason);
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

	if (!before || (next && hub->nodes[next].hop_failure[0]))
		return behind;
	if (node->hop_failure[0] ||
	    (node->blamed_ns && node->blamed_ns + lately > hub->ticked_ns))
		return before;
	return behind;
}

/* Leave out the host at fault. */
static void judge_failed_hop(struct hub *hub, uint32_t behind)
{
	uint32_t before = find_neighbour(hub, behind, BEFORE);
	uint32_t guilty = find_guilty(hub, before, behind);
	struct node *node = &hub->nodes[guilty];
	uint64_t failed_ns = hub->nodes[behind].failed_ns;
	uint64_t tick_ns = ms_to_ns(tick_ms(hub));

	/*
	 * While this process was stopped, no host got messages from the others, so they
	 * gave each other up. A connection that has another fault fails again.
	 */
	if (hub->phase == HUB_COPYING && hub->stopped_ns &&
	    failed_ns + tick_ns >= hub->stopped_ns &&
	    failed_ns <= hub->stopped_ns + tick_ns) {
		relink_nodes(hub, before, behind);
		return;
	}
	hub->nodes[before].blamed_ns = hub->ticked_ns;
	fail(&node->failure, EXIT_PEER, "the connection from %s to %s failed: %.900s",
	     before ? control_peer_name(&hub->nodes[before].control) : "this host",
	     control_peer_name(&hub->nodes[behind].control),
	     hub->nodes[behind].hop_failure);
	/* Alone, it would meet the same neighbour again. */
	if (before)
		node->to_be_retried = !node->retried;
	lose_node(hub, guilty);
}

/* The first that is due. */
static void judge_failed_hops(struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++) {
		const struct node *node = &hub->nodes[i];

		if (is_left(hub, i) && node->hop_failure[0] &&
		    hub->ticked_ns > node->failed_ns + ms_to_ns(tick_ms(hub))) {
			judge_failed_hop(hub, i);
			return;
		}
	}
}

/*
 * This one has not connected: blame it, or its neighbour, whichever has sent fewer
 * frames to the other. Returns which.
 */
static uint32_t blame_slower(struct hub *hub, uint32_t index)
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
		hub->nodes[slower].to_be_retried = !hub->nodes[slower].retried;
	return slower;
}

/* A frame that a node has sent, and the conversation that it belongs to. */
struct message {
	uint32_t from; /* the node */
	enum speaker {
		FROM_SENDER = 1,
		FROM_DESTINATION = 2,
		FROM_RELAY = 4, /* of a destination: FRAME_ONWARD */
		FROM_ANY = 7,
	} speaker;
	enum side side; /* on which the neighbour is */
	uint32_t type;	/* without FRAME_ONWARD */
	const struct frame *frame;
};

/* Measure the silence of all from now on. */
static void start_times(struct hub *hub)
{
	for (uint32_t i = 0; i < hub->count; i++)
		hub->nodes[i].heard_ns = hub->nodes[i].worked_ns = hub_now(hub);
}

static bool has_connected(const struct hub *hub, uint32_t index)
{
	const struct node *node = &hub->nodes[index];

	return (index == 0 || node->said[BEFORE] == SAID_ALL) &&
	       (node->said[BEHIND] == SAID_ALL || !find_neighbour(hub, index, BEHIND));
}

/*
 * Let all begin together. The sender and the receivers report files that are left out,
 * and a node that still connects does not expect such a report.
 */
static void check_connected(struct hub *hub)
{
	for (uint32_t i = 0; i < hub->count; i++)
		if (is_left(hub, i) && !has_connected(hub, i))
			return;
	for (uint32_t i = 0; i < hub->count; i++) {
		if (i > 0)
			send_to(hub, i, BEFORE, FRAME_READY, NULL);
		if (find_neighbour(hub, i, BEHIND))
			send_to(hub, i, BEHIND, FRAME_READY, NULL);
	}
	/* Sending may have failed. */
	if (hub->phase == HUB_CONNECTING)
		hub->phase = HUB_COPYING;
}

/* Its contents, to be sent again. */
static struct wire_writer copy_payload(const struct message *message)
{
	struct wire_writer writer = { .length = 0 };

	put_bytes(&writer, message->frame->payload, message->frame->length);
	return writer;
}

static void pass_aside(struct hub *hub, const struct message *message)
{
	/* They come once, in this order; 0: nothing follows. */
	static const uint32_t to_say[] = { FRAME_RAILS, FRAME_SETUP, FRAME_READY, 0 };
	struct node *node = &hub->nodes[message->from];
	uint32_t to = find_neighbour(hub, message->from, message->side);
	struct wire_writer writer = copy_payload(message);

	if (hub->phase == HUB_CONNECTING &&
	    message->type != to_say[node->said[message->side]]) {
		lose_invalid(hub, message->from);
		return;
	}
	if (node->stale[message->side] || (message->side == BEHIND && !to))
		return;
	if (hub->phase == HUB_CONNECTING) {
		node->said[message->side]++;
		node->worked_ns = node->heard_ns;
	}
	if (message->type == FRAME_READY && hub->phase == HUB_CONNECTING)
		check_connected(hub);
	else
		send_to(hub, to, message->side == BEFORE ? BEHIND : BEFORE, message->type,
			&writer);
}

/* The sender speaks before the chain is known. */
static void hold_rails(struct hub *hub, const struct message *message)
{
	hub->held = *message->frame;
}

static void take_echo(struct hub *hub, const struct message *message)
{
	uint32_t *stale = &hub->nodes[message->from].stale[message->side];

	*stale -= *stale > 0;
}

static void take_hop_failure(struct hub *hub, const struct message *message)
{
	struct wire_reader reader = read_frame(message->frame);
	char reason[sizeof(((struct failure *)0)->text)];
	uint32_t other = find_neighbour(hub, message->from, message->side);

	get_string(&reader, reason, sizeof(reason));
	if (hub->nodes[message->from].stale[message->side] || !wire_complete(&reader) ||
	    (message->side == BEHIND && !other))
		return;
	note_failed_hop(hub, message->side == BEFORE ? message->from : other, reason);
}

/* A receiver could not begin to pass the stream on, or has no memory, or the like. */
static void take_relay_failure(struct hub *hub, const struct message *message)
{
	struct wire_reader reader = read_frame(message->frame);
	uint32_t status = get_u32(&reader);
	uint32_t behind = find_neighbour(hub, message->from, BEHIND);
	struct node *node = &hub->nodes[message->from];
	char text[sizeof(node->failure.text)];

	get_string(&reader, text, sizeof(text));
	if (!wire_complete(&reader) || status == 0 || status > UINT8_MAX) {
		lose_invalid(hub, message->from);
		return;
	}
	if (!behind || hub->phase >= HUB_ENDING)
		return;
	if (status == EXIT_PEER && hub->phase == HUB_CONNECTING) {
		note_failed_hop(hub, behind, text);
		return;
	}
	fail(&node->failure, (int)status, "%s: %s", control_peer_name(&node->control),
	     text);
	if (status == EXIT_PEER)
		node->to_be_retried = !node->retried;
	lose_node(hub, message->from);
}

/* What the sender says of the files. */
static void repeat_to_all(struct hub *hub, const struct message *message)
{
	struct wire_writer writer = copy_payload(message);

	/* Their time to open begins when they have the whole list. */
	if (hub->phase == HUB_OPENING && !hub->held.type)
		start_times(hub);
	send_to_others(hub, 0, message->type, &writer);
}

static void take_end(struct hub *hub, const struct message *message)
{
	hub->phase = HUB_ENDING;
	start_times(hub);
	repeat_to_all(hub, message);
}

/* The sender shows it to the user. */
static void pass_notice_on(struct hub *hub, const struct message *message)
{
	struct control *control = &hub->nodes[message->from].control;
	struct file_notice notice, named;

	if (parse_message(control, message->frame, &notice) < 0) {
		lose_node(hub, message->from);
		return;
	}
	named.number = notice.number;
	snprintf(named.sentence, sizeof(named.sentence), "%s: %.700s",
		 control_peer_name(control), notice.sentence);
	if (send_message(&hub->nodes[0].control, FRAME_FILE, &named) < 0)
		lose_node(hub, 0);
}

/* No more of them than an honest one sends. */
static void pass_keepalive(struct hub *hub, const struct message *message)
{
	struct node *node = &hub->nodes[message->from];

	/* While neighbours connect, only what they say to each other is work. */
	if (hub->phase != HUB_CONNECTING)
		node->worked_ns = node->heard_ns;
	if (node->heard_ns < node->alive_ns + ms_to_ns(tick_ms(hub)) / 2)
		return;
	node->alive_ns = node->heard_ns;
	send_to_others(hub, message->from, FRAME_KEEPALIVE, NULL);
}

static void note_opened(struct hub *hub, const struct message *message)
{
	struct node *node = &hub->nodes[message->from];

	if (node->state == NODE_STARTED)
		node->state = NODE_OPEN;
}

static void note_done(struct hub *hub, const struct message *message)
{
	if (hub->phase < HUB_ENDING && !hub->dry_run)
		lose_invalid(hub, message->from);
	else
		hub->nodes[message->from].state = NODE_DONE;
}

/* Sets of phases. */
#define IN(name) (1U << HUB_##name)
#define FLOWING	 (IN(COPYING) | IN(ENDING) | IN(OVER))
#define ALWAYS	 (IN(STARTING) | IN(OPENING) | IN(CONNECTING) | FLOWING)

/*
 * What each node may say in each phase, and what becomes of it. A node that says it in
 * another phase is lost. What is not here is repeated to all destinations if the sender
 * says it, and nothing if it is for a neighbour; a destination that says it is lost.
 */
static const struct hub_event {
	uint32_t type;
	uint32_t speakers, phases;
	enum listener {
		HUB,
		NEIGHBOUR,
		SENDER
	} listener; /* whose outbox it goes to */
	void (*take)(struct hub *hub, const struct message *message);
} hub_events[] = {
	{ FRAME_RAILS, FROM_SENDER, IN(OPENING), HUB, hold_rails },
	/* Later they may connect again, but their NICs stay the same. */
	{ FRAME_RAILS, FROM_ANY, IN(CONNECTING), NEIGHBOUR, pass_aside },
	{ FRAME_SETUP, FROM_ANY, IN(CONNECTING) | FLOWING, NEIGHBOUR, pass_aside },
	{ FRAME_READY, FROM_ANY, IN(CONNECTING) | FLOWING, NEIGHBOUR, pass_aside },
	{ FRAME_RELINK, FROM_ANY, ALWAYS, HUB, take_echo },
	{ FRAME_HOP_FAILED, FROM_ANY, ALWAYS, HUB, take_hop_failure },
	{ FRAME_END, FROM_SENDER, ALWAYS, HUB, take_end },
	{ FRAME_KEEPALIVE, FROM_DESTINATION | FROM_RELAY, ALWAYS, HUB, pass_keepalive },
	{ FRAME_ERROR, FROM_RELAY, ALWAYS, HUB, take_relay_failure },
	{ FRAME_OPENED, FROM_DESTINATION, ALWAYS, HUB, note_opened },
	{ FRAME_FILE, FROM_DESTINATION, FLOWING, SENDER, pass_notice_on },
	{ FRAME_DONE, FROM_DESTINATION, ALWAYS, HUB, note_done },
	{ FRAME_PONG, FROM_DESTINATION, ALWAYS, HUB, NULL },
	{ FRAME_NONE, FROM_DESTINATION, ALWAYS, HUB, NULL },
};

/* Returns NULL if this speaker may never say it. */
static const struct hub_event *find_event(const struct hub *hub,
					  const struct message *message)
{
	const struct hub_event *found = NULL;

	for (size_t i = 0; i < sizeof(hub_events) / sizeof(hub_events[0]); i++) {
		const struct hub_event *event = &hub_events[i];

		if (event->type != message->type || !(event->speakers & message->speaker))
			continue;
		found = event;
		if (event->phases >> hub->phase & 1)
			break;
	}
	return found;
}

static void take_message(struct hub *hub, const struct message *message)
{
	const struct hub_event *event = find_event(hub, message);

	if (message->speaker == FROM_SENDER && hub->phase == HUB_OVER)
		return;
	if (!event && message->speaker == FROM_SENDER)
		repeat_to_all(hub, message);
	else if (event ? !(event->phases >> hub->phase & 1)
		       : message->speaker == FROM_DESTINATION)
		lose_invalid(hub, message->from);
	else if (event && event->take)
		event->take(hub, message);
}

/* The message in the inbox. */
static struct message read_message(const struct hub *hub, uint32_t index)
{
	const struct frame *frame = &hub->nodes[index].inbox.frame;
	bool onward = index > 0 && (frame->type & FRAME_ONWARD);

	return (struct message){
		.from = index,
		.speaker = onward  ? FROM_RELAY
			   : index ? FROM_DESTINATION
				   : FROM_SENDER,
		.side = index && !onward ? BEFORE : BEHIND,
		.type = onward ? frame->type & ~(uint32_t)FRAME_ONWARD : frame->type,
		.frame = frame,
	};
}

/* Whether the others need not wait for it in this phase. */
static bool has_done_its_part(const struct hub *hub, uint32_t index)
{
	enum node_state state = hub->nodes[index].state;

	if (state == NODE_DONE || state == NODE_OUT)
		return true;
	switch (hub->phase) {
	case HUB_STARTING:
		return hub->nodes[index].control.preamble_read;
	case HUB_OPENING:
		return state == NODE_OPEN;
	case HUB_CONNECTING:
		return has_connected(hub, index);
	default:
		return false;
	}
}

/* Tell each whether it passes the copy on, and let neighbours connect. */
static void build_chain(struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++) {
		struct node *node = &hub->nodes[i];
		struct chain_message chain = { .passes_on = find_neighbour(hub, i,
									   BEHIND) > 0 };

		if (node->state != NODE_OPEN)
			continue;
		node->had_before = find_neighbour(hub, i, BEFORE) > 0;
		list_addresses(hub, i, chain.addresses, sizeof(chain.addresses));
		if (send_message(&node->control, FRAME_CHAIN, &chain) < 0)
			lose_node(hub, i);
	}
	/* Telling one of them may have failed. */
	if (hub->held.type && hub->phase == HUB_CONNECTING)
		take_message(hub, &(struct message){ 0, FROM_SENDER, BEHIND,
						     hub->held.type, &hub->held });
}

/* Go to the next phase if all that are left have done their part. */
static void check_phase(struct hub *hub)
{
	uint32_t left = count_left(hub), done = 0, ready = 0;

	for (uint32_t i = 1; i < hub->count; i++) {
		done += hub->nodes[i].state == NODE_DONE;
		ready += is_left(hub, i) && has_done_its_part(hub, i);
	}
	if (ready < left || left == 0 || hub->phase == HUB_OVER)
		return;
	if (done == left) {
		hub->phase = HUB_OVER;
		send_to(hub, 0, BEHIND, FRAME_DONE, NULL);
	} else if (hub->phase == HUB_STARTING) {
		hub->phase = HUB_OPENING;
		start_times(hub);
		send_to(hub, 0, BEHIND, FRAME_READY, NULL);
	} else if (hub->phase == HUB_OPENING) {
		hub->phase = HUB_CONNECTING;
		start_times(hub);
		build_chain(hub);
	}
}

/* While neighbours connect, one can fail because the other has. */
static void take_destination_failure(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	int status = node->failure.status;

	if (hub->phase != HUB_CONNECTING || status != EXIT_PEER ||
	    !node->control.failure_from_peer) {
		/* Bytes that do not verify, or that are none of this copy, came from one
		 * before it. */
		if (hub->phase > HUB_CONNECTING && node->control.failure_from_peer &&
		    (status == EXIT_PEER || status == EXIT_VERIFY) && node->had_before)
			node->to_be_retried = !node->retried;
		lose_node(hub, index);
		return;
	}
	note_failed_hop(hub, index, node->failure.text);
	node->failure = (struct failure){ 0 };
	control_close(&node->control);
}

static bool is_any_behind(const struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++)
		if (is_behind(hub, i))
			return true;
	return false;
}

/*
 * Whether the frame in the inbox is for one that is behind: a neighbour, the sender, or
 * any destination. The sender may be behind because it is blocked in writing: then its
 * frame must not wait.
 */
static bool must_wait(const struct hub *hub, const struct message *message)
{
	const struct hub_event *event = find_event(hub, message);

	if (hub->phase == HUB_OVER)
		return false;
	if (message->speaker == FROM_SENDER)
		return is_any_behind(hub) && !is_behind(hub, 0) && !hub->sender_closed;
	if (event && event->listener == NEIGHBOUR)
		return is_behind(hub, find_neighbour(hub, message->from, message->side));
	return event && event->listener == SENDER && is_behind(hub, 0);
}

/* Read what is there. Returns whether a frame is in the inbox. */
static bool read_from(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	int result = control_receive_part(&node->control, &node->inbox);

	if (result == 0)
		return false;
	node->heard_ns = hub_now(hub);
	if (result > 0)
		return true;
	if (index > 0) {
		take_destination_failure(hub, index);
		return false;
	}
	/* The sender's connection to the first receiver may fail before any data moved.
	 */
	if (hub->phase == HUB_CONNECTING && node->failure.status == EXIT_PEER &&
	    node->control.failure_from_peer) {
		note_failed_hop(hub, find_neighbour(hub, 0, BEHIND), node->failure.text);
		judge_failed_hop(hub, find_neighbour(hub, 0, BEHIND));
	}
	hub->phase = HUB_OVER;
	node->state = NODE_OUT;
	return false;
}

static void take_from(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	struct message message;

	/* Its copy is complete, however its process ends. */
	if (node->state == NODE_DONE) {
		control_close(&node->control);
		return;
	}
	if (!node->waits && !read_from(hub, index))
		return;
	message = read_message(hub, index);
	node->waits = must_wait(hub, &message);
	if (!node->waits)
		take_message(hub, &message);
}

/* Before the stream flows, all wait for the slowest; and afterwards, the sender does. */
static void check_progress(struct hub *hub)
{
	uint64_t timeout_ns = ms_to_ns(hub->timeout_ms);

	for (uint32_t i = 1; i < hub->count && hub->phase != HUB_OVER; i++) {
		if (has_done_its_part(hub, i) ||
		    hub->ticked_ns <= hub->nodes[i].worked_ns + timeout_ns)
			continue;
		lose_silent(hub, hub->phase == HUB_CONNECTING ? blame_slower(hub, i) : i,
			    hub->timeout_ms);
	}
	send_to_others(hub, hub->count, FRAME_KEEPALIVE, NULL);
}

static void tick_hub(struct hub *hub)
{
	uint64_t now = hub_now(hub);
	uint32_t silence_ms = hub->timeout_ms / 2, silent;

	if (now < hub->ticked_ns + ms_to_ns(tick_ms(hub)))
		return;
	if (now_ns() - hub->system_ns > ms_to_ns(hub->timeout_ms) / 4)
		hub->stopped_ns = now;
	hub->ticked_ns = now;
	hub->system_ns = now_ns();
	hub->status_ms = STATUS_MS;
	for (uint32_t i = 1; i < hub->count; i++)
		send_to(hub, i, BEFORE, FRAME_PING, NULL);
	if (hub->phase <= HUB_CONNECTING || hub->phase == HUB_ENDING)
		check_progress(hub);
	silent = find_silent(hub, silence_ms);
	if (!silent && (hub->phase == HUB_CONNECTING || hub->phase == HUB_COPYING))
		judge_failed_hops(hub);
	for (; silent && hub->phase != HUB_OVER; silent = find_silent(hub, silence_ms))
		lose_silent(hub, silent, silence_ms);
}

/* Two descriptors for each node: the one to read from, and the one to write to. */
static void list_descriptors(struct hub *hub, struct pollfd *ret_fds)
{
	for (uint32_t i = 0; i < hub->count; i++) {
		struct node *node = &hub->nodes[i];
		/* Without events, poll() still tells when the sender has closed. */
		int in = node->waits && i > 0 ? -1 : node->control.in;
		int out = node->outbox.length ? node->control.out : -1;

		/* A node that waits is not silent. */
		if (node->waits)
			node->heard_ns = hub_now(hub);
		if (!is_behind(hub, i))
			node->read_ns = hub_now(hub);
		ret_fds[2 * i] = (struct pollfd){ .fd = in,
						  .events = node->waits ? 0 : POLLIN };
		ret_fds[2 * i + 1] = (struct pollfd){ .fd = out, .events = POLLOUT };
	}
}

/* One round. Returns whether to go on. */
static bool serve_nodes(struct hub *hub, struct pollfd *fds)
{
	for (uint32_t i = 0; i < hub->count; i++)
		flush_node(hub, i);
	list_descriptors(hub, fds);
	if (poll(fds, 2 * (nfds_t)hub->count, (int)tick_ms(hub)) < 0 && errno != EINTR)
		return false;
	hub->sender_closed |= hub->nodes[0].waits && fds[0].revents;
	for (uint32_t i = 0; i < hub->count; i++)
		if ((fds[2 * i].revents || hub->nodes[i].waits) &&
		    hub->nodes[i].control.in >= 0)
			take_from(hub, i);
	tick_hub(hub);
	check_phase(hub);
	return is_left(hub, 0);
}

void *run_hub(void *argument)
{
	struct hub *hub = argument;
	const struct failure *failure = &hub->nodes[0].failure;
	bool is_reason;
	struct pollfd *fds = calloc(2 * (size_t)hub->count, sizeof(*fds));

	hub->ticked_ns = hub->system_ns = now_ns();
	hub->stopped_ns = 0;
	hub->status_ms = STATUS_MS;
	start_times(hub);
	while (fds && serve_nodes(hub, fds))
		;
	/* Tell the remaining nodes that the copy ends; a closed pipe alone says less. */
	hub->phase = HUB_OVER;
	is_reason = failure->status && failure->status != EXIT_PEER;
	for (uint32_t i = 1; i < hub->count; i++) {
		send_error(hub, i, BEFORE, is_reason ? failure->status : EXIT_PEER,
			   is_reason ? failure->text : "the client ended the copy");
		control_flush(&hub->nodes[i].control);
	}
	free(fds);
	return NULL;
}
