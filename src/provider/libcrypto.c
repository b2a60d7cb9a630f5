/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <stddef.h>

#include <openssl/evp.h>
#include <openssl/provider.h>

#include "libcrypto.h"
#include "core/error.h"

/*
 * libcrypto, opened by pier_open_libcrypto() instead of linked (-Dlibcrypto=opened). The
 * functions here have libcrypto's own names, as those in ibverbs.c have libibverbs'.
 *
 * A function of the table: name, type, parameters and arguments.
 */
/* clang-format off */
#define FUNCTIONS(F) \
	F(OSSL_LIB_CTX_new, OSSL_LIB_CTX *, (void), ()) \
	F(OSSL_LIB_CTX_free, void, (OSSL_LIB_CTX *context), (context)) \
	F(OSSL_PROVIDER_load, OSSL_PROVIDER *, \
	  (OSSL_LIB_CTX *context, const char *name), (context, name)) \
	F(CRYPTO_memcmp, int, (const void *a, const void *b, size_t length), (a, b, length)) \
	F(EVP_Q_digest, int, \
	  (OSSL_LIB_CTX *context, const char *name, const char *properties, \
	   const void *data, size_t length, unsigned char *ret_hash, size_t *ret_length), \
	  (context, name, properties, data, length, ret_hash, ret_length)) \
	F(EVP_Q_mac, unsigned char *, \
	  (OSSL_LIB_CTX *context, const char *name, const char *properties, \
	   const char *digest, const OSSL_PARAM *parameters, const void *key, \
	   size_t key_size, const unsigned char *data, size_t length, \
	   unsigned char *ret_mac, size_t size, size_t *ret_length), \
	  (context, name, properties, digest, parameters, key, key_size, data, length, \
	   ret_mac, size, ret_length)) \
	F(EVP_CIPHER_fetch, EVP_CIPHER *, \
	  (OSSL_LIB_CTX *context, const char *name, const char *properties), \
	  (context, name, properties)) \
	F(EVP_CIPHER_free, void, (EVP_CIPHER *cipher), (cipher)) \
	F(EVP_CIPHER_CTX_new, EVP_CIPHER_CTX *, (void), ()) \
	F(EVP_CIPHER_CTX_free, void, (EVP_CIPHER_CTX *state), (state)) \
	F(EVP_CIPHER_CTX_ctrl, int, \
	  (EVP_CIPHER_CTX *state, int type, int size, void *bytes), \
	  (state, type, size, bytes)) \
	F(EVP_CipherInit_ex2, int, \
	  (EVP_CIPHER_CTX *state, const EVP_CIPHER *cipher, const unsigned char *key, \
	   const unsigned char *nonce, int seals, const OSSL_PARAM *parameters), \
	  (state, cipher, key, nonce, seals, parameters)) \
	F(EVP_CipherUpdate, int, \
	  (EVP_CIPHER_CTX *state, unsigned char *ret_bytes, int *ret_length, \
	   const unsigned char *bytes, int length), \
	  (state, ret_bytes, ret_length, bytes, length)) \
	F(EVP_CipherFinal_ex, int, \
	  (EVP_CIPHER_CTX *state, unsigned char *ret_bytes, int *ret_length), \
	  (state, ret_bytes, ret_length)) \
	F(EVP_PKEY_new_raw_private_key_ex, EVP_PKEY *, \
	  (OSSL_LIB_CTX *context, const char *name, const char *properties, \
	   const unsigned char *bytes, size_t length), \
	  (context, name, properties, bytes, length)) \
	F(EVP_PKEY_new_raw_public_key_ex, EVP_PKEY *, \
	  (OSSL_LIB_CTX *context, const char *name, const char *properties, \
	   const unsigned char *bytes, size_t length), \
	  (context, name, properties, bytes, length)) \
	F(EVP_PKEY_get_raw_public_key, int, \
	  (const EVP_PKEY *key, unsigned char *ret_bytes, size_t *length), \
	  (key, ret_bytes, length)) \
	F(EVP_PKEY_free, void, (EVP_PKEY *key), (key)) \
	F(EVP_PKEY_CTX_new_from_pkey, EVP_PKEY_CTX *, \
	  (OSSL_LIB_CTX *context, EVP_PKEY *key, const char *properties), \
	  (context, key, properties)) \
	F(EVP_PKEY_CTX_free, void, (EVP_PKEY_CTX *step), (step)) \
	F(EVP_PKEY_derive_init, int, (EVP_PKEY_CTX *step), (step)) \
	F(EVP_PKEY_derive_set_peer, int, (EVP_PKEY_CTX *step, EVP_PKEY *peer), (step, peer)) \
	F(EVP_PKEY_derive, int, \
	  (EVP_PKEY_CTX *step, unsigned char *ret_bytes, size_t *length), \
	  (step, ret_bytes, length))
/* clang-format on */

#define DECLARE_POINTER(name, ...) __typeof__(&(name)) pointer_##name;
static struct {
	FUNCTIONS(DECLARE_POINTER)
} opened;

#define DESCRIBE_SYMBOL(name, ...) { #name, (void **)&opened.pointer_##name },
static const struct {
	const char *name;
	void **pointer;
} symbols[] = { FUNCTIONS(DESCRIBE_SYMBOL) };

int pier_open_libcrypto(void)
{
	void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return pier_fail(
			ELIBACC,
			"soft0 needs OpenSSL 3: %s: install it (Debian: libssl3)",
			dlerror());
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		*symbols[i].pointer = dlsym(library, symbols[i].name);
		if (!*symbols[i].pointer) {
			dlclose(library);
			return pier_fail(
				ELIBACC,
				"soft0 needs OpenSSL 3: libcrypto.so.3 has no %s",
				symbols[i].name);
		}
	}
	return 0;
}

/* Hidden also in programs: libraries beside pier have their own libcrypto. */
#define DEFINE_FUNCTION(name, type, parameters, arguments)          \
	__attribute__((visibility("hidden"))) type(name) parameters \
	{                                                           \
		return opened.pointer_##name arguments;             \
	}
FUNCTIONS(DEFINE_FUNCTION)
