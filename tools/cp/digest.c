/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/params.h>

#include "core/wire.h"
#include "digest.h"

int init_digests(void)
{
	static const uint8_t secret[CP_SECRET_SIZE];
	uint8_t key[CP_SECRET_SIZE];

	/* OpenSSL's configuration may leave Poly1305 out, as that of FIPS mode does. */
	if (!OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL))
		return -1;
	return derive_key(secret, 0, "cp-check", key) ? 0 : -1;
}

bool hash_keyed(const uint8_t *key, uint64_t number, const char *context,
		const void *data, size_t length, uint8_t *ret_hash, size_t size)
{
	uint8_t salt[16] = { 0 };
	const OSSL_PARAM parameters[] = {
		OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_CUSTOM, (void *)context,
						  strlen(context)),
		OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_SALT, salt,
						  sizeof(salt)),
		OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
		OSSL_PARAM_construct_end(),
	};

	pier_put_le64(salt, number);
	return EVP_Q_mac(NULL, "BLAKE2BMAC", NULL, NULL, parameters, key, CP_SECRET_SIZE,
			 data, length, ret_hash, size, NULL);
}

bool derive_key(const uint8_t *secret, uint64_t number, const char *context,
		uint8_t *ret_key)
{
	return hash_keyed(secret, number, context, NULL, 0, ret_key, CP_SECRET_SIZE);
}

static void begin_mac(struct mac_state *state, const char *name, const uint8_t *secret,
		      uint64_t number, const char *context)
{
	EVP_MAC *mac = EVP_MAC_fetch(NULL, name, NULL);
	size_t size = CP_DIGEST_SIZE; /* Poly1305 ignores it */
	const OSSL_PARAM parameters[] = {
		OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
		OSSL_PARAM_construct_end(),
	};
	uint8_t key[CP_SECRET_SIZE];

	state->mac = mac ? EVP_MAC_CTX_new(mac) : NULL;
	EVP_MAC_free(mac);
	if (state->mac && (!derive_key(secret, number, context, key) ||
			   !EVP_MAC_init(state->mac, key, sizeof(key), parameters)))
		drop_mac(state);
	OPENSSL_cleanse(key, sizeof(key));
}

void begin_tag(struct mac_state *state, const uint8_t *secret, uint64_t number)
{
	begin_mac(state, "POLY1305", secret, number, "cp-chunk");
}

void begin_segment_tag(struct mac_state *state, const uint8_t *secret, uint64_t number)
{
	begin_mac(state, "POLY1305", secret, number, "cp-kept-");
}

void begin_digest(struct mac_state *state, const uint8_t *secret, uint64_t size)
{
	uint8_t bytes[8];

	begin_mac(state, "BLAKE2BMAC", secret, 0, "cp-file-");
	pier_put_le64(bytes, size);
	update_mac(state, bytes, sizeof(bytes));
}

void update_mac(struct mac_state *state, const void *data, size_t length)
{
	if (state->mac && !EVP_MAC_update(state->mac, data, length))
		drop_mac(state);
}

int finish_tag(struct mac_state *state, const struct chunk *chunk, uint8_t *ret_tag,
	       struct failure *failure)
{
	/* A suffix of fixed size, so different chunks never give the same input. */
	uint8_t place[24];

	pier_put_le64(place, chunk->offset);
	pier_put_le64(place + 8, chunk->length);
	pier_put_le64(place + 16, chunk->hole);
	update_mac(state, place, sizeof(place));
	return finish_mac(state, ret_tag, CP_TAG_SIZE, failure);
}

int finish_mac(struct mac_state *state, uint8_t *ret_mac, size_t size,
	       struct failure *failure)
{
	size_t length = 0;
	bool good = state->mac && EVP_MAC_final(state->mac, ret_mac, &length, size) &&
		    length == size;

	drop_mac(state);
	return good ? 0 : fail(failure, EXIT_FILE, "libcrypto cannot compute a tag");
}

void drop_mac(struct mac_state *state)
{
	EVP_MAC_CTX_free(state->mac);
	state->mac = NULL;
}
