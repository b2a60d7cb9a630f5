/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pier/stream.h>

#include "chunk.h"
#include "remote/start.h"
#include "target.h"
#include "party.h"

/*
 * Of several destinations, a receiver passes the stream on to the next one, from the
 * memory in which it arrives (<pier/stream.h>, Relays). A thread of its own holds the
 * conversation with the next receiver (struct onward) and drives the stream to it. The
 * records, tags and digest are the same on the whole way.
 */
struct relay {
	struct connection connection; /* to the next receiver */
	struct control control;
	struct failure failure;
	char addresses[CP_ADDRESSES_MAX]; /* that it may connect to */
	struct onward onward;
	/* Of the stream that arrives. Its workers' owner is woken when the next receiver
	 * has released more. */
	struct party *party;
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
	wake_owner(relay->party->workers);
}

/* Returns 1 if anything progressed, 0 if not, -1 on failure. */
static int advance_relay(struct relay *relay)
{
	struct connection *connection = &relay->connection;
	struct stream *stream = &connection->stream;
	/* In this order: nothing arrives after the last. */
	bool last = atomic_load(&relay->last);
	uint64_t arrived = atomic_load(&relay->arrived);
	bool moved = arrived != relay->extended;
	uint64_t released;
	int ended;

	if (moved && pier_transfer_extend(stream->transfer, arrived) < 0)
		return fail_pier(connection->failure, EXIT_DEVICE);
	relay->extended = arrived;
	if (last)
		stream_finish(stream);
	ended = drive_link(connection);
	if (ended < 0)
		return -1;
	released = stream_credited(stream);
	if (released == atomic_load(&relay->released))
		return moved || ended;
	publish_released(relay, released);
	return 1;
}

static int relay_stream(struct relay *relay)
{
	struct connection *connection = &relay->connection;

	while (!atomic_load(&relay->stopped) &&
	       (is_restoring(connection) || connection->stream.result <= 0)) {
		bool restoring = is_restoring(connection);
		int moved;

		/* First take the event that announces more. */
		take_finished_job(connection->workers);
		atomic_store(&relay->waits, restoring);
		moved = restoring ? restore_connection(connection) : advance_relay(relay);
		if (end_step(connection, moved, false, 0) < 0)
			return -1;
	}
	if (connection->stream.result > 0)
		publish_released(relay, stream_credited(&connection->stream));
	return 0;
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
	struct connection *connection = &relay->connection;
	bool failed;

	borrow_memory(&connection->stream, &relay->party->stream);
	/* The stream has the same records at the same positions, so the same size. */
	failed = open_connection(connection, relay->party->size) < 0 ||
		 connect_sides(connection) < 0 || relay_stream(relay) < 0;
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

/*
 * Ask the client whether this receiver has a next one, now that its destination is open.
 * *ret_relay stays NULL if not. Returns 0, or -1 with the failure set.
 */
static int join_chain(struct party *party, struct relay **ret_relay)
{
	struct chain_message chain;
	struct relay *relay;
	int pipe[2];

	if (control_send(party->control, FRAME_OPENED, NULL) < 0 ||
	    expect_message(party->control, FRAME_CHAIN, &chain) < 0)
		return -1;
	if (!chain.passes_on)
		return 0;
	if (!party->may_pass_on)
		return fail(party->failure, EXIT_FILE,
			    "the server does not pass copies on, which takes "
			    "--pass-on");
	relay = calloc(1, sizeof(*relay));
	if (!relay)
		return fail(party->failure, EXIT_FILE, "out of memory");
	if (pipe2(pipe, O_CLOEXEC) < 0) {
		free(relay);
		return fail(party->failure, EXIT_FILE, "pipe: %s", strerror(errno));
	}
	relay->party = party;
	strcpy(relay->addresses, chain.addresses);
	pthread_mutex_init(&relay->onward.lock, NULL);
	relay->onward.to = pipe[1];
	relay->control = cp_control(party->control->timeout_ms, &relay->failure);
	relay->control.in = pipe[0];
	relay->control.out = party->control->out;
	relay->control.preamble_read = true;
	relay->control.carrier = party->control;
	party->control->onward = &relay->onward;
	*ret_relay = relay;
	return 0;
}

/* Begin to connect, when the party's stream and workers exist. */
static int start_relay(struct relay *relay)
{
	struct party *party = relay->party;
	int error;

	/* The devices of the stream that arrives are open, and connect to nobody. */
	connect_onward_to(relay->addresses);
	relay->connection = (struct connection){ .role = CP_SENDER,
						 .settings = party->settings,
						 .side = party->side,
						 .control = &relay->control,
						 .failure = &relay->failure };
	if (start_workers(0, 0, &relay->connection.workers, party->failure) < 0)
		return -1;
	error = pthread_create(&relay->thread, NULL, run_relay, relay);
	if (error)
		return fail(party->failure, EXIT_FILE, "cannot start a thread: %s",
			    strerror(error));
	relay->started = true;
	return 0;
}

/* Stop. The control connection and the workers must still exist. NULL is allowed. */
static void stop_relay(struct relay *relay)
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
	relay->party->control->onward = NULL;
	close_connection(&relay->connection);
	control_close(&relay->control);
	pthread_mutex_destroy(&relay->onward.lock);
	free(relay);
}

