/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "chunk.h"
#include "connect.h"
#include "port.h"
#include "left_out.h"
#include "segments.h"
#include "send.h"
#include "sources.h"
#include "units.h"

struct sender {
	struct transfer *transfer;
	struct sources sources;
	struct slot *slots;
	/* The number of the next chunk at each step. */
	uint64_t read, posted, sent;
	uint64_t received[CP_RAILS_MAX]; /* the credits of each rail */
	uint64_t bytes_read;		 /* of the file; holes and kept bytes included */
	uint64_t bytes_posted;		 /* to the NIC */
	uint64_t bytes_credited;	 /* in any order */
};

static struct slot *slot_of(const struct sender *sender, uint64_t index)
{
	return &sender->slots[index % sender->transfer->link.depth];
}

/* Without private memory in between, a whole chunk is one request to the disk. */
static size_t read_length(const struct slot *slot, uint64_t done, bool in_place)
{
	uint64_t left = slot->chunk.length - done;

	if (!in_place)
		return piece_length(slot, done);
	return left < DIRECT_READ_MAX ? (size_t)left : DIRECT_READ_MAX;
}

/* Runs on a worker: read the chunk into the slot, and compute its tag. */
static void read_chunk(struct job *job, void *piece)
{
	struct slot *slot = (struct slot *)job;
	struct sender *sender = slot->owner;
	struct transfer *transfer = sender->transfer;
	const struct chunk *chunk = &slot->chunk;
	uint64_t done = chunk->hole ? chunk->length : 0;
	uint8_t *memory = slot_memory(&transfer->link, slot);
	struct tag_state tag;
	size_t length;

	begin_tag(&tag, transfer->settings->secret, chunk->number);
	for (; done < chunk->length; done += length) {
		uint8_t *bytes = memory ? memory + done : piece;

		length = read_length(slot, done, memory != NULL);
		if (read_sources(&sender->sources, chunk->offset + done, bytes, length,
				 &slot->failure) < 0 ||
		    (!memory && put_piece(&transfer->link, slot, done, piece) < 0))
			return;
		if (transfer->settings->verify)
			update_tag(&tag, bytes, length);
	}
	finish_tag(&tag, chunk, slot->tag);
	if (!chunk->hole)
		sync_put_pieces(&transfer->link, slot);
}

static void start_reading(struct sender *sender)
{
	struct transfer *transfer = sender->transfer;

	while (sender->bytes_read < transfer->size) {
		struct slot *slot = slot_of(sender, sender->read);

		if (slot->state != SLOT_FREE)
			return;
		slot->chunk.number = sender->read++;
		slot->chunk.offset = sender->bytes_read;
		find_sources_chunk(&sender->sources, transfer->link.chunk, &slot->chunk);
		sender->bytes_read = skip_kept(&transfer->kept,
					       slot->chunk.offset + slot->chunk.length);
		slot->state = SLOT_WORKING;
		slot->sent = slot->credited = false;
		submit_job(transfer->workers, &slot->job);
	}
}

/* Returns the number of chunks, or -1. */
static int collect_read(struct sender *sender)
{
	struct job *job;
	int count = 0;

	while ((job = take_finished_job(sender->transfer->workers))) {
		struct slot *slot = (struct slot *)job;

		if (slot->failure.status)
			return fail(sender->transfer->failure, slot->failure.status, "%s",
				    slot->failure.text);
		slot->state = SLOT_READY;
		count++;
	}
	return count;
}

/* The time at which the rate limit allows the next chunk; 0: now. */
static uint64_t next_allowed_ns(const struct sender *sender)
{
	const struct transfer *transfer = sender->transfer;
	uint64_t rate = transfer->settings->rate, at;

	if (!rate)
		return 0;
	at = transfer->started_ns +
	     (uint64_t)((double)sender->bytes_posted * 1e9 / (double)rate);
	return at > now_ns() ? at : 0;
}

static size_t bytes_to_write(const struct slot *slot)
{
	return slot->chunk.hole ? 0 : (size_t)slot->chunk.length;
}

static int post_slot(struct sender *sender, struct slot *slot)
{
	struct transfer *transfer = sender->transfer;
	struct link *link = &transfer->link;
	uint32_t number = slot_number(link, slot);
	size_t length = bytes_to_write(slot);

	if ((length && link_write(link, number, length, transfer->peer.remotes) < 0) ||
	    link_send(link, number, link_outgoing(link, number), ANNOUNCEMENT_SIZE,
		      &slot->send) < 0)
		return fail_channel(transfer, "posting a write");
	return 0;
}

