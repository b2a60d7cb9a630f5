/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "core/wire.h"
#include "digest.h"

/* Contexts of crypto_kdf_derive_from_key(), which keep the derived keys independent. */
static const char tag_context[crypto_kdf_CONTEXTBYTES] = "cp-chunk";
static const char segment_context[crypto_kdf_CONTEXTBYTES] = "cp-kept-";
static const char digest_context[crypto_kdf_CONTEXTBYTES] = "cp-file-";

_Static_assert((int)CP_SECRET_SIZE == (int)crypto_kdf_KEYBYTES,
	       "a secret is a key of crypto_kdf");

int init_digests(void)
{
	/* OpenSSL's configuration may leave Poly1305 out, as that of FIPS mode does. */
	if (!OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL))
		return -1;
	return sodium_init() < 0 ? -1 : 0;
}

static void begin_poly1305(struct tag_state *state, const uint8_t *secret,
			   uint64_t number, const char *context)
{
	EVP_MAC *mac = EVP_MAC_fetch(NULL, "POLY1305", NULL);
	uint8_t key[32];

	state->poly1305 = mac ? EVP_MAC_CTX_new(mac) : NULL;
	EVP_MAC_free(mac);
	crypto_kdf_derive_from_key(key, sizeof(key), number, context, secret);
	if (state->poly1305 && !EVP_MAC_init(state->poly1305, key, sizeof(key), NULL))
		drop_tag(state);
	sodium_memzero(key, sizeof(key));
}

void begin_tag(struct tag_state *state, const uint8_t *secret, uint64_t number)
{
	begin_poly1305(state, secret, number, tag_context);
}

void begin_segment_tag(struct tag_state *state, const uint8_t *secret, uint64_t number)
{
	begin_poly1305(state, secret, number, segment_context);
}

void update_tag(struct tag_state *state, const void *data, size_t length)
{
	if (state->poly1305 && !EVP_MAC_update(state->poly1305, data, length))
		drop_tag(state);
}

int finish_tag(struct tag_state *state, const struct chunk *chunk, uint8_t *ret_tag,
	       struct failure *failure)
{
	/* A suffix of fixed size, so different chunks never give the same input. */
	uint8_t place[24];

	pier_put_le64(place, chunk->offset);
	pier_put_le64(place + 8, chunk->length);
	pier_put_le64(place + 16, chunk->hole);
	update_tag(state, place, sizeof(place));
	return finish_segment_tag(state, ret_tag, failure);
}

int finish_segment_tag(struct tag_state *state, uint8_t *ret_tag, struct failure *failure)
{
	size_t length = 0;
	bool good = state->poly1305 &&
		    EVP_MAC_final(state->poly1305, ret_tag, &length, CP_TAG_SIZE) &&
		    length == CP_TAG_SIZE;

	drop_tag(state);
	return good ? 0 : fail(failure, EXIT_FILE, "libcrypto cannot compute a tag");
}

void drop_tag(struct tag_state *state)
{
	EVP_MAC_CTX_free(state->poly1305);
	state->poly1305 = NULL;
}

bool tags_equal(const uint8_t *a, const uint8_t *b)
{
	return sodium_memcmp(a, b, CP_TAG_SIZE) == 0;
}

void begin_digest(struct digest_state *state, const uint8_t *secret, uint64_t size)
{
	uint8_t key[crypto_generichash_KEYBYTES], bytes[8];

	crypto_kdf_derive_from_key(key, sizeof(key), 0, digest_context, secret);
	crypto_generichash_init(&state->blake2b, key, sizeof(key), CP_DIGEST_SIZE);
	sodium_memzero(key, sizeof(key));
	pier_put_le64(bytes, size);
	crypto_generichash_update(&state->blake2b, bytes, sizeof(bytes));
}

void update_digest(struct digest_state *state, const uint8_t *tag)
{
	crypto_generichash_update(&state->blake2b, tag, CP_TAG_SIZE);
}

void finish_digest(struct digest_state *state, uint8_t *ret_digest)
{
	crypto_generichash_final(&state->blake2b, ret_digest, CP_DIGEST_SIZE);
}

bool digests_equal(const uint8_t *a, const uint8_t *b)
{
	return sodium_memcmp(a, b, CP_DIGEST_SIZE) == 0;
}
