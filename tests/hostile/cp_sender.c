/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The sending side of `pier cp`, started in place of ssh(1), with an attacker between
 * the NICs. It follows the protocol; the first argument selects what the attacker does:
 *
 *	honest    nothing
 *	payload   changes bytes of chunk 1
 *	tag       changes them, and computes a tag without knowing the secret
 *	replay    sends chunk 0 again, with its tag, in place of chunk 1
 *	digest    changes them, with a valid tag: only the digest can detect it
 *	hole      announces chunk 1 as a hole, with a valid tag
 *	length    announces chunk 1 as longer than a slot
 *	beyond    announces a hole that ends after the end of the file
 *	short     leaves chunk 1 out
 *	rewrite   keeps changing chunk 0 while the receiver works on it
 *	silent    sends no digest
 *	words     reports memory and device with control characters
 *
 * With --continue it claims that all segments that the receiver offers are those of the
 * file, and sends all chunks nevertheless.
 *
 * Byte n of the file is n * 7. With a second argument "sparse" the file is described
 * as sparse.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tools/cp/chunk.h"
#include "../../tools/cp/message.h"

static struct failure failure;
static struct control control = {
	.protocol = &cp_protocol, .in = 0, .out = 1, .signal_fd = -1, .failure = &failure
};
static struct request request;
static struct setup_message peer;
static struct stream nic;
static struct mac_state digest;
static const char *mode;
static uint64_t size, position; /* of the file, and in the stream */

/* Exit if a step of the sender itself fails; the receiver then fails too. */
static void require(bool good, const char *step)
{
	if (good)
		return;
	fprintf(stderr, "hostile sender: %s: %s; %s\n", step, failure.text,
		pier_error_message());
	exit(1);
}

static bool is_mode(const char *name)
{
	return strcmp(mode, name) == 0;
}

static void fill_content(uint8_t *data, uint64_t offset, uint64_t length)
{
	uint64_t i;

	for (i = 0; i < length; i++)
		data[i] = (uint8_t)((offset + i) * 7);
}

static void claim_segments(void)
{
	struct wire_writer writer;
	struct frame frame;

	for (;;) {
		require(control_expect(&control, FRAME_SEGMENTS, &frame) == 0,
			"segments");
		if (frame.length == 0)
			return;
		writer = (struct wire_writer){ .length = 0 };
		for (uint32_t i = 0; i < frame.length / (8 + CP_TAG_SIZE); i++)
			put_bytes(&writer, "\1", 1);
		require(control_send(&control, FRAME_KEPT, &writer) == 0, "kept");
	}
}

static void connect_link(bool sparse)
{
	struct source_message source = {
		.size = size, .sparse = sparse, .mode = 0644, .name = "file"
	};
	struct setup_message setup;
	struct frame frame;

	require(send_message(&control, FRAME_SOURCE, &source) == 0, "source");
	if (request.settings.partial)
		claim_segments();
	require(open_stream(&nic, CP_SENDER, &request.settings, &request.side, true, size,
			    &control) == 0,
		"link");
	require(stream_setup(&nic, CP_SENDER, &setup, &failure) == 0, "set-up");
	if (is_mode("words")) {
		strcpy(setup.report.device, "dev\033]0;x\a\xc2\x9b"
					    "2J");
		strcpy(setup.report.memory, "mem\x9b"
					    "2J\xe2\x80\xae\r\n");
		strcpy(setup.report.path, "\xf0\x9f\x9a\xa2\xed\xa0\x80\xc0\xaf\x7f");
		strcpy(setup.report.reason,
		       "why\xe2\x81\xa6\xef\xbb\xbf\xe2\x80\xa8\"\\");
	}
	require(send_message(&control, FRAME_SETUP, &setup) == 0, "send set-up");
	require(expect_message(&control, FRAME_SETUP, &peer) == 0, "receive set-up");
	require(pier_channel_connect(nic.rails[0].channel, &peer.endpoints[0]) == 0,
		"connect");
	require(stream_begin_sending(&nic, 60000, peer.remotes) == 0, "stream");
	require(control_send(&control, FRAME_READY, NULL) == 0 &&
			control_expect(&control, FRAME_READY, &frame) == 0,
		"ready");
}

static void make_tag(struct slot *slot, const uint8_t *secret, const uint8_t *data)
{
	struct mac_state state;

	begin_tag(&state, secret, slot->chunk.number);
	update_mac(&state, data, slot->chunk.hole ? 0 : slot->chunk.length);
	require(finish_tag(&state, &slot->chunk, slot->tag, &failure) == 0, "tag");
}

/* Put the record into the stream; what is not the size of a chunk has no data. */
static void post_chunk(struct slot *slot, const uint8_t *data)
{
	bool plain = !slot->chunk.hole && slot->chunk.length <= nic.chunk;

	slot->position = position;
	position += plain ? record_length(&nic, &slot->chunk) : PIER_STREAM_BLOCK;
	require(put_header(&nic, slot) == 0, "header");
	require(!plain || put_piece(&nic, slot, 0, data, slot->chunk.length) == 0, "put");
	require(pier_transfer_extend(nic.transfer, position) == 0, "extend");
}

