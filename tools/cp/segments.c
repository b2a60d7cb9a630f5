/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "progress.h"
#include "source.h"
#include "target.h"

/*
 * With --continue, both sides agree on the segments that the receiver keeps (list.h)
 * before the transfer. The receiver reads those that an earlier copy may have written,
 * and sends their tags in a FRAME_SEGMENTS. The sender reads the same segments of its
 * file, and answers with a FRAME_KEPT that has a byte for each of them: whether the tags
 * are equal. While it does, the receiver already reads the next. An empty FRAME_SEGMENTS
 * is the last, and has no answer. Both send keepalives meanwhile.
 */

enum {
	/* In a frame: number and tag of each. */
	BATCH_MAX = 512,
	RECORD_SIZE = 8 + CP_TAG_SIZE,
	READ_SIZE = 256 * 1024,
};

_Static_assert(BATCH_MAX *RECORD_SIZE <= WIRE_MAX, "a batch fits into a frame");

/* Segments that are offered together. */
struct batch {
	uint64_t numbers[BATCH_MAX];
	uint32_t count;
	struct wire_writer writer;
};

/* A side of the agreement. */
struct agreement {
	struct party *party;
	struct target *target;	 /* of a receiver */
	struct sources *sources; /* of a sender */
	uint8_t *bytes;		 /* READ_SIZE */
	uint64_t next;		 /* the first segment that was not looked at */
	struct kept present;	 /* of a receiver: the segments that it may have */
};

static void show_kept(const struct party *party)
{
	skip_progress(party->progress, party->kept.bytes);
	show_progress(party->progress, party->kept.bytes);
}

/* Returns 1, 0 if the receiver does not have all of the bytes, or -1. */
static int tag_segment(struct agreement *agreement, uint64_t number, uint8_t *ret_tag)
{
	struct party *party = agreement->party;
	const struct kept *kept = &party->kept;
	uint64_t at = number * kept->segment, end = at + segment_length(kept, number);
	uint8_t *bytes = agreement->bytes;
	struct mac_state tag;
	int read = 1;

	begin_segment_tag(&tag, party->settings->secret, number);
	while (read > 0 && at < end) {
		size_t part = end - at < READ_SIZE ? (size_t)(end - at) : READ_SIZE;

		if (keep_peer_waiting(&party->connection) < 0)
			read = -1;
		else if (agreement->target)
			read = read_target(agreement->target, at, bytes, part);
		else if (read_sources(agreement->sources, at, bytes, part,
				      party->failure) < 0)
			read = -1;
		if (read > 0)
			update_mac(&tag, bytes, part);
		at += part;
	}
	if (read > 0 && finish_mac(&tag, ret_tag, CP_TAG_SIZE, party->failure) < 0)
		read = -1;
	drop_mac(&tag);
	return read;
}

static int open_agreement(struct agreement *agreement)
{
	uint64_t size = agreement->party->size;

	agreement->bytes = malloc(READ_SIZE);
	if (agreement->bytes && open_kept(&agreement->party->kept, size) == 0 &&
	    (!agreement->target || open_kept(&agreement->present, size) == 0))
		return 0;
	return fail(agreement->party->failure, EXIT_FILE, "out of memory");
}

/*
 * All of them before the first is read. Reading ahead fills the page cache beyond the
 * data, and then lseek(2) takes reserved space for data.
 */
static int find_segments(struct agreement *agreement)
{
	struct kept *present = &agreement->present;
	uint64_t data = 0;

	for (uint64_t i = 0; i < present->count; i++) {
		uint64_t start = i * present->segment;

		if (keep_peer_waiting(&agreement->party->connection) < 0)
			return -1;
		if (i == 0 || data < start)
			data = find_target_data(agreement->target, start);
		if (data < start + segment_length(present, i))
			keep_segment(present, i);
	}
	return 0;
}

/* The receiver reads the next segments. */
static int fill_batch(struct agreement *agreement, struct batch *ret_batch)
{
	const struct kept *present = &agreement->present;

	ret_batch->count = 0;
	ret_batch->writer.length = 0;
	for (; agreement->next < present->count && ret_batch->count < BATCH_MAX;
	     agreement->next++) {
		uint64_t number = agreement->next;
		uint8_t tag[CP_TAG_SIZE];
		int tagged;

		if (!is_kept(present, number))
			continue;
		tagged = tag_segment(agreement, number, tag);
		if (tagged < 0)
			return -1;
		if (!tagged)
			continue;
		ret_batch->numbers[ret_batch->count++] = number;
		put_u64(&ret_batch->writer, number);
		put_bytes(&ret_batch->writer, tag, CP_TAG_SIZE);
	}
	return 0;
}

