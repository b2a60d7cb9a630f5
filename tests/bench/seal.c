/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The rate of libcrypto alone on one thread, an upper bound for a TCP link of soft0:
 *
 *	pier-seal CIPHER SIZE COUNT
 *
 * seals COUNT records of SIZE bytes with CIPHER (AES-128-GCM, ChaCha20-Poly1305), and
 * prints bytes per second.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/evp.h>

#define PROGRAM "pier-seal"
#include "bench.h"

int main(int argc, char **argv)
{
	static const uint8_t key[32] = { 1 };
	EVP_CIPHER_CTX *state = EVP_CIPHER_CTX_new();
	uint8_t nonce[12] = { 0 }, tag[16], *record;
	EVP_CIPHER *cipher;
	uint64_t count;
	int size, used;
	double start;

	if (argc != 4) {
		fprintf(stderr, "usage: pier-seal CIPHER SIZE COUNT\n");
		return 2;
	}
	cipher = EVP_CIPHER_fetch(NULL, argv[1], NULL);
	size = atoi(argv[2]);
	count = strtoull(argv[3], NULL, 0);
	record = calloc(1, (size_t)size);
	if (!record || !EVP_CipherInit_ex2(state, cipher, key, NULL, 1, NULL))
		die("libcrypto");
	start = now();
	for (uint64_t i = 0; i < count; i++) {
		memcpy(nonce, &i, sizeof(i));
		if (!EVP_CipherInit_ex2(state, NULL, NULL, nonce, 1, NULL) ||
		    !EVP_CipherUpdate(state, record, &used, record, size) ||
		    !EVP_CipherFinal_ex(state, tag, &used) ||
		    !EVP_CIPHER_CTX_ctrl(state, EVP_CTRL_AEAD_GET_TAG, sizeof(tag), tag))
			die("libcrypto");
	}
	printf("%.0f\n", (double)size * (double)count / (now() - start));
	EVP_CIPHER_CTX_free(state);
	EVP_CIPHER_free(cipher);
	free(record);
	return 0;
}
