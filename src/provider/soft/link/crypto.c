/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sys/random.h>
#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "crypto.h"
#include "core/error.h"
#include "core/fork.h"
#include "provider/libcrypto.h"
#include "provider/soft/limits.h"

/*
 * The context is soft0's own: OpenSSL's configuration, which may leave out algorithms,
 * does not apply to it. It is global, because libcrypto takes a millisecond to make one.
 * Every algorithm is fetched once with the lock held. fork(2) waits for the lock, so a
 * child never finds libcrypto's own locks held: later fetches only read its caches.
 */
static struct {
	struct pier_fork_mutex lock;
	OSSL_LIB_CTX *context;
	EVP_CIPHER *aes, *chacha20;
} crypto = { .lock = PIER_FORK_MUTEX };

static bool fetch_algorithms(void)
{
	static const uint8_t scalar[SOFT_SHARE_SIZE] = { 1 };
	uint8_t point[SOFT_SHARE_SIZE], mac[SOFT_MAC_SIZE];

	if (!pier_crypto.OSSL_PROVIDER_load(crypto.context, "default"))
		return false;
	crypto.aes = pier_crypto.EVP_CIPHER_fetch(crypto.context, "AES-128-GCM", NULL);
	crypto.chacha20 = pier_crypto.EVP_CIPHER_fetch(crypto.context,
						       "ChaCha20-Poly1305", NULL);
	return (crypto.aes || crypto.chacha20) &&
	       pier_soft_multiply(scalar, NULL, point) &&
	       pier_soft_multiply(scalar, point, point) &&
	       pier_crypto.EVP_Q_mac(crypto.context, "HMAC", NULL, "SHA256", NULL, scalar,
				     sizeof(scalar), point, sizeof(point), mac,
				     sizeof(mac), NULL);
}

static int open_locked(void)
{
	int error;

	if (crypto.context)
		return 0;
	error = pier_open_libcrypto();
	if (error)
		return error;
	crypto.context = pier_crypto.OSSL_LIB_CTX_new();
	if (!crypto.context)
		return pier_fail(ENOMEM, "soft0: no memory for libcrypto's context");
	if (fetch_algorithms())
		return 0;
	pier_crypto.EVP_CIPHER_free(crypto.aes);
	pier_crypto.EVP_CIPHER_free(crypto.chacha20);
	pier_crypto.OSSL_LIB_CTX_free(crypto.context);
	crypto.context = NULL;
	return pier_fail(ELIBACC, "soft0: libcrypto lacks X25519, HMAC-SHA-256, or both "
				  "AES-128-GCM and ChaCha20-Poly1305: is this system in "
				  "FIPS mode?");
}

int pier_soft_open_crypto(void)
{
	int error;

	pier_fork_lock(&crypto.lock);
	error = open_locked();
	pier_fork_unlock(&crypto.lock);
	return error;
}

static bool has_fast_aes(void)
{
#if defined(__x86_64__) || defined(__i386__)
	return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
	return (~getauxval(AT_HWCAP) & (HWCAP_AES | HWCAP_PMULL)) == 0;
#else
	return false;
#endif
}

uint8_t pier_soft_offered_ciphers(void)
{
	uint8_t aes = has_fast_aes() ? SOFT_AES_FAST | SOFT_AES : SOFT_AES;

	return (crypto.aes ? aes : 0) | (crypto.chacha20 ? SOFT_CHACHA20 : 0);
}

const EVP_CIPHER *pier_soft_find_cipher(enum soft_cipher cipher)
{
	return cipher == SOFT_CHACHA20 ? crypto.chacha20 : crypto.aes;
}

/* Fails for points of low order, with which both ends would agree on 0. */
static bool derive_point(EVP_PKEY *own, const uint8_t *point, uint8_t *ret_point)
{
	EVP_PKEY *peer = pier_crypto.EVP_PKEY_new_raw_public_key_ex(
		crypto.context, "X25519", NULL, point, SOFT_SHARE_SIZE);
	EVP_PKEY_CTX *step = pier_crypto.EVP_PKEY_CTX_new_from_pkey(crypto.context, own,
								    NULL);
	size_t size = SOFT_SHARE_SIZE;
	bool derived = peer && step && pier_crypto.EVP_PKEY_derive_init(step) > 0 &&
		       pier_crypto.EVP_PKEY_derive_set_peer(step, peer) > 0 &&
		       pier_crypto.EVP_PKEY_derive(step, ret_point, &size) > 0;

	pier_crypto.EVP_PKEY_CTX_free(step);
	pier_crypto.EVP_PKEY_free(peer);
	return derived;
}

bool pier_soft_multiply(const uint8_t *scalar, const uint8_t *point, uint8_t *ret_point)
{
	EVP_PKEY *own = pier_crypto.EVP_PKEY_new_raw_private_key_ex(
		crypto.context, "X25519", NULL, scalar, SOFT_SHARE_SIZE);
	size_t size = SOFT_SHARE_SIZE;
	bool done = own && (point ? derive_point(own, point, ret_point)
				  : pier_crypto.EVP_PKEY_get_raw_public_key(
					    own, ret_point, &size) > 0);

	pier_crypto.EVP_PKEY_free(own);
	return done;
}

void pier_soft_hash(const void *message, size_t length, uint8_t *ret_hash)
{
	if (!pier_crypto.EVP_Q_digest(crypto.context, "SHA256", NULL, message, length,
				      ret_hash, NULL))
		pier_soft_random(ret_hash, SOFT_MAC_SIZE);
}

void pier_soft_mac(const uint8_t *key, size_t key_size, const void *message,
		   size_t length, uint8_t *ret_mac)
{
	if (!pier_crypto.EVP_Q_mac(crypto.context, "HMAC", NULL, "SHA256", NULL, key,
				   key_size, message, length, ret_mac, SOFT_MAC_SIZE,
				   NULL))
		pier_soft_random(ret_mac, SOFT_MAC_SIZE);
}

bool pier_soft_random(void *ret_bytes, size_t length)
{
	return getrandom(ret_bytes, length, 0) == (ssize_t)length;
}
