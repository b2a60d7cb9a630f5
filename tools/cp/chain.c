/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chain.h"
#include "units.h"

static struct node *node_of(const struct chain *chain, uint32_t index)
{
	return &chain->hub.nodes[index + 1];
}

static void find_addresses(struct chain *chain, uint32_t index, const char *device)
{
	struct peers peers = { .list = "" };

	find_peer_addresses(chain->options->destinations[index].host, chain->shell,
			    device, &peers);
	strcpy(node_of(chain, index)->addresses, peers.list);
}

int open_chain(struct chain *chain, const struct cp_options *options,
	       const struct shell *shell, const char *device, struct failure *failure)
{
	uint32_t count = options->destination_count;

	chain->options = options;
	chain->shell = shell;
	chain->hub.count = count + 1;
	chain->hub.timeout_ms = options->settings.timeout_ms;
	chain->hub.dry_run = options->settings.dry_run;
	chain->hub.nodes = calloc(count + 1, sizeof(struct node));
	chain->failures = calloc(count, sizeof(struct failure));
	if (!chain->hub.nodes || !chain->failures)
		return fail(failure, EXIT_FILE, "out of memory");
	for (uint32_t i = 0; i < count; i++) {
		find_addresses(chain, i, device);
		fail(&chain->failures[i], EXIT_PEER, "the copy ended before it");
	}
	return 0;
}

static void name_failure(struct node *node, const char *host)
{
	struct failure unnamed = node->failure;

	node->failure = (struct failure){ 0 };
	fail(&node->failure, unnamed.status, "%s: %s", host, unnamed.text);
}

/* The server may take its time to start, and then finds this in its pipe. */
static int send_first(struct node *node, const struct request *common, const char *path)
{
	struct request request = *common;

	snprintf(request.side.path, sizeof(request.side.path), "%s", path);
	return control_send_preamble(&node->control) < 0
		       ? -1
		       : send_request(&node->control, &request);
}

/* All at once: starting each takes a second. */
static void start_servers(struct chain *chain, const struct request *request)
{
	const struct cp_options *options = chain->options;

	for (uint32_t i = 0; i < options->destination_count; i++) {
		struct node *node = node_of(chain, i);
		const char *host = options->destinations[i].host;

		if (node->state == NODE_OUT)
			continue;
		node->control = (struct control){ .protocol = &cp_protocol,
						  .in = -1,
						  .out = -1,
						  .signal_fd = -1,
						  .timeout_ms = chain->hub.timeout_ms,
						  .peer = host,
						  .failure = &node->failure,
						  .outbox = &node->outbox };
		if (start_remote(&node->remote, host, chain->shell, options->remote_pier,
				 &node->control) < 0) {
			/* Nobody can be told. */
			control_close(&node->control);
			name_failure(node, host);
			lose_node(&chain->hub, i + 1);
		} else if (send_first(node, request, options->destinations[i].path) < 0) {
			lose_node(&chain->hub, i + 1);
		}
	}
}

static int connect_hub(struct chain *chain, struct control *control)
{
	int to[2] = { -1, -1 }, from[2] = { -1, -1 };

	if (pipe2(to, O_CLOEXEC) < 0)
		return fail(control->failure, EXIT_PEER, "pipe: %s", strerror(errno));
	if (pipe2(from, O_CLOEXEC) < 0) {
		close(to[0]);
		close(to[1]);
		return fail(control->failure, EXIT_PEER, "pipe: %s", strerror(errno));
	}
	control->out = to[1];
	control->in = from[0];
	control->preamble_read = true;
	chain->hub.nodes[0] = (struct node){
		.control = { .protocol = &cp_protocol,
			     .in = to[0],
			     .out = from[1],
			     .signal_fd = -1,
			     .timeout_ms = chain->hub.timeout_ms,
			     .preamble_read = true,
			     .failure = &chain->hub.nodes[0].failure,
			     .outbox = &chain->hub.nodes[0].outbox },
	};
	return 0;
}

static void *run_thread(void *argument)
{
	run_hub(argument);
	return NULL;
}

const struct failure *find_last_loss(const struct chain *chain)
{
	return chain->hub.last ? &chain->hub.nodes[chain->hub.last].failure : NULL;
}