struct receiver {
	struct party *party;
	struct target target;
	struct relay *relay; /* to the next receiver; NULL: there is none */
	struct slot *slots;
	uint64_t announced;	  /* number of the next chunk */
	uint64_t stored;	  /* number of the next chunk to be stored */
	uint64_t position;	  /* of the next record, in the stream */
	uint64_t stored_position; /* of the next record to be stored */
	bool has_header;	  /* that of the next record was read: */
	struct chunk chunk;
	uint8_t tag[CP_TAG_SIZE];
	uint64_t bytes_announced; /* of the file; holes and kept bytes included */
	uint64_t bytes_written;	  /* the same; chunks finish in any order */
	struct job commit;
	struct failure commit_failure;
};

/* Runs on a worker. */
static void run_store(struct job *job, void *piece)
{
	struct slot *slot = (struct slot *)job;
	struct receiver *receiver = slot->owner;

	store_chunk(&receiver->target, slot, piece);
}

static void run_commit(struct job *job, void *scratch)
{
	struct receiver *receiver =
		(struct receiver *)((char *)job - offsetof(struct receiver, commit));

	(void)scratch;
	commit_target(&receiver->target, &receiver->commit_failure);
}

static int fail_unexpected_chunk(struct party *party)
{
	return fail(party->failure, EXIT_PEER,
		    "the sender announced an unexpected chunk");
}

/* The header is read once, because the sender can change it, and then checked. */
static int read_header(struct receiver *receiver)
{
	struct party *party = receiver->party;
	struct chunk *chunk = &receiver->chunk;

	if (get_header(&party->stream, receiver->position, chunk, receiver->tag) < 0)
		return fail_pier(party->failure, EXIT_DEVICE);
	chunk->offset = receiver->bytes_announced;
	/* Chunks come in file order, without kept bytes. Only a sparse file has holes,
	 * and only an unknown size ends with an empty chunk.
	 */
	if (chunk->number != receiver->announced ||
	    (chunk->length == 0 && party->size != CP_SIZE_UNKNOWN) ||
	    chunk->length > party->size - chunk->offset ||
	    chunk->length !=
		    length_before_kept(&party->kept, chunk->offset, chunk->length) ||
	    (chunk->hole ? !receiver->target.sparse
			 : chunk->length > party->stream.chunk))
		return fail_unexpected_chunk(party);
	receiver->has_header = true;
	return 0;
}

/* All of its record has arrived. */
static int take_chunk(struct receiver *receiver)
{
	struct party *party = receiver->party;
	const struct chunk *chunk = &receiver->chunk;
	struct slot *slot = &receiver->slots[chunk->number % party->stream.depth];

	/* Until the slot is free, a worker owns it. */
	if (slot->state != SLOT_FREE)
		return fail_unexpected_chunk(party);
	slot->chunk = *chunk;
	memcpy(slot->tag, receiver->tag, sizeof(slot->tag));
	slot->position = receiver->position;
	receiver->has_header = false;
	receiver->position = record_end(&party->stream, slot);
	receiver->announced++;
	receiver->bytes_announced = skip_kept(&party->kept,
					      receiver->bytes_announced + chunk->length);
	if (chunk->length == 0)
		party->size = receiver->bytes_announced;
	update_mac(&party->digest, slot->tag, CP_TAG_SIZE);
	slot->state = SLOT_WORKING;
	submit_job(party->workers, &slot->job);
	return 0;
}

/* Take the next chunk if its record ends by `arrived`. Returns 1, 0, or -1. */
static int take_record(struct receiver *receiver, uint64_t arrived)
{
	const struct stream *stream = &receiver->party->stream;

	if (arrived - receiver->position < PIER_STREAM_BLOCK)
		return 0;
	if (!receiver->has_header && read_header(receiver) < 0)
		return -1;
	if (arrived - receiver->position < record_length(stream, &receiver->chunk))
		return 0;
	return take_chunk(receiver) < 0 ? -1 : 1;
}

