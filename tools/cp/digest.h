/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_DIGEST_H
#define PIER_TOOLS_CP_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <openssl/crypto.h>
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
	uint64_t length; /* at most the stream's chunk size for data; unlimited for a hole
			  */
	bool hole;
};

/* Of a tag or a digest. */
struct mac_state {
	EVP_MAC_CTX *mac; /* NULL: libcrypto failed, or it is finished */
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

/* Add the chunk's bytes, in order; a hole has none. */
void begin_tag(struct mac_state *state, const uint8_t *secret, uint64_t number);
int finish_tag(struct mac_state *state, const struct chunk *chunk, uint8_t *ret_tag,
	       struct failure *failure);
/*
 * The tag of a segment (list.h): its bytes alone, since both sides know its length. Its
 * keys differ from those of chunks.
 */
void begin_segment_tag(struct mac_state *state, const uint8_t *secret, uint64_t number);
/* The digest of a file covers its size, then the tags of its chunks in order. */
void begin_digest(struct mac_state *state, const uint8_t *secret, uint64_t size);
/* A failure of libcrypto is reported at the end. */
void update_mac(struct mac_state *state, const void *data, size_t length);
/* Returns 0, or -1 with a failure: there is no tag. Frees the state, as finish_tag()
 * does. */
int finish_mac(struct mac_state *state, uint8_t *ret_mac, size_t size,
	       struct failure *failure);
/* Free a state, finished or not. */
void drop_mac(struct mac_state *state);

#endif