/* If not, that is the destinations' failure, and not this side's. */
static int check_any_left(struct chain *chain, struct control *control)
{
	const struct failure *failure = find_last_loss(chain);

	if (!failure)
		return 0;
	control->failure_from_peer = true;
	return fail(control->failure, failure->status, "%s", failure->text);
}

static void list_all_addresses(const struct hub *hub, struct peers *ret_peers)
{
	list_addresses(hub, 0, ret_peers->list, sizeof(ret_peers->list));
	if (!ret_peers->list[0])
		strcpy(ret_peers->list, "none");
}

int start_chain(struct chain *chain, const struct request *request,
		struct notices *notices, struct control *control, struct peers *ret_peers)
{
	struct hub *hub = &chain->hub;
	struct frame frame;
	int error;

	hub->notices = notices;
	/* It gets its pipes below. */
	hub->nodes[0].state = NODE_OUT;
	hub->phase = HUB_STARTING;
	hub->held.type = FRAME_NONE;
	hub->sender_closed = false;
	hub->again = false;
	hub->last = 0;
	start_servers(chain, request);
	if (check_any_left(chain, control) < 0 || connect_hub(chain, control) < 0)
		return -1;
	list_all_addresses(hub, ret_peers);
	/* From now on the nodes are the thread's. */
	error = pthread_create(&chain->thread, NULL, run_thread, hub);
	if (error)
		return fail(control->failure, EXIT_FILE, "cannot start a thread: %s",
			    strerror(error));
	chain->running = true;
	return control_expect(control, FRAME_READY, &frame);
}

/* The pipes of all servers were closed at `closed_ns`: they end at the same time. */
static void end_server(struct chain *chain, uint32_t index, uint64_t closed_ns)
{
	struct node *node = node_of(chain, index);

	node->control.waited_ms = (int)((now_ns() - closed_ns) / 1000000);
	end_remote(&node->remote, &node->control);
	if (node->state == NODE_DONE)
		chain->failures[index] = (struct failure){ 0 };
	else if (node->failure.status)
		chain->failures[index] = node->failure;
}

void end_chain(struct chain *chain, struct control *control)
{
	uint64_t closed_ns;

	control_close(control);
	if (chain->running)
		pthread_join(chain->thread, NULL);
	chain->running = false;
	if (chain->hub.nodes[0].control.protocol)
		control_close(&chain->hub.nodes[0].control);
	for (uint32_t i = 0; i < chain->options->destination_count; i++)
		control_close(&node_of(chain, i)->control);
	closed_ns = now_ns();
	for (uint32_t i = 0; i < chain->options->destination_count; i++)
		end_server(chain, i, closed_ns);
}

static void renew_node(struct node *node)
{
	struct node renewed = { .state = NODE_STARTED, .retried = node->retried };

	strcpy(renewed.addresses, node->addresses);
	*node = renewed;
}

static bool begin_again(struct chain *chain)
{
	if (!chain->hub.again)
		return false;
	for (uint32_t i = 0; i < chain->options->destination_count; i++)
		if (node_of(chain, i)->state != NODE_OUT)
			renew_node(node_of(chain, i));
	return true;
}

/* Alone: there is no other neighbour then than the sender. */
static bool retry_one(struct chain *chain)
{
	struct node *found = NULL;

	for (uint32_t i = 0; i < chain->options->destination_count; i++) {
		struct node *node = node_of(chain, i);

		if (node->to_be_retried && !found)
			found = node;
		else
			node->state = NODE_OUT;
	}
	if (!found)
		return false;
	found->retried = true;
	renew_node(found);
	return true;
}

bool plan_attempt(struct chain *chain)
{
	return begin_again(chain) || retry_one(chain);
}

bool report_chain(const struct chain *chain, struct failure *failure)
{
	uint32_t lost = 0, count = chain->options->destination_count;
	const struct failure *first = NULL;

	for (uint32_t i = 0; i < count; i++) {
		lost += chain->failures[i].status != 0;
		if (chain->failures[i].status && !first)
			first = &chain->failures[i];
	}
	if (failure->status)
		return false;
	if (first)
		fail(failure, first->status, "not copied to %u of %u destinations", lost,
		     count);
	return lost < count;
}

void close_chain(struct chain *chain)
{
	free(chain->hub.nodes);
	free(chain->failures);
}
