/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_DIGEST_H
#define PIER_TOOLS_CP_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <openssl/evp.h>

#include "failure.h"

/*
 * Verification of a copy, also against an attacker who can change the data between
 * the NICs. The client draws a secret for each copy and sends it over the control
 * connection, which ssh(1) protects. Each announcement carries a tag: Poly1305 over the
 * chunk's bytes and its position in the file, under a key that is derived from the
 * secret and used once. At the end the sender sends a digest of all tags over the
 * control connection.
 *
 * Call init_digests() first. A state must be used by one thread at a time.
 */

enum {
	CP_SECRET_SIZE = 32,
	CP_TAG_SIZE = 16,    /* of Poly1305, RFC 8439 */
	CP_DIGEST_SIZE = 32, /* of BLAKE2b, RFC 7693 */
};

/*
 * Consecutive bytes of the file. A hole reads as zeroes; it is announced but not
 * transferred.
 */
struct chunk {
	uint64_t number; /* from 0, in file order */
	uint64_t offset;
	uint64_t
		length; /* at most the link's chunk size for data; unlimited for a hole */
	bool hole;
};

struct tag_state {
	EVP_MAC_CTX *poly1305; /* NULL: libcrypto failed, or the tag is finished */
};

struct digest_state {
	EVP_MAC_CTX *blake2b; /* the same */
};

/* Returns 0, or -1 if libcrypto fails. */
int init_digests(void);

/*
 * BLAKE2b under a key of CP_SECRET_SIZE bytes. The number and the context, of at most 16
 * bytes, are its salt and its personalisation. Returns whether libcrypto did it.
 */
bool hash_keyed(const uint8_t *key, uint64_t number, const char *context,
		const void *data, size_t length, uint8_t *ret_hash, size_t size);
/* A key of CP_SECRET_SIZE bytes, which no other number and context give. */
bool derive_key(const uint8_t *secret, uint64_t number, const char *context,
		uint8_t *ret_key);

/* A failure of libcrypto is reported by finish_tag(). */
void begin_tag(struct tag_state *state, const uint8_t *secret, uint64_t number);
/* Add the chunk's bytes, in order; a hole has none. */
void update_tag(struct tag_state *state, const void *data, size_t length);
/* Returns 0, or -1 with a failure: there is no tag. Frees the state. */
int finish_tag(struct tag_state *state, const struct chunk *chunk, uint8_t *ret_tag,
	       struct failure *failure);
/* Free a state, finished or not. */
void drop_tag(struct tag_state *state);
/*
 * The tag of a segment (list.h): its bytes alone, since both sides know its length. Its
 * keys differ from those of chunks.
 */
void begin_segment_tag(struct tag_state *state, const uint8_t *secret, uint64_t number);
int finish_segment_tag(struct tag_state *state, uint8_t *ret_tag,
		       struct failure *failure);
/* Compares in constant time. */
bool tags_equal(const uint8_t *a, const uint8_t *b);

/* The digest of a file covers its size, then the tags of its chunks in order. */
void begin_digest(struct digest_state *state, const uint8_t *secret, uint64_t size);
void update_digest(struct digest_state *state, const uint8_t *tag);
/* Returns 0, or -1 with a failure. Frees the state. */
int finish_digest(struct digest_state *state, uint8_t *ret_digest,
		  struct failure *failure);
/* Free a state, finished or not. */
void drop_digest(struct digest_state *state);
bool digests_equal(const uint8_t *a, const uint8_t *b);

#endif
