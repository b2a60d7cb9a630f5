/* SPDX-License-Identifier: BSD-3-Clause */
#include <linux/dma-buf.h>
#include <string.h>
#include <sys/mman.h>

#include "util/checked.h"
#include "soft.h"

/*
 * WRITEs and READs without the peer's help: into and out of a region of its that we
 * have leave for and that is mapped here. Where the peer does not care, that is all,
 * and it learns later that some requests were done; else, for immediate data and where
 * writes are counted, a header follows by the ring and says where the bytes are.
 *
 * An earlier request may have to be sent again or be refused, and a peer that sees
 * bytes of a later one in its memory takes all earlier ones for done. So a request is
 * placed only when all before it are done, or are of those that were placed and
 * cannot be put off.
 */

enum {
	/* What a peer that takes its leave back waits for at most. */
	CHUNK_BYTES = 1024 * 1024,
	/* From here on it is worth waiting for what was sent before. */
	WAIT_BYTES = 32 * 1024,
	/* From here on a leave is worth asking for at the first use of a key. */
	ASK_BYTES = 64 * 1024,
	/* Nobody answers a copy: so often it is seen whether the peer is still there. */
	CHECK_NANOSECONDS = 10000,
	/* The least that a request counts for, in bytes that could be copied instead. */
	REQUEST_COST = 4096
};

#define DENIED_NANOSECONDS UINT64_C(1000000000)

static void unmap(struct soft_held *held)
{
	if (held->mapped)
		pier_soft_free_mr(held->mapped);
	memset(held, 0, sizeof(*held));
}

void pier_soft_drop_held(struct soft_lane *lane)
{
	for (int i = 0; i < SOFT_MAX_GRANTS; i++)
		unmap(&lane->held[i]);
}

void pier_soft_forget_held(struct soft_qp *qp, uint32_t slot, uint32_t serial)
{
	struct soft_held *held = qp->link.lane->held;

	for (int i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (held[i].leave == SOFT_LEAVE_GIVEN && held[i].slot == slot &&
		    held[i].serial == serial)
			unmap(&held[i]);
	}
}

static struct soft_held *find_key(struct soft_lane *lane, uint32_t key)
{
	struct soft_held *held = lane->held, *last = &held[lane->last_held];

	if (last->key == key && last->leave != SOFT_LEAVE_NONE)
		return last;
	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (held[i].key == key && held[i].leave != SOFT_LEAVE_NONE) {
			lane->last_held = i;
			return &held[i];
		}
	}
	return NULL;
}

/* A free one, or that which was not used for longest. NULL: all wait for answers. */
static struct soft_held *make_room(struct soft_qp *qp)
{
	struct soft_held *held = qp->link.lane->held, *oldest = NULL;

	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (held[i].leave == SOFT_LEAVE_NONE)
			return &held[i];
		if (held[i].leave != SOFT_LEAVE_ASKED &&
		    (!oldest || held[i].used < oldest->used))
			oldest = &held[i];
	}
	if (!oldest)
		return NULL;
	if (oldest->leave == SOFT_LEAVE_GIVEN)
		pier_soft_say_dropped(qp, oldest->slot, oldest->serial);
	unmap(oldest);
	return oldest;
}

static void ask(struct soft_qp *qp, struct soft_held *held)
{
	if (pier_soft_say_ask(qp, held->key))
		held->leave = SOFT_LEAVE_ASKED;
}

/* The leave for what `send` is about, if there is one; else asks, if that may help. */
static struct soft_held *find_leave(struct soft_qp *qp, const struct soft_send *send)
{
	struct soft_lane *lane = qp->link.lane;
	struct soft_held *held = find_key(lane, send->key);
	bool known = held;

	if (!known)
		held = make_room(qp);
	if (!held)
		return NULL;
	held->used = ++lane->uses;
	if (!known) {
		held->key = send->key;
		held->leave = SOFT_LEAVE_SEEN;
	}
	if (held->leave == SOFT_LEAVE_GIVEN)
		return held;
	if (held->leave == SOFT_LEAVE_SEEN && (known || send->length >= ASK_BYTES))
		ask(qp, held);
	else if (held->leave == SOFT_LEAVE_DENIED &&
		 soft_context_of(qp)->engine.now >= held->denied_until)
		ask(qp, held);
	return NULL;
}

