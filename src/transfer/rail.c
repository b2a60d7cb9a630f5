/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <pier/element.h>
#include <pier/remote_vec.h>
#include <pier/sync.h>

#include "channel/posting.h"
#include "core/checked.h"
#include "core/deadline.h"
#include "core/error.h"
#include "digest.h"
#include "rail.h"
#include "region/mr.h"
#include "region/sync.h"

int pier_rail_check_channel(const struct pier_channel *channel, bool reads)
{
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	if (channel->state != PIER_CHANNEL_CONNECTED)
		return pier_fail(ENOTCONN, "the channel is not connected");
	if (channel->broken)
		return pier_fail_broken(channel);
	if (channel->max_msg_size == 0)
		return pier_fail(EMSGSIZE, "the port's max_msg_size is 0");
	if (reads && channel->read_depth == 0)
		return pier_fail(EOPNOTSUPP,
				 "no reads on this channel: max_rd_atomic of one of its "
				 "ends is 0");
	if ((reads ? channel->max_read_sge : channel->attr.max_send_sge) == 0 ||
	    channel->attr.max_send_wr == 0)
		return pier_fail(EINVAL,
				 "the channel takes no elements: max_send_wr %u, "
				 "max_send_sge %u",
				 channel->attr.max_send_wr, channel->attr.max_send_sge);
	return 0;
}

/*
 * Check the region of a rail at this end. Errors: -EINVAL it is in another PD; -ERANGE
 * the bytes are outside of it.
 */
static int rail_check_memory(const struct pier_channel *channel, const struct pier_mr *mr,
			     uint64_t offset, uint64_t length)
{
	if (mr->pd != channel->pd)
		return pier_fail(EINVAL, "the region is in another protection domain "
					 "than the channel");
	if (!pier_range_fits(offset, length, pier_mr_length(mr)))
		return pier_fail(ERANGE,
				 "offset %" PRIu64 " and length %" PRIu64
				 " leave the region of %zu bytes",
				 offset, length, pier_mr_length(mr));
	return 0;
}

struct ibv_sge pier_rail_element(const struct pier_mr *mr, uint64_t addr, uint32_t length)
{
	struct pier_gather element;

	if (mr->parts) {
		uint64_t offset = addr - mr->iova;
		const struct pier_mr_part *part = pier_mr_find_part(mr, offset);
		uint64_t left = part->length - (offset - part->start);

		if (length > left)
			length = (uint32_t)left;
	}
	element = pier_mr_gather_unchecked(mr, addr, length);
	return (struct ibv_sge){ element.addr, element.length, element.lkey };
}

/* Find out which parts of the region need copies and flushes. */
static void rail_classify_memory(struct pier_rail_base *rail)
{
	rail->bounced = pier_has_bounce(rail->mr);
	rail->direct = pier_has_direct(rail->mr);
}

int pier_rail_deliver(struct pier_rail_base *rail, struct pier_range range)
{
	int error = 0;

	if (rail->bounced)
		error = pier_copy_for_device(rail->mr, rail->offset + range.offset,
					     range.length);
	rail->unflushed |= rail->direct;
	return error;
}

int pier_rail_flush(struct pier_rail_base *rail, uint64_t length)
{
	bool unflushed = rail->unflushed, doubtful = rail->doubtful;

	rail->unflushed = rail->doubtful = false;
	return unflushed ? pier_flush_for_device(rail->mr, rail->offset, length, doubtful)
			 : 0;
}

/* Rails of a receiver. */

static int check_receiving(struct pier_channel *channel, bool kept)
{
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	if (channel->state == PIER_CHANNEL_FAILED)
		return pier_fail(ENOTCONN, "the channel failed to connect");
	if (channel->broken)
		return pier_fail_broken(channel);
	if (channel->attr.srq || channel->pool || channel->attr.max_recv_wr == 0)
		return pier_fail(EINVAL, "the channel has %s",
				 channel->attr.srq ? "a shared receive queue"
				 : channel->pool   ? "a receive pool"
						   : "no receives: max_recv_wr 0");
	if (!kept && pier_queue_outstanding(&channel->receives) > 0)
		return pier_fail(EBUSY,
				 "the channel has %u receives posted, which would take "
				 "announced chunks",
				 pier_queue_outstanding(&channel->receives));
	return 0;
}

