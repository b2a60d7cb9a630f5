/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_DIGEST_H
#define PIER_TOOLS_CP_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sodium.h>

#include "cp.h"

/*
 * How a copy is verified, also against an attacker who can change whatever the
 * NICs exchange. The client draws a secret for each copy and sends it over the
 * control connection, which ssh(1) protects. Each chunk is announced with a tag:
 * Poly1305 over its bytes and its place in the file, under a key that is derived
 * from the secret and used once. At the end the sender sends a digest of all
 * tags over the control connection.
 *
 * Call sodium_init() first. Any thread may use its own states.
 */

enum {
	CP_TAG_SIZE = crypto_onetimeauth_BYTES,
	CP_DIGEST_SIZE = crypto_generichash_BYTES,
};

/*
 * Consecutive bytes of the file. A hole reads as zeroes and is announced without
 * being transferred.
 */
struct chunk {
	uint64_t number; /* in the order of the file, from 0 */
	uint64_t offset;
	uint64_t length; /* of data: at most the link's chunk; of a hole: any */
	bool hole;
};

struct tag_state {
	crypto_onetimeauth_state poly1305;
};

struct digest_state {
	crypto_generichash_state blake2b;
};

void begin_tag(struct tag_state *state, const uint8_t *secret, uint64_t number);
/* The chunk's bytes in order; none for a hole. */
void update_tag(struct tag_state *state, const void *data, size_t length);
void finish_tag(struct tag_state *state, const struct chunk *chunk, uint8_t *ret_tag);
/* In constant time. */
bool tags_equal(const uint8_t *a, const uint8_t *b);

/* The digest of a file: its size, then the tags of its chunks in their order. */
void begin_digest(struct digest_state *state, const uint8_t *secret, uint64_t size);
void update_digest(struct digest_state *state, const uint8_t *tag);
void finish_digest(struct digest_state *state, uint8_t *ret_digest);
bool digests_equal(const uint8_t *a, const uint8_t *b);

#endif
