/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libcrypto opened at run time: not there, too old, without algorithms, and at last as it
 * should be. A failure is not kept, so one process sees all of it.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/provider.h>

#include <pier/pier.h>

#include "provider/soft/link/crypto.h"

int run_first_example(void);
#define main run_first_example
#include "examples/first.c"
#undef main

static const char *missing; /* a symbol, or the library */
static const char *without; /* an algorithm */
static int opened;
static __typeof__(&EVP_CIPHER_fetch) real_fetch;

void *__real_dlopen(const char *file, int flags);
void *__wrap_dlopen(const char *file, int flags);
void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);

void *__wrap_dlopen(const char *file, int flags)
{
	if (strcmp(file, "libcrypto.so.3") == 0) {
		opened++;
		if (missing && strcmp(missing, file) == 0)
			file = "libcrypto-that-is-missing.so.3";
	}
	return __real_dlopen(file, flags);
}

static OSSL_PROVIDER *load_nothing(OSSL_LIB_CTX *context, const char *name)
{
	(void)context;
	(void)name;
	return NULL;
}

static EVP_CIPHER *fetch_others(OSSL_LIB_CTX *context, const char *name,
				const char *properties)
{
	return strcmp(name, without) == 0 ? NULL : real_fetch(context, name, properties);
}

void *__wrap_dlsym(void *library, const char *name)
{
	void *symbol = __real_dlsym(library, name);

	if (missing && strcmp(missing, name) == 0)
		return NULL;
	if (without && strcmp(name, "OSSL_PROVIDER_load") == 0 && !*without)
		return (void *)load_nothing;
	if (without && strcmp(name, "EVP_CIPHER_fetch") == 0) {
		real_fetch = (__typeof__(real_fetch))symbol;
		return (void *)fetch_others;
	}
	return symbol;
}

static void expect_refusal(const char *sentence)
{
	struct pier_device *device;

	expect_result(pier_device_open("soft0", &device), -ELIBACC);
	if (!strstr(pier_error_message(), sentence))
		fail_msg("\"%s\" is not in: %s", sentence, pier_error_message());
}

static void sentence_names_what_is_missing(void **state)
{
	(void)state;
	missing = "libcrypto.so.3";
	expect_refusal("soft0 needs OpenSSL 3: libcrypto-that-is-missing.so.3: cannot "
		       "open");
	expect_refusal("install it (Debian: libssl3)");
	missing = "EVP_Q_mac";
	expect_refusal("soft0 needs OpenSSL 3: libcrypto.so.3 has no EVP_Q_mac");
	missing = NULL;
}

static void sentence_names_missing_algorithms(void **state)
{
	(void)state;
	without = "";
	expect_refusal("libcrypto lacks X25519, HMAC-SHA-256, or both AES-128-GCM and "
		       "ChaCha20-Poly1305: is this system in FIPS mode?");
	without = NULL;
}

static void one_cipher_is_enough(void **state)
{
	(void)state;
	without = "ChaCha20-Poly1305";
	assert_int_equal(pier_soft_open_crypto(), 0);
	assert_int_equal(pier_soft_offered_ciphers() & SOFT_CHACHA20, 0);
	assert_int_equal(pier_soft_offered_ciphers() & SOFT_AES, SOFT_AES);
	without = NULL;
}

static void example_writes(void **state)
{
	int before = opened;

	(void)state;
	expect_result(run_first_example(), 0);
	assert_int_equal(opened, before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sentence_names_what_is_missing),
		cmocka_unit_test(sentence_names_missing_algorithms),
		cmocka_unit_test(one_cipher_is_enough),
		cmocka_unit_test(example_writes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