/* Outside its bounds or rights: the peer says what is to be said to that. */
static bool covers(const struct soft_mr *mr, const struct soft_send *send)
{
	int access = send->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
						      : IBV_ACCESS_REMOTE_WRITE;

	return (mr->access & access) && send->address >= mr->iova &&
	       pier_range_fits(send->address - mr->iova, send->length, mr->ibv.length);
}

/* From `placed` on, what of it is to be copied at once. False: our memory is gone. */
static bool list_elements(struct soft_qp *qp, const struct soft_send *send,
			  struct soft_vector *ret_vector, uint64_t limit)
{
	bool reads = send->opcode == IBV_WR_RDMA_READ;
	uint64_t left = send->length - send->placed;

	if (limit > left)
		limit = left;
	pier_soft_vector_init(ret_vector, reads);
	if (send->flags & IBV_SEND_INLINE) {
		pier_soft_vector_add(ret_vector, send->inline_data + send->placed, limit);
		return true;
	}
	return pier_soft_vector_add_sges(ret_vector, qp, send->sges, send->sge_count,
					 send->placed, limit,
					 reads ? IBV_ACCESS_LOCAL_WRITE : 0);
}

static struct soft_extent extent_in(const struct soft_piece *piece, uint64_t offset,
				    uint64_t length)
{
	uint64_t skip = offset - piece->start, rest = piece->end - offset;

	return (struct soft_extent){
		.memory = piece->memory + skip,
		.fd = piece->dmabuf ? -1 : piece->fd,
		.offset = piece->offset + skip,
		.length = length < rest ? length : rest,
	};
}

static ssize_t copy_bracketed(struct soft_vector *vector,
			      const struct soft_extent *extent,
			      const struct soft_piece *piece)
{
	uint64_t direction = vector->writes ? DMA_BUF_SYNC_READ : DMA_BUF_SYNC_WRITE;
	ssize_t copied;

	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	if (piece->dmabuf)
		pier_soft_sync(piece->fd, direction | DMA_BUF_SYNC_START);
	copied = pier_soft_copy(vector, extent);
	if (piece->dmabuf)
		pier_soft_sync(piece->fd, direction | DMA_BUF_SYNC_END);
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	return copied;
}

/* False: the leave was held back. See wait_until_unused() in grant.c. */
static bool begin_copy(struct soft_lane *lane, const struct soft_held *held)
{
	atomic_store(&lane->out->busy, held->slot + 1);
	if (atomic_load(&lane->out->valid[held->slot]) == held->serial)
		return true;
	atomic_store(&lane->out->busy, 0);
	return false;
}

/* A small one takes time, too. */
static void charge(struct soft_send_queue *sq, uint64_t bytes)
{
	uint64_t cost = bytes > REQUEST_COST ? bytes : REQUEST_COST;

	sq->budget -= cost < sq->budget ? cost : sq->budget;
}

static enum soft_placing copy_chunk(struct soft_qp *qp, struct soft_send *send,
				    struct soft_held *held)
{
	struct soft_lane *lane = qp->link.lane;
	uint64_t offset = send->address - held->mapped->iova + send->placed;
	const struct soft_piece *piece = pier_soft_find_piece(held->mapped, offset);
	struct soft_extent extent = extent_in(piece, offset, send->length - send->placed);
	struct soft_vector vector;
	ssize_t copied;

	if (!list_elements(qp, send, &vector, CHUNK_BYTES))
		return SOFT_PLACE_FAILED;
	if (!vector.steady && extent.fd < 0)
		return SOFT_PLACE_NOT;
	if (!begin_copy(lane, held)) {
		unmap(held);
		return SOFT_PLACE_NOT;
	}
	copied = copy_bracketed(&vector, &extent, piece);
	atomic_store(&lane->out->busy, 0);
	if (copied <= 0)
		return SOFT_PLACE_FAILED;
	send->placed += (uint64_t)copied;
	charge(&qp->sq, (uint64_t)copied);
	return SOFT_PLACE_LATER;
}

static enum soft_placing copy(struct soft_qp *qp, struct soft_send *send,
			      struct soft_held *held)
{
	enum soft_placing placing = SOFT_PLACE_LATER;

	while (placing == SOFT_PLACE_LATER && send->placed < send->length &&
	       qp->sq.budget > 0)
		placing = copy_chunk(qp, send, held);
	if (placing == SOFT_PLACE_NOT)
		send->placed = 0;
	return send->placed == send->length ? SOFT_PLACE_DONE : placing;
}