static int check_target(const struct pier_receiver_rail *given, uint64_t length)
{
	int error = pier_check_process(&given->mr->object);

	return error ? error
		     : rail_check_memory(given->channel, given->mr, given->offset,
					 length);
}

int pier_recv_rail_init(struct pier_rail_base *rail, const char *what, uint32_t index,
			const struct pier_receiver_rail *given, uint64_t length,
			const struct pier_rail_base *predecessor)
{
	int error;

	*rail = (struct pier_rail_base){ .mr = given->mr, .offset = given->offset };
	pier_clear_error();
	error = check_receiving(given->channel, predecessor != NULL);
	if (!error)
		error = check_target(given, length);
	if (!error) {
		rail_classify_memory(rail);
		error = pier_flow_open(&rail->flow, given->channel,
				       given->channel->attr.max_recv_wr, 0);
	}
	return error ? pier_fail_because(-error, "rail %u of a %s", index, what) : 0;
}

bool pier_recv_rail_is_alive(const struct pier_rail_base *rail)
{
	const struct pier_flow *flow = &rail->flow;

	return !flow->error && flow->resets == flow->channel->resets;
}

void pier_recv_rail_inherit(struct pier_rail_base *rail,
			    struct pier_rail_base *predecessor)
{
	struct pier_flow flow = rail->flow;

	rail->flow = predecessor->flow;
	predecessor->flow = flow;
	rail->has_digest = predecessor->has_digest;
	rail->digest = predecessor->digest;
}

/* All channels stop at the same time. */
void pier_recv_rails_release(struct pier_rail_base *rails, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (rails[i].flow.count > 0)
			pier_flow_stop(&rails[i].flow, -ECANCELED,
				       "its receiver was destroyed, or went on without "
				       "it, with receives posted");
	for (uint32_t i = 0; i < count; i++) {
		struct pier_flow *flow = &rails[i].flow;

		pier_flow_finish_stop(flow);
		for (; flow->count > 0; flow->count--)
			pier_work_drop(flow->channel,
				       pier_flow_at(flow, flow->count - 1)->work);
		pier_flow_free(flow);
		pier_digests_close(rails[i].digests);
	}
	free(rails);
}

/*
 * The rest of the flow is from before a reset, and still to be taken. A channel without a
 * receive is stopped, too: plain writes of the peer need none.
 */
int pier_recv_rail_post(struct pier_rail_base *rail)
{
	struct pier_flow *flow = &rail->flow;
	struct pier_flight receive = { .length = 0 };
	int error = flow->error;

	if (error)
		return error;
	if (flow->resets != flow->channel->resets)
		error = pier_fail(ECANCELED, "the channel was reset");
	while (!error && !pier_flow_is_full(flow)) {
		error = pier_channel_post_recv(flow->channel, NULL, 0, &receive.work);
		if (!error)
			pier_flow_add(flow, &receive, 0);
	}
	if (error)
		pier_flow_stop(flow, error, pier_error_message());
	return error;
}

bool pier_recv_rail_take(struct pier_rail_base *rail, struct pier_result *ret_result)
{
	struct pier_flight receive;

	do {
		if (!pier_flow_take(&rail->flow, 0, &receive, ret_result))
			return false;
	} while (receive.error);
	return true;
}

void pier_recv_rail_note_unseen(const struct pier_rail_base *rail)
{
	if (!rail->flow.error && rail->flow.channel->receives.kept > 0)
		rail->flow.channel->unseen = true;
}

/* Rails of a transfer. */

enum {
	DEFAULT_CHUNK = 1 << 20,
	DEFAULT_WINDOW = 16, /* at most */
};

/* The memory at this end: access rights and bounds. */
static int check_access(const struct pier_rail *given, uint64_t length, bool reads)
{
	uint64_t addr = pier_mr_iova(given->mr);
	struct pier_scatter target;
	struct pier_gather source;
	int error = rail_check_memory(given->channel, given->mr, given->offset, length);

	if (error)
		return error;
	return reads ? pier_mr_scatter(given->mr, addr, 0, &target)
		     : pier_mr_gather(given->mr, addr, 0, &source);
}

