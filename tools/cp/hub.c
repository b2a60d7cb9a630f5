/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub.h"
#include "units.h"

enum side {
	BEFORE, /* the conversation with the one before it */
	BEHIND, /* with the one behind it: inside FRAME_ONWARD, but for the sender */
};

enum {
	MILLISECOND_NS = 1000000,
	TICKS_PER_TIMEOUT = 8,
	TICK_MAX_MS = 1000,
	/* From the end of a server's pipe to its own. */
	STATUS_MS = 50,
	/* With more bytes, a node is behind. */
	OUTBOX_MAX = 65536,
	SAID_ALL = 3,
};

/* The frames by which two neighbours connect, in this order. */
static const uint32_t to_say[SAID_ALL] = { FRAME_RAILS, FRAME_SETUP, FRAME_READY };

static uint64_t ms_to_ns(uint32_t ms)
{
	return (uint64_t)ms * MILLISECOND_NS;
}

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

/* Measure the silence of all from now on. */
static void start_times(struct hub *hub)
{
	for (uint32_t i = 0; i < hub->count; i++)
		hub->nodes[i].heard_ns = hub->nodes[i].worked_ns = hub_now(hub);
}

static bool is_left(const struct hub *hub, uint32_t index)
{
	return hub->nodes[index].state != NODE_OUT;
}

static bool is_behind(const struct hub *hub, uint32_t index)
{
	return is_left(hub, index) && hub->nodes[index].outbox.length > OUTBOX_MAX;
}

/* The neighbour on this side; 0 behind the last one. */
static uint32_t find_neighbour(const struct hub *hub, uint32_t index, enum side side)
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

static uint32_t count_left(const struct hub *hub)
{
	uint32_t count = 0;

	for (uint32_t i = 1; i < hub->count; i++)
		count += is_left(hub, i);
	return count;
}

/*
 * A node that has ended is no failure here: it may have reported that it is done. One
 * that is behind has enough signs of life to read.
 */
static void send_to(struct hub *hub, uint32_t index, uint32_t type,
		    const struct wire_writer *writer)
{
	struct node *node = &hub->nodes[index];

	if (!is_left(hub, index) || node->control.out < 0 ||
	    ((type == FRAME_PING || type == FRAME_KEEPALIVE) &&
	     node->outbox.length > PIPE_BUF))
		return;
	if (control_send_if_open(&node->control, type, writer) < 0)
		lose_node(hub, index);
}

static void send_aside(struct hub *hub, uint32_t index, enum side side, uint32_t type,
		       const uint8_t *payload, size_t length)
{
	struct wire_writer writer = { .length = 0 };
	bool inside = index > 0 && side == BEHIND;

	if (inside)
		put_u32(&writer, type);
	put_bytes(&writer, payload, length);
	send_to(hub, index, inside ? (uint32_t)FRAME_ONWARD : type, &writer);
}

static void send_error(struct hub *hub, uint32_t index, enum side side, int status,
		       const char *text)
{
	struct wire_writer writer = { .length = 0 };

	put_u32(&writer, (uint32_t)status);
	put_string(&writer, text);
	send_aside(hub, index, side, FRAME_ERROR, writer.data, writer.length);
}

/* To all but one. In reverse: who has heard of the end no longer needs those before. */
static void send_to_others(struct hub *hub, uint32_t except, uint32_t type,
			   const uint8_t *payload, size_t length)
{
	for (uint32_t i = hub->count; i-- > 0;)
		if (i != except && is_left(hub, i) && hub->nodes[i].state != NODE_DONE)
			send_aside(hub, i, BEFORE, type, payload, length);
}

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
	if (node->control.peer_closed && remote_ends_within(&node->remote, STATUS_MS))
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

static void lose_silent(struct hub *hub, uint32_t index, uint32_t silence_ms)
{
	fail(&hub->nodes[index].failure, EXIT_PEER,
	     "%s did not respond for %g s (see --timeout)",
	     control_peer_name(&hub->nodes[index].control), silence_ms / 1e3);
	lose_node(hub, index);
}