static bool is_one_sided(const struct soft_send *send)
{
	return send->opcode == IBV_WR_RDMA_READ || send->opcode == IBV_WR_RDMA_WRITE ||
	       send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* True: what it said is read to the end, and then the link is lost. */
static bool peer_has_gone(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	uint64_t now = soft_context_of(qp)->engine.now;

	if (now - link->lane->checked < CHECK_NANOSECONDS)
		return false;
	link->lane->checked = now;
	if (pier_soft_is_gone(qp))
		link->hung_up = link->readable = true;
	return link->hung_up;
}

static bool needs_header(const struct soft_send_queue *sq, const struct soft_send *send,
			 const struct soft_held *held)
{
	return send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || sq->done != sq->staged ||
	       (held->counted && send->opcode == IBV_WR_RDMA_WRITE);
}

enum soft_placing pier_soft_place(struct soft_qp *qp, struct soft_send *send)
{
	struct soft_send_queue *sq = &qp->sq;
	enum soft_placing placing;
	struct soft_held *held;
	bool header;

	if (!qp->link.lane || !is_one_sided(send) || send->length == 0)
		return SOFT_PLACE_NOT;
	if (send->placed == send->length) /* and only the header is sent again */
		return SOFT_PLACE_DONE;
	held = find_leave(qp, send);
	/* One that went by the ring before stays there. */
	if (!held || sq->staged < sq->barrier || !covers(held->mapped, send)) {
		send->placed = 0;
		return SOFT_PLACE_NOT;
	}
	if (sq->done < sq->barrier)
		return send->length < WAIT_BYTES ? SOFT_PLACE_NOT : SOFT_PLACE_LATER;
	if (peer_has_gone(qp))
		return SOFT_PLACE_LATER;
	header = needs_header(sq, send, held);
	placing = copy(qp, send, held);
	return placing == SOFT_PLACE_DONE && !header ? SOFT_PLACE_SILENT : placing;
}

static bool adds_up(const struct soft_leave_word *word)
{
	uint64_t sum = 0, end;

	for (uint32_t i = 0; i < word->count; i++) {
		if (!pier_add_u64(sum, word->pieces[i].length, &sum))
			return false;
	}
	return pier_add_u64(word->iova, sum, &end);
}

/* NULL: what is there cannot be mapped, or could fault. */
static struct soft_mr *map_leave(const struct soft_leave_word *word, const int *fds)
{
	struct pier_provider_part parts[SOFT_WORD_PIECES];
	int access = (int)word->access;
	struct soft_mr *mr;
	bool usable;

	if (!adds_up(word))
		return NULL;
	for (uint32_t i = 0; i < word->count; i++)
		parts[i] = (struct pier_provider_part){
			.fd = fds[word->pieces[i].fd],
			.offset = word->pieces[i].offset,
			.length = word->pieces[i].length,
		};
	if (access & IBV_ACCESS_REMOTE_WRITE)
		access |= IBV_ACCESS_LOCAL_WRITE; /* how it is mapped */
	mr = pier_soft_allocate_mr(parts, word->count, word->iova, access);
	usable = mr && pier_soft_attach_parts(mr, parts, word->count) == 0;
	for (uint32_t i = 0; usable && i < word->count; i++) {
		const struct soft_piece *piece = &mr->pieces[i];

		madvise(piece->window, piece->window_size, MADV_DONTFORK);
		usable = piece->steady && piece->fd >= 0;
	}
	if (mr && !usable)
		pier_soft_free_mr(mr);
	return usable ? mr : NULL;
}

bool pier_soft_take_leave(struct soft_qp *qp, const struct soft_leave_word *word,
			  const int *fds)
{
	struct soft_held *held = find_key(qp->link.lane, word->key);

	if (!held || held->leave != SOFT_LEAVE_ASKED)
		return false;
	held->leave = SOFT_LEAVE_DENIED;
	held->denied_until = word->never ? SOFT_NEVER
					 : soft_context_of(qp)->engine.now +
						   DENIED_NANOSECONDS;
	if (word->count == 0)
		return true;
	held->mapped = map_leave(word, fds);
	if (!held->mapped) {
		pier_soft_say_dropped(qp, word->slot, word->serial);
		return true;
	}
	held->leave = SOFT_LEAVE_GIVEN;
	held->counted = word->counted;
	held->slot = word->slot;
	held->serial = word->serial;
	return true;
}
