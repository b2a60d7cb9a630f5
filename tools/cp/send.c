/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "chunk.h"
#include "source.h"
#include "party.h"
#include "units.h"

struct sender {
	struct party *party;
	struct sources sources;
	struct slot *slots;
	/* The number of the next chunk at each step. */
	uint64_t read, posted, credited;
	uint64_t position;	 /* of the next record, in the stream */
	uint64_t bytes_read;	 /* of the file; holes and kept bytes included */
	uint64_t bytes_posted;	 /* to the NIC */
	uint64_t bytes_credited; /* that the receiver has written */
};

static struct slot *slot_of(const struct sender *sender, uint64_t index)
{
	return &sender->slots[index % sender->party->stream.depth];
}

/* Standard input may end before *length bytes. */
static int read_bytes(struct sender *sender, struct slot *slot, uint64_t done,
		      uint8_t *ret_bytes, size_t *length)
{
	struct standard *standard = sender->party->standard;
	size_t wanted = *length;

	if (!standard)
		return read_sources(&sender->sources, slot->chunk.offset + done,
				    ret_bytes, wanted, &slot->failure);
	if (read_standard(standard, ret_bytes, length, &slot->failure) < 0)
		return -1;
	if (*length < wanted)
		slot->chunk.length = done + *length;
	return 0;
}

/* Read the chunk into the slot, and add its bytes to the tag. */
static int read_data(struct sender *sender, struct slot *slot, void *piece,
		     struct mac_state *tag)
{
	struct party *party = sender->party;
	const struct chunk *chunk = &slot->chunk;
	uint64_t done = chunk->hole ? chunk->length : 0;
	size_t length;

	for (; done < chunk->length; done += length) {
		uint8_t *bytes = choose_memory(&party->stream, slot, done, piece,
					       &length);

		if (read_bytes(sender, slot, done, bytes, &length) < 0 ||
		    (bytes == piece &&
		     put_piece(&party->stream, slot, done, piece, length) < 0))
			return -1;
		if (party->settings->verify)
			update_mac(tag, bytes, length);
	}
	return chunk->hole || !chunk->length ? 0 : finish_pieces(&party->stream, slot);
}

/* Runs on a worker. */
static void read_chunk(struct job *job, void *piece)
{
	struct slot *slot = (struct slot *)job;
	struct sender *sender = slot->owner;
	struct party *party = sender->party;
	struct mac_state tag;

	begin_tag(&tag, party->settings->secret, slot->chunk.number);
	if (read_data(sender, slot, piece, &tag) == 0 &&
	    finish_tag(&tag, &slot->chunk, slot->tag, &slot->failure) == 0)
		put_header(&party->stream, slot);
	drop_mac(&tag);
}

/* The length of the chunk is known. */
static void pass_chunk(struct sender *sender, const struct slot *slot)
{
	struct party *party = sender->party;

	sender->bytes_read = skip_kept(&party->kept,
				       slot->chunk.offset + slot->chunk.length);
	sender->position = record_end(&party->stream, slot);
	if (slot->chunk.length == 0)
		party->size = sender->bytes_read;
}

static void start_reading(struct sender *sender)
{
	struct party *party = sender->party;
	const struct stream *stream = &party->stream;
	/* Of the record of any chunk. */
	uint64_t most = stream->ipc ? PIER_STREAM_BLOCK : stream_stride(stream);

	while (sender->bytes_read < party->size) {
		struct slot *slot = slot_of(sender, sender->read);

		/* Where a chunk of standard input begins is known when the one before has
		 * been read. */
		if (slot->state != SLOT_FREE ||
		    (party->standard && workers_busy(party->workers)) ||
		    pier_transfer_limit(stream->transfer) - sender->position < most)
			return;
		slot->position = sender->position;
		slot->chunk.number = sender->read++;
		slot->chunk.offset = sender->bytes_read;
		find_chunk(&sender->sources, party->stream.chunk, &slot->chunk);
		if (!party->standard)
			pass_chunk(sender, slot);
		slot->state = SLOT_WORKING;
		submit_job(party->workers, &slot->job);
	}
}

/* Returns the number of chunks, or -1. */
static int collect_read(struct sender *sender)
{
	struct job *job;
	int count = 0;

	while ((job = take_finished_job(sender->party->workers))) {
		struct slot *slot = (struct slot *)job;

		if (slot->failure.status)
			return fail(sender->party->failure, slot->failure.status, "%s",
				    slot->failure.text);
		if (sender->party->standard)
			pass_chunk(sender, slot);
		slot->state = SLOT_READY;
		count++;
	}
	return count;
}

/* The time at which the rate limit allows the next chunk; 0: now. */
static uint64_t next_allowed_ns(const struct sender *sender)
{
	const struct party *party = sender->party;
	uint64_t rate = party->settings->rate, at;

	if (!rate)
		return 0;
	at = party->started_ns +
	     (uint64_t)((double)sender->bytes_posted * 1e9 / (double)rate);
	return at > now_ns() ? at : 0;
}

static bool all_posted(const struct sender *sender)
{
	return sender->bytes_read == sender->party->size &&
	       sender->posted == sender->read;
}

/* In file order. Returns the number of chunks, or -1. */
static int post_ready(struct sender *sender)
{
	struct party *party = sender->party;
	struct stream *stream = &party->stream;
	int count = 0;

	while (sender->posted < sender->read &&
	       slot_of(sender, sender->posted)->state == SLOT_READY &&
	       !next_allowed_ns(sender)) {
		struct slot *slot = slot_of(sender, sender->posted);

		update_mac(&party->digest, slot->tag, CP_TAG_SIZE);
		if (pier_transfer_extend(stream->transfer, record_end(stream, slot)) < 0)
			return fail_pier(party->failure, EXIT_DEVICE);
		slot->state = SLOT_POSTED;
		sender->posted++;
		sender->bytes_posted += slot->chunk.hole ? 0 : slot->chunk.length;
		count++;
	}
	if (all_posted(sender))
		stream_finish(stream);
	return count;
}