/* Alone, because a neighbour may be to blame. */
static void retry_at_end(struct node *node)
{
	node->to_be_retried = !node->retried;
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

/* Both ends wait. The other connections of the guilty one may fail, too: see tick_hub().
 */
static void note_failed_link(struct hub *hub, uint32_t behind, const char *reason)
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

static void judge_failed_link(struct hub *hub, uint32_t behind)
{
	uint32_t before = find_neighbour(hub, behind, BEFORE);
	uint32_t guilty = find_guilty(hub, before, behind);
	struct node *node = &hub->nodes[guilty];

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

static void judge_failed_links(struct hub *hub)
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
			send_aside(hub, i, BEFORE, FRAME_READY, NULL, 0);
		if (find_neighbour(hub, i, BEHIND))
			send_aside(hub, i, BEHIND, FRAME_READY, NULL, 0);
	}
	/* Sending may have failed. */
	if (hub->phase == HUB_CONNECTING)
		hub->phase = HUB_COPYING;
}

static void lose_invalid(struct hub *hub, uint32_t index)
{
	control_fail_invalid(&hub->nodes[index].control, "message");
	lose_node(hub, index);
}

/* Later they may connect again, but their NICs stay the same. */
static bool is_expected(const struct hub *hub, uint32_t said, uint32_t type)
{
	if (hub->phase == HUB_CONNECTING)
		return said < SAID_ALL && type == to_say[said];
	return hub->phase > HUB_CONNECTING && type != FRAME_RAILS;
}

static void pass_aside(struct hub *hub, uint32_t index, enum side side, uint32_t type,
		       const uint8_t *payload, size_t length)
{
	struct node *node = &hub->nodes[index];
	uint32_t to = find_neighbour(hub, index, side);

	if (!is_expected(hub, node->said[side], type)) {
		lose_invalid(hub, index);
		return;
	}
	if (node->stale[side] || (side == BEHIND && !to))
		return;
	if (hub->phase == HUB_CONNECTING) {
		node->said[side]++;
		node->worked_ns = node->heard_ns;
	}
	if (type == FRAME_READY && hub->phase == HUB_CONNECTING)
		check_connected(hub);
	else
		send_aside(hub, to, side == BEFORE ? BEHIND : BEFORE, type, payload,
			   length);
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

static void tell_chain(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	struct chain_message chain = { .passes_on = find_neighbour(hub, index, BEHIND) !=
						    0 };

	node->had_before = find_neighbour(hub, index, BEFORE) > 0;
	list_addresses(hub, index, chain.addresses, sizeof(chain.addresses));
	if (send_chain(&node->control, &chain) < 0)
		lose_node(hub, index);
}

static void check_started(struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++)
		if (is_left(hub, i) && !hub->nodes[i].control.preamble_read)
			return;
	if (hub->phase != HUB_STARTING || count_left(hub) == 0)
		return;
	hub->phase = HUB_OPENING;
	start_times(hub);
	send_to(hub, 0, FRAME_READY, NULL);
}

/* Until then, a destination that fails is simply not in the chain. */
static void check_opened(struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++)
		if (hub->nodes[i].state == NODE_STARTED)
			return;
	if (hub->phase != HUB_OPENING || count_left(hub) == 0)
		return;
	hub->phase = HUB_CONNECTING;
	start_times(hub);
	for (uint32_t i = 1; i < hub->count; i++)
		if (hub->nodes[i].state == NODE_OPEN)
			tell_chain(hub, i);
	/* Telling one of them may have failed. */
	if (hub->held.type && hub->phase == HUB_CONNECTING)
		pass_aside(hub, 0, BEHIND, hub->held.type, hub->held.payload,
			   hub->held.length);
}

static void check_done(struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++)
		if (is_left(hub, i) && hub->nodes[i].state != NODE_DONE)
			return;
	if (hub->phase == HUB_OVER || count_left(hub) == 0)
		return;
	hub->phase = HUB_OVER;
	send_to(hub, 0, FRAME_DONE, NULL);
}