static int copy_parts(struct pier_send_rail *rail, const struct pier_rail *given,
		      uint64_t length)
{
	struct pier_remote *copy = calloc(given->count + 1u, sizeof(*copy));
	uint64_t start = 0;
	int error = 0;

	rail->parts = calloc(given->count + 1u, sizeof(*rail->parts));
	if (!copy || !rail->parts)
		error = pier_fail(ENOMEM, "no memory for %u remote parts", given->count);
	if (!error)
		error = pier_remote_vec_sub(given->parts, given->count,
					    given->remote_offset, length, copy,
					    given->count, &rail->part_count);
	for (uint32_t i = 0; !error && i < rail->part_count; i++) {
		rail->parts[i] = (struct pier_rail_part){ start, copy[i] };
		start += copy[i].length;
	}
	free(copy);
	return error;
}

/* capacity  how many chunks the send queue holds */
static uint32_t choose_window(uint32_t wanted, uint32_t capacity)
{
	uint32_t half = (capacity + 1) / 2;

	if (wanted)
		return wanted < capacity ? wanted : capacity;
	return half < DEFAULT_WINDOW ? half : DEFAULT_WINDOW;
}

static int allocate_chunks(struct pier_send_rail *rail, struct pier_channel *channel,
			   const struct pier_transfer_attr *attr)
{
	bool digests = attr->flags & PIER_TRANSFER_DIGEST;
	uint32_t requests = rail->announces ? 2 + digests : 1;
	uint32_t window = choose_window(attr->window,
					channel->attr.max_send_wr / requests);

	rail->max_chunk = attr->chunk ? attr->chunk : DEFAULT_CHUNK;
	if (rail->max_chunk > channel->max_msg_size)
		rail->max_chunk = channel->max_msg_size;
	if (rail->checks && rail->max_chunk > PIER_DIGEST_CHUNK)
		rail->max_chunk = PIER_DIGEST_CHUNK;
	if (rail->checks && window > PIER_DIGEST_WINDOW)
		window = PIER_DIGEST_WINDOW;
	rail->max_sge = rail->reads ? channel->max_read_sge : channel->attr.max_send_sge;
	/* The two requests of an announced chunk may share an element. */
	rail->elements = calloc(rail->max_sge + 1u, sizeof(*rail->elements));
	if (!rail->elements)
		return pier_fail(ENOMEM, "no memory for %u elements", rail->max_sge);
	return pier_flow_open(&rail->base.flow, channel, window, attr->stall_ms);
}

/* Whether the parts here that one block touches are more elements than a request has. */
static bool has_split_block(const struct pier_send_rail *rail)
{
	const struct pier_mr *mr = rail->base.mr;
	uint64_t first = 0; /* block of the part before, in the transfer */
	uint32_t count = 1; /* parts that touch it */

	for (uint32_t i = 0; mr->parts && i < mr->part_count; i++) {
		uint64_t start = mr->parts[i].start, block;

		if (start <= rail->base.offset ||
		    start >= rail->base.offset + rail->length)
			continue;
		block = (start - rail->base.offset) / PIER_ANNOUNCE_BLOCK;
		if (block != first)
			count = (start - rail->base.offset) % PIER_ANNOUNCE_BLOCK != 0;
		first = block;
		if (++count > rail->max_sge)
			return true;
	}
	return false;
}

int pier_check_announced_rail(struct pier_send_rail *rail)
{
	uint32_t requests = rail->base.digests ? 3 : 2;
	uint32_t max_send_wr = rail->base.flow.channel->attr.max_send_wr;

	if (max_send_wr < requests)
		return pier_fail(EINVAL,
				 "PIER_TRANSFER_ANNOUNCE: a chunk takes %s requests, and "
				 "the channel's max_send_wr is %u",
				 rail->base.digests ? "three" : "two", max_send_wr);
	rail->max_chunk -= rail->max_chunk % PIER_ANNOUNCE_BLOCK;
	if (rail->max_chunk == 0)
		return pier_fail(EINVAL,
				 "PIER_TRANSFER_ANNOUNCE: the port's max_msg_size %u is "
				 "less than a block of %d bytes",
				 rail->base.flow.channel->max_msg_size,
				 PIER_ANNOUNCE_BLOCK);
	for (uint32_t i = 0; i < rail->part_count; i++)
		if (rail->parts[i].start % PIER_ANNOUNCE_BLOCK)
			return pier_fail(
				EINVAL,
				"PIER_TRANSFER_ANNOUNCE: a remote part ends %" PRIu64
				" bytes from the beginning, which is no "
				"multiple of %d",
				rail->parts[i].start, PIER_ANNOUNCE_BLOCK);
	if (has_split_block(rail))
		return pier_fail(EINVAL,
				 "PIER_TRANSFER_ANNOUNCE: the region has blocks of %d "
				 "bytes in more parts than the %u elements of a request",
				 PIER_ANNOUNCE_BLOCK, rail->max_sge);
	return 0;
}