/* Free the slots of chunks that the receiver has written. Returns how many. */
static int free_slots(struct sender *sender)
{
	const struct stream *stream = &sender->party->stream;
	uint64_t position = stream_credited(stream);
	int count = 0;

	for (; sender->credited < sender->posted; sender->credited++, count++) {
		struct slot *slot = slot_of(sender, sender->credited);

		if (record_end(stream, slot) > position)
			break;
		slot->state = SLOT_FREE;
		sender->bytes_credited += slot->chunk.length;
	}
	return count;
}

/* Returns 1 if anything progressed, 0 if not, -1 on failure. */
static int advance_sender(struct sender *sender)
{
	int read, posted, ended, credited = 0, passed;

	start_reading(sender);
	read = collect_read(sender);
	posted = read < 0 ? -1 : post_ready(sender);
	ended = posted < 0 ? -1 : drive_link(&sender->party->connection);
	if (ended >= 0)
		credited = free_slots(sender);
	passed = ended < 0 ? -1 : pass_notices(sender->party);
	name_files(sender->party, sender->bytes_credited, false);
	show_progress(sender->party->progress, sender->bytes_credited);
	return passed < 0 ? -1 : read + posted + ended + credited + passed > 0;
}

static int send_chunks(struct sender *sender)
{
	struct connection *connection = &sender->party->connection;

	while (!all_posted(sender) || sender->credited < sender->posted ||
	       connection->stream.result <= 0) {
		int moved = is_restoring(connection) ? restore_connection(connection)
						     : advance_sender(sender);
		uint64_t wake = next_allowed_ns(sender);

		if (end_step(connection, moved, wake || workers_busy(connection->workers),
			     wake) < 0)
			return -1;
	}
	return 0;
}

static int finish_sending(struct sender *sender)
{
	struct party *party = sender->party;
	struct connection *connection = &party->connection;
	struct wire_writer writer = { .length = 0 };
	uint8_t digest[CP_DIGEST_SIZE];

	if (stream_close_peer(&connection->stream) < 0)
		return fail_pier(party->failure, EXIT_DEVICE);
	if (check_sources(&sender->sources, party->failure) < 0 ||
	    pass_notices(party) < 0 ||
	    finish_mac(&party->digest, digest, sizeof(digest), party->failure) < 0)
		return -1;
	if (party->settings->verify)
		put_bytes(&writer, digest, sizeof(digest));
	if (control_send(party->control, FRAME_END, &writer) < 0)
		return -1;
	restart_timeout(connection);
	connection->state = CONNECTION_IDLE;
	while (connection->state != CONNECTION_DONE)
		if (wait_for_event(connection, false, 0) < 0) {
			/* The receiver may have named the file before it sees the
			 * failure.
			 */
			if (!control_send_failure_unless_done(party->control))
				return -1;
			*party->failure = (struct failure){ 0 };
			return 0;
		}
	return 0;
}

/* With --skip-same: drop what the receiver has. */
static int skip_same(struct party *party, struct sources *sources)
{
	struct file_list *list = sources->is_tree ? &sources->list : NULL;

	if (open_same(&party->same, party->files) < 0)
		return fail(party->failure, EXIT_FILE, "out of memory");
	if (receive_same(party->control, list, &party->same) < 0)
		return -1;
	if (list)
		drop_same(list, &party->same);
	if (party->same.count)
		party->size = list ? list->size : 0;
	return 0;
}

static int send_file(struct sender *sender)
{
	struct party *party = sender->party;
	struct source_message message = { .size = 0 };

	if (open_sources(&sender->sources, party, &message) < 0 ||
	    send_message(party->control, FRAME_SOURCE, &message) < 0 ||
	    (message.tree && send_list(party->control, &sender->sources.list) < 0))
		return -1;
	party->size = message.size;
	party->in_memory = message.in_memory;
	party->losses = message.losses;
	if (party->settings->skip_same && skip_same(party, &sender->sources) < 0)
		return -1;
	if (party->settings->dry_run)
		return end_dry_run(&sender->sources, &message);
	party->naming.list = message.tree ? &sender->sources.list : NULL;
	strcpy(party->naming.name, message.name);
	begin_progress(party->progress, party->size);
	if (party->settings->partial && compare_segments(party, &sender->sources) < 0)
		return -1;
	sender->bytes_read = skip_kept(&party->kept, 0);
	sender->bytes_credited = party->kept.bytes;
	if (prepare_party(party) < 0)
		return -1;
	sender->slots = open_slots(&party->stream, sender, read_chunk, party->failure);
	if (!sender->slots || connect_sides(&party->connection) < 0 ||
	    send_chunks(sender) < 0)
		return -1;
	return finish_sending(sender);
}

int run_sender(struct party *party)
{
	struct sender sender = { .party = party,
				 .sources.file = { .fd = -1, .content = -1 } };
	int result = send_file(&sender);

	if (result < 0)
		name_down_port(&party->connection);
	end_progress(party->progress);
	if (result == 0)
		name_files(party, party->size, true);
	stop_standard(party->standard);
	stop_workers(&party->workers);
	/* Before the receiver learns of a failure. */
	stream_close_peer(&party->stream);
	free(sender.slots);
	close_sources(&sender.sources);
	return result;
}