/* Returns the number of chunks, or -1. */
static int drive_receiver(struct receiver *receiver)
{
	struct party *party = receiver->party;
	struct stream *stream = &party->stream;
	struct relay *relay = receiver->relay;
	int count = 0, taken;
	uint64_t arrived;
	bool last;

	if (drive_link(&party->connection) < 0)
		return -1;
	if (pier_receiver_arrived(stream->receiver, &arrived) < 0)
		return fail_channel(&party->connection, "the transfer");
	while ((taken = take_record(receiver, arrived)) > 0)
		count++;
	last = receiver->bytes_announced == party->size;
	if (relay && (receiver->position != atomic_load(&relay->arrived) || last)) {
		atomic_store(&relay->arrived, receiver->position);
		/* No others follow. */
		atomic_store(&relay->last, last);
		wake_owner(relay->connection.workers);
	}
	return taken < 0 ? -1 : count;
}

/*
 * In the order of the stream, whatever chunk was written first. What the next receiver
 * needs is kept. Returns 1 if anything was released, 0 if not, or -1.
 */
static int release_chunks(struct receiver *receiver)
{
	struct stream *stream = &receiver->party->stream;
	uint64_t end = receiver->relay ? atomic_load(&receiver->relay->released)
				       : UINT64_MAX;

	for (; receiver->stored < receiver->announced; receiver->stored++) {
		struct slot *slot = &receiver->slots[receiver->stored % stream->depth];

		if (slot->state != SLOT_READY)
			break;
		receiver->stored_position = record_end(stream, slot);
		slot->state = SLOT_FREE;
	}
	if (end > receiver->stored_position)
		end = receiver->stored_position;
	if (end <= stream->released)
		return 0;
	stream->released = end;
	if (pier_receiver_release(stream->receiver, end) < 0)
		return fail_pier(receiver->party->failure, EXIT_DEVICE);
	return 1;
}

static int collect_written(struct receiver *receiver)
{
	struct party *party = receiver->party;
	struct job *job;
	int count = 0, released;

	for (; (job = take_finished_job(party->workers)); count++) {
		struct slot *slot = (struct slot *)job;

		if (job == &receiver->commit) {
			party->state = CONNECTION_DONE;
			if (receiver->commit_failure.status == 0)
				continue;
			return fail(party->failure, receiver->commit_failure.status, "%s",
				    receiver->commit_failure.text);
		}
		if (slot->failure.status)
			return fail(party->failure, slot->failure.status, "%s",
				    slot->failure.text);
		receiver->bytes_written += slot->chunk.length;
		slot->state = SLOT_READY;
	}
	released = release_chunks(receiver);
	return released < 0 ? -1 : count + released;
}

/* All chunks match their tags. Check that the tags are those the sender made. */
static int check_digest(struct party *party)
{
	uint8_t digest[CP_DIGEST_SIZE];

	if (!party->settings->verify)
		return 0;
	if (finish_mac(&party->digest, digest, sizeof(digest), party->failure) < 0)
		return -1;
	if (CRYPTO_memcmp(digest, party->peer_digest, sizeof(digest)) == 0)
		return 0;
	return fail(party->failure, EXIT_VERIFY,
		    "verification failed: the chunks that arrived are not those the "
		    "sender sent");
}

static int advance_receiver(struct receiver *receiver)
{
	struct party *party = receiver->party;
	int announced = 0, written, passed;

	/* The sender ends when it knows that everything was released. */
	if (receiver->bytes_announced < party->size || party->state < CONNECTION_ENDED)
		announced = drive_receiver(receiver);
	if (announced < 0)
		return -1;
	written = collect_written(receiver);
	if (written < 0)
		return -1;
	passed = pass_notices(party);
	if (passed < 0)
		return -1;
	if (party->state == CONNECTION_ENDED && receiver->bytes_written == party->size &&
	    receiver->stored == receiver->announced) {
		if (check_digest(party) < 0)
			return -1;
		party->state = CONNECTION_IDLE;
		submit_job(party->workers, &receiver->commit);
	}
	name_files(party, receiver->bytes_written, false);
	show_progress(party->progress, receiver->bytes_written);
	return announced + written + passed > 0;
}

/*
 * A receiving client can finish after FRAME_END even if the server has gone. A receiving
 * server cannot: without a client to report to, it does not name the file.
 */
