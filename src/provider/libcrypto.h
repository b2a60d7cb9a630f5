/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PROVIDER_LIBCRYPTO_H
#define PIER_PROVIDER_LIBCRYPTO_H

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/provider.h>

/* The functions of libcrypto that soft0 calls. */
/* clang-format off */
#define PIER_LIBCRYPTO_FUNCTIONS(F) \
	F(OSSL_LIB_CTX_new) F(OSSL_LIB_CTX_free) F(OSSL_PROVIDER_load) \
	F(CRYPTO_memcmp) F(EVP_Q_digest) F(EVP_Q_mac) F(EVP_CIPHER_fetch) \
	F(EVP_CIPHER_free) F(EVP_CIPHER_CTX_new) F(EVP_CIPHER_CTX_free) \
	F(EVP_CIPHER_CTX_ctrl) F(EVP_CipherInit_ex2) F(EVP_CipherUpdate) \
	F(EVP_CipherFinal_ex) F(EVP_PKEY_new_raw_private_key_ex) \
	F(EVP_PKEY_new_raw_public_key_ex) F(EVP_PKEY_get_raw_public_key) \
	F(EVP_PKEY_free) F(EVP_PKEY_CTX_new_from_pkey) F(EVP_PKEY_CTX_free) \
	F(EVP_PKEY_derive_init) F(EVP_PKEY_derive_set_peer) F(EVP_PKEY_derive)
/* clang-format on */

/*
 * soft0 calls them by this table, whose members have their names, and never directly. So
 * its files are the same in builds that link libcrypto (linked_libcrypto.c) and in those
 * that open it at run time (libcrypto.c).
 */
#define PIER_DECLARE_MEMBER(name) __typeof__(&(name)) name;
extern struct pier_libcrypto {
	PIER_LIBCRYPTO_FUNCTIONS(PIER_DECLARE_MEMBER)
} pier_crypto;

/*
 * Comes before any call by the table, and again until it returns 0.
 *
 * Errors: -ELIBACC: libcrypto is missing or too old.
 */
int pier_open_libcrypto(void);

#endif