int pier_send_rail_init(struct pier_send_rail *rail, uint32_t index,
			const struct pier_rail *given,
			const struct pier_transfer_attr *attr)
{
	/* Of a stream, only the buffer is known. */
	uint64_t length = attr->stream_size ? attr->stream_size : attr->length;
	int error;

	*rail = (struct pier_send_rail){
		.base = {
			.mr = given->mr,
			.offset = given->offset,
		},
		.addr = pier_mr_iova(given->mr) + given->offset,
		.length = length,
		.wrap = attr->stream_size,
		.reads = attr->direction == PIER_TRANSFER_READ,
		.announces = attr->flags & PIER_TRANSFER_ANNOUNCE,
		.checks = (attr->flags & PIER_TRANSFER_DIGEST) &&
			  !(attr->flags & PIER_TRANSFER_ANNOUNCE),
	};
	pier_clear_error();
	error = pier_rail_check_channel(given->channel, rail->reads);
	if (!error && rail->checks)
		error = pier_rail_check_channel(given->channel, true);
	if (!error)
		error = check_access(given, length, rail->reads);
	if (!error)
		error = copy_parts(rail, given, length);
	if (!error)
		error = allocate_chunks(rail, given->channel, attr);
	if (!error && (attr->flags & PIER_TRANSFER_DIGEST))
		error = pier_digests_open(
			given->mr, given->offset, rail->checks ? rail->base.flow.size : 0,
			length < rail->max_chunk ? length : rail->max_chunk,
			&rail->base.digests);
	if (!error && rail->announces)
		error = pier_check_announced_rail(rail);
	if (error) {
		pier_send_rail_free(rail);
		return pier_fail_because(-error, "rail %u of a transfer", index);
	}
	rail_classify_memory(&rail->base);
	return 0;
}

void pier_send_rail_free(struct pier_send_rail *rail)
{
	free(rail->parts);
	free(rail->elements);
	pier_digests_close(rail->base.digests);
	pier_flow_free(&rail->base.flow);
	*rail = (struct pier_send_rail){ 0 };
}

/* Where a byte is, in the memory at both ends. */
static uint64_t place_of(const struct pier_send_rail *rail, uint64_t offset)
{
	return rail->wrap ? offset % rail->wrap : offset;
}

/* The peer's part that contains the byte at `offset`. */
static const struct pier_rail_part *find_part(const struct pier_send_rail *rail,
					      uint64_t offset)
{
	uint32_t first = 0, count = rail->part_count;

	while (count > 1) {
		uint32_t half = count / 2;

		if (rail->parts[first + half].start <= offset) {
			first += half;
			count -= half;
		} else {
			count = half;
		}
	}
	return &rail->parts[first];
}

/* Returns the number of elements, and sets *length to the bytes in them. */
static int make_elements(const struct pier_send_rail *rail, uint64_t offset,
			 uint32_t *length, struct ibv_sge *elements)
{
	uint64_t addr = rail->addr + place_of(rail, offset);
	uint32_t left = *length, count = 0;

	while (left > 0 && count < rail->max_sge) {
		struct ibv_sge sge = pier_rail_element(rail->base.mr,
						       addr + (*length - left), left);

		elements[count++] = sge;
		left -= sge.length;
	}
	*length -= left;
	return (int)count;
}

/* An announced chunk ends at a block, even if its elements could hold more. */
static int make_chunk(const struct pier_send_rail *rail, struct pier_flight *chunk)
{
	int count = make_elements(rail, chunk->offset, &chunk->length, rail->elements);

	if (!rail->announces || chunk->offset + chunk->length == rail->length ||
	    chunk->length % PIER_ANNOUNCE_BLOCK == 0)
		return count;
	chunk->length -= chunk->length % PIER_ANNOUNCE_BLOCK;
	return make_elements(rail, chunk->offset, &chunk->length, rail->elements);
}