static void take_link_failure(struct hub *hub, uint32_t index, enum side side,
			      const uint8_t *payload, size_t length)
{
	struct wire_reader reader = { payload, length, false };
	char reason[sizeof(((struct failure *)0)->text)];
	uint32_t other = find_neighbour(hub, index, side);

	get_string(&reader, reason, sizeof(reason));
	if (hub->nodes[index].stale[side] || !wire_complete(&reader) ||
	    (side == BEHIND && !other))
		return;
	note_failed_link(hub, side == BEFORE ? index : other, reason);
}

/* A receiver could not begin to pass the stream on, or has no memory, or the like. */
static void take_relay_failure(struct hub *hub, uint32_t index, const uint8_t *payload,
			       size_t length)
{
	struct wire_reader reader = { payload, length, false };
	uint32_t status = get_u32(&reader), behind = find_neighbour(hub, index, BEHIND);
	struct node *node = &hub->nodes[index];
	char text[sizeof(node->failure.text)];

	get_string(&reader, text, sizeof(text));
	if (!wire_complete(&reader) || !behind || hub->phase >= HUB_ENDING)
		return;
	if (status == EXIT_PEER && hub->phase == HUB_CONNECTING) {
		note_failed_link(hub, behind, text);
		return;
	}
	fail(&node->failure, (int)status, "%s: %s", control_peer_name(&node->control),
	     text);
	if (status == EXIT_PEER)
		retry_at_end(node);
	lose_node(hub, index);
}

/* Returns whether the frame is for a neighbour, or about it. */
static bool take_aside(struct hub *hub, uint32_t index, enum side side, uint32_t type,
		       const uint8_t *payload, size_t length)
{
	uint32_t *stale = &hub->nodes[index].stale[side];

	switch (type) {
	case FRAME_RAILS:
	case FRAME_SETUP:
	case FRAME_READY:
		pass_aside(hub, index, side, type, payload, length);
		return true;
	case FRAME_RELINK:
		*stale -= *stale > 0;
		return true;
	case FRAME_LINK_FAILED:
		take_link_failure(hub, index, side, payload, length);
		return true;
	default:
		return false;
	}
}

static void take_from_sender(struct hub *hub, const struct frame *frame)
{
	if (hub->phase == HUB_OPENING && frame->type == FRAME_RAILS) {
		hub->held = *frame;
		return;
	}
	if (take_aside(hub, 0, BEHIND, frame->type, frame->payload, frame->length))
		return;
	if (frame->type == FRAME_END) {
		hub->phase = HUB_ENDING;
		start_times(hub);
	}
	send_to_others(hub, 0, frame->type, frame->payload, frame->length);
}

/* The sender shows it to the user. */
static void pass_notice_on(struct hub *hub, uint32_t index, const struct frame *frame)
{
	struct control *control = &hub->nodes[index].control;
	char sentence[sizeof(control->failure->text)];
	char named[sizeof(sentence) + 300];
	uint32_t number;

	if (hub->phase < HUB_COPYING) {
		lose_invalid(hub, index);
		return;
	}
	if (read_file_notice(control, frame, &number, sentence, sizeof(sentence)) < 0) {
		lose_node(hub, index);
		return;
	}
	snprintf(named, sizeof(named), "%s: %s", control_peer_name(control), sentence);
	if (send_file_notice(&hub->nodes[0].control, number, named) < 0)
		lose_node(hub, 0);
}

/* No more of them than an honest one sends. */
static void pass_keepalive(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];

	if (node->heard_ns < node->alive_ns + ms_to_ns(tick_ms(hub)) / 2)
		return;
	node->alive_ns = node->heard_ns;
	send_to_others(hub, index, FRAME_KEEPALIVE, NULL, 0);
}

static void take_onward(struct hub *hub, uint32_t index, const struct frame *frame)
{
	struct wire_reader reader = read_frame(frame);
	uint32_t type = get_u32(&reader);

	if (reader.bad || take_aside(hub, index, BEHIND, type, reader.data, reader.left))
		return;
	if (type == FRAME_ERROR)
		take_relay_failure(hub, index, reader.data, reader.left);
	else if (type == FRAME_KEEPALIVE)
		pass_keepalive(hub, index);
}