/* If posting fails, the chunk is sent again when the channel has been restored. */
static int post_chunk(struct sender *sender, struct slot *slot)
{
	struct link *link = &sender->transfer->link;

	store_announcement(slot, link_outgoing(link, slot_number(link, slot)));
	update_digest(&sender->transfer->digest, slot->tag);
	slot->state = SLOT_POSTED;
	sender->posted++;
	sender->bytes_posted += bytes_to_write(slot);
	return post_slot(sender, slot);
}

/* In file order, as the receiver requires. */
static int post_ready(struct sender *sender)
{
	int count = 0;

	while (sender->posted < sender->read &&
	       slot_of(sender, sender->posted)->state == SLOT_READY &&
	       !next_allowed_ns(sender)) {
		if (post_chunk(sender, slot_of(sender, sender->posted)) < 0)
			return -1;
		count++;
	}
	return count;
}

static void free_if_unused(struct slot *slot)
{
	if (slot->sent && slot->credited)
		slot->state = SLOT_FREE;
}

static int collect_sent(struct sender *sender)
{
	struct transfer *transfer = sender->transfer;
	struct pier_result result;
	int count = 0, done;

	while (sender->sent < sender->posted) {
		struct slot *slot = slot_of(sender, sender->sent);

		done = poll_request(transfer, sender->sent, slot->send, &result);
		if (done <= 0)
			return done < 0 ? -1 : count;
		slot->sent = true;
		transfer->has_moved = true;
		free_if_unused(slot);
		sender->sent++;
		count++;
	}
	return count;
}

static int take_credit(struct sender *sender, const struct pier_result *result,
		       uint32_t number)
{
	struct transfer *transfer = sender->transfer;
	uint64_t index = load_u64(link_incoming(&transfer->link, number));
	struct slot *slot = slot_of(sender, index);
	bool is_due = slot->chunk.number == index && !slot->credited;

	/* When the channel has been restored, the receiver repeats credits. */
	if (result->byte_length != CREDIT_SIZE || index >= sender->posted ||
	    (!is_due && !transfer->repairs))
		return fail(transfer->failure, EXIT_PEER,
			    "the receiver acknowledged a chunk that was not sent");
	if (is_due) {
		slot->credited = true;
		sender->bytes_credited += slot->chunk.length;
		free_if_unused(slot);
	}
	if (link_recv(&transfer->link, number, &sender->slots[number].receive) < 0)
		return fail_channel(transfer, "posting a receive");
	return 0;
}

/* The slot whose receive gets the next credit of a rail. */
static uint32_t next_receive(const struct sender *sender, uint32_t rail)
{
	const struct link *link = &sender->transfer->link;
	uint32_t rails = link->rail_count;

	return rail + (uint32_t)(sender->received[rail] % (link->depth / rails)) * rails;
}

/* Poll even if no credit is due: this detects a broken channel. */
static int collect_credits_of(struct sender *sender, uint32_t rail)
{
	struct pier_result result;
	int count = 0, done;

	for (;;) {
		uint32_t number = next_receive(sender, rail);

		done = poll_request(sender->transfer, rail, sender->slots[number].receive,
				    &result);
		if (done <= 0)
			return done < 0 ? -1 : count;
		if (take_credit(sender, &result, number) < 0)
			return -1;
		sender->received[rail]++;
		count++;
	}
}

static int collect_credits(struct sender *sender)
{
	int count = 0;

	for (uint32_t i = 0; i < sender->transfer->link.rail_count; i++) {
		int collected = collect_credits_of(sender, i);

		if (collected < 0)
			return -1;
		count += collected;
	}
	return count;
}

/* Returns 1 if anything progressed, 0 if not, -1 on failure. */
static int advance_sender(struct sender *sender)
{
	int read, posted, sent, credited;

	start_reading(sender);
	read = collect_read(sender);
	posted = read < 0 ? -1 : post_ready(sender);
	sent = posted < 0 ? -1 : collect_sent(sender);
	credited = sent < 0 ? -1 : collect_credits(sender);
	if (credited >= 0 && pass_notices(sender->transfer) < 0)
		return -1;
	return credited < 0 ? -1 : read + posted + sent + credited > 0;
}

static bool all_sent(const struct sender *sender)
{
	return sender->bytes_credited == sender->transfer->size &&
	       sender->sent == sender->read;
}

/*
 * The receiver has all chunks before `next`; the others are still in their slots, since
 * none of them was credited.
 */
static int check_next(const struct sender *sender, uint64_t next)
{
	bool valid = next <= sender->posted &&
		     sender->posted - next <= sender->transfer->link.depth;

	for (uint64_t i = next; valid && i < sender->posted; i++)
		valid = slot_of(sender, i)->chunk.number == i &&
			!slot_of(sender, i)->credited;
	return valid ? 0
		     : fail(sender->transfer->failure, EXIT_PEER,
			    "the receiver expects a chunk that was not sent");
}

