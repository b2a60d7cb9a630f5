/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RAIL_H
#define PIER_TRANSFER_RAIL_H

#include <stdbool.h>

#include <pier/receiver.h>

#include "channel/flow.h"
#include "remaining.h"

/*
 * An announced chunk (PIER_TRANSFER_ANNOUNCE) of n blocks is a plain write of all but its
 * last n bytes, and a write of those n bytes with immediate data: the chunk's offset in
 * the transfer, in blocks. The completion's length is therefore the number of blocks.
 * See docs/wire.md, and docs/design/transfer.md for the reason.
 */
enum {
	PIER_ANNOUNCE_BLOCK = 4096,
};

/* Longer transfers have offsets that do not fit. */
#define PIER_ANNOUNCE_MAX ((UINT64_C(1) << 32) * PIER_ANNOUNCE_BLOCK)

static inline bool pier_is_announcement(const struct pier_result *result)
{
	return result->opcode == PIER_OP_RECV_WRITE_IMM && result->has_immediate;
}

struct pier_digests;

/*
 * The requests in flight on a channel, and the memory at this end: all of a receiver's
 * rail, and a part of a transfer's (struct pier_send_rail).
 */
struct pier_rail_base {
	struct pier_flow flow;
	struct pier_mr *mr;
	uint64_t offset; /* in the region, of byte 0 of the transfer */

	/* A part of the region has a bounce buffer, so bytes are copied. */
	bool bounced;
	/* A part of the region is device memory that the NIC reaches directly. */
	bool direct;
	/* Bytes arrived in memory that may need a flush. */
	bool unflushed;
	/* Flush bounced parts too: earlier rails may have reached them directly. */
	bool doubtful;

	uint64_t done; /* bytes */

	struct pier_digests *digests; /* NULL: there are none */
	/* Of a receiver: the peer told the digest of the chunk that it announces next. */
	bool has_digest;
	uint32_t digest;
};

/*
 * Check that a channel can move bytes now. Errors: -ECHILD, -ENOTCONN, -EPIPE, -EMSGSIZE,
 * -EOPNOTSUPP, -EINVAL.
 */
int pier_rail_check_channel(const struct pier_channel *channel, bool reads);

/* An element of at most `length` bytes, which ends at the end of a part of the region. */
struct ibv_sge pier_rail_element(const struct pier_mr *mr, uint64_t addr,
				 uint32_t length);

/* Bytes arrived: copy them out of bounce buffers. 0 or -errno. */
int pier_rail_deliver(struct pier_rail_base *rail, struct pier_range range);

/*
 * Make bytes that arrived directly visible to the device's code. Tried once for the same
 * bytes. 0 or -errno.
 */
int pier_rail_flush(struct pier_rail_base *rail, uint64_t length);

/* A rail of a receiver, or of a stream's sender: receives without elements. */

/*
 * Check what the caller gave.
 *
 * what, index  for error sentences: the rail of a "receiver" or "transfer"
 * predecessor  an earlier rail on the same connection, whose receives
 *              pier_recv_rail_inherit() takes over later; NULL: the channel must have
 *              none
 *
 * Errors: those of pier_receiver_create(). Nothing is left to free.
 */
int pier_recv_rail_init(struct pier_rail_base *rail, const char *what, uint32_t index,
			const struct pier_receiver_rail *given, uint64_t length,
			const struct pier_rail_base *predecessor);

/* Whether its channel still has the receives that were posted. */
bool pier_recv_rail_is_alive(const struct pier_rail_base *rail);

/* Take over the receives of a rail that is alive. */
void pier_recv_rail_inherit(struct pier_rail_base *rail,
			    struct pier_rail_base *predecessor);

/* Give rails up, and free the array: channels that have receives of them are stopped. */
void pier_recv_rails_release(struct pier_rail_base *rails, uint32_t count);

/*
 * Post as many receives as possible. 0, or how the rail failed; it also fails if its
 * channel was reset.
 */
int pier_recv_rail_post(struct pier_rail_base *rail);

/*
 * Take the oldest receive, if it has completed. If it completed with an error, the rail
 * fails: it posts no more receives, but those that completed earlier can still be taken.
 *
 * Returns true and its result, or false.
 */
bool pier_recv_rail_take(struct pier_rail_base *rail, struct pier_result *ret_result);

/*
 * Polling for a send collects receives, too. If some are still to be taken, no event
 * announces them: the next pier_channel_arm() does.
 */
void pier_recv_rail_note_unseen(const struct pier_rail_base *rail);

/* A part of the peer's memory; `start` is an offset in the transfer. */
struct pier_rail_part {
	uint64_t start;
	struct pier_remote remote;
};

/*
 * One rail of a transfer: the peer's memory, and the chunks in flight. The offset and the
 * length of a flight are those of the chunk in the transfer; without bytes, it is the
 * notification of the peer. The owner is the struct pier_check of a chunk whose digests
 * are compared here, or NULL.
 */
struct pier_send_rail {
	struct pier_rail_base base;
	uint64_t addr;	 /* of byte 0, in the region's iovas */
	uint64_t length; /* of the transfer */
	uint64_t wrap;	 /* of a stream: the bytes of its buffer; otherwise 0 */
	struct pier_rail_part *parts;
	uint32_t part_count;
	bool reads;
	bool announces;		  /* PIER_TRANSFER_ANNOUNCE */
	bool checks;		  /* digests of chunks are compared here */
	struct pier_range copied; /* the last range copied to the bounce buffer */
	uint32_t max_sge, max_chunk;
	struct ibv_sge *elements; /* max_sge + 1, for the chunk being posted */
};

/*
 * Check what the caller gave, and copy it.
 *
 * index  for error sentences
 *
 * Errors: those of pier_transfer_create(). Nothing is left to free.
 */
int pier_send_rail_init(struct pier_send_rail *rail, uint32_t index,
			const struct pier_rail *given,
			const struct pier_transfer_attr *attr);

void pier_send_rail_free(struct pier_send_rail *rail);

/*
 * Check that announced chunks can end on blocks of the memory at both ends, and cut the
 * rail's longest chunk to blocks. Errors: -EINVAL.
 */
int pier_check_announced_rail(struct pier_send_rail *rail);

/*
 * Post a chunk of at most range.length bytes, starting at range.offset.
 *
 * Returns its length; 0 if there is no room; or the error with which the rail failed.
 */
int64_t pier_send_rail_post(struct pier_send_rail *rail, struct pier_range range,
			    int64_t now);

/*
 * Read bytes once more that have arrived, for their digest: one chunk that waits for it.
 * 1 posted, 0 no room or none waits, or an error as above.
 */
int pier_send_rail_post_check(struct pier_send_rail *rail, int64_t now);

/*
 * Judge a chunk by its second read. Errors: -EBADMSG the digests differ; those of a
 * backend, with which the rail failed.
 */
int pier_send_rail_judge(struct pier_send_rail *rail, const struct pier_flight *chunk);

/* Post the notification of the peer. 1 posted, 0 no room, or an error as above. */
int pier_send_rail_notify(struct pier_send_rail *rail, uint32_t immediate, int64_t now);

/* Whether pier_send_rail_deliver() of a chunk has bytes to copy, which takes long. */
bool pier_send_rail_copies(const struct pier_send_rail *rail,
			   const struct pier_flight *chunk);

/*
 * Deliver a chunk that was taken without an error: bytes that were read have not arrived
 * before. 0, or how the rail failed.
 */
int pier_send_rail_deliver(struct pier_send_rail *rail, const struct pier_flight *chunk);

#endif