static void take_from_destination(struct hub *hub, uint32_t index,
				  const struct frame *frame)
{
	struct node *node = &hub->nodes[index];

	if (frame->type == FRAME_PONG || frame->type == FRAME_NONE)
		return;
	/* While neighbours connect, only what they say to each other is work. */
	if (hub->phase != HUB_CONNECTING)
		node->worked_ns = node->heard_ns;
	if (take_aside(hub, index, BEFORE, frame->type, frame->payload, frame->length))
		return;
	switch (frame->type) {
	case FRAME_KEEPALIVE:
		pass_keepalive(hub, index);
		return;
	case FRAME_ONWARD:
		take_onward(hub, index, frame);
		return;
	case FRAME_FILE:
		pass_notice_on(hub, index, frame);
		return;
	case FRAME_OPENED:
		if (node->state == NODE_STARTED)
			node->state = NODE_OPEN;
		return;
	case FRAME_DONE:
		if (hub->phase < HUB_ENDING && !hub->dry_run)
			lose_invalid(hub, index);
		else
			node->state = NODE_DONE;
		return;
	default:
		lose_invalid(hub, index);
	}
}

/* The sender's connection to the first receiver may fail before any data moved. */
static void take_sender_failure(struct hub *hub)
{
	struct node *sender = &hub->nodes[0];

	if (hub->phase == HUB_CONNECTING && sender->failure.status == EXIT_PEER &&
	    sender->control.failure_from_peer) {
		note_failed_link(hub, find_neighbour(hub, 0, BEHIND),
				 sender->failure.text);
		judge_failed_link(hub, find_neighbour(hub, 0, BEHIND));
	}
	hub->phase = HUB_OVER;
}

/* Bytes that do not verify, or that are none of this copy, came from one before it. */
static bool may_be_neighbours_fault(const struct hub *hub, uint32_t index)
{
	const struct node *node = &hub->nodes[index];
	int status = node->failure.status;

	return hub->phase > HUB_CONNECTING && node->control.failure_from_peer &&
	       (status == EXIT_PEER || status == EXIT_VERIFY) && node->had_before;
}

/* While neighbours connect, one can fail because the other has. */
static void take_destination_failure(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];

	if (hub->phase != HUB_CONNECTING || node->failure.status != EXIT_PEER ||
	    !node->control.failure_from_peer) {
		if (may_be_neighbours_fault(hub, index))
			retry_at_end(node);
		lose_node(hub, index);
		return;
	}
	note_failed_link(hub, index, node->failure.text);
	node->failure = (struct failure){ 0 };
	control_close(&node->control);
}

/* Whoever is left hears that the copy ends, and not only that a pipe was closed. */
static void dismiss_all(struct hub *hub)
{
	const struct failure *failure = &hub->nodes[0].failure;
	bool is_reason = failure->status && failure->status != EXIT_PEER;

	hub->phase = HUB_OVER;
	for (uint32_t i = 1; i < hub->count; i++) {
		if (hub->nodes[i].state == NODE_DONE)
			continue;
		send_error(hub, i, BEFORE, is_reason ? failure->status : EXIT_PEER,
			   is_reason ? failure->text : "the client ended the copy");
		control_flush(&hub->nodes[i].control);
	}
}

static void take_from(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	int result;

	/* Its copy is complete, however it ends. */
	if (node->state == NODE_DONE) {
		control_close(&node->control);
		return;
	}
	result = control_receive_part(&node->control, &node->inbox);
	if (result == 0)
		return;
	node->heard_ns = hub_now(hub);
	if (result < 0 && index == 0) {
		take_sender_failure(hub);
		node->state = NODE_OUT;
	} else if (result < 0) {
		take_destination_failure(hub, index);
	} else if (index == 0) {
		take_from_sender(hub, &node->inbox.frame);
	} else {
		take_from_destination(hub, index, &node->inbox.frame);
	}
}

