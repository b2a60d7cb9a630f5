/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "soft.h"

/*
 * The leaves that peers have given us, and what we know about keys for which there is
 * none. A peer may be hostile: it gives us any file that it likes, and changes it later.
 */

enum {
	/* From here on a leave is worth asking for at the first use of a key. */
	ASK_BYTES = 64 * 1024,
	/* Of one peer's memory; limits.c has the bounds for all peers together. */
	MAX_PEER_PIECES = 1024
};

#define DENIED_NANOSECONDS UINT64_C(1000000000)
#define MAX_PEER_BYTES	   (UINT64_C(1) << 40)

void pier_soft_release_held(struct soft_held *held)
{
	struct soft_mr *mr = held->mapped;

	if (mr) {
		pier_soft_release_mapping(held->bytes, held->pieces);
		pier_soft_free_mr(mr);
	}
	memset(held, 0, sizeof(*held));
}

void pier_soft_drop_held(struct soft_lane *lane)
{
	for (int i = 0; i < SOFT_MAX_GRANTS; i++)
		pier_soft_release_held(&lane->held[i]);
}

void pier_soft_forget_held(struct soft_qp *qp, uint32_t slot, uint32_t serial)
{
	struct soft_held *held = qp->link.lane->held;

	for (int i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (held[i].leave == SOFT_LEAVE_GIVEN && held[i].slot == slot &&
		    held[i].serial == serial)
			pier_soft_release_held(&held[i]);
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
	pier_soft_release_held(oldest);
	return oldest;
}

static void ask(struct soft_qp *qp, struct soft_held *held)
{
	if (pier_soft_say_ask(qp, held->key))
		held->leave = SOFT_LEAVE_ASKED;
}

struct soft_held *pier_soft_find_leave(struct soft_qp *qp, const struct soft_send *send)
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

void pier_soft_reject_leave(struct soft_qp *qp, struct soft_held *held)
{
	uint32_t key = held->key;

	pier_soft_say_dropped(qp, held->slot, held->serial);
	pier_soft_release_held(held);
	held->key = key;
	held->leave = SOFT_LEAVE_DENIED;
	held->denied_until = SOFT_NEVER;
}

/* 0: no region can be that large. */
static uint64_t sum_lengths(const struct soft_leave_word *word)
{
	uint64_t sum = 0, end;

	for (uint32_t i = 0; i < word->count; i++) {
		if (!pier_add_u64(sum, word->pieces[i].length, &sum))
			return 0;
	}
	return pier_add_u64(word->iova, sum, &end) ? sum : 0;
}

/* No access to the peer's memory may end in a signal, whatever the peer does later. */
static bool is_safe(const struct soft_leave_word *word, const int *fds)
{
	for (uint32_t i = 0; i < word->fd_count; i++) {
		if (!pier_soft_is_fixed(fds[i]))
			return false;
	}
	for (uint32_t i = 0; i < word->count; i++) {
		if (!pier_soft_may_write(word->pieces[i].offset, word->pieces[i].length))
			return false;
	}
	return pier_soft_may_touch_holes();
}

static bool has_room(const struct soft_lane *lane, uint64_t bytes, uint32_t pieces)
{
	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		bytes += lane->held[i].bytes;
		pieces += lane->held[i].pieces;
	}
	return bytes <= MAX_PEER_BYTES && pieces <= MAX_PEER_PIECES;
}

/* NULL: it cannot be mapped. */
static struct soft_mr *map_pieces(const struct soft_leave_word *word, const int *fds)
{
	const int access = IBV_ACCESS_LOCAL_WRITE; /* how it is mapped */
	struct pier_provider_part parts[SOFT_WORD_PIECES];
	struct soft_mr *mr;
	bool usable;

	for (uint32_t i = 0; i < word->count; i++)
		parts[i] = (struct pier_provider_part){
			.fd = fds[word->pieces[i].fd],
			.offset = word->pieces[i].offset,
			.length = word->pieces[i].length,
		};
	mr = pier_soft_allocate_mr(parts, word->count, word->iova, access);
	usable = mr && pier_soft_attach_parts(mr, parts, word->count) == 0;
	for (uint32_t i = 0; usable && i < word->count; i++) {
		const struct soft_piece *piece = &mr->pieces[i];

		madvise(piece->window, piece->window_size, MADV_DONTFORK);
		usable = piece->fd >= 0; /* else we have too many already */
	}
	if (mr && !usable)
		pier_soft_free_mr(mr);
	return usable ? mr : NULL;
}

static bool map_leave(const struct soft_lane *lane, const struct soft_leave_word *word,
		      const int *fds, struct soft_held *held)
{
	uint64_t bytes = sum_lengths(word);

	if (bytes == 0 || bytes > MAX_PEER_BYTES || !has_room(lane, bytes, word->count) ||
	    !lane->shares_fds || !is_safe(word, fds))
		return false;
	if (!pier_soft_reserve_mapping(bytes, word->count))
		return false;
	held->mapped = map_pieces(word, fds);
	if (!held->mapped) {
		pier_soft_release_mapping(bytes, word->count);
		return false;
	}
	held->bytes = bytes;
	held->pieces = word->count;
	return true;
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
	if (!map_leave(qp->link.lane, word, fds, held)) {
		pier_soft_say_dropped(qp, word->slot, word->serial);
		return true;
	}
	held->leave = SOFT_LEAVE_GIVEN;
	held->counted = word->counted;
	held->slot = word->slot;
	held->serial = word->serial;
	return true;
}
