/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cp_chunk.h"
#include "cp_file.h"
#include "cp_path.h"
#include "cp_transfer.h"

struct receiver {
	struct transfer *transfer;
	struct destination destination;
	struct slot *slots;
	uint64_t announced; /* number of the chunk that comes next */
	uint64_t written;   /* how many; these are done in any order */
	uint64_t bytes_written;
	struct job commit;
	struct failure commit_failure;
	bool committing, committed;
};

/* On a worker: compare with the announced checksum, and write to the file. */
static void write_chunk(struct job *job)
{
	struct slot *slot = (struct slot *)job;
	struct receiver *receiver = slot->owner;
	struct transfer *transfer = receiver->transfer;
	uint64_t offset = slot->index * transfer->link.chunk;
	uint8_t *data = slot_data(&transfer->link, slot);
	size_t done = 0, piece;
	XXH3_state_t state;

	if (slot_from_buffer(&transfer->link, slot) < 0)
		return;
	XXH3_64bits_reset(&state);
	for (; done < slot->length; done += piece) {
		piece = slot->length - done < PIECE ? slot->length - done : PIECE;
		if (transfer->settings->verify)
			XXH3_64bits_update(&state, data + done, piece);
		if (write_destination(&receiver->destination, offset + done, data + done,
				      piece, &slot->failure) < 0)
			return;
	}
	if (transfer->settings->verify && XXH3_64bits_digest(&state) != slot->checksum)
		fail(&slot->failure, EXIT_VERIFY,
		     "verification failed: bytes %" PRIu64 " to %" PRIu64
		     " did not arrive in %s memory as they were read",
		     offset, offset + slot->length - 1, transfer->link.report.memory);
}

static void run_commit(struct job *job)
{
	struct receiver *receiver =
		(struct receiver *)((char *)job - offsetof(struct receiver, commit));

	commit_destination(&receiver->destination, &receiver->commit_failure);
}

static int take_announcement(struct receiver *receiver, struct slot *slot,
			     const struct pier_result *result)
{
	struct transfer *transfer = receiver->transfer;
	struct link *link = &transfer->link;
	uint32_t number = (uint32_t)(receiver->announced % link->depth);
	const uint8_t *message = link_incoming(link, number);

	if (result->byte_length != ANNOUNCEMENT_SIZE || slot->state != SLOT_FREE ||
	    receiver->announced >= transfer->chunks ||
	    load_u64(message) != receiver->announced ||
	    load_u64(message + 8) != chunk_length(transfer, receiver->announced))
		return fail(transfer->failure, EXIT_PEER,
			    "the sender announced a chunk that is not due");
	slot->index = receiver->announced++;
	slot->length = chunk_length(transfer, slot->index);
	slot->checksum = load_u64(message + 16);
	slot->state = SLOT_WORKING;
	give_job(transfer->workers, &slot->job);
	if (link_recv(link, number, &slot->receive) < 0)
		return fail_channel(transfer, "posting a receive");
	return 0;
}

/* Returns how many were found, or -1. */
static int collect_announcements(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	struct pier_result result;
	int count = 0, done;

	/* Also when nothing is due, since this is where a broken channel shows. */
	for (;;) {
		struct slot *slot =
			&receiver->slots[receiver->announced % transfer->link.depth];

		done = poll_request(transfer, slot->receive, &result);
		if (done <= 0)
			return done < 0 ? -1 : count;
		if (take_announcement(receiver, slot, &result) < 0)
			return -1;
		count++;
	}
}

static int give_credit(struct receiver *receiver, struct slot *slot)
{
	struct link *link = &receiver->transfer->link;
	uint32_t number = (uint32_t)(slot->index % link->depth);

	/* The message is the slot's: the next one follows this one's arrival. */
	store_u64(link_outgoing(link, number), slot->index);
	receiver->written++;
	receiver->bytes_written += slot->length;
	slot->state = SLOT_FREE;
	if (link_send(link, number, CREDIT_SIZE, NULL) < 0)
		return fail_channel(receiver->transfer, "acknowledging");
	return 0;
}

static int collect_written(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	struct job *job;
	int count = 0;

	for (; (job = take_done(transfer->workers)); count++) {
		struct slot *slot = (struct slot *)job;

		if (job == &receiver->commit) {
			receiver->committed = true;
			if (receiver->commit_failure.status == 0)
				continue;
			return fail(transfer->failure, receiver->commit_failure.status,
				    "%s", receiver->commit_failure.text);
		}
		if (slot->failure.status)
			return fail(transfer->failure, slot->failure.status, "%s",
				    slot->failure.text);
		if (give_credit(receiver, slot) < 0)
			return -1;
	}
	return count;
}

static int step(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	int announced, written;

	/* Once all is here the sender may go, and the channel does not matter. */
	announced = receiver->announced < transfer->chunks
			    ? collect_announcements(receiver)
			    : 0;
	if (announced < 0)
		return -1;
	written = collect_written(receiver);
	if (written < 0)
		return -1;
	if (transfer->peer_ended && receiver->written == transfer->chunks &&
	    !receiver->committing) {
		receiver->committing = true;
		give_job(transfer->workers, &receiver->commit);
	}
	return announced + written > 0;
}

static int receive_chunks(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;

	while (!receiver->committed) {
		int moved = step(receiver);

		if (moved < 0)
			return -1;
		show_progress(transfer->progress, receiver->bytes_written);
		if (moved)
			note_progress(transfer);
		else if (transfer_wait(transfer, workers_busy(transfer->workers), 0) < 0)
			return -1;
	}
	return control_send(transfer->control, FRAME_DONE, NULL);
}

/* Otherwise a server could choose which file of a directory is written. */
static int check_name(const struct transfer *transfer, const char *sent)
{
	char asked[NAME_MAX + 1];

	if (!transfer->requested)
		return 0;
	base_name(transfer->requested, asked);
	if (strcmp(asked, sent) == 0)
		return 0;
	return fail(transfer->failure, EXIT_PEER,
		    "%s sent the file '%s', but '%s' was asked for",
		    transfer->control->peer, sent, asked);
}

static int receive_file(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	struct source_message source;

	if (receive_source(transfer->control, &source) < 0 ||
	    check_name(transfer, source.name) < 0 ||
	    open_destination(&receiver->destination, transfer->root, transfer->side->path,
			     &source, transfer->settings->preserve,
			     transfer->failure) < 0)
		return -1;
	begin_progress(transfer->progress, source.size);
	if (prepare_transfer(transfer, source.size) < 0)
		return -1;
	receiver->slots = open_slots(&transfer->link, receiver, write_chunk,
				     transfer->failure);
	if (!receiver->slots || connect_transfer(transfer) < 0)
		return -1;
	return receive_chunks(receiver);
}

int run_receiver(struct transfer *transfer)
{
	struct receiver receiver = {
		.transfer = transfer,
		.destination = { .fd = -1, .directory = -1 },
		.commit.run = run_commit,
	};
	int result = receive_file(&receiver);

	end_progress(transfer->progress);
	stop_workers(transfer->workers);
	transfer->workers = NULL;
	close_slots(&transfer->link, receiver.slots);
	close_destination(&receiver.destination);
	return result;
}