static bool can_finish_without_sender(struct receiver *receiver)
{
	struct party *party = receiver->party;

	if (party->state != CONNECTION_IDLE || !party->requested ||
	    !party->control->peer_closed)
		return false;
	control_close(party->control);
	*party->failure = (struct failure){ 0 };
	return true;
}

static int receive_chunks(struct receiver *receiver)
{
	struct connection *connection = &receiver->party->connection;

	while (connection->state != CONNECTION_DONE) {
		int moved = is_restoring(connection) ? restore_connection(connection)
						     : advance_receiver(receiver);
		/* While the next receiver cannot connect, it is not the sender that is
		 * silent. */
		bool working = workers_busy(connection->workers) ||
			       (receiver->relay && atomic_load(&receiver->relay->waits));

		if (end_step(connection, moved, working, 0) < 0 &&
		    !can_finish_without_sender(receiver))
			return -1;
	}
	return 0;
}

/* The copy fails only if the file does not have its name yet. */
static int abandon_copy(struct receiver *receiver)
{
	struct party *party = receiver->party;
	bool abandoned = abandon_target(&receiver->target), shared = false;

	stop_standard(party->standard);
	if (abandoned) {
		/* Report the failure first: stop_workers() may wait for a slow disk. */
		control_send_failure(party->control);
		/* The sender may still have this side's memory open: see <pier/ipc.h>. */
		shared = party->stream.ipc && party->state < CONNECTION_ENDED &&
			 !control_await_close(party->control);
	}
	stop_relay(receiver->relay);
	receiver->relay = NULL;
	if (abandoned)
		control_close(party->control);
	stop_workers(&party->workers);
	/* The sender does not answer: leave the memory to the end of this process. */
	if (shared)
		party->stream.buffer = NULL;
	if (abandoned)
		return -1;
	*party->failure = receiver->commit_failure;
	return party->failure->status ? -1 : 0;
}

/* In a dry run: show the notices of the sending server. */
static int take_file_notices(struct party *party)
{
	struct frame frame;

	do {
		if (control_receive(party->control, &frame) < 0 ||
		    (frame.type != FRAME_END &&
		     take_frame(&party->connection, &frame) < 0))
			return -1;
	} while (frame.type != FRAME_END);
	return 0;
}

static int receive_file(struct receiver *receiver)
{
	struct party *party = receiver->party;
	struct source_message source;

	if (expect_message(party->control, FRAME_SOURCE, &source) < 0 ||
	    open_target(&receiver->target, &source) < 0)
		return -1;
	if (party->settings->dry_run)
		return party->client ? take_file_notices(party) : 0;
	party->naming.list = party->tree ? &party->tree->list : NULL;
	strcpy(party->naming.name, source.name);
	begin_progress(party->progress, party->size);
	if (party->settings->partial && offer_segments(party, &receiver->target) < 0)
		return -1;
	if (party->settings->chain && join_chain(party, &receiver->relay) < 0)
		return -1;
	receiver->bytes_announced = skip_kept(&party->kept, 0);
	receiver->bytes_written = party->kept.bytes;
	if (prepare_party(party) < 0 ||
	    (receiver->relay && start_relay(receiver->relay) < 0))
		return -1;
	receiver->slots = open_slots(&party->stream, receiver, run_store, party->failure);
	if (!receiver->slots || connect_sides(&party->connection) < 0)
		return -1;
	return receive_chunks(receiver);
}

int run_receiver(struct party *party)
{
	struct receiver receiver = {
		.party = party,
		.target = { .party = party,
			    .file = { .fd = -1, .directory = -1 },
			    .tree = { .base = -1, .above = -1, .stage = -1 } },
		.commit.run = run_commit,
	};
	struct control *control = party->control;
	struct failure ignored = { 0 };
	int result = receive_file(&receiver);

	end_progress(party->progress);
	if (result < 0) {
		name_down_port(&party->connection);
		result = abandon_copy(&receiver);
	}
	if (result == 0)
		result = pass_notices(party) < 0 ? -1 : 0;
	/* The copy has succeeded; a signal or a lost sender no longer makes it fail. */
	control->failure = &ignored;
	while (result == 0 && control->out >= 0 &&
	       control_send(control, FRAME_DONE, NULL) < 0 &&
	       ignored.status > EXIT_SIGNAL && !control->failure_from_peer)
		ignored = (struct failure){ 0 };
	control->failure = party->failure;
	if (result == 0)
		name_files(party, party->size, true);
	stop_relay(receiver.relay);
	stop_workers(&party->workers);
	free(receiver.slots);
	close_target(&receiver.target);
	return result;
}
