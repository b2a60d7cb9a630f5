/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include <pier/recovery.h>

#include "chunk.h"
#include "connect.h"
#include "left_out.h"
#include "port.h"
#include "receive.h"
#include "segments.h"
#include "store.h"
#include "target.h"

struct receiver {
	struct transfer *transfer;
	struct target target;
	struct slot *slots;
	uint64_t announced;	  /* number of the next chunk */
	uint64_t bytes_announced; /* of the file; holes and kept bytes included */
	uint64_t bytes_written;	  /* the same; chunks finish in any order */
	struct job commit;
	struct failure commit_failure;
	bool committing, committed;
};

/* Runs on a worker. */
static void run_store(struct job *job, void *piece)
{
	struct slot *slot = (struct slot *)job;
	struct receiver *receiver = slot->owner;

	store_chunk(receiver->transfer, slot, &receiver->target.file, piece);
}

static void run_commit(struct job *job, void *scratch)
{
	struct receiver *receiver =
		(struct receiver *)((char *)job - offsetof(struct receiver, commit));

	(void)scratch;
	commit_target(&receiver->target, &receiver->commit_failure);
}

/* Chunks come in file order, without kept bytes, and only a sparse file has holes. */
static bool chunk_is_due(const struct receiver *receiver, const struct chunk *chunk)
{
	const struct transfer *transfer = receiver->transfer;

	return chunk->number == receiver->announced && chunk->length > 0 &&
	       chunk->length <= transfer->size - receiver->bytes_announced &&
	       chunk->length == length_before_kept(&transfer->kept,
						   receiver->bytes_announced,
						   chunk->length) &&
	       (chunk->hole ? receiver->target.sparse
			    : chunk->length <= transfer->link.chunk);
}

static int take_announcement(struct receiver *receiver, struct slot *slot,
			     const struct pier_result *result)
{
	struct transfer *transfer = receiver->transfer;
	uint32_t number = (uint32_t)(receiver->announced % transfer->link.depth);
	struct chunk chunk = { .offset = receiver->bytes_announced };
	uint8_t tag[CP_TAG_SIZE];

	load_announcement(link_incoming(&transfer->link, number), &chunk, tag);
	if (result->byte_length != ANNOUNCEMENT_SIZE || slot->state != SLOT_FREE ||
	    !chunk_is_due(receiver, &chunk))
		return fail(transfer->failure, EXIT_PEER,
			    "the sender announced an unexpected chunk");
	/* Only now: until the slot is free, a worker owns it. */
	slot->chunk = chunk;
	memcpy(slot->tag, tag, sizeof(tag));
	receiver->announced++;
	receiver->bytes_announced = skip_kept(&transfer->kept,
					      chunk.offset + chunk.length);
	update_digest(&transfer->digest, slot->tag);
	slot->state = SLOT_WORKING;
	transfer->has_moved = true;
	submit_job(transfer->workers, &slot->job);
	return 0;
}

/* Returns the number of announcements, or -1. */
static int collect_announcements(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	struct pier_result result;
	int count = 0, done;

	/* Poll even if no announcement is due: this detects a broken channel. */
	for (;;) {
		struct slot *slot =
			&receiver->slots[receiver->announced % transfer->link.depth];

		done = poll_request(transfer, receiver->announced, slot->receive,
				    &result);
		if (done <= 0)
			return done < 0 ? -1 : count;
		if (take_announcement(receiver, slot, &result) < 0)
			return -1;
		if (link_recv(&transfer->link, slot_number(&transfer->link, slot),
			      &slot->receive) < 0)
			return fail_channel(transfer, "posting a receive");
		count++;
	}
}

static int send_credit(struct receiver *receiver, const struct slot *slot)
{
	struct link *link = &receiver->transfer->link;
	uint32_t number = slot_number(link, slot);
	bool odd = slot->chunk.number / link->depth % 2;
	uint8_t *credit = link_outgoing(link, number) + odd * CREDIT_SIZE;

	/*
	 * The buffer is free: the sender reuses the slot only after this message has
	 * arrived. If it is a repetition, the sender may have had it already, and the
	 * next credit of the slot may follow before this one is sent. So the two have
	 * buffers of their own.
	 */
	store_u64(credit, slot->chunk.number);
	if (link_send(link, number, credit, CREDIT_SIZE, NULL) < 0)
		return fail_channel(receiver->transfer, "posting a credit");
	return 0;
}

static int give_credit(struct receiver *receiver, struct slot *slot)
{
	receiver->bytes_written += slot->chunk.length;
	slot->state = SLOT_FREE;
	return send_credit(receiver, slot);
}

