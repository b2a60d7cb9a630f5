/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>

#include "store.h"

struct store {
	struct transfer *transfer;
	struct slot *slot;
	struct destination *destination;
	struct tag_state tag;
};

static void check_tag(struct store *store)
{
	struct slot *slot = store->slot;
	const struct chunk *chunk = &slot->chunk;
	uint8_t tag[CP_TAG_SIZE];

	if (finish_tag(&store->tag, chunk, tag, &slot->failure) == 0 &&
	    !tags_equal(tag, slot->tag))
		fail(&slot->failure, EXIT_VERIFY,
		     "verification failed: bytes %" PRIu64 " to %" PRIu64
		     " that arrived in %s memory differ from those the sender read",
		     chunk->offset, chunk->offset + chunk->length - 1,
		     store->transfer->link.report.memory);
}

/* In pieces, which are still in the CPU cache when they are hashed. */
static int copy_out(struct store *store, uint64_t done, uint8_t *ret_bytes, size_t length)
{
	while (length > 0) {
		size_t piece = length < PIECE_SIZE ? length : PIECE_SIZE;

		if (get_piece(&store->transfer->link, store->slot, done, ret_bytes,
			      piece) < 0)
			return -1;
		if (store->transfer->settings->verify)
			update_tag(&store->tag, ret_bytes, piece);
		ret_bytes += piece;
		done += piece;
		length -= piece;
	}
	return 0;
}

static int store_directly(struct store *store, uint64_t done, size_t length)
{
	struct write_queue *queue = store->destination->queue;
	void *block = take_write_block(queue);

	if (!block)
		return fail_destination(store->destination, "write",
					&store->slot->failure);
	if (copy_out(store, done, block, length) < 0) {
		return_write_block(queue, block);
		return -1;
	}
	write_block(queue, block, store->slot->chunk.offset + done, length);
	return 0;
}

static int store_buffered(struct store *store, uint64_t done, void *piece, size_t length)
{
	struct slot *slot = store->slot;

	if (copy_out(store, done, piece, length) < 0)
		return -1;
	if (store->transfer->tree)
		return write_tree(store->transfer->tree, slot->chunk.offset + done, piece,
				  length, &slot->failure);
	return write_destination(store->destination, slot->chunk.offset + done, piece,
				 length, &slot->failure);
}

static int store_data(struct store *store, void *piece)
{
	const struct chunk *chunk = &store->slot->chunk;
	const struct write_queue *queue = store->destination->queue;

	for (uint64_t done = 0; done < chunk->length;) {
		uint64_t offset = chunk->offset + done, left = chunk->length - done;
		size_t length = direct_length(queue, offset, left);
		int result;

		if (length) {
			result = store_directly(store, done, length);
		} else {
			left = buffered_length(queue, offset, left);
			length = left < PIECE_SIZE ? (size_t)left : PIECE_SIZE;
			result = store_buffered(store, done, piece, length);
		}
		if (result < 0)
			return -1;
		done += length;
	}
	return 0;
}

static int store_hole(const struct store *store)
{
	struct slot *slot = store->slot;
	const struct chunk *chunk = &slot->chunk;

	if (store->transfer->tree)
		return skip_tree(store->transfer->tree, chunk->offset, chunk->length,
				 &slot->failure);
	return skip_destination(store->destination, chunk->offset, chunk->length,
				&slot->failure);
}

void store_chunk(struct transfer *transfer, struct slot *slot,
		 struct destination *destination, void *piece)
{
	struct store store = { .transfer = transfer,
			       .slot = slot,
			       .destination = destination };

	begin_tag(&store.tag, transfer->settings->secret, slot->chunk.number);
	if ((slot->chunk.hole ? store_hole(&store) : store_data(&store, piece)) == 0 &&
	    transfer->settings->verify)
		check_tag(&store);
	drop_tag(&store.tag);
}