/*
 * This one has not connected: blame it, or its neighbour, whoever has said less to the
 * other.
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
		retry_at_end(&hub->nodes[slower]);
	return slower;
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

/* Before the stream flows, all wait for the slowest; and afterwards, the sender does. */
static void check_progress(struct hub *hub)
{
	uint64_t timeout_ns = ms_to_ns(hub->timeout_ms);

	for (uint32_t i = 1; i < hub->count; i++) {
		if (has_done_its_part(hub, i) ||
		    hub->ticked_ns <= hub->nodes[i].worked_ns + timeout_ns)
			continue;
		lose_silent(hub, hub->phase == HUB_CONNECTING ? blame_slower(hub, i) : i,
			    hub->timeout_ms);
		return;
	}
	send_to_others(hub, hub->count, FRAME_KEEPALIVE, NULL, 0);
}

static void tick_hub(struct hub *hub)
{
	uint64_t now = hub_now(hub);
	uint32_t silence_ms = hub->timeout_ms / 2, silent;

	if (now < hub->ticked_ns + ms_to_ns(tick_ms(hub)))
		return;
	hub->ticked_ns = now;
	hub->system_ns = now_ns();
	for (uint32_t i = 1; i < hub->count; i++) {
		if (hub->nodes[i].state != NODE_DONE)
			send_to(hub, i, FRAME_PING, NULL);
	}
	if (hub->phase <= HUB_CONNECTING || hub->phase == HUB_ENDING)
		check_progress(hub);
	silent = find_silent(hub, silence_ms);
	if (!silent && (hub->phase == HUB_CONNECTING || hub->phase == HUB_COPYING))
		judge_failed_links(hub);
	for (; silent && hub->phase != HUB_OVER; silent = find_silent(hub, silence_ms))
		lose_silent(hub, silent, silence_ms);
}

/*
 * The sender speaks to all, and a destination to its neighbours and to the sender: none
 * of them is listened to while it would fill the outbox of another one.
 */
static bool may_listen(const struct hub *hub, uint32_t index)
{
	if (index > 0)
		return !is_behind(hub, 0) &&
		       !is_behind(hub, find_neighbour(hub, index, BEFORE)) &&
		       !is_behind(hub, find_neighbour(hub, index, BEHIND));
	for (uint32_t i = 1; i < hub->count; i++)
		if (is_behind(hub, i))
			return false;
	return true;
}

/* What to poll: for each node, to read from it, and to write to it. */
static void list_descriptors(struct hub *hub, struct pollfd *ret_fds)
{
	for (uint32_t i = 0; i < hub->count; i++) {
		struct node *node = &hub->nodes[i];
		int in = node->control.in, out = node->control.out;

		if (!may_listen(hub, i)) {
			node->heard_ns = hub_now(hub);
			in = -1;
		}
		/* One that writes and is not listened to may not read. */
		if (!is_behind(hub, i) || is_behind(hub, 0))
			node->read_ns = hub_now(hub);
		if (node->outbox.length == 0)
			out = -1;
		ret_fds[2 * i] = (struct pollfd){ .fd = in, .events = POLLIN };
		ret_fds[2 * i + 1] = (struct pollfd){ .fd = out, .events = POLLOUT };
	}
}

/* One round. Returns whether to go on. */
static bool serve_nodes(struct hub *hub, struct pollfd *fds)
{
	for (uint32_t i = 0; i < hub->count; i++)
		control_flush(&hub->nodes[i].control);
	list_descriptors(hub, fds);
	if (poll(fds, 2 * (nfds_t)hub->count, (int)tick_ms(hub)) < 0 && errno != EINTR)
		return false;
	for (uint32_t i = 0; i < hub->count; i++)
		if (fds[2 * i].revents && hub->nodes[i].control.in >= 0)
			take_from(hub, i);
	tick_hub(hub);
	check_started(hub);
	check_opened(hub);
	check_done(hub);
	return is_left(hub, 0);
}

void run_hub(struct hub *hub)
{
	struct pollfd *fds = calloc(2 * (size_t)hub->count, sizeof(*fds));

	hub->ticked_ns = hub->system_ns = now_ns();
	start_times(hub);
	while (fds && serve_nodes(hub, fds))
		;
	dismiss_all(hub);
	free(fds);
}
