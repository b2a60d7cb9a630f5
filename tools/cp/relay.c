/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pier/stream.h>

#include "relay.h"
#include "remote/network.h"

struct relay {
	struct connection connection; /* to the next receiver */
	struct control control;
	struct failure failure;
	uint64_t size;			  /* of the file */
	char addresses[CP_ADDRESSES_MAX]; /* that it may connect to */
	struct onward onward;
	const struct link *from; /* the link of the stream that arrives */
	struct workers *owner; /* to be woken when the next receiver has released more */
	pthread_t thread;
	bool started;
	uint64_t extended; /* up to where the stream to the next receiver is extended */
	_Atomic uint64_t arrived, released;
	_Atomic bool last;  /* nothing follows what has arrived */
	_Atomic bool waits; /* for the next receiver to connect, or for another one */
	_Atomic bool stopped;
};

static void publish_released(struct relay *relay, uint64_t position)
{
	atomic_store(&relay->released, position);
	wake_owner(relay->owner);
}

/* Returns 1 if anything progressed, 0 if not, -1 on failure. */
static int advance_relay(struct relay *relay)
{
	struct connection *connection = &relay->connection;
	struct link *link = &connection->link;
	/* In this order: nothing arrives after the last. */
	bool last = atomic_load(&relay->last);
	uint64_t arrived = atomic_load(&relay->arrived);
	bool moved = arrived != relay->extended;
	uint64_t released;
	int ended;

	if (moved && pier_transfer_extend(link->transfer, arrived) < 0)
		return fail_pier(connection->failure, EXIT_DEVICE);
	relay->extended = arrived;
	if (last)
		link_finish(link);
	ended = drive_link(connection);
	if (ended < 0)
		return -1;
	released = pier_transfer_limit(link->transfer) - link->stream_size;
	if (released == atomic_load(&relay->released))
		return moved || ended;
	publish_released(relay, released);
	return 1;
}

static int relay_stream(struct relay *relay)
{
	struct connection *connection = &relay->connection;

	while (!atomic_load(&relay->stopped) && connection->link.result <= 0) {
		bool restoring = is_restoring(connection);
		int moved;

		/* First take the event that announces more. */
		take_finished_job(connection->workers);
		atomic_store(&relay->waits, restoring);
		moved = restoring ? restore_connection(connection) : advance_relay(relay);
		if (end_step(connection, moved, false, 0) < 0)
			return -1;
	}
	return 0;
}

/* The stream has the same records at the same positions, so the same size. */
static int open_relay(struct relay *relay)
{
	borrow_memory(&relay->connection.link, relay->from);
	if (open_connection(&relay->connection, relay->size) < 0)
		return -1;
	return connect_sides(&relay->connection);
}

/* Until the client answers that no receiver follows, or ends this receiver, too. */
static void await_verdict(struct relay *relay)
{
	struct control *control = &relay->control;
	struct failure failure;
	struct frame frame;

	control->failure = &failure;
	while (!control->failure_from_peer && !control->peer_closed) {
		failure = (struct failure){ 0 };
		control_receive(control, &frame);
	}
	control->failure = &relay->failure;
}

static void *run_relay(void *argument)
{
	struct relay *relay = argument;
	struct control *control = &relay->control;
	bool failed = open_relay(relay) < 0 || relay_stream(relay) < 0;

	atomic_store(&relay->waits, false);
	if (failed && !atomic_load(&relay->stopped)) {
		if (!control->failure_from_peer) {
			control_send_failure(control);
			await_verdict(relay);
		}
		/* Nobody needs any more what has arrived. */
		if (control->failure_from_peer)
			publish_released(relay, UINT64_MAX);
	}
	/* What still arrives for it is dropped: see struct onward. */
	control_close(control);
	return NULL;
}

static int make_relay(struct transfer *transfer, struct relay **ret_relay)
{
	struct relay *relay = calloc(1, sizeof(*relay));
	int pipe[2];

	if (!relay)
		return fail(transfer->failure, EXIT_FILE, "out of memory");
	if (pipe2(pipe, O_CLOEXEC) < 0) {
		free(relay);
		return fail(transfer->failure, EXIT_FILE, "pipe: %s", strerror(errno));
	}
	pthread_mutex_init(&relay->onward.lock, NULL);
	relay->onward.to = pipe[1];
	relay->control = (struct control){ .protocol = transfer->control->protocol,
					   .in = pipe[0],
					   .out = transfer->control->out,
					   .signal_fd = -1,
					   .timeout_ms = transfer->control->timeout_ms,
					   .preamble_read = true,
					   .failure = &relay->failure,
					   .carrier = transfer->control };
	transfer->control->onward = &relay->onward;
	*ret_relay = relay;
	return 0;
}

int join_chain(struct transfer *transfer, struct relay **ret_relay)
{
	struct chain_message chain;

	if (control_send(transfer->control, FRAME_OPENED, NULL) < 0 ||
	    receive_chain(transfer->control, &chain) < 0)
		return -1;
	if (!chain.passes_on)
		return 0;
	if (!transfer->may_pass_on)
		return fail(transfer->failure, EXIT_FILE,
			    "the server does not pass copies on, which takes "
			    "--pass-on");
	if (make_relay(transfer, ret_relay) < 0)
		return -1;
	strcpy((*ret_relay)->addresses, chain.addresses);
	return 0;
}

int start_relay(struct relay *relay, struct transfer *transfer)
{
	int error;

	/* The devices of the stream that arrives are open, and connect to nobody. */
	connect_onward_to(relay->addresses);
	relay->from = &transfer->link;
	relay->owner = transfer->workers;
	relay->size = transfer->size;
	relay->connection = (struct connection){ .role = CP_SENDER,
						 .settings = transfer->settings,
						 .side = transfer->side,
						 .control = &relay->control,
						 .failure = &relay->failure };
	if (start_workers(0, 0, &relay->connection.workers, transfer->failure) < 0)
		return -1;
	error = pthread_create(&relay->thread, NULL, run_relay, relay);
	if (error)
		return fail(transfer->failure, EXIT_FILE, "cannot start a thread: %s",
			    strerror(error));
	relay->started = true;
	return 0;
}

void pass_on(struct relay *relay, uint64_t position, bool last)
{
	if (!relay || (position == atomic_load(&relay->arrived) && !last))
		return;
	atomic_store(&relay->arrived, position);
	atomic_store(&relay->last, last);
	wake_owner(relay->connection.workers);
}

uint64_t passed_on(struct relay *relay)
{
	return relay ? atomic_load(&relay->released) : UINT64_MAX;
}

bool relay_waits(struct relay *relay)
{
	return relay && atomic_load(&relay->waits);
}

void stop_relay(struct relay *relay, struct control *control)
{
	if (!relay)
		return;
	atomic_store(&relay->stopped, true);
	/* Its waits end with the pipe. */
	close(relay->onward.to);
	if (relay->started) {
		wake_owner(relay->connection.workers);
		pthread_join(relay->thread, NULL);
	}
	control->onward = NULL;
	close_connection(&relay->connection);
	control_close(&relay->control);
	pthread_mutex_destroy(&relay->onward.lock);
	free(relay);
}
