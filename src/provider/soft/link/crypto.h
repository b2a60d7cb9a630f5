/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CRYPTO_H
#define PIER_SOFT_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The calls of libcrypto (OpenSSL 3) that soft0 makes, and random numbers of the kernel.
 */

/*
 * How a link is encrypted. An end offers a set of these bits; the lowest that both ends
 * offer is used.
 */
enum soft_cipher {
	SOFT_PLAIN = 0,
	SOFT_AES_FAST = 1, /* AES-128-GCM, with the processor's instructions for it */
	SOFT_CHACHA20 = 2, /* ChaCha20-Poly1305 */
	SOFT_AES = 4	   /* AES-128-GCM, without */
};

/*
 * Comes before everything below; any number of times, from any thread.
 *
 * Errors: -ELIBACC: there is no libcrypto, or it lacks what soft0 needs; -ENOMEM.
 */
int pier_soft_open_crypto(void);
/* The set that this end offers. */
uint8_t pier_soft_offered_ciphers(void);
/* An EVP_CIPHER. */
const struct evp_cipher_st *pier_soft_find_cipher(enum soft_cipher cipher);
/* X25519 (RFC 7748). `point` is a public key, or NULL for the base point. */
bool pier_soft_multiply(const uint8_t *scalar, const uint8_t *point, uint8_t *ret_point);
/*
 * SHA-256 and HMAC-SHA-256. If libcrypto fails, for lack of memory, the result is random,
 * so that the peer refuses what depends on it.
 */
void pier_soft_hash(const void *message, size_t length, uint8_t *ret_hash);
void pier_soft_mac(const uint8_t *key, size_t key_size, const void *message,
		   size_t length, uint8_t *ret_mac);
/* False: there are none. */
bool pier_soft_random(void *ret_bytes, size_t length);

#endif
