/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_DIGEST_H
#define PIER_TRANSFER_DIGEST_H

#include "region/mr.h"
#include "remaining.h"

/*
 * The digests of chunks (PIER_TRANSFER_DIGEST): CRC-32C of libisal. It is opened when the
 * first rail needs it, so the library does not depend on it.
 */

enum {
	/* A chunk that is read back has at most so many bytes, */
	PIER_DIGEST_CHUNK = 1 << 20,
	/* and so many of them can be in flight: the memory for them is bounded. */
	PIER_DIGEST_WINDOW = 16,
};

/* How far a chunk is whose bytes are read once more. */
enum pier_check_state {
	PIER_CHECK_FREE,    /* no chunk */
	PIER_CHECK_MOVING,  /* its request is in flight */
	PIER_CHECK_WAITING, /* it has arrived, and waits for the second read */
	PIER_CHECK_READING, /* the second read is in flight */
};

struct pier_check {
	enum pier_check_state state;
	struct pier_range range;
	uint32_t source; /* of a write: the digest of its source */
};

/* The digests of one rail. */
struct pier_digests {
	struct pier_mr *mr; /* the rail's memory */
	uint64_t offset;    /* in it, of byte 0 of the transfer */
	bool direct;	    /* NICs write directly to some of it, so it needs flushes */
	char *copy; /* PIER_DIGEST_CHUNK bytes, for memory that the CPU cannot read */

	/* Without a receiver: the place of each chunk's second read. */
	struct pier_buffer *buffer;
	struct pier_mr *again;
	char *memory;
	struct pier_check *checks;
	uint64_t room; /* for the second read of each */
	uint64_t mark; /* written before the next one */
	uint32_t count, waiting;

	/* The last source and its digest: a full queue may have refused its chunk. */
	struct pier_range known;
	uint32_t source;
};

/*
 * Begin digests of a rail.
 *
 * checks  the chunks that can be in flight, if their bytes are read once more; 0: a
 *         receiver compares the digests
 * chunk   the most bytes of one of them
 *
 * Errors: -ELIBACC there is no libisal; -EOPNOTSUPP the CPU cannot read the region; those
 * of a registration; -ENOMEM.
 */
int pier_digests_open(struct pier_mr *mr, uint64_t offset, uint32_t checks,
		      uint64_t chunk, struct pier_digests **ret_digests);

/* NULL is fine. The region for second reads is deregistered. */
void pier_digests_close(struct pier_digests *digests);

/* A check in this state, or NULL. */
struct pier_check *pier_digests_find(const struct pier_digests *digests,
				     enum pier_check_state state);

/*
 * The element for the second read of a check's chunk. Its first bytes are changed, so a
 * read that brings nothing is noticed, even if the place has these bytes already.
 */
struct pier_scatter pier_digests_element(struct pier_digests *digests,
					 const struct pier_check *check);

/* Digest the source of a chunk, at `place` in the rail's memory, to digests->source. */
int pier_digest_source(struct pier_digests *digests, struct pier_range place);

/* Compare the bytes of a chunk that arrived here with a digest. Errors: -EBADMSG. */
int pier_digest_arrived(const struct pier_digests *digests, struct pier_range chunk,
			uint32_t source);

/* Compare a chunk after its second read. Errors: -EBADMSG. */
int pier_digest_judge(const struct pier_digests *digests, const struct pier_check *check,
		      bool reads);

#endif