static int collect_written(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	struct job *job;
	int count = 0;

	for (; (job = take_finished_job(transfer->workers)); count++) {
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

static int start_commit(struct receiver *receiver)
{
	if (check_digest(receiver->transfer) < 0)
		return -1;
	receiver->committing = true;
	receiver->transfer->channel_idle = true;
	submit_job(receiver->transfer->workers, &receiver->commit);
	return 0;
}

/*
 * When all chunks are announced, the sender may close the channel. Until it has ended,
 * it may still need a credit that was lost.
 */
static bool needs_channel(const struct receiver *receiver)
{
	const struct transfer *transfer = receiver->transfer;

	return receiver->bytes_announced < transfer->size ||
	       (!transfer->peer_ended && is_transfer_broken(transfer));
}

static int advance_receiver(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	int announced, written;

	announced = needs_channel(receiver) ? collect_announcements(receiver) : 0;
	if (announced < 0)
		return -1;
	written = collect_written(receiver);
	if (written < 0)
		return -1;
	if (pass_notices(transfer) < 0)
		return -1;
	if (transfer->peer_ended && receiver->bytes_written == transfer->size &&
	    !receiver->committing && start_commit(receiver) < 0)
		return -1;
	return announced + written > 0;
}

/*
 * A receiving client can finish after FRAME_END even if the server has gone. A receiving
 * server cannot: without a client to report to, it does not name the file.
 */
static bool can_finish_without_sender(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;

	if (!receiver->committing || !transfer->requested ||
	    !transfer->control->peer_closed)
		return false;
	control_close(transfer->control);
	*transfer->failure = (struct failure){ 0 };
	return true;
}

static int wait_for_events(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;

	if (transfer_wait(transfer, workers_busy(transfer->workers), 0) < 0 &&
	    !transfer->broken && !can_finish_without_sender(receiver))
		return -1;
	return 0;
}

/* Announcements that arrived before the channel broke. */
static int take_arrived(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	struct pier_result result;

	while (receiver->bytes_announced < transfer->size) {
		struct slot *slot =
			&receiver->slots[receiver->announced % transfer->link.depth];

		struct rail *rail = link_rail(&transfer->link, receiver->announced);

		if (pier_work_poll(rail->channel, slot->receive, &result) != 1 ||
		    result.error)
			return 0;
		if (take_announcement(receiver, slot, &result) < 0)
			return -1;
	}
	return 0;
}

/* Some of the credits may have been lost: repeat those of all free slots. */
static int repeat_credits(struct receiver *receiver)
{
	for (uint32_t i = 0; i < receiver->transfer->link.depth; i++) {
		const struct slot *slot = &receiver->slots[i];

		if (slot->state == SLOT_FREE && i < receiver->announced &&
		    send_credit(receiver, slot) < 0)
			return -1;
	}
	return 0;
}

static int restore_receiver(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;

	do {
		if (reset_transfer(transfer) < 0 || take_arrived(receiver) < 0)
			return -1;
		if (restart_receives(&transfer->link, receiver->slots,
				     receiver->announced) < 0)
			return fail_channel(transfer, "posting a receive");
		if (reconnect_transfer(transfer, receiver->announced) < 0)
			return -1;
	} while (transfer->broken);
	return transfer->peer_ended ? 0 : repeat_credits(receiver);
}

static int receive_chunks(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;

	while (!receiver->committed) {
		int moved = transfer->broken ? restore_receiver(receiver)
					     : advance_receiver(receiver);

		if (moved < 0 && is_to_be_restored(transfer))
			continue;
		if (moved < 0)
			return -1;
		show_progress(transfer->progress, receiver->bytes_written);
		if (moved)
			restart_timeout(transfer);
		else if (wait_for_events(receiver) < 0)
			return -1;
	}
	return 0;
}

/* The copy has succeeded; a signal or a lost sender no longer makes it fail. */
static void send_done(struct control *control)
{
	struct failure *ours = control->failure, ignored;

	if (control->out < 0)
		return;
	control->failure = &ignored;
	do
		ignored = (struct failure){ 0 };
	while (control_send(control, FRAME_DONE, NULL) < 0 &&
	       ignored.status > EXIT_SIGNAL && !control->failure_from_peer);
	control->failure = ours;
}

/* Whether the sender may still have this side's memory open: see <pier/ipc.h>. */
static bool sender_has_memory(struct transfer *transfer)
{
	return transfer->link.ipc && !transfer->peer_ended &&
	       !control_await_close(transfer->control);
}

/* The copy fails only if the file does not have its name yet. */
static int abandon_copy(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	bool abandoned = abandon_target(&receiver->target), shared = false;

	if (abandoned) {
		/* Report the failure first: stop_workers() may wait for a slow disk. */
		control_send_failure(transfer->control);
		shared = sender_has_memory(transfer);
		control_close(transfer->control);
	}
	stop_workers(transfer->workers);
	transfer->workers = NULL;
	/* The sender does not answer: leave the memory to the end of this process. */
	if (shared)
		transfer->link.buffer = NULL;
	if (abandoned)
		return -1;
	*transfer->failure = receiver->commit_failure;
	return transfer->failure->status ? -1 : 0;
}

static int receive_file(struct receiver *receiver)
{
	struct transfer *transfer = receiver->transfer;
	struct source_message source;

	if (receive_source(transfer->control, &source) < 0 ||
	    open_target(&receiver->target, transfer, &source) < 0)
		return -1;
	if (transfer->settings->dry_run)
		return 0;
	begin_progress(transfer->progress, source.size);
	if (transfer->settings->partial &&
	    offer_segments(transfer, &receiver->target) < 0)
		return -1;
	receiver->bytes_announced = skip_kept(&transfer->kept, 0);
	receiver->bytes_written = transfer->kept.bytes;
	if (prepare_transfer(transfer, source.size) < 0)
		return -1;
	receiver->slots = open_slots(&transfer->link, receiver, run_store,
				     transfer->failure);
	if (!receiver->slots || connect_transfer(transfer) < 0)
		return -1;
	return receive_chunks(receiver);
}

int run_receiver(struct transfer *transfer)
{
	struct receiver receiver = {
		.transfer = transfer,
		.target = { .file = { .fd = -1, .directory = -1 },
			    .tree = { .base = -1, .stage = -1 } },
		.commit.run = run_commit,
	};
	int result = receive_file(&receiver);

	end_progress(transfer->progress);
	if (result < 0) {
		name_down_port(transfer);
		result = abandon_copy(&receiver);
	}
	if (result == 0)
		result = pass_notices(transfer);
	if (result == 0)
		send_done(transfer->control);
	stop_workers(transfer->workers);
	transfer->workers = NULL;
	free(receiver.slots);
	close_target(&receiver.target);
	return result;
}