static int take_answer(struct party *party, const struct batch *batch)
{
	struct frame frame;
	bool valid;

	if (control_expect(party->control, FRAME_KEPT, &frame) < 0)
		return -1;
	valid = frame.length == batch->count;
	for (uint32_t i = 0; valid && i < batch->count; i++) {
		valid = frame.payload[i] <= 1;
		if (frame.payload[i] == 1)
			keep_segment(&party->kept, batch->numbers[i]);
	}
	if (!valid)
		return control_fail_invalid(party->control, "answer about what it keeps");
	show_kept(party);
	return 0;
}

/* One batch is on its way while the next one is read. */
static int offer_batches(struct agreement *agreement, struct batch *sent,
			 struct batch *next)
{
	struct party *party = agreement->party;

	do {
		struct batch *spare = sent;

		if (fill_batch(agreement, next) < 0 ||
		    (sent->count && take_answer(party, sent) < 0) ||
		    control_send(party->control, FRAME_SEGMENTS, &next->writer) < 0)
			return -1;
		sent = next;
		next = spare;
	} while (sent->count);
	return 0;
}

/* The files of a tree have these bytes already. */
static int keep_segments(struct agreement *agreement)
{
	struct party *party = agreement->party;
	const struct kept *kept = &party->kept;

	for (uint64_t i = 0; party->tree && i < kept->count; i++)
		if (is_kept(kept, i) &&
		    (keep_peer_waiting(&party->connection) < 0 ||
		     store_in_tree(party->tree, PART_KEPT, i * kept->segment, NULL,
				   segment_length(kept, i), party->failure) < 0))
			return -1;
	skip_progress(party->progress, kept->bytes);
	return 0;
}

int offer_segments(struct party *party, struct target *target)
{
	struct agreement agreement = { .party = party, .target = target };
	struct batch batches[2] = { { .count = 0 } };
	int result = open_agreement(&agreement);

	if (result == 0)
		result = find_segments(&agreement);
	if (result == 0)
		result = offer_batches(&agreement, &batches[0], &batches[1]);
	if (result == 0)
		result = keep_segments(&agreement);
	close_kept(&agreement.present);
	free(agreement.bytes);
	return result;
}

/* In ascending order, so none comes twice. */
static int compare_segment(struct agreement *agreement, struct wire_reader *reader)
{
	struct party *party = agreement->party;
	uint64_t number = get_u64(reader);
	const uint8_t *theirs = get_bytes(reader, CP_TAG_SIZE);
	uint8_t ours[CP_TAG_SIZE];

	if (!theirs || number < agreement->next || number >= party->kept.count)
		return control_fail_invalid(party->control, "list of what it has");
	agreement->next = number + 1;
	if (tag_segment(agreement, number, ours) < 0)
		return -1;
	if (CRYPTO_memcmp(ours, theirs, CP_TAG_SIZE) != 0)
		return 0;
	keep_segment(&party->kept, number);
	return 1;
}

static int answer_batch(struct agreement *agreement, const struct frame *frame)
{
	struct wire_reader reader = read_frame(frame);
	struct wire_writer writer = { .length = 0 };

	while (reader.left > 0) {
		int kept = compare_segment(agreement, &reader);
		uint8_t byte = kept > 0;

		if (kept < 0)
			return -1;
		put_bytes(&writer, &byte, 1);
		show_kept(agreement->party);
	}
	return control_send(agreement->party->control, FRAME_KEPT, &writer);
}

int compare_segments(struct party *party, struct sources *sources)
{
	struct agreement agreement = { .party = party, .sources = sources };
	int result = open_agreement(&agreement);
	struct frame frame = { .length = 1 };

	while (result == 0 && frame.length > 0) {
		result = control_expect(party->control, FRAME_SEGMENTS, &frame);
		if (result == 0 && frame.length > 0)
			result = answer_batch(&agreement, &frame);
	}
	skip_progress(party->progress, party->kept.bytes);
	free(agreement.bytes);
	return result;
}