/* A part of a chunk as a write, with its elements in `elements`. */
static struct pier_request make_write(const struct pier_send_rail *rail, uint64_t offset,
				      uint32_t length, struct ibv_sge *elements,
				      const struct pier_remote *remote)
{
	return (struct pier_request){
		.opcode = PIER_OP_WRITE,
		.num_sge = make_elements(rail, offset, &length, elements),
		.gather = (const struct pier_gather *)elements,
		.remote = remote,
	};
}

/*
 * The payload as a plain write, and behind it a few bytes with immediate data: switches
 * may reorder only packets that consume no receive. NCCL does the same when adaptive
 * routing is on (ncclIbMultiSend()). A digest fills the immediate data of a send.
 */
static int post_announced(struct pier_send_rail *rail, const struct pier_remote *remote,
			  struct pier_flight *chunk)
{
	uint32_t tail = chunk->length / PIER_ANNOUNCE_BLOCK +
			(chunk->length % PIER_ANNOUNCE_BLOCK != 0);
	uint32_t body = chunk->length - tail;
	struct pier_remote parts[] = {
		pier_remote_sub_unchecked(remote, 0, body),
		pier_remote_sub_unchecked(remote, body, tail),
	};
	struct pier_request requests[3], *last = requests;
	struct ibv_sge *elements = rail->elements;

	if (body > 0) {
		*last = make_write(rail, chunk->offset, body, elements, &parts[0]);
		elements += last++->num_sge;
	}
	if (rail->base.digests)
		*last++ = (struct pier_request){
			.opcode = PIER_OP_SEND,
			.flags = PIER_POST_IMMEDIATE,
			.immediate = rail->base.digests->source,
		};
	*last = make_write(rail, chunk->offset + body, tail, elements, &parts[1]);
	last->flags = PIER_POST_IMMEDIATE;
	last->immediate = (uint32_t)(chunk->offset / PIER_ANNOUNCE_BLOCK);
	if (last == requests)
		return pier_channel_post_request(rail->base.flow.channel, last,
						 &chunk->work);
	return pier_channel_post_batch(rail->base.flow.channel, requests,
				       (uint32_t)(last - requests) + 1, &chunk->work);
}

static int post_elements(struct pier_send_rail *rail, int count,
			 const struct pier_remote *remote, struct pier_flight *chunk)
{
	const struct pier_gather *source = (const struct pier_gather *)rail->elements;

	if (rail->reads)
		return pier_channel_post_read(rail->base.flow.channel,
					      (const struct pier_scatter *)rail->elements,
					      count, remote, &chunk->work);
	if (rail->announces)
		return post_announced(rail, remote, chunk);
	return pier_channel_post_write(rail->base.flow.channel, source, count, remote,
				       &chunk->work);
}

/* A chunk that a full queue refused is not copied again: its source does not change. */
static int copy_source(struct pier_send_rail *rail, const struct pier_flight *chunk)
{
	struct pier_range range = { chunk->offset, chunk->length };
	int error;

	if (range.offset == rail->copied.offset && range.length <= rail->copied.length)
		return 0;
	error = pier_mr_sync_for_nic(rail->base.mr,
				     rail->base.offset + place_of(rail, range.offset),
				     range.length);
	if (!error)
		rail->copied = range;
	return error;
}

/* The peer's bytes for the longest chunk that starts at range.offset. */
static struct pier_remote find_remote(const struct pier_send_rail *rail,
				      struct pier_range range)
{
	uint64_t place = place_of(rail, range.offset);
	const struct pier_rail_part *part = find_part(rail, place);
	uint64_t skipped = place - part->start;
	uint64_t left = part->remote.length - skipped;

	if (left > range.length)
		left = range.length;
	if (left > rail->max_chunk)
		left = rail->max_chunk;
	return pier_remote_sub_unchecked(&part->remote, skipped, left);
}

/* Before the source is copied to a bounce buffer: the copy is checked, too. */
static int digest_source(struct pier_send_rail *rail, const struct pier_flight *chunk)
{
	struct pier_range place = { place_of(rail, chunk->offset), chunk->length };

	return pier_digest_source(rail->base.digests, place);
}