/* Until all of it is in the receiver's memory. */
static void drive_stream(void)
{
	struct pier_transfer_status status;

	do {
		require(stream_progress(&nic) >= 0, "progress");
		pier_transfer_query(nic.transfer, &status, sizeof(status));
	} while (status.done < status.length);
}

/* The attack on chunk 1, whose valid tag has been computed. */
static void apply_attack(struct slot *slot, uint8_t *data)
{
	static const uint8_t guess[CP_SECRET_SIZE];
	const uint8_t *secret = request.settings.secret;

	if (is_mode("payload") || is_mode("tag") || is_mode("digest"))
		data[slot->chunk.length / 2] ^= 0x10;
	if (is_mode("tag"))
		make_tag(slot, guess, data);
	if (is_mode("replay")) {
		struct slot first = { .chunk = { 0, 0, nic.chunk, false } };

		fill_content(data, 0, nic.chunk);
		make_tag(&first, secret, data);
		memcpy(slot->tag, first.tag, CP_TAG_SIZE);
	}
	slot->chunk.hole = is_mode("hole") || is_mode("beyond");
	slot->chunk.length += is_mode("beyond") ? size : is_mode("length");
	if (is_mode("digest") || is_mode("hole"))
		make_tag(slot, secret, data);
}

/* Chunk 0 is announced: keep changing its bytes until it is released. */
static void rewrite_slot(void)
{
	static const uint8_t bad[64] = { 1, 2, 3, 4 };
	struct pier_gather from[2];
	struct pier_remote target;
	struct pier_result result;
	struct pier_work work;
	unsigned int turn;
	/* At the end of a piece. */
	size_t place = PIER_STREAM_BLOCK + PIECE_SIZE - 2 * sizeof(bad);
	size_t end = nic.stream_size - sizeof(bad);

	drive_stream();
	require(pier_buffer_copy_to(nic.buffer, end, bad, sizeof(bad)) == 0, "bad");
	require(pier_mr_gather(nic.rails[0].mr, pier_mr_iova(nic.rails[0].mr) + place,
			       sizeof(bad), &from[0]) == 0,
		"good");
	require(pier_mr_gather(nic.rails[0].mr, pier_mr_iova(nic.rails[0].mr) + end,
			       sizeof(bad), &from[1]) == 0,
		"bad");
	require(pier_remote_sub(&peer.remotes[0], place, sizeof(bad), &target) == 0,
		"target");
	for (turn = 1; pier_transfer_limit(nic.transfer) == nic.stream_size; turn++) {
		/* End with the true bytes, in case the receiver has not read them yet. */
		if (pier_channel_post_write(nic.rails[0].channel, &from[turn % 2], 1,
					    &target, &work) < 0)
			return;
		while (pier_work_poll(nic.rails[0].channel, work, &result) == 0)
			;
		if (stream_progress(&nic) < 0)
			return;
	}
}

static void send_chunk(struct slot *slot, uint64_t number)
{
	uint8_t *data = malloc(nic.chunk);

	require(data, "memory");
	slot->chunk = (struct chunk){ number, number * nic.chunk, nic.chunk, false };
	fill_content(data, slot->chunk.offset, slot->chunk.length);
	make_tag(slot, request.settings.secret, data);
	update_mac(&digest, slot->tag, CP_TAG_SIZE);
	if (number == 1)
		apply_attack(slot, data);
	if (number != 1 || !is_mode("short"))
		post_chunk(slot, data);
	if (number == 0 && is_mode("rewrite"))
		rewrite_slot();
	free(data);
}

static void send_end(void)
{
	struct wire_writer writer = { .length = 0 };
	uint8_t bytes[CP_DIGEST_SIZE];
	struct frame frame;

	drive_stream();
	require(finish_mac(&digest, bytes, CP_DIGEST_SIZE, &failure) == 0, "digest");
	if (!is_mode("silent"))
		put_bytes(&writer, bytes, sizeof(bytes));
	require(control_send(&control, FRAME_END, &writer) == 0, "end");
	require(control_expect(&control, FRAME_DONE, &frame) == 0, "done");
}

int main(int argc, char **argv)
{
	static struct slot slots[4];
	uint64_t i, count;

	mode = argc > 1 ? argv[1] : "honest";
	control.timeout_ms = 60000;
	require(init_digests() == 0 && control_exchange_preambles(&control) == 0 &&
			expect_message(&control, FRAME_REQUEST, &request) == 0,
		"request");
	count = is_mode("rewrite") ? 2 : 4;
	size = count * request.settings.chunk;
	connect_link(argc > 2 && strcmp(argv[2], "sparse") == 0);
	begin_digest(&digest, request.settings.secret, size);
	for (i = 0; i < count; i++)
		send_chunk(&slots[i], i);
	send_end();
	close_stream(&nic);
	return 0;
}