static int send_again(struct sender *sender, uint64_t next)
{
	if (check_next(sender, next) < 0)
		return -1;
	for (; sender->sent < next; sender->sent++) {
		slot_of(sender, sender->sent)->sent = true;
		free_if_unused(slot_of(sender, sender->sent));
	}
	sender->sent = next;
	for (uint64_t i = next; i < sender->posted; i++) {
		slot_of(sender, i)->sent = false;
		if (post_slot(sender, slot_of(sender, i)) < 0)
			return -1;
	}
	return 0;
}

static int restore_sender(struct sender *sender)
{
	struct transfer *transfer = sender->transfer;

	do {
		if (reset_transfer(transfer) < 0)
			return -1;
		for (uint64_t i = sender->sent; i < sender->posted; i++)
			pier_work_drop(link_rail(&transfer->link, i)->channel,
				       slot_of(sender, i)->send);
		if (restart_receives(&transfer->link, sender->slots, 0) < 0)
			return fail_channel(transfer, "posting a receive");
		memset(sender->received, 0, sizeof(sender->received));
		if (reconnect_transfer(transfer, 0) < 0)
			return -1;
	} while (transfer->broken);
	return send_again(sender, transfer->peer.next);
}

static int send_chunks(struct sender *sender)
{
	struct transfer *transfer = sender->transfer;

	while (!all_sent(sender)) {
		int moved = transfer->broken ? restore_sender(sender)
					     : advance_sender(sender);
		uint64_t wake;

		if (moved < 0 && is_to_be_restored(transfer))
			continue;
		if (moved < 0)
			return -1;
		show_progress(transfer->progress, sender->bytes_credited);
		if (moved) {
			restart_timeout(transfer);
			continue;
		}
		wake = next_allowed_ns(sender);
		if (transfer_wait(transfer, wake || workers_busy(transfer->workers),
				  wake) < 0 &&
		    !transfer->broken)
			return -1;
	}
	return 0;
}

static int send_end(struct transfer *transfer)
{
	struct wire_writer writer = { .length = 0 };
	uint8_t digest[CP_DIGEST_SIZE];

	finish_digest(&transfer->digest, digest);
	if (transfer->settings->verify)
		put_bytes(&writer, digest, sizeof(digest));
	return control_send(transfer->control, FRAME_END, &writer);
}

/* The receiver may have named the file before it sees the failure. */
static int check_if_done(struct transfer *transfer)
{
	if (!control_send_failure_unless_done(transfer->control))
		return -1;
	*transfer->failure = (struct failure){ 0 };
	return 0;
}

static int finish_sending(struct sender *sender)
{
	struct transfer *transfer = sender->transfer;

	if (link_close_peer(&transfer->link) < 0)
		return fail_pier(transfer->failure, EXIT_DEVICE);
	if (check_sources(&sender->sources, transfer->failure) < 0 ||
	    pass_notices(transfer) < 0 || send_end(transfer) < 0)
		return -1;
	restart_timeout(transfer);
	transfer->channel_idle = true;
	while (!transfer->peer_done)
		if (transfer_wait(transfer, false, 0) < 0)
			return check_if_done(transfer);
	return 0;
}

static int send_file(struct sender *sender)
{
	struct transfer *transfer = sender->transfer;
	struct source_message message = { .size = 0 };

	if (open_sources(&sender->sources, transfer, &message) < 0 ||
	    send_sources(&sender->sources, &message) < 0)
		return -1;
	if (transfer->settings->dry_run)
		return end_dry_run(&sender->sources, &message);
	begin_progress(transfer->progress, message.size);
	if (transfer->settings->partial &&
	    compare_segments(transfer, &sender->sources) < 0)
		return -1;
	sender->bytes_read = skip_kept(&transfer->kept, 0);
	sender->bytes_credited = transfer->kept.bytes;
	if (prepare_transfer(transfer, message.size) < 0)
		return -1;
	sender->slots = open_slots(&transfer->link, sender, read_chunk,
				   transfer->failure);
	if (!sender->slots || connect_transfer(transfer) < 0 || send_chunks(sender) < 0)
		return -1;
	return finish_sending(sender);
}

int run_sender(struct transfer *transfer)
{
	struct sender sender = { .transfer = transfer,
				 .sources.file = { .fd = -1, .content = -1 } };
	int result = send_file(&sender);

	if (result < 0)
		name_down_port(transfer);
	end_progress(transfer->progress);
	stop_workers(transfer->workers);
	transfer->workers = NULL;
	/* Before the receiver learns of a failure. */
	link_close_peer(&transfer->link);
	free(sender.slots);
	close_sources(&sender.sources);
	return result;
}