int64_t pier_send_rail_post(struct pier_send_rail *rail, struct pier_range range,
			    int64_t now)
{
	const struct pier_digests *digests = rail->base.digests;
	struct pier_flight chunk = { .offset = range.offset };
	struct pier_remote remote;
	int count, error = 0;

	if (rail->base.flow.error || pier_flow_is_full(&rail->base.flow))
		return rail->base.flow.error;
	if (rail->checks)
		chunk.owner = pier_digests_find(digests, PIER_CHECK_FREE);
	if (rail->checks && !chunk.owner)
		return 0;
	remote = find_remote(rail, range);
	chunk.length = (uint32_t)remote.length;
	count = make_chunk(rail, &chunk);
	remote.length = chunk.length;
	if (digests && !rail->reads) {
		error = digest_source(rail, &chunk);
		now = pier_now();
	}
	if (!error && rail->base.bounced && !rail->reads) {
		error = copy_source(rail, &chunk);
		now = pier_now();
	}
	if (!error)
		error = post_elements(rail, count, &remote, &chunk);
	if (error)
		return pier_flow_refused(&rail->base.flow, error, now);
	if (digests && chunk.owner)
		*(struct pier_check *)chunk.owner = (struct pier_check){
			.state = PIER_CHECK_MOVING,
			.range = { chunk.offset, chunk.length },
			.source = digests->source,
		};
	pier_flow_add(&rail->base.flow, &chunk, now);
	return chunk.length;
}

int pier_send_rail_post_check(struct pier_send_rail *rail, int64_t now)
{
	struct pier_digests *digests = rail->base.digests;
	struct pier_flight chunk = { .length = 0 };
	struct pier_scatter element;
	struct pier_remote remote;
	struct pier_check *check;
	int error;

	if (!digests || rail->base.flow.error || digests->waiting == 0)
		return rail->base.flow.error;
	check = pier_digests_find(digests, PIER_CHECK_WAITING);
	chunk.owner = check;
	chunk.offset = check->range.offset;
	chunk.length = (uint32_t)check->range.length;
	remote = find_remote(rail, check->range);
	element = pier_digests_element(digests, check);
	error = pier_channel_post_read(rail->base.flow.channel, &element, 1, &remote,
				       &chunk.work);
	if (error)
		return pier_flow_refused(&rail->base.flow, error, now);
	check->state = PIER_CHECK_READING;
	digests->waiting--;
	pier_flow_add(&rail->base.flow, &chunk, now);
	return 1;
}

int pier_send_rail_judge(struct pier_send_rail *rail, const struct pier_flight *chunk)
{
	struct pier_check *check = chunk->owner;
	int error = pier_digest_judge(rail->base.digests, check, rail->reads);

	check->state = PIER_CHECK_FREE;
	rail->base.flow.active_at = pier_now();
	if (!error)
		rail->base.done += chunk->length;
	else if (error != -EBADMSG)
		pier_flow_fail(&rail->base.flow, error, pier_error_message());
	return error;
}

int pier_send_rail_notify(struct pier_send_rail *rail, uint32_t immediate, int64_t now)
{
	struct pier_flight chunk = { .length = 0 };
	int error;

	if (rail->base.flow.error || pier_flow_is_full(&rail->base.flow))
		return rail->base.flow.error;
	/* A stream's needs no right at the peer: stream/stream.h. */
	error = pier_post_immediate(rail->base.flow.channel,
				    rail->wrap ? PIER_OP_SEND : PIER_OP_WRITE, immediate,
				    &chunk.work);
	if (error)
		return pier_flow_refused(&rail->base.flow, error, now);
	pier_flow_add(&rail->base.flow, &chunk, now);
	return 1;
}

bool pier_send_rail_copies(const struct pier_send_rail *rail,
			   const struct pier_flight *chunk)
{
	return rail->reads && rail->base.bounced && !chunk->error && chunk->length > 0;
}

int pier_send_rail_deliver(struct pier_send_rail *rail, const struct pier_flight *chunk)
{
	struct pier_range range = { chunk->offset, chunk->length };
	int error = 0;

	if (rail->reads && chunk->length > 0)
		error = pier_rail_deliver(&rail->base, range);
	if (pier_send_rail_copies(rail, chunk))
		rail->base.flow.active_at = pier_now();
	if (error)
		pier_flow_fail(&rail->base.flow, error, pier_error_message());
	else if (!rail->checks)
		rail->base.done += chunk->length;
	return error;
}
